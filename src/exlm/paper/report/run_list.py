"""The list of runs behind the numbers, and of what was not used."""

from pathlib import Path
from statistics import fmean

from exlm.paper.report.cells import METHODS, TITLES, Family, Setting
from exlm.paper.report.document import BLANK, Cell, Row, Section, Table, Value, heading, row
from exlm.paper.report.records import Finetuning, Pretraining, machine
from exlm.paper.report.runs import Runs


def runs_section(runs: Runs, families: list[Family]) -> Section:
    section = Section("Runs", "What every number comes from.", parts=[_runs_table(families)])
    found = [(str(path), "damaged", reason) for path, reason in runs.damaged]
    found += [
        (str(t.path), "its model is not among the runs", "/".join(Path(t.settings["model"]).parts[-3:]))
        for t in runs.unlinked
    ]
    why = "another run has its seed, or is an MLM++ of more usual length"
    found += [(str(run.path), why, f"{run.method}, {run.steps:,} updates") for f in families for run in f.repeated]
    why = "other settings than most of its task, from scratch, or a repetition"
    found += [(str(t.path), why, t.task) for family in families for t in family.left_out]
    if found:
        rows = tuple(row(*words) for words in dict.fromkeys(found))
        section.parts.append(Table("left-out", "Left out", "Not used in any table.", ("file", "why", "what"), rows))
    return section


def _runs_table(families: list[Family]) -> Table:
    rows, listed = [], set()  # a vanilla MLM may belong to several families
    for family in families:
        rows.append(heading(family.label))
        for cell in family.select(METHODS, r=None):
            for run in (run for run in family.cells[cell] if run.id not in listed):
                listed.add(run.id)
                rows.append(_pretraining_row(cell, run))
                found = sorted((t.task, t) for (i, _), t in family.tunings.items() if i == run.id)
                rows += [_finetuning_row(tuning, run.id) for _, tuning in found]
    columns = ("run", "kind", "what", "p, %", "r", "updates", "seeds", "result", "hours", "device", "directory")
    about = "Ids are the first 8 hexadecimal digits of the SHA-256 of a run's identity (its settings)."
    return Table("runs", "Every run behind the numbers", about, columns, tuple(rows))


def _pretraining_row(cell: Setting, run: Pretraining) -> Row:
    hours = Cell(run.result["training_seconds"] / 3600, digits=2)
    settings: list[Value] = [100 * cell.p, cell.r, run.steps, str(run.seed)]
    return row(run.id, "pre-training", cell.label, *settings, _held_out(run), hours, machine(run.result), str(run.path))


def _held_out(run: Pretraining) -> str:
    """Of each masked token, of all together and where they stand, as far as it was recorded."""
    found = run.evaluation
    words = [f"held-out accuracy {100 * found['accuracy']:.1f}%", f"perplexity {found['perplexity']:.2f}"]
    words += [f"joint {found['joint_perplexity']:.2f}"] if "joint_perplexity" in found else []
    words += [f"own mask {100 * found['own_states']:.1f}%"] if "own_states" in found else []
    return ", ".join(words)


def _finetuning_row(tuning: Finetuning, model: str) -> Row:
    what = f"{TITLES.get(tuning.task, tuning.task)} from {model}, {tuning.result.get('best') or 'one setting'}"
    seeds = " ".join(map(str, tuning.result["seeds"]))
    score = f"{tuning.result['metric']} {fmean(tuning.values()):.2f}"
    ends: list[Value] = [seeds, score, BLANK, machine(tuning.result), str(tuning.path)]
    return row(tuning.id, "fine-tuning", what, BLANK, BLANK, BLANK, *ends)
