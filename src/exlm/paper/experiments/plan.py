"""From the variants of an experiment to its jobs, and what can be said against them before the first one starts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from exlm.data.corpus import Corpus
from exlm.errors import InputError
from exlm.filling.explore import explore
from exlm.paper.cost import Shape, step_flops
from exlm.paper.experiments import efficiency
from exlm.paper.experiments.jobs import Job
from exlm.paper.experiments.measure import MEASUREMENTS, VERSION, measure_run
from exlm.paper.experiments.variants import Base, Variant
from exlm.pretrain import pretrain
from exlm.pretrained import load_tokenizer
from exlm.recipe import PriorConfig
from exlm.storage import machine, plain, sha256, write_json
from exlm.tasks.config import FinetuneConfig, TaskConfig, resolve
from exlm.tasks.finetune import finetune

COST = "efficiency.json"


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
    """All settings of an analysis, as `exlm analyze` explains them."""

    output: Path
    base: Base
    prior: PriorConfig
    tasks: dict[str, DownstreamConfig]
    seeds: list[int]
    pretrain_seeds: list[int]
    cost_steps: int
    case: str | None


def check(study: Study, variants: Sequence[Variant], tuned: bool) -> None:
    """Raises InputError for what would otherwise stop a job after hours."""
    for name, seeds in (("seeds", study.seeds), ("pretrain_seeds", study.pretrain_seeds)):
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"{name} is {seeds}; give at least one, each once")
    if study.cost_steps < 1:
        raise InputError(f"cost_steps is {study.cost_steps}; it must be at least 1")
    for chosen in study.tasks.values() if tuned else ():
        _files(chosen.task)
    for variant in variants:
        _check_length(variant)


def _check_length(variant: Variant) -> None:
    """Builds the configuration, and compares the longest expanded sequence with the positions of the transition."""
    corpus, model = Corpus(variant.data.corpus), variant.model
    model.build(load_tokenizer(variant.data.corpus), variant.data.repeat)
    longest = int(corpus.lengths.max(initial=0)) * variant.data.repeat
    boundary = 2 * (model.num_states if model.boundary_states == "k" else 1)
    expanded = longest + boundary + math.ceil(variant.data.mask_ratio * longest) * (model.num_states - 1)
    if model.objective == "exlm" and model.transition == "gated" and expanded > model.max_position_embeddings:
        raise InputError(
            f"{variant.name} expands the longest sequence to some {expanded} positions but "
            f"model.max_position_embeddings is {model.max_position_embeddings}; raise it or leave out this variant"
        )


def _files(task: TaskConfig) -> list[Path]:
    """The files of a task that are named or known. Raises InputError for one that is not there."""
    found = resolve(task)[0]
    names = [name for name in (found.dataset, found.valid, found.test) if name and Path(name).suffix]
    for name in names:
        if not Path(name).is_file():
            raise InputError(f"the task file {name} does not exist; correct tasks in the recipe")
    return [Path(name) for name in names]


def cost_job(study: Study) -> Job:
    """Measures what an update of ExLM costs beside one of the MLM."""
    base, place = study.base, study.output / COST
    data, model = replace(base.data, repeat=1), replace(base.model, objective="exlm")
    settings = {"data": data, "model": model, "precision": base.train.precision, "steps": study.cost_steps}
    settings["prior"] = study.prior

    def run() -> None:
        strength = study.prior.at(0, base.train.steps)
        result = efficiency.compare(data, model, base.train.precision, 0, study.cost_steps, strength)
        write_json(place, result | {"recipe": plain(settings)})
        print(efficiency.described(result))

    return Job("measuring the cost", "cost", study.cost_steps, settings | {"machine": machine()}, place, place, run)


def jobs_of(study: Study, variants: Sequence[Variant], tuned: bool) -> list[Job]:
    """Pre-training, measuring, drawing and fine-tuning of every variant, one seed of pre-training after the other."""
    jobs = []
    for seed in study.pretrain_seeds:
        for variant in variants:
            place = study.output / "pretrain" / variant.name / f"seed-{seed}"
            first = _pretraining(study, variant, seed, place)
            jobs += [first, _measuring(first, variant, seed, place)]
            if study.case and variant.model.objective == "exlm":
                jobs.append(_drawing(first, study.case, place))
            if tuned:
                jobs += [_tuning(first, study, variant, seed, place, name) for name in study.tasks]
    return jobs


def _pretraining(study: Study, variant: Variant, seed: int, place: Path) -> Job:
    settings: dict[str, Any] = {"data": variant.data, "model": variant.model, "train": variant.train, "seed": seed}
    if variant.model.objective == "exlm":
        settings["prior"] = study.prior
    return Job(
        "pre-training",
        f"pretrain/{variant.name}/seed-{seed}",
        variant.train.steps * _step_work(variant),
        settings | {"corpus": Corpus(variant.data.corpus).corpus_hash},
        place / "result.json",
        place,
        partial(pretrain, str(place), **settings),
    )


def _measuring(first: Job, variant: Variant, seed: int, place: Path) -> Job:
    target = place / MEASUREMENTS
    return Job(
        "measuring",
        f"measure/{variant.name}/seed-{seed}",
        _step_work(variant),
        {"model": first.settings, "version": VERSION},
        target,
        target,
        partial(measure_run, place, variant.data, seed),
        first.name,
    )


def _drawing(first: Job, text: str, place: Path) -> Job:
    target = place / "case.svg"
    name = first.name.replace("pretrain", "case", 1)
    run = partial(explore, str(place), text, str(target))
    return Job("drawing the case", name, 1, {"text": text, "model": first.settings}, target, target, run, first.name)


def _tuning(first: Job, study: Study, variant: Variant, seed: int, place: Path, name: str) -> Job:
    chosen = study.tasks[name]
    target = study.output / "finetune" / variant.name / f"seed-{seed}" / name
    settings: dict[str, Any] = {"task": chosen.task, "train": chosen.train, "seeds": study.seeds}
    data = {str(path): sha256(path) for path in _files(chosen.task)}
    return Job(
        f"fine-tuning on {name}",
        f"finetune/{variant.name}/seed-{seed}/{name}",
        variant.data.repeat * len(study.seeds),
        settings | {"model": first.settings, "files": data},
        target / "results.json",
        target,
        partial(finetune, str(target), str(place), **settings),
        first.name,
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
        expanded_layers=None if model.expanded_layers == "all" else model.expanded_layers,
    )
    return step_flops(shape, "mlm" if model.objective == "mlm" else "exlm") / 1e9
