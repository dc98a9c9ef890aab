"""Entropy by p and k, and what training costs."""

from collections.abc import Sequence

from exlm.analysis.report import paper_values as paper
from exlm.analysis.report.cells import ENTROPY, HOURS, METHODS, STATE_ENTROPY, Family, Score, Setting
from exlm.analysis.report.document import BLANK, Cell, Figure, Missing, Row, Section, Table, columns_of, heading
from exlm.analysis.report.figures import Line, bars
from exlm.analysis.report.runs import Json, Runs, machine
from exlm.analysis.report.sections import (
    Commands,
    analysis,
    base_ratio,
    compared_cells,
    label_of,
    runs_cell,
    seeds_cell,
)


def entropy_section(families: list[Family], commands: Commands) -> Section | None:
    """Entropy of the predictions by p and k."""
    chosen = [f for f in families if any(f.estimate(c, ENTROPY) for c in f.select(["ExLM"]))]
    about = (
        "Bits of the prediction of a masked token on held-out data: of the marginal over a mask's states, and of each "
        "state's own distribution weighted by its posterior. The paper's figure has no numbers: ExLM below MLM, "
        "lower with k."
    )
    section = Section("Entropy of ExLM and MLM", about)
    for number, family in enumerate(chosen, 1):
        end = "" if number == 1 else f"-{number}"
        cells = [c for c in compared_cells(family) if family.estimate(c, ENTROPY)]
        section.parts += [_entropy_figure(family, cells, end), _entropy_table(family, cells, end)]
        lacking = [f"{label_of(c)}, p = {100 * c.p:.4g}%" for c in compared_cells(family) if c not in cells]
        section.missing += analysis(family, lacking, commands)
    return section if chosen else None


def _entropy_figure(family: Family, cells: Sequence[Setting], end: str) -> Figure:
    ratios = sorted({cell.p for cell in cells})
    series, outlined = [], []
    for k in sorted({cell.k for cell in cells}):
        for score, hatched in ((ENTROPY, False), (STATE_ENTROPY, True)):
            own = sorted((cell for cell in cells if cell.k == k), key=lambda cell: cell.p)
            found = [
                (ratios.index(c.p), e, entropy_error(family, c, score)) for c in own if (e := family.estimate(c, score))
            ]
            name = ("MLM" if k == 1 else f"ExLM, k = {k}") + (", per state" if hatched else "")
            if found and not (hatched and k == 1):
                series.append(
                    Line(name, [x for x, _, _ in found], [e.value for _, e, _ in found], [s for *_, s in found])
                )
                outlined.append(hatched)
    caption = (
        f"Entropy by mask ratio and states ({family.label}); filled: the marginal, hatched: each state's own. Error "
        "bars: s.d. over pre-training seeds where there are several, else the standard error over tokens."
    )
    return Figure(
        f"entropy{end}", caption, bars([f"p = {100 * p:.4g}%" for p in ratios], series, "entropy, bits", outlined)
    )


def entropy_error(family: Family, cell: Setting, score: Score) -> float:
    """S.d. over pre-training seeds, or the standard error over tokens of a single one."""
    estimate = family.estimate(cell, score)
    if estimate and estimate.spread is not None:
        return estimate.spread
    entropies = [m["entropy"] for run in family.cells[cell] if (m := run.measurements) and m.get("entropy")]
    parts = [e if score == ENTROPY else e.get("states") for e in entropies]
    return next((part["stderr"] for part in parts if part and part.get("stderr") is not None), 0.0)


def _entropy_table(family: Family, cells: Sequence[Setting], end: str) -> Table:
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.p, cell.k)):
        numbers = []
        for score in (ENTROPY, STATE_ENTROPY):
            estimate = family.estimate(cell, score)
            error = Cell(entropy_error(family, cell, score), digits=3) if estimate else Cell()
            numbers += [Cell(estimate.value, digits=3, note=estimate.cell().note) if estimate else Cell(), error]
        ends = (seeds_cell(family, cell), runs_cell(family, cell))
        rows.append(Row((Cell(100 * cell.p), Cell(text=label_of(cell)), *numbers, *ends)))
    titles = ["p, %", "model", "entropy, bits", "±", "per state, bits", "± per state", "seeds", "runs"]
    caption = "±: s.d. over pre-training seeds, or of one seed the standard error over tokens."
    return Table(f"entropy{end}", f"Entropy ({family.label})", caption, columns_of(titles), tuple(rows))


def cost_section(families: list[Family], runs: Runs, command: str) -> Section | None:
    """Hours of the runs, and measured steps."""
    chosen = [f for f in families if f.select(["Vanilla MLM"], base_ratio(f)) and f.select(["ExLM"], base_ratio(f))]
    if not chosen and not runs.efficiency:
        return None
    about = "Hours as the runs' logs have them (whatever else the machine did), and steps measured in turn."
    section = Section("Training cost", about)
    rows = [
        Row(
            (
                Cell(text=f"{name} on A100 80G"),
                Cell(),
                Cell(hours),
                Cell(hours / paper.GPU_HOURS["Vanilla MLM"]),
                Cell(),
                BLANK,
                BLANK,
            ),
            "paper",
        )
        for name, hours in paper.GPU_HOURS.items()
    ]
    titles = ["model", "updates", "hours", "times MLM", "tokens per second", "device", "runs"]
    rows = [heading("quoted from the paper (its text: approximately 1.9 times)", len(titles)), *rows]
    for family in chosen:
        rows.append(heading(f"ours: {family.label}", len(titles)))
        rows += [_hours_row(family, cell) for cell in family.select(METHODS, base_ratio(family))]
    caption = "Mean over pre-training seeds ± s.d.; tokens per second are those of a batch's sequences, unexpanded."
    section.parts.append(Table("hours", "Training hours", caption, columns_of(titles), tuple(rows)))
    if runs.efficiency:
        section.parts.append(_efficiency_table(runs.efficiency))
    else:
        section.missing.append(Missing("steps measured side by side: seconds, memory and their ratio", command))
    return section


def _hours_row(family: Family, cell: Setting) -> Row:
    hours = family.estimate(cell, HOURS)
    vanilla = family.estimate(family.select(["Vanilla MLM"], base_ratio(family))[0], HOURS)
    assert hours and vanilla
    ratio = Cell(hours.value / vanilla.value, digits=2) if vanilla.value else Cell()
    devices = ", ".join(sorted({machine(run.result) for run in family.cells[cell]}))
    steps = family.cells[cell][0].steps
    rate = steps * family.cells[cell][0].recipe["data"].get("tokens_per_batch", 0) / (3600 * hours.value or 1)
    return Row(
        (
            Cell(text=label_of(cell)),
            Cell(steps, digits=0),
            hours.cell(2),
            ratio,
            Cell(rate or None, digits=0),
            Cell(text=devices),
            runs_cell(family, cell),
        )
    )


def _efficiency_table(found: Sequence[tuple[object, Json]]) -> Table:
    titles = ["model", "p, %", "ms per step", "tokens per second", "peak memory, GB", "times MLM", "quartiles", "clock"]
    rows = [
        heading("quoted from the paper", 8),
        Row(
            (Cell(text="ExLM, k = 4"), *[BLANK] * 4, Cell(paper.COST_RATIO), BLANK, Cell(text="A100 GPU time")),
            "paper",
        ),
    ]
    for path, content in found:
        rows.append(heading(f"ours: {path}, {content.get('pairs', '?')} pairs, {machine(content)}", 8))
        for name, entry in sorted(content["models"].items(), key=lambda item: item[0] != "mlm"):
            title = "Vanilla MLM" if name == "mlm" else f"ExLM, k = {entry.get('num_states', '?')}"
            memory, ratio = entry.get("peak_memory_bytes"), content.get("ratio") if name != "mlm" else None
            quartiles = "–".join(f"{q:.2f}" for q in content.get("ratio_quartiles") or []) if ratio else ""
            cells = [Cell(100 * content["mask_ratio"]), Cell(1000 * entry["seconds_per_step"])]
            cells += [Cell(entry["tokens_per_second"], digits=0), Cell(memory / 1e9 if memory else None, digits=2)]
            rows.append(
                Row(
                    (
                        Cell(text=title),
                        *cells,
                        Cell(ratio, digits=2),
                        Cell(text=quartiles),
                        Cell(text=entry.get("clock", "")),
                    )
                )
            )
    caption = "Steps of both models in turn; the ratio is that of the pairs' medians or as the measurement says."
    return Table("efficiency", "Steps measured side by side", caption, columns_of(titles), tuple(rows))
