"""The paper's experiments: `exlm analyze EXPERIMENT RECIPE` pre-trains, fine-tunes and measures whatever is missing.

One recipe serves all experiments, and they share their runs: `pretrain/VARIANT/seed-N` with its measurements.json and
case.svg, and `finetune/VARIANT/seed-N/TASK`. The recipe itself is kept too, so that the report can name the command for
what is missing, and `jobs` has a record of everything that is done.
"""

import itertools
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from exlm.data.corpus import Corpus
from exlm.errors import InputError, TrainingStopped
from exlm.filling.explore import explore
from exlm.paper.efficiency import measure_cost
from exlm.paper.jobs import Job, run_jobs
from exlm.paper.measurements import MEASUREMENTS, VERSION, measure_run
from exlm.paper.variants import Experiment, Space, Variant, variants
from exlm.pretrain import pretrain
from exlm.recipe import ArchitectureConfig, DataConfig, PriorConfig
from exlm.storage import machine, sha256, write_yaml
from exlm.tasks.config import FinetuneConfig, TaskConfig, resolve
from exlm.tasks.finetune import finetune
from exlm.train import distributed
from exlm.train.loop import LoopConfig


@dataclass(frozen=True)
class DownstreamConfig:
    """A task, and hyper-parameters of its own.

    Attributes:
        task: the labelled data.
        train: hyper-parameters.
    """

    task: TaskConfig
    train: FinetuneConfig = FinetuneConfig()


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
    own_processes: bool = True,
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
        own_processes: every training and measurement runs in a process of its own. In one process for all, memory grows
            from model to model and updates become slower; only very short trainings are done sooner.
    """
    if experiment not in get_args(Experiment):
        raise InputError(f"there is no experiment {experiment!r}; use one of {', '.join(get_args(Experiment))}")
    if distributed.launched():
        raise InputError("an analysis is one process; start it without torchrun")
    seeds, pretrain_seeds = [1, 2, 3] if seeds is None else seeds, [0] if pretrain_seeds is None else pretrain_seeds
    for name, given in (("seeds", seeds), ("pretrain_seeds", pretrain_seeds)):
        if not given or len(set(given)) < len(given):
            raise InputError(f"{name} is {given}; give at least one, each once")
    if cost_steps < 1:
        raise InputError(f"cost_steps is {cost_steps}; it must be at least 1")
    fine_tuned = experiment not in ("entropy", "efficiency")
    tunings = {
        name: ({"task": chosen.task, "train": chosen.train, "seeds": seeds}, task_files(chosen.task))
        for name, chosen in (tasks or {}).items()
        if fine_tuned
    }
    models = variants(experiment, data, model, train, space)
    for variant in models:
        variant.check()
    if fine_tuned and not tunings:
        print("no tasks are given: models are pre-trained and measured, but not fine-tuned")
    recipe = {"output": output, "data": data, "model": model, "train": train, "space": space, "prior": prior}
    recipe |= {"tasks": tasks or {}, "seeds": seeds, "pretrain_seeds": pretrain_seeds}
    output_dir = Path(output)
    write_yaml(output_dir / "recipe.yaml", recipe | {"cost_steps": cost_steps, "case": case})

    stopped = []
    if experiment in ("efficiency", "ablations"):
        result = output_dir / "efficiency.json"
        cost: dict[str, Any] = {"data": replace(data, repeat=1), "model": replace(model, objective="exlm")}
        cost |= {"precision": train.precision, "steps": cost_steps, "prior": prior}
        measure = partial(measure_cost, result, **cost)
        job = Job("measuring the cost", "cost", cost_steps, cost | {"machine": machine()}, result, measure)
        stopped += run_jobs([job], output_dir / "jobs", own_processes)
        if result.exists():
            models = variants(experiment, data, model, train, space, json.loads(result.read_text())["ratio"])
    jobs: list[Job] = []
    for seed, variant in itertools.product(pretrain_seeds, models):
        jobs += model_jobs(output_dir, variant, seed, prior, case, tunings)
    stopped += run_jobs(jobs, output_dir / "jobs", own_processes)
    if stopped:
        raise TrainingStopped("; ".join(stopped))
    print(f"all of {experiment} is in {output}; exlm report {output} --out DIR makes tables and figures of it")


def task_files(task: TaskConfig) -> dict[str, str]:
    """SHA-256 of the files of a task that are named or known. Raises InputError for one that is not there."""
    found = resolve(task)[0]
    files = [Path(name) for name in (found.dataset, found.valid, found.test) if name and Path(name).suffix]
    for file in files:
        if not file.is_file():
            raise InputError(f"the task file {file} does not exist; correct tasks in the recipe")
    return {str(file): sha256(file) for file in files}


def model_jobs(
    output: Path,
    variant: Variant,
    seed: int,
    prior: PriorConfig,
    case: str | None,
    tunings: dict[str, tuple[dict[str, Any], dict[str, str]]],
) -> list[Job]:
    """Pre-training a model with one seed, and then measuring, drawing and fine-tuning it.

    `tunings` has by task the arguments of `finetune` and the SHA-256 of its files; for the others see `analyze`.
    """
    model, work, is_exlm = f"{variant.name}/seed-{seed}", variant.operations(), variant.model.objective == "exlm"
    run_dir = output / "pretrain" / model
    recipe: dict[str, Any] = {"data": variant.data, "model": variant.model, "train": variant.train, "seed": seed}
    recipe |= {"prior": prior} if is_exlm else {}
    settings, result = recipe | {"corpus": Corpus(variant.data.corpus).corpus_hash}, run_dir / "result.json"
    run, steps = partial(pretrain, str(run_dir), **recipe), variant.train.steps
    first = Job("pre-training", f"pretrain/{model}", steps * work, settings, result, run, resumes=True)

    settings, result = {"version": VERSION}, run_dir / MEASUREMENTS
    measure = partial(measure_run, run_dir, variant.data, seed)
    jobs = [first, Job("measuring", f"measure/{model}", work, settings, result, measure, first)]
    if case and is_exlm:
        result = run_dir / "case.svg"
        draw = partial(explore, str(run_dir), case, str(result))
        jobs.append(Job("drawing the case", f"case/{model}", 1, {"text": case}, result, draw, first))
    for name, (tuning, files) in tunings.items():
        task_dir, work = output / "finetune" / model / name, variant.data.repeat * len(tuning["seeds"])
        kind, job, result = f"fine-tuning on {name}", f"finetune/{model}/{name}", task_dir / "results.json"
        tune = partial(finetune, str(task_dir), str(run_dir), **tuning)
        jobs.append(Job(kind, job, work, tuning | {"files": files}, result, tune, first, resumes=True))
    return jobs
