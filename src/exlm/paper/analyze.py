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
from exlm.errors import InputError
from exlm.filling.explore import explore
from exlm.paper.jobs import Job, run_jobs
from exlm.paper.measurements import measure_cost, measure_run
from exlm.pretrain.batches import check_positions
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, PriorConfig
from exlm.storage.files import read, sha256, write_yaml
from exlm.storage.models import load_tokenizer
from exlm.tasks.config import FinetuneConfig, TaskConfig, resolve
from exlm.tasks.finetune import REPORT, finetune
from exlm.train import distributed
from exlm.train.loop import LoopConfig

Experiment = Literal["repeated-mlm", "ablations", "sweep", "entropy", "efficiency"]


@dataclass(frozen=True)
class Space:
    """The settings that the experiments vary.

    Attributes:
        mask_ratios: mask ratios p of the Repeated MLM grid (its rows).
        repeats: repetitions r of the grid (its columns).
        smallest: cells with corrupted semantics p^r below this are left out, as the paper found
            them unstable.
        cells: if given, only these cells (mask ratio, repetitions) of the grid are run.
        states: numbers of states k of the sweep.
        sweep_mask_ratios: mask ratios of the sweep."""

    mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387, 0.622, 0.789])
    repeats: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    smallest: float = 5.05e-4
    cells: list[tuple[float, int]] | None = None
    states: list[int] = field(default_factory=lambda: [2, 4, 8])
    sweep_mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387])

    def grid(self) -> list[tuple[float, int]]:
        """The pairs (p, r) of the Repeated MLM experiment, the cheapest first."""
        cells = self.cells or [
            (p, r) for p in self.mask_ratios for r in self.repeats if p**r >= self.smallest
        ]
        return sorted({(float(p), int(r)) for p, r in cells}, key=lambda cell: (cell[1], cell[0]))


@dataclass(frozen=True)
class DownstreamConfig:
    """The labelled data of one fine-tuning task, and the hyper-parameters for this task."""

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
    """Makes the runs that an experiment of the paper still lacks; the same command goes on after an
    interruption.

    Args:
        experiment: `repeated-mlm` (grid of mask ratios and repetitions), `ablations` (ExLM without
            some of its parts, the MLM, and MLM++: an MLM with so many updates that they cost as
            much as ExLM's), `sweep` (numbers of states and mask ratios), `entropy` (models of grid
            and sweep, not fine-tuned), or `efficiency` (step cost).
        output: directory for all runs; experiments with the same recipe share it.
        data: corpus and batches. `mask_ratio` holds for ablations and step cost; the experiment
            itself sets `repeat`.
        model: the architecture. Its k holds for ablations and step cost; the experiment itself sets
            `objective`.
        train: length and optimizer of every pre-training; only MLM++ trains longer.
        prior: what is added to the scores of links between states, and its schedule. Every ExLM
            uses it, no MLM does.
        space: the mask ratios, repetitions and numbers of states that the experiments try.
        tasks: by name, the tasks on which models are fine-tuned. Tokens are repeated as in the
            model's pre-training.
        seeds: the seeds of fine-tuning; by default 1, 2 and 3, as in the paper.
        pretrain_seeds: the seeds of pre-training; by default only 0.
        cost_steps: how many updates of each model are timed, to compare the cost of ExLM and MLM.
        case: a text with masks. For every ExLM, `case.svg` shows its states and transitions
            (paper's case study).
        own_processes: a new process for each training; without it memory grows and updates become
            slower."""
    if distributed.launched():
        raise InputError("an analysis is one process; start it without torchrun")
    # MLM++ has more updates, but the same warm-up.
    train = train.with_warmup_steps()
    seeds, pretrain_seeds = (
        [1, 2, 3] if seeds is None else seeds,
        [0] if pretrain_seeds is None else pretrain_seeds,
    )
    recipe = {
        name: value
        for name, value in locals().items()
        if name not in ("experiment", "own_processes")
    }
    if cost_steps < 1:
        raise InputError(f"cost_steps is {cost_steps}; it must be at least 1")
    data = replace(data, mask_ratio=data.one_mask_ratio)
    models = variants(experiment, data, model, train, space)
    if experiment != "efficiency" and not (models and seeds and pretrain_seeds):
        known = ", ".join(get_args(Experiment))
        raise InputError(
            f"{experiment} has no models; use one of {known}, and give every list of the recipe a value"
        )
    for name, settings in models.items():
        try:
            check_positions(settings["data"], settings["model"])
            settings["model"].build(
                load_tokenizer(Corpus(data.corpus).path), settings["data"].repeat
            )
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    fine_tuned = {} if experiment in ("entropy", "efficiency") else tasks or {}
    files = {}
    for name, chosen in fine_tuned.items():  # a missing file raises OSError
        labelled = resolve(chosen.task)[0]
        there = (
            file
            for file in (labelled.dataset, labelled.valid, labelled.test)
            if file and Path(file).suffix
        )
        files[name] = {file: sha256(Path(file)) for file in there}
    directory = Path(output)
    write_yaml(directory / "recipe.yaml", recipe)

    if experiment in ("efficiency", "ablations"):
        result = directory / "efficiency.json"
        cost: dict[str, Any] = {
            "data": replace(data, repeat=1),
            "model": replace(model, objective="exlm"),
        }
        cost |= {"precision": train.precision, "steps": cost_steps, "prior": prior}
        run_jobs(
            [Job("measuring the cost", result, partial(measure_cost, result, **cost), cost)],
            own_processes,
        )
        models = variants(experiment, data, model, train, space, read(result)["ratio"])
    corpus_hash, jobs = Corpus(data.corpus).corpus_hash, []
    for seed, (model_name, settings) in itertools.product(pretrain_seeds, models.items()):
        name, is_exlm = f"{model_name}/seed-{seed}", settings["model"].has_links
        run_dir, drawn = directory / "pretrain" / name, case if is_exlm else None
        training = settings | {"seed": seed} | ({"prior": prior} if is_exlm else {})
        trained = training | {"corpus": corpus_hash}
        run = partial(pretrain_and_measure, run_dir, training, drawn)
        jobs.append(
            Job("pre-training", run_dir / "measurements.json", run, trained | {"case": drawn})
        )
        for task, chosen in fine_tuned.items():
            result = directory / "finetune" / name / task / REPORT
            tuning = {**vars(chosen), "seeds": seeds}
            tune = partial(finetune, str(result.parent), str(run_dir), **tuning)
            tuning |= {"model": trained, "files": files[task]}
            jobs.append(
                Job(f"fine-tuning on {task}", result, tune, tuning, needs=run_dir / "result.json")
            )
    run_jobs(jobs, own_processes)
    print(
        f"all of {experiment} is in {output}; exlm report {output} --output DIR makes tables and figures of it"
    )


def pretrain_and_measure(run_dir: Path, recipe: dict[str, Any], case: str | None) -> None:
    """Pre-trains a model, measures it, and draws its states for the text `case`, if there is
    one."""
    pretrain(str(run_dir), **recipe)
    measure_run(run_dir, recipe["data"], recipe["seed"])
    if case:
        explore(str(run_dir), case, str(run_dir / "case.svg"))


def variants(
    experiment: Experiment,
    data: DataConfig,
    model: ArchitectureConfig,
    train: LoopConfig,
    space: Space,
    cost_ratio: float = 1.0,
) -> dict[str, dict[str, Any]]:
    """The models of an experiment: the settings for `exlm pretrain` (data, model, train), by the
    name of the model's directories. For `efficiency` there are none. MLM++ is an MLM that has
    `cost_ratio` times as many updates. Its training then costs as much as ExLM's."""
    found: dict[str, dict[str, Any]] = {}

    def add(
        p: float, ending: str = "", repeat: int = 1, train: LoopConfig = train, **switches: Any
    ) -> None:
        changed = replace(model, **switches)
        copies = (
            f"-k{changed.num_states}" if changed.expands else f"-r{repeat}" if repeat > 1 else ""
        )
        settings = {
            "data": replace(data, mask_ratio=p, repeat=repeat),
            "model": changed,
            "train": train,
        }
        found[f"{changed.objective}-p{100 * p:g}{copies}{ending}"] = settings

    if experiment == "ablations":  # paper, section 5.3 and appendix
        p, steps = (
            data.one_mask_ratio,
            max(train.optimizer.warmup_steps, round(train.steps * cost_ratio), 1),
        )
        add(p, objective="mlm")
        add(p, objective="exlm")
        add(p, objective="ctc")
        add(p, "-1d", objective="exlm", rotary="1d")
        add(p, "-sparse", objective="exlm", dag="sparse")
        add(p, "-plus-plus", objective="mlm", train=replace(train, steps=steps))
    if experiment in ("repeated-mlm", "entropy"):  # sections 3 and 3.3
        for p, r in space.grid():
            add(p, repeat=r, objective="mlm")
    if experiment in ("sweep", "entropy"):  # section 5.3
        for p in space.sweep_mask_ratios:
            add(p, objective="mlm")
            for k in space.states:
                add(p, objective="exlm", num_states=k)
    return found
