"""The paper's experiments: `exlm analyze EXPERIMENT RECIPE` pre-trains, fine-tunes and measures
whatever is missing. Experiments with the same recipe share their runs. Names show the settings:
`mlm-p38.7-r2` is an MLM with 38.7% masks, every token twice, and `exlm-p15-k4-1d` is an ExLM with
15% masks, 4 states and one-dimensional positions. The recipe is saved beside the runs, so that the
report can print the command that makes the missing ones."""

import itertools
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from exlm.data.corpus import Corpus
from exlm.errors import InputError, check_at_least
from exlm.filling.explore import explore
from exlm.paper.cost import STEP_COST, measure_cost
from exlm.paper.jobs import Job, run_jobs
from exlm.paper.measurements import measure_run
from exlm.pretrain.batches import check_positions
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, EvaluateConfig, PriorSchedule
from exlm.storage.files import (
    GRID_RESULTS,
    MEASUREMENTS,
    RECIPE,
    RUN_RESULT,
    read_or_empty,
    write_yaml,
)
from exlm.storage.manifest import record_file
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm.tasks.rows.task_files import file_hashes, resolve
from exlm.train import devices
from exlm.train.loop import LoopConfig

Experiment = Literal["repeated-mlm", "ablations", "sweep", "entropy", "efficiency"]
Sections = dict[str, Any]  # arguments of `pretrain`: sections of its recipe, such as `data`


@dataclass(frozen=True)
class Space:
    """The settings that the experiments vary.

    Attributes:
        mask_ratios: mask ratios p of Repeated MLM.
        repeats: repetitions r of Repeated MLM, each with every mask ratio.
        smallest: pairs with corrupted semantics p^r below this are left out, as the paper found
            them unstable.
        cells: if given, only these pairs (mask ratio, repetitions).
        states: numbers of states k of the sweep.
        sweep_mask_ratios: mask ratios of the sweep.
        plus_plus: updates of MLM++ for each of ExLM's, as 2.0 in the paper; where absent, as many
            as cost the same."""

    mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387, 0.622, 0.789])
    repeats: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    smallest: float = 5.05e-4
    cells: list[tuple[float, int]] | None = None
    states: list[int] = field(default_factory=lambda: [2, 4, 8])
    sweep_mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387])
    plus_plus: float | None = None

    def __post_init__(self) -> None:
        check_at_least(self, plus_plus=1)

    def repeated_pairs(self) -> list[tuple[float, int]]:
        """The pairs (p, r) of the Repeated MLM experiment, the cheapest first."""
        all_pairs = itertools.product(self.mask_ratios, self.repeats)
        pairs = self.cells or [(p, r) for p, r in all_pairs if p**r >= self.smallest]
        return sorted({(float(p), int(r)) for p, r in pairs}, key=lambda pair: (pair[1], pair[0]))


@dataclass(frozen=True)
class DownstreamConfig:
    """The labelled data of one fine-tuning task, and the hyper-parameters for this task."""

    task: TaskConfig
    train: FinetuneConfig = FinetuneConfig()


def analyze(experiment: Experiment, own_processes: bool = True, **options: Any) -> None:
    """Makes the runs that an experiment of the paper still lacks; the same command goes on after an
    interruption.

    Args:
        experiment: `repeated-mlm` (mask ratios and repetitions), `ablations` (ExLM without some of
            its parts, the MLM, and MLM++: an MLM with so many updates that they cost as much as
            ExLM's), `sweep` (numbers of states and mask ratios), `entropy` (the models of
            `repeated-mlm` and `sweep`, not fine-tuned), or `efficiency` (step cost).
        own_processes: a new process for each training; without it memory grows and updates become
            slower. The memory of an update is always measured in a new process.
        options: the settings of `Study`."""
    if devices.started_by_torchrun():
        raise InputError("an analysis is one process; start it without torchrun")
    study = Study(**options)
    data = replace(study.data, mask_ratio=study.data.one_mask_ratio)
    # MLM++ has more updates, but the same warm-up
    study = replace(study, data=data, train=study.train.with_warmup_steps())
    study.check(experiment)
    write_yaml(Path(study.output) / RECIPE, study)
    cost_ratio = 1.0
    if experiment in ("efficiency", "ablations"):
        cost_job = study.make_cost_job()
        run_jobs([cost_job], own_processes)
        cost_ratio = read_or_empty(cost_job.result)["ratio"]
    run_jobs(study.make_jobs(experiment, cost_ratio), own_processes)
    print(
        f"all of {experiment} is in {study.output}; "
        f"exlm report {study.output} --output DIR makes tables and figures of it"
    )


@dataclass(frozen=True)
class Study:
    """All that decides what is run, as recipe.yaml has it.

    Attributes:
        output: directory for all runs; experiments with the same recipe share it.
        data: corpus and batches. `mask_ratio` holds for ablations and step cost; the experiment
            itself sets `repeat`.
        model: the architecture. Its k holds for ablations and step cost; the experiment itself sets
            `objective`.
        train: length and optimizer of every pre-training; only MLM++ trains longer.
        prior: what is added to links between states, and its schedule. Every ExLM
            uses it, no MLM does.
        space: the mask ratios, repetitions and numbers of states that the experiments try.
        tasks: by name, the tasks on which models are fine-tuned. Tokens are repeated as in the
            model's pre-training.
        seeds: the seeds of fine-tuning; by default 1, 2 and 3, as in the paper.
        pretrain_seeds: the seeds of pre-training; by default only 0.
        cost_steps: how many updates of each model are timed, to compare the cost of ExLM and MLM.
        case: a text with masks. For every ExLM, `case.svg` shows its states and transitions
            (paper's case study)."""

    output: str
    data: DataConfig
    model: ArchitectureConfig = field(default_factory=ArchitectureConfig)
    train: LoopConfig = LoopConfig()
    prior: PriorSchedule = PriorSchedule()
    space: Space = Space()
    tasks: dict[str, DownstreamConfig] | None = None
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    pretrain_seeds: list[int] = field(default_factory=lambda: [0])
    cost_steps: int = 20
    case: str | None = None

    def __post_init__(self) -> None:
        check_at_least(self, cost_steps=1)

    def check(self, experiment: Experiment) -> None:
        """InputError if there are no models or one of them cannot be built, OSError if a file of a
        task is missing."""
        models = self.models(experiment)
        if experiment != "efficiency" and not (models and self.seeds and self.pretrain_seeds):
            raise InputError(
                f"{experiment} has no models; use one of {', '.join(get_args(Experiment))}, "
                "and give every list of the recipe a value"
            )
        tokenizer = load_tokenizer(Corpus(self.data.corpus).path)
        for name, settings in models.items():
            try:
                check_positions(settings["data"], settings["model"], EvaluateConfig().by_masks)
                settings["model"].build(tokenizer, settings["data"].repeat)
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
        for config in self.tasks_of(experiment).values():
            file_hashes(resolve(config.task)[0])

    def models(self, experiment: Experiment, cost_ratio: float = 1.0) -> dict[str, Sections]:
        """The sections that make the models of an experiment, by the name of a model's directory;
        none for `efficiency`. MLM++ is an MLM with `cost_ratio` times as many updates (or as many
        as `space.plus_plus` says), so that its training costs as much as ExLM's."""
        models: dict[str, Sections] = {}

        def add(
            p: float,
            ending: str = "",
            repeat: int = 1,
            train: LoopConfig = self.train,
            **switches: Any,
        ) -> None:
            """Adds a model with mask ratio p: the architecture of the study with these switches."""
            architecture = replace(self.model, **switches)
            name = f"{architecture.objective}-p{100 * p:g}"
            if architecture.expands:
                name += f"-k{architecture.num_states}"
            elif repeat > 1:
                name += f"-r{repeat}"
            models[name + ending] = {
                "data": replace(self.data, mask_ratio=p, repeat=repeat),
                "model": architecture,
                "train": train,
            }

        if experiment == "ablations":  # paper, section 5.3 and appendix
            p = self.data.one_mask_ratio
            times = self.space.plus_plus or cost_ratio
            steps = max(self.train.optimizer.warmup_steps, round(self.train.steps * times), 1)
            add(p, objective="mlm")
            add(p, objective="exlm")
            add(p, objective="ctc")
            add(p, "-1d", objective="exlm", rotary="1d")
            add(p, "-sparse", objective="exlm", dag="sparse")
            add(p, "-plus-plus", train=replace(self.train, steps=steps), objective="mlm")
        if experiment in ("repeated-mlm", "entropy"):  # sections 3 and 3.3
            for p, r in self.space.repeated_pairs():
                add(p, repeat=r, objective="mlm")
        if experiment in ("sweep", "entropy"):  # section 5.3
            for p in self.space.sweep_mask_ratios:
                add(p, objective="mlm")
                for k in self.space.states:
                    add(p, objective="exlm", num_states=k)
        return models

    def tasks_of(self, experiment: Experiment) -> dict[str, DownstreamConfig]:
        """The tasks on which the models of an experiment are fine-tuned."""
        return {} if experiment in ("entropy", "efficiency") else self.tasks or {}

    def make_cost_job(self) -> Job:
        """The job that measures how many times as much an update of ExLM costs as of the MLM."""
        result = Path(self.output) / STEP_COST
        measure = partial(
            measure_cost,
            result,
            data=replace(self.data, repeat=1),
            model=replace(self.model, objective="exlm"),
            precision=self.train.precision,
            steps=self.cost_steps,
            prior=self.prior,
        )
        return Job("measuring the cost", result, measure)

    def make_jobs(self, experiment: Experiment, cost_ratio: float) -> list[Job]:
        """The jobs that pre-train every model of an experiment with every seed, and fine-tune it on
        the tasks. Only models with links between states are drawn."""
        models = self.models(experiment, cost_ratio)
        jobs = []
        for seed, (name, settings) in itertools.product(self.pretrain_seeds, models.items()):
            run_dir = Path(self.output) / "pretrain" / name / f"seed-{seed}"
            recipe = {**settings, "seed": seed}
            case = None
            if settings["model"].has_links:
                recipe["prior"] = self.prior
                case = self.case
            train = partial(pretrain_and_measure, run_dir, recipe, case)
            jobs.append(Job("pre-training", run_dir / MEASUREMENTS, train))
            for task, config in self.tasks_of(experiment).items():
                output = Path(self.output) / "finetune" / name / f"seed-{seed}" / task
                tune = partial(
                    finetune, str(output), str(run_dir), config.task, config.train, self.seeds
                )
                result = output / GRID_RESULTS
                jobs.append(Job(f"fine-tuning on {task}", result, tune, run_dir / RUN_RESULT))
        return jobs


def pretrain_and_measure(run_dir: Path, recipe: Sections, case: str | None) -> None:
    """Pre-trains a model, measures it, and draws its states for the text `case`, if any."""
    pretrain(str(run_dir), **recipe)
    if not (run_dir / MEASUREMENTS).exists():
        measure_run(run_dir, recipe["data"], recipe["seed"])
    if case:
        picture = run_dir / "case.svg"
        explore(str(run_dir), case, str(picture))
        record_file(picture)
