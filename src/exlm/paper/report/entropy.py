"""Entropy of ExLM and of the MLM by mask ratio and number of states."""

from exlm.paper.report import commands
from exlm.paper.report.cells import ENTROPY, STATE_ENTROPY, Family, Score, Setting
from exlm.paper.report.document import Cell, Figure, Section, Table, row
from exlm.paper.report.figures import Line, bars

ABOUT = (
    "Bits of the prediction of a masked token on held-out data: of the marginal over a mask's states, and of each "
    "state's own distribution by its posterior. The paper's figure has no numbers: ExLM below MLM, falling with k."
)


def entropy_section(families: list[Family]) -> Section:
    section = Section("Entropy of ExLM and MLM", ABOUT, commands.start("entropy", families))
    for family in families:
        cells = [cell for cell in family.compared() if family.estimate(cell, ENTROPY)]
        if any(cell.method == "ExLM" for cell in cells):
            section.parts += [_figure(family, cells), _table(family, cells)]
            lacking = [commands.place_of(cell) for cell in family.compared() if cell not in cells]
            section.missing += commands.analysis("entropy", family, lacking)
    return section


def _figure(family: Family, cells: list[Setting]) -> Figure:
    ratios = sorted({cell.p for cell in cells})
    series = []
    for k in sorted({cell.k for cell in cells}):
        name = "MLM" if k == 1 else f"ExLM, k = {k}"
        for score, title in ((ENTROPY, name), (STATE_ENTROPY, f"{name}, per state")):
            own = [cell for cell in cells if cell.k == k and family.estimate(cell, score)]
            if own and (k > 1 or score == ENTROPY):
                values = [family.cell(cell, score).value or 0.0 for cell in own]
                errors = [entropy_error(family, cell, score) for cell in own]
                places = [ratios.index(cell.p) for cell in own]
                series.append(Line(title, places, values, errors, hatched=score == STATE_ENTROPY))
    caption = (
        f"Entropy by mask ratio and states ({family.label}); filled: the marginal, hatched: each state's own. Error "
        "bars: s.d. over pre-training seeds where there are several, else the standard error over tokens."
    )
    return Figure("entropy", caption, bars([f"p = {100 * p:.4g}%" for p in ratios], series, "entropy, bits"))


def entropy_error(family: Family, cell: Setting, score: Score) -> float:
    """S.d. over pre-training seeds, or the standard error over tokens of a single one."""
    estimate = family.estimate(cell, score)
    if estimate and estimate.spread is not None:
        return estimate.spread
    entropies = [run.measured("entropy") for run in family.cells[cell]]
    parts = [entropy if score == ENTROPY else entropy.get("states") or {} for entropy in entropies]
    return next((part["stderr"] for part in parts if part.get("stderr") is not None), 0.0)


def entropy_tokens(family: Family, cell: Setting) -> int | None:
    """How many held-out tokens an entropy is the mean of, over all seeds."""
    counts = [entropy["tokens"] for run in family.cells[cell] if (entropy := run.measured("entropy"))]
    return sum(counts) if counts else None


def entropy_cell(family: Family, cell: Setting, score: Score = ENTROPY) -> Cell:
    """With its error; blank where every held-out token had a visible copy."""
    found, tokens = family.cell(cell, score), entropy_tokens(family, cell)
    if found.value is None:
        return Cell(text=" ", note="no held-out token without a visible copy") if tokens == 0 else Cell()
    note = f"{found.note}; over {tokens} tokens"
    return Cell(found.value, entropy_error(family, cell, score), digits=3, note=note)


def _table(family: Family, cells: list[Setting]) -> Table:
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.p, cell.k)):
        numbers = [entropy_cell(family, cell, score) for score in (ENTROPY, STATE_ENTROPY)]
        rows.append(row(100 * cell.p, cell.label, *numbers, *family.sources(cell)))
    columns = ("p, %", "model", "entropy, bits", "per state, bits", "seeds", "runs")
    caption = "±: s.d. over pre-training seeds, or of one seed the standard error over tokens."
    return Table("entropy", f"Entropy ({family.label})", caption, columns, tuple(rows))
