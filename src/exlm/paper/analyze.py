"""The paper's experiments: `exlm analyze EXPERIMENT RECIPE` pre-trains, fine-tunes and measures whatever is missing.

One recipe serves all experiments, and they share their runs in `output`:

    recipe.yaml                 all settings, so that the report can name the command for what is missing
    pretrain/VARIANT/seed-N     a pre-training, with its measurements.json (entropy, corrupted semantics) and case.svg
    finetune/VARIANT/seed-N/TASK
    efficiency.json             time and memory of a step of ExLM and of the MLM
    jobs/                       what is done
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
from exlm.storage import machine, plain, sha256, write_yaml
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


@dataclass(frozen=True)
class Study:
    """The recipe: all settings of an analysis, as `exlm analyze` explains them."""

    data: DataConfig
    model: ArchitectureConfig
    train: LoopConfig
    space: Space
    prior: PriorConfig
    tasks: dict[str, DownstreamConfig]
    seeds: list[int]
    pretrain_seeds: list[int]
    cost_steps: int
    case: str | None

    def __post_init__(self) -> None:
        for name, seeds in (("seeds", self.seeds), ("pretrain_seeds", self.pretrain_seeds)):
            if not seeds or len(set(seeds)) < len(seeds):
                raise InputError(f"{name} is {seeds}; give at least one, each once")
        if self.cost_steps < 1:
            raise InputError(f"cost_steps is {self.cost_steps}; it must be at least 1")


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
    study = Study(data, model, train, space, prior, tasks or {}, seeds, pretrain_seeds, cost_steps, case)
    models, output_dir = variants(experiment, data, model, train, space), Path(output)
    tuned_on = {} if experiment in ("entropy", "efficiency") else study.tasks
    for variant in models:  # whatever would otherwise stop a job after hours
        variant.check()
    files = {name: task_files(chosen.task) for name, chosen in tuned_on.items()}
    if models and not tuned_on and experiment != "entropy":
        print("no tasks are given: models are pre-trained and measured, but not fine-tuned")
    write_yaml(output_dir / "recipe.yaml", {"output": output} | plain(study))
    stopped: list[str] = []
    if experiment in ("efficiency", "ablations"):
        cost = output_dir / "efficiency.json"
        stopped += run_jobs([cost_job(study, cost)], output_dir / "jobs", own_processes)
        if cost.exists():
            ratio = json.loads(cost.read_text())["ratio"]
            models = variants(experiment, data, model, train, space, ratio)
    jobs = [
        job
        for seed, variant in itertools.product(pretrain_seeds, models)
        for job in model_jobs(study, variant, seed, output_dir, files)
    ]
    stopped += run_jobs(jobs, output_dir / "jobs", own_processes)
    if stopped:
        raise TrainingStopped("; ".join(stopped))
    print(f"all of {experiment} is in {output}; exlm report {output} --out DIR makes tables and figures of it")


def task_files(task: TaskConfig) -> dict[str, str]:
    """SHA-256 of the files of a task that are named or known. Raises InputError for one that is not there."""
    found = resolve(task)[0]
    names = [name for name in (found.dataset, found.valid, found.test) if name and Path(name).suffix]
    for name in names:
        if not Path(name).is_file():
            raise InputError(f"the task file {name} does not exist; correct tasks in the recipe")
    return {str(Path(name)): sha256(Path(name)) for name in names}


def cost_job(study: Study, output: Path) -> Job:
    """Measures what an update of ExLM costs beside one of the MLM."""
    data, model = replace(study.data, repeat=1), replace(study.model, objective="exlm")
    settings = {"data": data, "model": model, "precision": study.train.precision, "steps": study.cost_steps}
    settings["prior"] = study.prior
    run = partial(measure_cost, output, **settings)
    return Job("measuring the cost", "cost", study.cost_steps, settings | {"machine": machine()}, output, run)


def model_jobs(study: Study, variant: Variant, seed: int, output: Path, files: dict[str, dict[str, str]]) -> list[Job]:
    """Pre-training, measuring, drawing and fine-tuning of a model.

    Args:
        study: the recipe.
        variant: the model.
        seed: of pre-training.
        output: directory for all runs.
        files: SHA-256 of the files of every task to fine-tune on.
    """
    model, work, is_exlm = f"{variant.name}/seed-{seed}", variant.operations(), variant.model.objective == "exlm"
    run_dir, first = output / "pretrain" / model, f"pretrain/{model}"
    recipe: dict[str, Any] = {"data": variant.data, "model": variant.model, "train": variant.train, "seed": seed}
    recipe |= {"prior": study.prior} if is_exlm else {}
    made = recipe | {"corpus": Corpus(variant.data.corpus).corpus_hash}
    steps, result, run = variant.train.steps, run_dir / "result.json", partial(pretrain, str(run_dir), **recipe)
    jobs = [Job("pre-training", first, steps * work, made, result, run, resumes=True)]

    settings: dict[str, Any] = {"model": made, "version": VERSION}
    measure = partial(measure_run, run_dir, variant.data, seed)
    jobs.append(Job("measuring", f"measure/{model}", work, settings, run_dir / MEASUREMENTS, measure, first))

    if study.case and is_exlm:
        settings, figure = {"text": study.case, "model": made}, run_dir / "case.svg"
        draw = partial(explore, str(run_dir), study.case, str(figure))
        jobs.append(Job("drawing the case", f"case/{model}", 1, settings, figure, draw, first))

    for name, hashes in files.items():
        chosen, task_dir = study.tasks[name], output / "finetune" / model / name
        tuning: dict[str, Any] = {"task": chosen.task, "train": chosen.train, "seeds": study.seeds}
        settings, results = tuning | {"model": made, "files": hashes}, task_dir / "results.json"
        tune = partial(finetune, str(task_dir), str(run_dir), **tuning)
        kind, work = f"fine-tuning on {name}", variant.data.repeat * len(study.seeds)
        jobs.append(Job(kind, f"finetune/{model}/{name}", work, settings, results, tune, first, resumes=True))
    return jobs
