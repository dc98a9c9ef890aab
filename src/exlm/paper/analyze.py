"""The paper's experiments: `exlm analyze EXPERIMENT RECIPE` pre-trains, fine-tunes and measures whatever is missing.

One recipe serves all experiments, and they share their runs: `pretrain/VARIANT/seed-N` with its measurements.json and
case.svg, and `finetune/VARIANT/seed-N/TASK`. The recipe itself is kept too, so that the report can name the command for
what is missing.
"""

import itertools
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from exlm.data.corpus import Corpus
from exlm.errors import InputError
from exlm.filling.explore import explore
from exlm.paper.efficiency import measure_cost
from exlm.paper.jobs import Job, run_jobs
from exlm.paper.measurements import measure_run
from exlm.paper.variants import Experiment, Space, Variant, variants
from exlm.pretrain import pretrain
from exlm.recipe import ArchitectureConfig, DataConfig, PriorConfig
from exlm.storage import machine, sha256, write_yaml
from exlm.tasks.config import FinetuneConfig, TaskConfig, resolve
from exlm.tasks.finetune import finetune
from exlm.train import distributed
from exlm.train.loop import LoopConfig

# By the name of a task: arguments of `finetune`, and the SHA-256 of the task's files.
Tunings = dict[str, tuple[dict[str, Any], dict[str, str]]]


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
    if distributed.launched():
        raise InputError("an analysis is one process; start it without torchrun")
    seeds, pretrain_seeds = [1, 2, 3] if seeds is None else seeds, [0] if pretrain_seeds is None else pretrain_seeds
    for name, given in (("seeds", seeds), ("pretrain_seeds", pretrain_seeds)):
        if not given or len(set(given)) < len(given):
            raise InputError(f"{name} is {given}; give at least one, each once")
    if cost_steps < 1:
        raise InputError(f"cost_steps is {cost_steps}; it must be at least 1")
    models = variants(experiment, data, model, train, space)
    if not models and experiment != "efficiency":
        raise InputError(
            f"{experiment!r} has no models; the experiments are {', '.join(get_args(Experiment))}, and the lists of "
            "the space need a value each"
        )
    for variant in models:
        variant.check()
    fine_tuned = {} if experiment in ("entropy", "efficiency") else tasks or {}
    tunings = {
        name: ({"task": chosen.task, "train": chosen.train, "seeds": seeds}, task_files(chosen.task))
        for name, chosen in fine_tuned.items()
    }
    directory = Path(output)
    recipe = {"output": output, "data": data, "model": model, "train": train, "space": space, "prior": prior}
    recipe |= {"tasks": tasks or {}, "seeds": seeds, "pretrain_seeds": pretrain_seeds}
    write_yaml(directory / "recipe.yaml", recipe | {"cost_steps": cost_steps, "case": case})

    if experiment in ("efficiency", "ablations"):
        result = directory / "efficiency.json"
        cost: dict[str, Any] = {"data": replace(data, repeat=1), "model": replace(model, objective="exlm")}
        cost |= {"precision": train.precision, "steps": cost_steps, "prior": prior}
        settings = cost | {"machine": machine()}
        run_jobs([Job("measuring the cost", result, partial(measure_cost, result, **cost), settings)], own_processes)
        models = variants(experiment, data, model, train, space, json.loads(result.read_text())["ratio"])
    jobs = [model_jobs(directory, one, seed, prior, case, tunings) for seed in pretrain_seeds for one in models]
    run_jobs(list(itertools.chain(*jobs)), own_processes)
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
    directory: Path, variant: Variant, seed: int, prior: PriorConfig, case: str | None, tunings: Tunings
) -> list[Job]:
    """Pre-training a model with one seed, and then measuring, drawing and fine-tuning it."""
    model, is_exlm = f"{variant.name}/seed-{seed}", variant.model.objective == "exlm"
    run_dir = directory / "pretrain" / model
    recipe: dict[str, Any] = {"data": variant.data, "model": variant.model, "train": variant.train, "seed": seed}
    recipe |= {"prior": prior} if is_exlm else {}
    trained, result = recipe | {"corpus": Corpus(variant.data.corpus).corpus_hash}, run_dir / "result.json"
    jobs = [Job("pre-training", result, partial(pretrain, str(run_dir), **recipe), trained)]
    measure = partial(measure_run, run_dir, variant.data, seed)
    jobs.append(Job("measuring", run_dir / "measurements.json", measure, trained, result))
    if case and is_exlm:
        figure = run_dir / "case.svg"
        draw = partial(explore, str(run_dir), case, str(figure))
        jobs.append(Job("drawing the case", figure, draw, trained | {"text": case}, result))
    for task, (tuning, files) in tunings.items():
        tuned_dir, settings = directory / "finetune" / model / task, {"model": trained, "files": files, **tuning}
        run = partial(finetune, str(tuned_dir), str(run_dir), **tuning)
        jobs.append(Job(f"fine-tuning on {task}", tuned_dir / "results.json", run, settings, result))
    return jobs
