"""The list of runs behind the numbers, and of what was not used."""

from collections.abc import Iterator
from statistics import fmean

from exlm.analysis.report.cells import METHODS, TITLES, Family, Setting
from exlm.analysis.report.document import BLANK, Cell, Row, Table, columns_of, heading
from exlm.analysis.report.runs import Pretraining, Runs, machine
from exlm.analysis.report.sections import label_of


def runs_table(families: list[Family]) -> Table:
    """Every run that a cell points to."""
    titles = ["run", "kind", "what", "p, %", "r", "updates", "seeds", "result", "hours", "device", "directory"]
    rows = []
    for family in families:
        rows.append(heading(family.label, len(titles)))
        for cell in family.select(METHODS, r=None):
            for run in family.cells[cell]:
                rows.append(_run_row(cell, run))
                rows += [_tuning_row(family, i, task) for i, task in sorted(family.tunings) if i == run.id]
        for tunings in family.scratch.values():
            rows += [
                Row(
                    (
                        Cell(text=t.id),
                        Cell(text="fine-tuning"),
                        Cell(text=f"{t.task}, no pre-training"),
                        *[BLANK] * 3,
                        Cell(text=" ".join(map(str, t.result["seeds"]))),
                        BLANK,
                        BLANK,
                        Cell(text=machine(t.result)),
                        Cell(text=str(t.path)),
                    )
                )
                for t in tunings
            ]
    caption = (
        "Ids are the first 8 hexadecimal digits of the SHA-256 of a run's identity (its settings) as canonical JSON."
    )
    return Table("runs", "Every run behind the numbers", caption, columns_of(titles), tuple(rows))


def _run_row(cell: Setting, run: Pretraining) -> Row:
    accuracy = f"held-out accuracy {100 * run.result['evaluation']['accuracy']:.1f}%"
    texts = (run.id, "pre-training", label_of(cell))
    numbers = [Cell(100 * cell.p), Cell(cell.r, digits=0), Cell(run.steps, digits=0)]
    end = [accuracy, run.result["training_seconds"] / 3600, machine(run.result), str(run.path)]
    cells = [
        Cell(text=str(run.recipe["seed"])),
        *(Cell(e, digits=2) if isinstance(e, float) else Cell(text=e) for e in end),
    ]
    return Row((*(Cell(text=t) for t in texts), *numbers, *cells))


def _tuning_row(family: Family, run: str, task: str) -> Row:
    tuning = family.tunings[run, task]
    values = tuning.values(None, None)
    text = f"{tuning.result['metric']} {fmean(values):.4f}"
    best = tuning.result.get("best") or "one setting"
    start = [Cell(text=t) for t in (tuning.id, "fine-tuning", f"{TITLES.get(task, task)} from {run}, {best}")]
    seeds = Cell(text=" ".join(map(str, tuning.result["seeds"])))
    return Row(
        (
            *start,
            *[BLANK] * 3,
            seeds,
            Cell(text=text),
            BLANK,
            Cell(text=machine(tuning.result)),
            Cell(text=str(tuning.path)),
        )
    )


def left_out(runs: Runs, groups: list[Family]) -> Iterator[Table]:
    """What was found and not used, if anything."""
    found = [(str(path), "damaged", reason) for path, reason in runs.damaged]
    found += [
        (str(t.path), "its model is not among the runs", str(t.result["settings"]["model"])) for t in runs.unlinked
    ]
    found += [(str(t.path), "other settings than most of its task", t.task) for f in groups for t in f.left_out]
    if found:
        rows = tuple(Row(tuple(Cell(text=word) for word in line)) for line in found)
        yield Table("left-out", "Left out", "Not used in any table.", columns_of(["file", "why", "what"]), rows)
