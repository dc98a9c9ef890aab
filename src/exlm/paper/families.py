"""Groups comparable runs into families, whose cells are those of the paper's tables."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

import pandas as pd

from exlm.paper.analyze import Space
from exlm.paper.estimates import Results
from exlm.paper.records import PretrainedRun, TunedRun
from exlm.paper.runs import Runs
from exlm.paper.values import EXLM_ONLY, METHODS, MLM, PLUS, Cell, rank
from exlm.tasks.rows.datasets import GLUE, MOLECULENET

Cells = dict[Cell, list[PretrainedRun]]
TASKS = (*GLUE, "squad2", *MOLECULENET)  # in the paper's order


class Family:
    """Comparable runs, which differ only in what the experiments vary.

    Attributes:
        label: what they have in common, in words.
        cells: the runs by cell, in the order of the tables; one run for each pre-training seed.
        runs: the same runs as a list.
        tunings: their fine-tunings that are compared, one for each run and task.
        tasks: the tasks of these: first the paper's, in its order, then all others.
        percent_tasks: those of them that are scored in percent.
        scores: all numbers, with a row for each cell, run, score and seed.
        results: the same numbers as means over seeds.
        base_ratio: the mask ratio of the ablations: 15% if there is such a run, else the most
            frequent.
        base_states: the k of most ablations. Without any, it is 4, as in the paper, or else the
            largest."""

    def __init__(self, label: str, cells: Cells, runs: Runs) -> None:
        self.label = label
        self.cells = cells
        self.runs = _members(cells)
        self.tunings = _tunings(self.runs, runs.finetunings)
        tasks = {tuning.task for tuning in self.tunings}
        self.tasks = [task for task in TASKS if task in tasks] + sorted(tasks.difference(TASKS))
        other_units = {tuning.task for tuning in self.tunings if not tuning.in_percent}
        self.percent_tasks = [task for task in self.tasks if task not in other_units]
        places = [(run.id, *cell) for cell, members in cells.items() for run in members]
        sources = {run.id for run in self.runs} | {tuning.id for tuning in self.tunings}
        scores = runs.scores[runs.scores["source"].isin(sources)]
        columns = ["run", *Cell._fields]
        self.scores = pd.DataFrame(places, columns=columns).merge(scores, on="run")
        self.results = Results(self.scores)
        ratios = Counter(cell.p for cell in cells if cell.r == 1)
        self.base_ratio = max(ratios, key=lambda p: (p == 0.15, ratios[p], -p), default=0.15)
        ablations = Counter(cell.k for cell in cells if cell.method.startswith("ExLM w/"))
        states = {cell.k for cell in cells if cell.k > 1}
        self.base_states = max(states, key=lambda k: (ablations[k], k == 4, k), default=4)

    def tunings_of(self, run: PretrainedRun) -> list[TunedRun]:
        return [tuning for tuning in self.tunings if tuning.model_id == run.id]

    def shared_tasks(self, cells: Sequence[Cell]) -> list[str]:
        """The tasks scored in percent that all these cells have."""
        shared = []
        for task in self.percent_tasks:
            if all(self.results.number(cell, task) for cell in cells):
                shared.append(task)
        return shared

    def select(self, *methods: str) -> list[Cell]:
        """The cells with these methods and without repeated tokens."""
        return [cell for cell in self.cells if cell.method in methods and cell.r == 1]

    def sweep(self) -> list[Cell]:
        """The cells of ExLM, and those of the vanilla MLM at the same mask ratios."""
        ratios = {cell.p for cell in self.select("ExLM")}
        return [cell for cell in self.select(MLM, "ExLM") if cell.p in ratios]

    def grid(self) -> list[Cell]:
        """The cells of Repeated MLM, for the paper's p and r and ours. It is empty if no run
        repeated its tokens."""
        cells = {cell for cell in self.cells if cell.method == MLM}
        if all(cell.r == 1 for cell in cells):
            return []
        ratios = [*Space().mask_ratios, *(cell.p for cell in cells)]
        repeats = [*Space().repeats, *(cell.r for cell in cells)]
        return sorted(cells | {Cell(MLM, 1, p, r) for p, r in Space(ratios, repeats).grid()})


def families(runs: Runs) -> list[Family]:
    """Groups comparable runs; the largest family comes first. If runs of a cell share a seed, the
    lowest id is used.

    Runs of a family have the same settings, but an MLM uses few settings of EXLM_ONLY. It joins
    every family that agrees in those that it uses: of MLMs, ExLMs with an order prior of 4 and
    ExLMs with one of 10 there are two families, and both have the MLMs. Only MLMs on repeated
    tokens, with which no ExLM is compared, join a single family."""
    all_runs = sorted(runs.pretrainings, key=lambda run: (run.steps, run.seed, run.id))
    kinds = Counter((run.settings, run.steps, run.exlm_only) for run in all_runs)
    cells_of_families: list[Cells] = []
    for (settings, steps, exlm_only), _ in kinds.most_common():
        same_settings = [run for run in all_runs if run.settings == settings]
        as_long = [run for run in same_settings if run.steps == steps]
        if any(run.exlm_only > exlm_only for run in as_long):
            continue  # these runs, such as MLMs, join families of runs that use more settings
        agreeing = [run for run in same_settings if run.exlm_only <= exlm_only]
        placed_runs = [run for cells in cells_of_families for run in _members(cells)]
        cells_of_families.append(_cells(steps, agreeing, placed_runs, runs))
    cells_of_families = _without_smaller(cells_of_families)
    labels = _labels([_members(cells) for cells in cells_of_families])
    result = []
    for label, cells in zip(labels, cells_of_families, strict=True):
        result.append(Family(label, cells, runs))
    return sorted(result, key=lambda family: (-len(family.runs), family.label))


def _without_smaller(cells_of_families: list[Cells]) -> list[Cells]:
    """Without those families all of whose runs are in a larger one, too."""
    larger = []
    for cells in cells_of_families:
        members = set(_members(cells))
        if not any(members < set(_members(others)) for others in cells_of_families):
            larger.append(cells)
    return larger


def _members(cells: Cells) -> list[PretrainedRun]:
    return [run for runs_of_cell in cells.values() for run in runs_of_cell]


def _cells(
    steps: int, agreeing: list[PretrainedRun], placed_runs: list[PretrainedRun], runs: Runs
) -> Cells:
    """The runs of a family by cell, of all those that agree with it. `placed_runs` have
    a family already."""
    plus_steps = _plus_steps(steps, agreeing, runs)
    by_seed: dict[tuple[Cell, int], PretrainedRun] = {}
    for run in agreeing:
        cell = run.cell
        if cell == Cell(MLM, 1, cell.p) and run.steps == plus_steps.get(cell.p):
            by_seed.setdefault((Cell(PLUS, 1, cell.p), run.seed), run)
        elif run.steps == steps and (cell.r == 1 or run not in placed_runs):
            by_seed.setdefault((cell, run.seed), run)
    cells: Cells = {}
    for cell, seed in sorted(by_seed, key=lambda key: (rank(key[0].method), key[0].p, key[0])):
        cells.setdefault(cell, []).append(by_seed[cell, seed])
    return cells


def _plus_steps(steps: int, agreeing: list[PretrainedRun], runs: Runs) -> dict[float, int]:
    """The number of updates of MLM++ for each mask ratio. MLM++ is a vanilla MLM with more updates
    than its family: the one whose number is closest to the family's times the cost ratio that was
    measured in these runs, or else the ratio of the hours that an update took."""
    longer = [run for run in agreeing if run.steps > steps and run.cell == Cell(MLM, 1, run.cell.p)]
    # a method that the paper does not have has costs of its own
    of_paper = [run for run in agreeing if run.steps == steps and run.cell.method in METHODS]
    exlm = [run for run in of_paper if run.cell.method != MLM]
    if not (longer and exlm):
        return {}
    ratios = [runs.costs[run.study].ratio for run in agreeing if run.study in runs.costs]
    hours = [fmean(run.hours / run.steps for run in members) for members in (exlm, longer)]
    best = steps * (ratios[0] if ratios else hours[0] / hours[1])
    closest: dict[float, int] = {}
    # of two that are as close, the longer one
    for mlm in sorted(longer, key=lambda mlm: (abs(mlm.steps - best), -mlm.steps)):
        closest.setdefault(mlm.cell.p, mlm.steps)
    return closest


def _tunings(members: list[PretrainedRun], finetunings: Iterable[TunedRun]) -> list[TunedRun]:
    """The fine-tunings of these runs, one for each run and task: of each task only those with the
    most frequent settings."""
    ids = {run.id for run in members}
    candidates = [
        tuning for tuning in finetunings if tuning.model_id in ids and not tuning.from_scratch
    ]
    frequent: dict[str, str] = {}
    counts = Counter((tuning.task, tuning.compared) for tuning in candidates)
    for (task, compared), _ in counts.most_common():
        frequent.setdefault(task, compared)
    tunings: dict[tuple[str | None, str], TunedRun] = {}
    for tuning in candidates:
        if tuning.compared == frequent[tuning.task]:
            tunings.setdefault((tuning.model_id, tuning.task), tuning)
    return list(tunings.values())


def _labels(groups: list[list[PretrainedRun]]) -> list[str]:
    """The names of families. Equal ones get the settings that differ; hashes are shortened."""
    settings_by_name = defaultdict(list)
    for members in groups:
        settings_by_name[_label(members)].append(members[0].settings)
    labels = []
    for members in groups:
        name = _label(members)
        different = members[0].settings.difference(frozenset.intersection(*settings_by_name[name]))
        words = [f"{setting} = {value[:16]}" for setting, value in sorted(different)]
        labels.append(" · ".join([name, *words]))
    return labels


def _label(members: list[PretrainedRun]) -> str:
    """The name of a family: corpus, model size, number of updates, and settings of EXLM_ONLY that
    are not the usual ones."""
    # Of all members, this one has the most settings and the fewest updates.
    run = max(members, key=lambda run: (-run.steps, len(run.exlm_only)))
    millions = sorted({f"{run.parameters / 1e6:.1f}" for run in members}, key=float)
    words = [
        run.corpus,
        f"{run.model.num_hidden_layers} layers × {run.model.hidden_size}",
        f"{'–'.join(dict.fromkeys([millions[0], millions[-1]]))}M parameters",
        f"{run.steps:,} updates of {run.tokens_per_batch:,} tokens",
    ]
    words += [f"{name} = {value}" for name, value in run.settings if name == "data.mask_ratio"]
    for name, value in sorted(run.exlm_only, key=str):
        if value != EXLM_ONLY[name]:
            words.append(f"{name} = {value}")
    return " · ".join(words)
