"""What training costs: hours of the runs, and steps measured side by side."""

from exlm.paper.report import commands
from exlm.paper.report import paper_values as paper
from exlm.paper.report.cells import HOURS, METHODS, Family, Setting
from exlm.paper.report.document import BLANK, Cell, Missing, Row, Section, Table, Value, cells, heading, row
from exlm.paper.report.records import Json, Pretraining, late, machine
from exlm.paper.report.runs import Runs
from exlm.train.tracking import read_log


def cost_section(families: list[Family], runs: Runs) -> Section:
    about = "Hours as the runs' logs have them (whatever else the machine did), and steps measured in turn."
    section = Section("Training cost", about, commands.start("efficiency", families))
    chosen = [family for family in families if {"Vanilla MLM", "ExLM"} <= set(family.named())]
    if chosen:
        section.parts.append(_hours_table(chosen))
    if runs.efficiency:
        section.parts.append(_efficiency_table(runs))
    elif chosen:
        section.missing.append(Missing("steps measured side by side: seconds, memory and their ratio", section.start))
    return section


def _hours_table(families: list[Family]) -> Table:
    rows = [heading("quoted from the paper (its text: approximately 1.9 times)")]
    for name, hours in paper.GPU_HOURS.items():
        ratio = Cell(hours / paper.GPU_HOURS["Vanilla MLM"], digits=2)
        rows.append(Row(cells([f"{name} on A100 80G", None, hours, ratio, None, BLANK, BLANK]), "paper"))
    for family in families:
        rows.append(heading(f"ours: {family.label}"))
        rows += [_hours_row(family, cell) for cell in family.select(METHODS, family.base_ratio)]
    columns = ("model", "updates", "hours", "times MLM", "tokens per second", "device", "runs")
    caption = (
        "Mean over pre-training seeds ± s.d.; tokens per second of training by the logs, expanded states not counted. "
        "Times of runs that shared the machine with others are upper bounds."
    )
    return Table("hours", "Training hours", caption, columns, tuple(rows))


def _hours_row(family: Family, cell: Setting) -> Row:
    hours, vanilla = family.cell(cell, HOURS), family.cell(family.named()["Vanilla MLM"], HOURS)
    taken, steps = hours.value or 0.0, family.cells[cell][0].steps
    devices = ", ".join(sorted({machine(run.result) for run in family.cells[cell]}))
    ratio = Cell(taken / vanilla.value if vanilla.value else None, digits=2)
    return row(family.name(cell), steps, hours, ratio, _rate(family.cells[cell]), devices, family.sources(cell)[1])


def _rate(runs: list[Pretraining]) -> int | None:
    """Tokens per second of training by the logs."""
    records = [record for run in runs for record in read_log(run.path / "log.jsonl") if record.get("kind") == "train"]
    tokens, seconds = (sum(record.get(key) or 0 for record in records) for key in ("tokens", "seconds"))
    return round(tokens / seconds) if tokens and seconds else None


def _efficiency_table(runs: Runs) -> Table:
    quoted: list[Value] = ["ExLM, k = 4", *[BLANK] * 4, Cell(paper.COST_RATIO, digits=2), BLANK, "A100 GPU time"]
    rows = [heading("quoted from the paper"), Row(cells(quoted), "paper")]
    for path, content in runs.efficiency:
        rows.append(heading(f"ours: {path}, {content['pairs']} pairs, {machine(content)}"))
        for name, entry in sorted(content["models"].items(), key=lambda item: item[0] != "mlm"):
            rows.append(_step_row(content, name, entry))
    titles = ("model", "p, %", "ms per step", "tokens per second", "peak memory, GB", "times MLM", "quartiles", "clock")
    caption = "Steps of both models in turn; the ratio is of the sums of times, the quartiles are over pairs of steps."
    return Table("efficiency", "Steps measured side by side", caption, titles, tuple(rows))


def _step_row(content: Json, name: str, entry: Json) -> Row:
    vanilla = name == "mlm"
    title = "Vanilla MLM" if vanilla else f"ExLM, k = {content['num_states']}{late(content)}"
    numbers = [100 * content["mask_ratio"], 1000 * entry["seconds_per_step"], round(entry["tokens_per_second"])]
    ends = [Cell(entry["peak_memory_bytes"] / 1e9, digits=2), Cell(1.0 if vanilla else content["ratio"], digits=2)]
    quartiles = BLANK if vanilla else "–".join(f"{q:.2f}" for q in content["ratio_quartiles"])
    return row(title, *numbers, *ends, quartiles, content["clock"])
