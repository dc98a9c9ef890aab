"""The other experiments: main tables, ablations, k and p, entropy, cost, and the list of runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from exlm.analysis.report import paper_values as paper
from exlm.analysis.report.cells import (
    ACCURACY,
    METHODS,
    PERPLEXITY,
    TITLES,
    Family,
    Score,
    Setting,
)  # fmt: skip
from exlm.analysis.report.document import (
    BLANK,
    Cell,
    Missing,
    Row,
    Section,
    Table,
    columns_of,
    paper_cells,
)  # fmt: skip
from exlm.analysis.report.grid import scores_of

Commands = Mapping[str, str]


def label_of(cell: Setting) -> str:
    """A row's name."""
    return cell.method if cell.k == 1 else f"{cell.method}, k = {cell.k}"


def base_ratio(family: Family) -> float:
    """15% if there is such a run, else the most frequent mask ratio."""
    counts = Counter(cell.p for cell in family.cells if cell.r == 1)
    return 0.15 if 0.15 in counts or not counts else min(counts, key=lambda p: (-counts[p], p))


def ablated_states(family: Family) -> int:
    """The k of the ablations, else the paper's 4, else the largest of ExLM."""
    counts = Counter(cell.k for cell in family.select(METHODS[2:-1], base_ratio(family)))
    if counts:
        return min(counts, key=lambda k: (-counts[k], k != 4, k))
    states = {cell.k for cell in family.select(["ExLM"], base_ratio(family))}
    return 4 if 4 in states or not states else max(states)


def mean_cell(family: Family, cell: Setting | None, scores: Sequence[Score]) -> Cell:
    """Mean over tasks, if every one was run."""
    found = [family.estimate(cell, score) for score in scores]
    return Cell(fmean(e.value for e in found if e)) if found and all(found) else Cell()


def seeds_cell(family: Family, cell: Setting) -> Cell:
    runs = family.cells[cell]
    counts = sorted({len(t.result["seeds"]) for run in runs for (i, _), t in family.tunings.items() if i == run.id})
    return Cell(text=f"{len(runs)} × {'–'.join(map(str, counts)) or 0}")


def runs_cell(family: Family, cell: Setting) -> Cell:
    return Cell(links=tuple(run.id for run in family.cells[cell]))


def score_cells(family: Family, cell: Setting | None, scores: Sequence[tuple[str, Score]]) -> list[Cell]:
    """One cell per score, empty where nothing was run."""
    found = [family.estimate(cell, score) for _, score in scores]
    return [e.cell(2 if s == PERPLEXITY else 1) if e else Cell() for e, (_, s) in zip(found, scores, strict=True)]


def ablation_section(families: list[Family], commands: Commands) -> Section | None:
    """ExLM without one part, and the vanilla MLM at equal updates and at equal cost."""
    chosen = [f for f in families if f.select([*METHODS[2:-1], "Vanilla MLM++"], base_ratio(f))]
    about = (
        "ExLM without one of its parts or with a sparse DAG, and the vanilla MLM with equal and more updates (MLM++)."
    )
    section = Section("Ablations", about)
    for number, family in enumerate(chosen, 1):
        p, k = base_ratio(family), ablated_states(family)
        cells = [c for c in family.select(METHODS, p) if c.k in (1, k)]
        named = {cell.method: cell for cell in cells}
        lines = [(m, named.get(m), paper.ABLATIONS.get(m)) for m in METHODS if m in named or m in paper.ABLATIONS]
        title = f"Ablations at p = {100 * p:.4g}%, k = {k} ({family.label})"
        section.parts.append(_compared("ablations" if number == 1 else f"ablations-{number}", title, family, lines))
        lacking = [name for name, cell, _ in lines if cell is None] + _incomplete(family, cells)
        section.missing += analysis(family, lacking, commands)
    return section if chosen else None


def sweep_section(families: list[Family], commands: Commands) -> Section | None:
    """k and p."""
    chosen = [f for f in families if len(f.select(["ExLM"])) > 1]
    section = Section(
        "States k and mask ratio p", "The vanilla MLM and ExLM with 2, 4 and 8 states at two mask ratios."
    )
    for number, family in enumerate(chosen, 1):
        cells = {(c.p, c.k): c for c in compared_cells(family)}
        lines, lacking = [], []
        for p, k in sorted({*cells, *paper.SWEEP}):
            name = f"p = {100 * p:.4g}%, " + ("Vanilla MLM" if k == 1 else f"ExLM, k = {k}")
            lines.append((name, cells.get((p, k)), paper.SWEEP.get((p, k))))
            lacking += [name] if (p, k) not in cells else []
        table = f"states-{number}" if number > 1 else "states"
        section.parts.append(_compared(table, f"States and mask ratio ({family.label})", family, lines))
        section.missing += analysis(family, lacking + _incomplete(family, list(cells.values())), commands)
    return section if chosen else None


def compared_cells(family: Family) -> list[Setting]:
    """ExLM, and the vanilla MLM at the mask ratios at which there is an ExLM."""
    ratios = {cell.p for cell in family.select(["ExLM"])}
    return [cell for cell in family.select(["Vanilla MLM", "ExLM"]) if cell.p in ratios]


def _compared(
    name: str, title: str, family: Family, lines: Sequence[tuple[str, Setting | None, paper.Values | None]]
) -> Table:
    """Our tasks and held-out numbers, then the paper's columns, one row per name."""
    tasks = scores_of(family)
    shared = [s for t, s in tasks if not family.lower_is_better(s.task)]
    scores = [*tasks, ("Held-out accuracy", ACCURACY), ("Perplexity", PERPLEXITY)]
    rows = []
    for line, cell, values in lines:
        numbers = score_cells(family, cell, scores) if cell else [Cell()] * len(scores)
        average = mean_cell(family, cell, shared) if cell else Cell()
        ends = [seeds_cell(family, cell), runs_cell(family, cell)] if cell else [BLANK, Cell()]
        rows.append(
            Row(
                (
                    Cell(text=line),
                    *numbers[: len(tasks)],
                    average,
                    *numbers[len(tasks) :],
                    *paper_cells(values, 5),
                    *ends,
                )
            )
        )
    titles = ["model", *(t for t, _ in tasks), "Avg.", *(t for t, _ in scores[len(tasks) :])]
    of_paper = [*(TITLES[t] for t in paper.ABLATION_TASKS), "Avg."]
    caption = (
        "Mean over seeds ± s.d. over all seeds (pre-training × fine-tuning); the average is over our tasks that are "
        "scored in %, where every one was run. Held-out accuracy and perplexity are those of each masked "
        "token's marginal."
    )
    return Table(name, title, caption, columns_of(titles, of_paper, ["seeds", "runs"]), tuple(rows))


def _incomplete(family: Family, cells: Sequence[Setting]) -> list[str]:
    """Cells that lack a task which others of the family have."""
    found = []
    for cell in cells:
        lacking = [title for title, score in scores_of(family) if not family.estimate(cell, score)]
        found += [f"{label_of(cell)}, p = {100 * cell.p:.4g}% ({', '.join(lacking)})"] if lacking else []
    return found


def analysis(family: Family, lacking: list[str], commands: Commands) -> list[Missing]:
    return [Missing(f"{family.label}: {'; '.join(lacking)}", commands[family.label])] if lacking else []
