"""Groups comparable runs into families, and averages their seeds for each cell of the paper's
tables."""

from collections import Counter, defaultdict
from collections.abc import Collection
from functools import cached_property
from statistics import fmean

from exlm.paper.analyze import Space
from exlm.paper.estimates import Number, average, in_cells, pivot
from exlm.paper.runs import Comparable, Finetuning, Pretraining, Runs
from exlm.paper.values import EXLM_ONLY, MLM, PLUS, Cell, rank
from exlm.tasks.datasets import GLUE, MOLECULENET

Cells = dict[Cell, list[Pretraining]]
TASKS = (*GLUE, "squad2", *MOLECULENET)  # in the paper's order


class Family:
    """Comparable runs, which differ only in what the experiments vary."""

    def __init__(self, comparable: Comparable, cells: Cells, runs: Runs) -> None:
        """`cells`: in the order of the tables, with one run per seed."""
        self.comparable = comparable
        self.cells = cells
        self.members = [(cell, run) for cell, members in cells.items() for run in members]
        self.runs = [run for _, run in self.members]
        self.label = _label(comparable, self.runs)
        self.tunings = _tunings(self.runs, runs)
        places = []
        for cell, run in self.members:
            places.append((run.id, cell, run.id))
            places += [(tuning.id, cell, run.id) for tuning in self.tunings_of(run)]
        self.scores = in_cells(runs.scores, places)
        self.numbers = pivot(self.scores)

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of all fine-tunings: first the paper's, in its order, then all others."""
        tasks = {task for _, task in self.tunings}
        return [task for task in TASKS if task in tasks] + sorted(tasks.difference(TASKS))

    @cached_property
    def percent_tasks(self) -> list[str]:
        """The tasks that are scored in percent."""
        other_units = {tuning.task for tuning in self.tunings.values() if not tuning.in_percent}
        return [task for task in self.tasks if task not in other_units]

    @cached_property
    def base_ratio(self) -> float:
        """The mask ratio of the ablations: 15% if there is such a run, else the most frequent."""
        counts = Counter(cell.p for cell in self.cells if cell.r == 1)
        return max(counts, key=lambda p: (p == 0.15, counts[p], -p), default=0.15)

    @cached_property
    def base_states(self) -> int:
        """The k of most ablations. Without any, it is 4, as in the paper, or else the largest."""
        ablations = Counter(cell.k for cell in self.cells if cell.method.startswith("ExLM w/"))
        states = {cell.k for cell in self.cells if cell.k > 1}
        return max(states, key=lambda k: (ablations[k], k == 4, k), default=4)

    def tunings_of(self, run: Pretraining) -> list[Finetuning]:
        return [tuning for (run_id, _), tuning in self.tunings.items() if run_id == run.id]

    def updates(self, cell: Cell) -> int | None:
        """How many updates the runs of a cell have; None if there are none."""
        return self.cells[cell][0].steps if cell in self.cells else None

    def estimate(self, cell: Cell, *scores: str) -> Number | None:
        """A score of a cell, or the mean of several scores; None if no run has all of them."""
        return average(self.numbers.get(cell, {}), scores)

    def estimates(self, cells: Collection[Cell], score: str) -> dict[Cell, Number]:
        """The score of each of these cells that has it."""
        return {c: self.numbers[c][score] for c in cells if score in self.numbers.get(c, {})}

    def shared_tasks(self, cells: Collection[Cell]) -> list[str]:
        """The tasks scored in percent that all these cells have."""
        return [t for t in self.percent_tasks if len(self.estimates(cells, t)) == len(cells)]

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

    def cells_by_name(self) -> dict[str, Cell]:
        """The cells by their names. A name may leave out `base_states`; at `base_ratio` and r = 1
        the name of the method is enough."""
        names = {cell.description: cell for cell in self.cells}
        for cell in self.cells:
            if cell.k in (1, self.base_states):
                names[cell.description.replace(f", k = {cell.k}", "")] = cell
                if (cell.p, cell.r) == (self.base_ratio, 1):
                    names[cell.method] = cell
        return names


def families(runs: Runs) -> list[Family]:
    """Groups comparable runs; the largest family comes first. An MLM has of EXLM_ONLY only its
    positions, so it joins every family that agrees in these and in the rest. MLMs on repeated
    tokens are compared with no ExLM, so they join only one family. If runs of a cell share a seed,
    the lowest id is used."""
    all_runs = sorted(runs.pretrainings.values(), key=lambda run: (run.steps, run.seed, run.id))
    counts = Counter(run.comparable for run in all_runs)
    groups: list[tuple[Comparable, Cells]] = []
    ids: list[set[str]] = []
    for comparable, _ in counts.most_common():
        if any(comparable.is_part_of(other) for other in counts):
            continue
        cells = _cells(comparable, all_runs, set().union(*ids), runs)
        groups.append((comparable, cells))
        ids.append({run.id for members in cells.values() for run in members})
    result = []
    for (comparable, cells), ids_of_group in zip(groups, ids, strict=True):
        if not any(ids_of_group < other_ids for other_ids in ids):
            result.append(Family(comparable, cells, runs))
    _tell_apart(result)
    return sorted(result, key=lambda family: (-len(family.runs), family.label))


def _cells(
    comparable: Comparable, all_runs: list[Pretraining], ids_in_families: set[str], runs: Runs
) -> Cells:
    """The runs of a family by cell. Those with `ids_in_families` have a family already."""
    same_settings = []
    for run in all_runs:
        has_settings = run.comparable.settings == comparable.settings
        if has_settings and run.comparable.exlm_only <= comparable.exlm_only:
            same_settings.append(run)
    plus_steps = _plus_steps(comparable.steps, same_settings, runs)
    by_seed: dict[tuple[Cell, int], Pretraining] = {}
    for run in same_settings:
        cell = run.cell
        if cell == Cell(MLM, 1, cell.p) and run.steps == plus_steps.get(cell.p):
            by_seed.setdefault((Cell(PLUS, 1, cell.p), run.seed), run)
        elif run.steps == comparable.steps and (cell.r == 1 or run.id not in ids_in_families):
            by_seed.setdefault((cell, run.seed), run)
    cells: Cells = {}
    for cell, seed in sorted(by_seed, key=lambda key: (rank(key[0].method), key[0].p, key[0])):
        cells.setdefault(cell, []).append(by_seed[cell, seed])
    return cells


def _plus_steps(steps: int, same_settings: list[Pretraining], runs: Runs) -> dict[float, int]:
    """The number of updates of MLM++ for each mask ratio. MLM++ is a vanilla MLM with more updates
    than its family: the one whose number is closest to the family's times the cost ratio that was
    measured in these runs, or else the one whose training took the most similar time."""
    exlm = [run for run in same_settings if run.steps == steps and run.cell.method != MLM]
    studies = [run.study for run in same_settings if run.study in runs.costs]
    ratio = runs.costs[studies[0]]["ratio"] if studies else None

    def cost_apart(mlm: Pretraining) -> float:
        if ratio is not None:
            return abs(mlm.steps - ratio * steps)
        hours = [run.hours for run in exlm if run.cell.p == mlm.cell.p]
        return abs(mlm.hours - fmean(hours)) if hours else 0.0

    longer: defaultdict[float, list[Pretraining]] = defaultdict(list)
    for run in same_settings if exlm else []:
        if run.steps > steps and run.cell == Cell(MLM, 1, run.cell.p):
            longer[run.cell.p].append(run)
    # of two that are as close, the longer one
    closest = {
        p: min(mlms, key=lambda mlm: (cost_apart(mlm), -mlm.steps)) for p, mlms in longer.items()
    }
    return {p: mlm.steps for p, mlm in closest.items()}


def _tunings(members: list[Pretraining], runs: Runs) -> dict[tuple[str, str], Finetuning]:
    """The fine-tunings of these runs, by the id of the run and the task: of each task only those
    with the most frequent settings."""
    candidates = []
    for run in members:
        for tuning in runs.finetunings.get(run.id, []):
            if not tuning.from_scratch:
                candidates.append((run.id, tuning))
    counts = Counter((tuning.task, tuning.compared) for _, tuning in candidates)
    frequent: dict[str, str] = {}
    for (task, compared), _ in counts.most_common():
        frequent.setdefault(task, compared)
    tunings: dict[tuple[str, str], Finetuning] = {}
    for run_id, tuning in candidates:
        if tuning.compared == frequent[tuning.task]:
            tunings.setdefault((run_id, tuning.task), tuning)
    return tunings


def _label(comparable: Comparable, members: list[Pretraining]) -> str:
    """The name of a family: corpus, model size, number of updates, and settings of EXLM_ONLY that
    are not the usual ones."""
    run = members[0]
    millions = sorted({f"{run.parameters / 1e6:.1f}" for run in members}, key=float)
    words = [
        run.corpus,
        f"{run.model.num_hidden_layers} layers × {run.model.hidden_size}",
        f"{'–'.join(dict.fromkeys([millions[0], millions[-1]]))}M parameters",
        f"{comparable.steps:,} updates of {run.tokens_per_batch:,} tokens",
    ]
    for name, value in comparable.settings:
        if name == "data.mask_ratio":
            words.append(f"{name} = {value}")
    for name, value in sorted(comparable.exlm_only, key=str):
        if value != EXLM_ONLY[name]:
            words.append(f"{name} = {value}")
    return " · ".join(words)


def _tell_apart(groups: list[Family]) -> None:
    """Adds the settings that differ to labels that are equal; hashes are shortened."""
    for label in {family.label for family in groups}:
        same_label = [family for family in groups if family.label == label]
        settings = [family.comparable.settings for family in same_label]
        shared_settings = frozenset.intersection(*settings)
        for family in same_label:
            for name, value in sorted(family.comparable.settings - shared_settings):
                family.label += f" · {name} = {value[:16]}"
