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
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from exlm.data.corpus import Corpus
from exlm.errors import InputError, TrainingStopped
from exlm.filling.explore import explore
from exlm.model.heads import Prior
from exlm.paper import efficiency
from exlm.paper.jobs import Job, run_jobs
from exlm.paper.measurements import MEASUREMENTS, VERSION, measure_run
from exlm.paper.variants import VARIANTS, Base, Space, Variant, ablations
from exlm.pretrain import pretrain
from exlm.pretrained import load_tokenizer
from exlm.recipe import ArchitectureConfig, DataConfig, PriorConfig
from exlm.storage import machine, plain, sha256, write_json, write_yaml
from exlm.tasks.config import FinetuneConfig, TaskConfig, resolve
from exlm.tasks.finetune import finetune
from exlm.train import distributed
from exlm.train.loop import LoopConfig

Experiment = Literal["repeated-mlm", "ablations", "sweep", "entropy", "efficiency"]
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
class Study(Base):
    """All settings of an analysis, as `exlm analyze` explains them."""

    prior: PriorConfig
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
    fine_tuned = experiment in ("repeated-mlm", "ablations", "sweep")
    variants, output_dir = VARIANTS[experiment](study), Path(output)
    check(study, variants, fine_tuned)
    if fine_tuned and not tasks:
        print("no tasks are given: models are pre-trained and measured, but not fine-tuned")
    write_yaml(output_dir / "recipe.yaml", {"output": output} | plain(study))
    run = partial(run_jobs, records=output_dir / "jobs", own_processes=own_processes)
    stopped: list[str] = []
    if experiment in ("efficiency", "ablations"):
        stopped += run([cost_job(study, output_dir / COST)])
    if experiment == "ablations" and (output_dir / COST).exists():
        variants = ablations(study, json.loads((output_dir / COST).read_text())["ratio"])
    stopped += run(training_jobs(study, variants, output_dir, fine_tuned))
    if stopped:
        raise TrainingStopped("; ".join(stopped))
    print(f"all of {experiment} is in {output}; exlm report {output} --out DIR makes tables and figures of it")


def check(study: Study, variants: list[Variant], fine_tuned: bool) -> None:
    """Raises InputError for what would otherwise stop a job after hours."""
    for name, seeds in (("seeds", study.seeds), ("pretrain_seeds", study.pretrain_seeds)):
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"{name} is {seeds}; give at least one, each once")
    if study.cost_steps < 1:
        raise InputError(f"cost_steps is {study.cost_steps}; it must be at least 1")
    for chosen in study.tasks.values() if fine_tuned else ():
        task_files(chosen.task)
    for variant in variants:
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


def task_files(task: TaskConfig) -> list[Path]:
    """The files of a task that are named or known. Raises InputError for one that is not there."""
    found = resolve(task)[0]
    names = [name for name in (found.dataset, found.valid, found.test) if name and Path(name).suffix]
    for name in names:
        if not Path(name).is_file():
            raise InputError(f"the task file {name} does not exist; correct tasks in the recipe")
    return [Path(name) for name in names]


def cost_job(study: Study, output: Path) -> Job:
    """Measures what an update of ExLM costs beside one of the MLM."""
    data, model = replace(study.data, repeat=1), replace(study.model, objective="exlm")
    settings = {"data": data, "model": model, "precision": study.train.precision, "steps": study.cost_steps}
    settings["prior"] = study.prior
    run = partial(measure_cost, output, settings, study.prior.at(0, study.train.steps))
    return Job("measuring the cost", "cost", study.cost_steps, settings | {"machine": machine()}, output, run)


def measure_cost(output: Path, settings: dict[str, Any], prior: Prior) -> None:
    """Writes and prints the comparison of `exlm.paper.efficiency`; `prior` is that of the first update."""
    names = ("data", "model", "precision", "steps")
    data, model, precision, steps = (settings[name] for name in names)
    result = efficiency.compare(data, model, precision, 0, steps, prior)
    write_json(output, result | {"recipe": settings})
    print(efficiency.described(result))


def training_jobs(study: Study, variants: list[Variant], output: Path, fine_tuned: bool) -> list[Job]:
    """Pre-training, measuring, drawing and fine-tuning of every variant, one seed of pre-training after the other."""
    jobs = []
    tasks = study.tasks if fine_tuned else {}
    files = {name: {str(path): sha256(path) for path in task_files(chosen.task)} for name, chosen in tasks.items()}
    for seed, variant in itertools.product(study.pretrain_seeds, variants):
        model = f"{variant.name}/seed-{seed}"
        run_dir, first = output / "pretrain" / model, f"pretrain/{model}"
        recipe: dict[str, Any] = {"data": variant.data, "model": variant.model, "train": variant.train, "seed": seed}
        if variant.model.objective == "exlm":
            recipe["prior"] = study.prior
        made = recipe | {"corpus": Corpus(variant.data.corpus).corpus_hash}
        work, result = operations(variant), run_dir / "result.json"
        run = partial(pretrain, str(run_dir), **recipe)
        jobs.append(Job("pre-training", first, variant.train.steps * work, made, result, run, resumes=True))

        settings: dict[str, Any] = {"model": made, "version": VERSION}
        measure = partial(measure_run, run_dir, variant.data, seed)
        jobs.append(Job("measuring", f"measure/{model}", work, settings, run_dir / MEASUREMENTS, measure, first))

        if study.case and variant.model.objective == "exlm":
            settings, figure = {"text": study.case, "model": made}, run_dir / "case.svg"
            draw = partial(explore, str(run_dir), study.case, str(figure))
            jobs.append(Job("drawing the case", f"case/{model}", 1, settings, figure, draw, first))

        for name, chosen in tasks.items():
            task_dir = output / "finetune" / model / name
            tuning: dict[str, Any] = {"task": chosen.task, "train": chosen.train, "seeds": study.seeds}
            settings, results = tuning | {"model": made, "files": files[name]}, task_dir / "results.json"
            tune = partial(finetune, str(task_dir), str(run_dir), **tuning)
            kind, work = f"fine-tuning on {name}", variant.data.repeat * len(study.seeds)
            jobs.append(Job(kind, f"finetune/{model}/{name}", work, settings, results, tune, first, resumes=True))
    return jobs


def operations(variant: Variant) -> float:
    """Billions of operations of an update, roughly: enough for how long one will take beside another.

    Six for every weight of a layer at each of its positions, with attention, and for every weight of the heads at each
    state: two in the forward pass and four in the backward pass.
    """
    data, model = variant.data, variant.model
    width, layers, is_mlm = model.hidden_size, model.num_hidden_layers, model.objective == "mlm"
    length = (float(Corpus(data.corpus).lengths.mean()) + 2) * data.repeat
    states = data.mask_ratio * (1 if is_mlm else model.num_states)  # of each token
    expanded = 1 - data.mask_ratio + states  # positions of each token in the last layers
    late = layers if model.expanded_layers == "all" else min(model.expanded_layers, layers)

    def layer(positions: float) -> float:
        return positions * width * (4 * width + 2 * model.intermediate_size + 2 * positions * length)

    heads = states * width * (len(load_tokenizer(data.corpus)) + (1 if is_mlm else 5) * width)
    one_token = (layers - late) * layer(1) + late * layer(expanded) + heads
    return 6e-9 * data.tokens_per_batch * data.repeat * one_token
