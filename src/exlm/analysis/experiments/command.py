"""The paper's experiments: `exlm analyze EXPERIMENT RECIPE` pre-trains, fine-tunes and measures whatever is missing.

One recipe serves all experiments, and they share their runs in `output`:

    pretrain/VARIANT/seed-N     a pre-training, with its measurements.json (entropy, corrupted semantics) and case.svg
    finetune/VARIANT/seed-N/TASK
    efficiency.json             time and memory of a step of ExLM and of the MLM
    jobs/                       what is done
"""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from exlm.analysis.cost import Shape, step_flops
from exlm.analysis.experiments import efficiency
from exlm.analysis.experiments.entropy import MEASUREMENTS, measure_run
from exlm.analysis.experiments.jobs import Job, Ledger, run_jobs
from exlm.analysis.experiments.variants import VARIANTS, Base, Space, Variant, ablations
from exlm.analysis.explore.command import explore
from exlm.data.corpus import Corpus
from exlm.data.tokenization import load_tokenizer
from exlm.directory import plain, write_json
from exlm.errors import InputError
from exlm.files import lock
from exlm.pretrain import ArchitectureConfig, DataConfig, pretrain
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm.train import distributed
from exlm.train.loop import LoopConfig, TrainingStopped

Experiment = Literal["repeated-mlm", "ablations", "sweep", "entropy", "efficiency"]


@dataclass(frozen=True)
class DownstreamConfig:
    """A task, and hyper-parameters of its own.

    Attributes:
        task: the labelled data.
        train: hyper-parameters.
    """

    task: TaskConfig
    train: FinetuneConfig = FinetuneConfig()


@dataclass(frozen=True)
class Study:
    """All settings of an analysis; see `analyze`."""

    output: Path
    base: Base
    transition_warmup: int
    tasks: dict[str, DownstreamConfig]
    seeds: list[int]
    pretrain_seeds: list[int]
    cost_steps: int
    case: str | None


def analyze(
    experiment: Experiment,
    output: str,
    data: DataConfig,
    model: ArchitectureConfig = ArchitectureConfig(),
    train: LoopConfig = LoopConfig(),
    transition_warmup: int = 0,
    space: Space = Space(),
    tasks: dict[str, DownstreamConfig] | None = None,
    seeds: list[int] | None = None,
    pretrain_seeds: list[int] | None = None,
    cost_steps: int = 20,
    case: str | None = None,
) -> None:
    """Runs what an experiment of the paper still lacks; run again to go on after an interruption.

    Args:
        experiment: `repeated-mlm` (grid of mask ratios and repetitions), `ablations` (ExLM's parts, MLM, and MLM++ with
            the updates that cost what ExLM's cost, as measured here), `sweep` (states and mask ratios), `entropy` (the
            models of grid and sweep, without fine-tuning), or `efficiency` (cost of a step).
        output: directory for all runs; experiments with the same recipe share it.
        data: corpus and batches. `mask_ratio` is that of the ablations; `repeat` is set by the experiment.
        model: the architecture, and k of the ablations; `objective` is set by the experiment.
        train: length and optimizer of every pre-training; MLM++ alone is longer.
        transition_warmup: updates at the start of every ExLM in which all links are equally probable. An MLM has none.
        space: what is varied.
        tasks: by name, what every model but those of `entropy` is fine-tuned on, with the repetition it was pre-trained
            with.
        seeds: of fine-tuning; 1, 2 and 3 (paper) where absent.
        pretrain_seeds: of pre-training; 0 where absent.
        cost_steps: measured updates of each model for the ratio of costs.
        case: a text with masks; its states and transitions are drawn for every ExLM (`case.svg`, paper's case study).
    """
    if experiment not in get_args(Experiment):
        raise InputError(f"there is no experiment {experiment!r}; use one of {', '.join(get_args(Experiment))}")
    if distributed.launched():
        raise InputError("an analysis is one process; start it without torchrun")
    lists = {"seeds": [1, 2, 3] if seeds is None else seeds, "pretrain_seeds": pretrain_seeds or [0]}
    base = Base(data, model, train, space)
    study = Study(Path(output), base, transition_warmup, tasks or {}, cost_steps=cost_steps, case=case, **lists)
    if experiment != "entropy" and experiment != "efficiency" and not study.tasks:
        print("no tasks are given: models are pre-trained and measured, but not fine-tuned")
    ledger = Ledger(study.output / "jobs")
    stopped = []
    if experiment in ("efficiency", "ablations"):
        stopped += run_jobs([_cost_job(study)], ledger)
    if experiment != "efficiency":
        stopped += run_jobs(list(_jobs(study, _variants(study, experiment), experiment != "entropy")), ledger)
    if stopped:
        raise TrainingStopped("; ".join(stopped))
    print(f"all of {experiment} is in {output}; exlm report {output} --out DIR makes tables and figures of it")


def _variants(study: Study, experiment: Experiment) -> list[Variant]:
    if experiment == "ablations":
        return ablations(study.base, json.loads((study.output / "efficiency.json").read_text())["ratio"])
    return VARIANTS[experiment](study.base)


def _jobs(study: Study, variants: list[Variant], tuned: bool) -> list[Job]:
    """Pre-training, measuring and fine-tuning of every variant, one seed of pre-training after the other."""
    jobs = []
    for seed in study.pretrain_seeds:
        for variant in variants:
            place = study.output / "pretrain" / variant.name / f"seed-{seed}"
            jobs += [_pretraining(study, variant, seed, place), _measuring(variant, seed, place)]
            if study.case and variant.model.objective == "exlm":
                jobs.append(_case(study.case, variant, seed, place))
            if tuned:
                jobs += [_tuning(study, variant, seed, place, name) for name in study.tasks]
    return jobs


def _pretraining(study: Study, variant: Variant, seed: int, place: Path) -> Job:
    settings: dict[str, Any] = {"data": variant.data, "model": variant.model, "train": variant.train, "seed": seed}
    settings |= {"transition_warmup": study.transition_warmup}
    return Job(
        "pre-training",
        f"pretrain/{variant.name}/seed-{seed}",
        variant.train.steps * _step_work(variant),
        settings,
        place / "result.json",
        partial(pretrain, str(place), **settings),
    )


def _measuring(variant: Variant, seed: int, place: Path) -> Job:
    return Job(
        "measuring",
        f"measure/{variant.name}/seed-{seed}",
        _step_work(variant),
        {"data": variant.data, "model": variant.model, "train": variant.train, "seed": seed},
        place / MEASUREMENTS,
        partial(measure_run, place, variant.data, variant.train.precision, seed),
    )


def _case(text: str, variant: Variant, seed: int, place: Path) -> Job:
    target = place / "case.svg"
    settings = {"text": text, "data": variant.data, "model": variant.model, "train": variant.train, "seed": seed}
    run = partial(explore, str(place), text, str(target))
    return Job("drawing the case", f"case/{variant.name}/seed-{seed}", 1, settings, target, run)


def _tuning(study: Study, variant: Variant, seed: int, place: Path, name: str) -> Job:
    chosen = study.tasks[name]
    target = study.output / "finetune" / variant.name / f"seed-{seed}" / name
    settings: dict[str, Any] = {"task": chosen.task, "train": chosen.train, "seeds": study.seeds}
    return Job(
        f"fine-tuning on {name}",
        f"finetune/{variant.name}/seed-{seed}/{name}",
        variant.data.repeat * len(study.seeds),
        settings | {"model": str(place), "variant": variant},
        target / "results.json",
        partial(finetune, str(target), str(place), **settings),
    )


def _step_work(variant: Variant) -> float:
    """Operations of an update by the cost model: enough for how long one will take beside another."""
    corpus, model = Corpus(variant.data.corpus), variant.model
    length = round(float(corpus.lengths.mean()) + 2)
    shape = Shape(
        batch=max(1, variant.data.tokens_per_batch // length),
        length=length * variant.data.repeat,
        mask_ratio=variant.data.mask_ratio,
        num_states=model.num_states,
        hidden=model.hidden_size,
        layers=model.num_hidden_layers,
        heads=model.num_attention_heads,
        intermediate=model.intermediate_size,
        vocabulary=len(load_tokenizer(variant.data.corpus)),
    )
    return step_flops(shape, "mlm" if model.objective == "mlm" else "exlm") / 1e9


def _cost_job(study: Study) -> Job:
    base, place = study.base, study.output / "efficiency.json"
    settings = {"data": base.data, "model": base.model, "precision": base.train.precision, "steps": study.cost_steps}

    def run() -> dict[str, Any]:
        model = replace(base.model, objective="exlm")
        with lock(study.output / "efficiency.lock"):
            result = efficiency.compare(base.data, model, base.train.precision, 0, study.cost_steps)
        write_json(place, result | {"recipe": plain(settings)})
        print(_described(result))
        return result

    return Job("measuring the cost", "cost", study.cost_steps, settings, place, run)


def _described(result: dict[str, Any]) -> str:
    """The measured cost, for people."""
    lines = [
        f"  {name:5s} {1e3 * row['seconds_per_step']:9.1f} ms per update ({result['clock']})"
        f" {row['tokens_per_second']:10.0f} tokens/s {row['peak_memory_bytes'] / 2**20:8.0f} MiB at most"
        for name, row in result["models"].items()
    ]
    low, high = result["ratio_quartiles"]
    lines.append(f"  ratio {result['ratio']:.2f} (quartiles {low:.2f} to {high:.2f}); paper, two A100: 1.9")
    return "\n".join(lines)
