"""Groups comparable runs into families, and averages their seeds for each cell of the paper's
tables."""

from collections import Counter
from collections.abc import Collection
from statistics import fmean

from exlm.paper.analyze import Space
from exlm.paper.estimates import Number, average, in_cells, pivot
from exlm.paper.runs import Finetuning, Kind, Pretraining, Runs
from exlm.paper.values import EXLM_ONLY, MLM, PLUS, Cell, order
from exlm.tasks.datasets import GLUE, MOLECULENET

Cells = dict[Cell, list[Pretraining]]
# by the id of the pre-training and the task
Tunings = dict[tuple[str, str], Finetuning]


class Family:
    """Comparable runs, which differ only in what the experiments vary."""

    def __init__(self, kind: Kind, cells: Cells, runs: Runs) -> None:
        """`cells`: in the order of the tables, with one run per seed."""
        self.kind = kind
        self.cells = cells
        self.members = [(cell, run) for cell, members in cells.items() for run in members]
        self.runs = [run for _, run in self.members]
        self.label = _label(kind, self.runs)
        self.tunings = _tunings(self.runs, runs)
        places = []
        for cell, run in self.members:
            places.append((run.id, cell, run.id))
            places += [(tuning.id, cell, run.id) for tuning in self.tunings_of(run)]
        self.scores = in_cells(runs.scores, places)
        self.numbers = pivot(self.scores)
        tasks = {task for _, task in self.tunings}
        papers_tasks = [task for task in (*GLUE, "squad2", *MOLECULENET) if task in tasks]
        self.tasks = papers_tasks + sorted(tasks.difference(papers_tasks))
        other_units = {tuning.task for tuning in self.tunings.values() if not tuning.in_percent}
        self.percent_tasks = [task for task in self.tasks if task not in other_units]
        # The mask ratio of the ablations: 15% if there is such a run, else the most frequent one.
        ratios = Counter(cell.p for cell in cells if cell.r == 1)
        self.base_ratio = max(ratios, key=lambda p: (p == 0.15, ratios[p], -p), default=0.15)
        # The k of most ablations. Without any, it is 4, as in the paper, or else the largest k.
        ablated = Counter(cell.k for cell in cells if cell.method.startswith("ExLM w/"))
        states = {cell.k for cell in cells if cell.k > 1}
        self.base_states = max(states, key=lambda k: (ablated[k], k == 4, k), default=4)

    def tunings_of(self, run: Pretraining) -> list[Finetuning]:
        return [tuning for (run_id, _), tuning in self.tunings.items() if run_id == run.id]

    def estimate(self, cell: Cell, *scores: str) -> Number | None:
        """A score of a cell, or the mean of several scores; None if no run has all of them."""
        return average(self.numbers.get(cell, {}), scores)

    def estimates(self, cells: Collection[Cell], *scores: str) -> dict[Cell, Number]:
        """The estimate of each of these cells that has one."""
        numbers = {cell: self.estimate(cell, *scores) for cell in cells}
        return {cell: number for cell, number in numbers.items() if number}

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
        """A name may leave out `base_states`; at `base_ratio` and r = 1 the method is enough."""
        names = {cell.description: cell for cell in self.cells}
        for cell in self.cells:
            if cell.k in (1, self.base_states):
                names[cell.description.replace(f", k = {cell.k}", "")] = cell
                if (cell.p, cell.r) == (self.base_ratio, 1):
                    names[cell.method] = cell
        return names


def families(runs: Runs) -> list[Family]:
    """Groups comparable runs; the largest family comes first. A family has runs of one kind. An MLM
    has of EXLM_ONLY only its positions, so it joins every family that agrees in these and in the
    rest. MLMs on repeated tokens are compared with no ExLM, so they join only one family. If runs
    of a cell share a seed, the lowest id is used."""
    everything = sorted(runs.pretrainings.values(), key=lambda run: (run.steps, run.seed, run.id))
    kinds = Counter(run.kind for run in everything)
    groups: list[tuple[Kind, Cells, set[str]]] = []
    for kind, _ in kinds.most_common():
        if any(other[:2] == kind[:2] and kind.exlm_only < other.exlm_only for other in kinds):
            continue
        placed = {run_id for *_, ids in groups for run_id in ids}
        cells = _cells(kind, everything, placed, runs)
        groups.append((kind, cells, {run.id for members in cells.values() for run in members}))
    result = []
    for kind, cells, ids in groups:
        if not any(ids < other_ids for *_, other_ids in groups):
            result.append(Family(kind, cells, runs))
    _tell_apart(result)
    return sorted(result, key=lambda family: (-len(family.runs), family.label))


def _cells(kind: Kind, everything: list[Pretraining], placed: set[str], runs: Runs) -> Cells:
    """The runs of a family by cell. `placed` are the ids of those that have a family already."""
    alike = [run for run in everything if run.kind.settings == kind.settings]
    alike = [run for run in alike if run.kind.exlm_only <= kind.exlm_only]
    plus_steps = _plus_steps(kind.steps, alike, runs)
    by_seed: dict[tuple[Cell, int], Pretraining] = {}
    for run in alike:
        cell = run.cell
        if cell.is_plain_mlm and run.steps == plus_steps.get(cell.p):
            by_seed.setdefault((Cell(PLUS, 1, cell.p), run.seed), run)
        elif run.steps == kind.steps and (cell.r == 1 or run.id not in placed):
            by_seed.setdefault((cell, run.seed), run)
    cells: Cells = {}
    for cell, seed in sorted(by_seed, key=lambda place: order(place[0])):
        cells.setdefault(cell, []).append(by_seed[cell, seed])
    return cells


def _plus_steps(steps: int, alike: list[Pretraining], runs: Runs) -> dict[float, int]:
    """The number of updates of MLM++ for each mask ratio. MLM++ is a vanilla MLM with more updates
    than its family: the one whose number is closest to the family's times the cost ratio that was
    measured in these runs, or else the one whose training took the most similar time."""
    exlm = [run for run in alike if run.steps == steps and run.cell.method != MLM]
    longer = [run for run in alike if run.steps > steps and run.cell.is_plain_mlm]
    ratio = next((runs.costs[run.study]["ratio"] for run in alike if run.study in runs.costs), None)

    def cost_apart(mlm: Pretraining) -> float:
        if ratio is not None:
            return abs(mlm.steps - ratio * steps)
        hours = [run.hours for run in exlm if run.cell.p == mlm.cell.p]
        return abs(mlm.hours - fmean(hours)) if hours else 0.0

    nearest_last = sorted(longer, key=cost_apart, reverse=True) if exlm else []
    return {run.cell.p: run.steps for run in nearest_last}


def _tunings(members: list[Pretraining], runs: Runs) -> Tunings:
    """The fine-tunings of these runs: of each task only those with the most frequent settings."""
    made = [(run.id, tuning) for run in members for tuning in runs.finetunings.get(run.id, [])]
    made = [(run_id, tuning) for run_id, tuning in made if not tuning.from_scratch]
    counts = Counter((tuning.task, tuning.compared) for _, tuning in made)
    usual = {task: compared for (task, compared), _ in reversed(counts.most_common())}
    tunings: Tunings = {}
    for run_id, tuning in made:
        if tuning.compared == usual[tuning.task]:
            tunings.setdefault((run_id, tuning.task), tuning)
    return tunings


def _label(kind: Kind, members: list[Pretraining]) -> str:
    """The name of a family: corpus, model size, number of updates, and settings of EXLM_ONLY that
    are not the usual ones."""
    run = members[0]
    millions = sorted({f"{run.parameters / 1e6:.1f}" for run in members}, key=float)
    sizes = millions[0] if len(millions) == 1 else f"{millions[0]}–{millions[-1]}"
    words = [
        run.corpus,
        f"{run.model.num_hidden_layers} layers × {run.model.hidden_size}",
        f"{sizes}M parameters",
        f"{kind.steps:,} updates of {run.tokens_per_batch:,} tokens",
    ]
    words += [f"{name} = {value}" for name, value in kind.settings if name == "data.mask_ratio"]
    for name, value in sorted(kind.exlm_only, key=str):
        if value != EXLM_ONLY[name]:
            words.append(f"{name} = {value}")
    return " · ".join(words)


def _tell_apart(groups: list[Family]) -> None:
    """Adds the settings that differ to labels that are equal; hashes are shortened."""
    for label in {family.label for family in groups}:
        alike = [family for family in groups if family.label == label]
        common = frozenset.intersection(*(family.kind.settings for family in alike))
        for family in alike:
            for name, value in sorted(family.kind.settings - common):
                family.label += f" · {name} = {value[:16]}"
