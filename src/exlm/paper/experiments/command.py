"""The paper's experiments: `exlm analyze EXPERIMENT RECIPE` pre-trains, fine-tunes and measures whatever is missing.

One recipe serves all experiments, and they share their runs in `output`:

    recipe.yaml                 all settings, so that the report can name the command for what is missing
    pretrain/VARIANT/seed-N     a pre-training, with its measurements.json (entropy, corrupted semantics) and case.svg
    finetune/VARIANT/seed-N/TASK
    efficiency.json             time and memory of a step of ExLM and of the MLM
    jobs/                       what is done
"""

import json
from pathlib import Path
from typing import Literal, get_args

from exlm.errors import InputError, TrainingStopped
from exlm.paper.experiments.jobs import Ledger, run_jobs
from exlm.paper.experiments.plan import COST, DownstreamConfig, Study, check, cost_job, jobs_of
from exlm.paper.experiments.variants import VARIANTS, Base, Space, Variant, ablations
from exlm.recipe import ArchitectureConfig, DataConfig, PriorConfig
from exlm.storage import plain, write_yaml
from exlm.train import distributed
from exlm.train.loop import LoopConfig

Experiment = Literal["repeated-mlm", "ablations", "sweep", "entropy", "efficiency"]
PAPERS_SEEDS = [1, 2, 3]


def analyze(
    experiment: Experiment,
    output: str,
    data: DataConfig,
    model: ArchitectureConfig = ArchitectureConfig(),
    train: LoopConfig = LoopConfig(),
    prior: PriorConfig = PriorConfig(),
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
        prior: of the links between states of every ExLM, and its schedule. An MLM has none.
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
    study = Study(
        Path(output),
        Base(data, model, train, space),
        prior,
        tasks or {},
        PAPERS_SEEDS if seeds is None else seeds,
        [0] if pretrain_seeds is None else pretrain_seeds,
        cost_steps,
        case,
    )
    tuned = experiment in ("repeated-mlm", "ablations", "sweep")
    check(study, _variants(study, experiment), tuned)
    if tuned and not study.tasks:
        print("no tasks are given: models are pre-trained and measured, but not fine-tuned")
    write_yaml(study.output / "recipe.yaml", {"output": output} | _recipe(study))
    ledger = Ledger(study.output / "jobs")
    stopped = []
    if experiment in ("efficiency", "ablations"):
        stopped += run_jobs([cost_job(study)], ledger)
    stopped += run_jobs(jobs_of(study, _variants(study, experiment), tuned), ledger)
    if stopped:
        raise TrainingStopped("; ".join(stopped))
    print(f"all of {experiment} is in {output}; exlm report {output} --out DIR makes tables and figures of it")


def _variants(study: Study, experiment: Experiment) -> list[Variant]:
    """The models of an experiment; MLM++ has the MLM's length as long as the cost is not measured."""
    if experiment == "efficiency":
        return []
    if experiment == "ablations":
        measured = study.output / COST
        return ablations(study.base, json.loads(measured.read_text())["ratio"] if measured.exists() else 1.0)
    return VARIANTS[experiment](study.base)


def _recipe(study: Study) -> dict[str, object]:
    """All settings, as `exlm analyze` takes them."""
    base = study.base
    settings = {"data": base.data, "model": base.model, "train": base.train, "space": base.space}
    settings |= {"prior": study.prior, "tasks": study.tasks, "seeds": study.seeds}
    settings |= {"pretrain_seeds": study.pretrain_seeds, "cost_steps": study.cost_steps, "case": study.case}
    recipe: dict[str, object] = plain(settings)
    return recipe
