"""The tables of the report: the paper's with our numbers beside its own, what training costs, and every run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from exlm.paper import values as paper
from exlm.paper.cells import ENTROPY, EVALUATED, HOURS, METHODS, MLM, PLUS, REPEATED, STATE_ENTROPY, Score, Setting
from exlm.paper.families import Family
from exlm.paper.page import BLANK, PAPER, Cell, Table, Values
from exlm.paper.runs import Finetuning, Pretraining, Runs, device, late_expansion
from exlm.paper.values import percent, texts
from exlm.train.tracking import read_log

PAPER_COLUMNS = tuple(PAPER + Score(task).title for task in paper.ABLATION_TASKS)
Lines = Mapping[str, tuple[Setting | None, paper.Values | None]]  # by the name of a row: our cell, the paper's numbers


class Layout(NamedTuple):
    """A main table: titles and scores before and behind the mean, which leaves out `not_averaged`."""

    name: str
    values: dict[str, paper.Values]
    before: dict[str, Score]
    behind: dict[str, Score]
    not_averaged: str
    recipe: str  # to pre-train the paper's ExLM

    @property
    def scores(self) -> list[Score]:
        return [*self.before.values(), *self.behind.values()]


MOLECULES = Layout(
    "main-molecules", paper.MOLECULES,
    {Score(task).title: Score(task, "roc_auc") for task in paper.MOLECULE_TASKS}, {}, "",
    "recipes/molecules/paper-exlm.yaml",
)  # fmt: skip
TEXT = Layout(
    "main-text", paper.TEXT,
    {"MNLI-m": Score("mnli", median=True), "MNLI-mm": Score("mnli", split="mismatched", median=True)}
    | {Score(t).title: Score(t, median=True) for t in ("qqp", "qnli", "sst-2", "cola", "rte", "mrpc", "sts-b")},
    {f"SQuAD {m.upper()}": Score("squad2", m, median=True) for m in ("em", "f1")}, "MNLI-mm",
    "recipes/text/paper-base-exlm.yaml",
)  # fmt: skip


def score_cell(family: Family, cell: Setting | None, score: Score) -> Cell:
    """An estimate with its seeds and runs in the note; empty where nothing was run."""
    estimate = family.estimate(cell, score) if cell else None
    if estimate is None:
        return Cell()
    sizes = "–".join(map(str, sorted({len(group) for group in estimate.groups})))
    seeds = f"{'mean of medians' if estimate.median else 'mean'} of {len(estimate.groups)} × {sizes}"
    note = f"{seeds} (pre-training × fine-tuning) seeds; runs {' '.join(estimate.runs)}"
    note, mark = "; ".join([note, *estimate.caveats]), "†" if estimate.caveats else ""
    return Cell(estimate.value, estimate.spread, digits=score.digits, note=note, mark=mark)


def score_cells(family: Family, cell: Setting | None, scores: Mapping[str, Score]) -> Values:
    return {title: score_cell(family, cell, score) for title, score in scores.items()}


def sources(family: Family, cell: Setting | None) -> Values:
    """The last two columns of most tables: seeds (pre-training × fine-tuning) and runs."""
    runs = family.cells.get(cell, []) if cell else []
    ids = tuple(run.id for run in runs)
    counts = sorted({len(t.result["seeds"]) for (i, _), t in family.finetunings.items() if i in ids})
    seeds = f"{len(runs)} × {'–'.join(map(str, counts)) or 0}"
    return {"seeds": seeds if runs else BLANK, "runs": Cell(runs=ids)}


def row_name(family: Family, cell: Setting) -> str:
    """The label of a cell; of MLM++ with its updates, and the ratio of costs that they come from."""
    if cell.method != PLUS:
        return cell.label
    run = family.cells[cell][0]
    ratio = family.cost_ratios.get(run.study, 0.0) if run.study else 0.0
    why = f" = {ratio:.2f} (measured cost) × {family.steps:,}" * (abs(ratio * family.steps - run.steps) <= 1)
    return f"{cell.label}, {run.steps:,} updates{why}"


def main_cells(family: Family) -> list[Setting]:
    return family.select([MLM, PLUS, "ExLM"], family.base_ratio)


def main_table(chosen: Sequence[Family], layout: Layout) -> Table:
    """Other systems' results and the paper's own, then ours by family."""
    titles = ("model", *layout.before, "mean", *layout.behind, "seeds", "runs")
    rows: list[Values] = []
    for source, whose in (("quoted", "other systems"), ("paper", "its own models")):
        for name, values in layout.values.items():
            if (name in paper.OF_THE_PAPER) == (source == "paper"):
                numbers = zip(titles, (name, *values, BLANK, BLANK), strict=True)
                rows.append({"group": f"quoted from the paper: {whose}", "source": source, **dict(numbers)})
    averaged = [score for title, score in layout.before.items() if title != layout.not_averaged]
    for family in chosen:
        for cell in main_cells(family):
            row = {"group": f"ours: {family.label}", "model": row_name(family, cell)}
            row |= score_cells(family, cell, layout.before) | {"mean": Cell(family.mean(cell, averaged))}
            rows.append(row | score_cells(family, cell, layout.behind) | sources(family, cell))
    caveats = sorted({word for family in chosen for word in family.caveats})
    title, caption = texts("tables", layout.name)
    caption += f" † not the published parts: {'; '.join(caveats)}." if caveats else ""
    return Table(layout.name, title, caption, rows)


def ablation_rows(family: Family) -> Lines:
    """ExLM without one part and the vanilla MLM; empty unless there is an ablation or an MLM++."""
    if not family.select(METHODS[1:-1], family.base_ratio):
        return {}
    named = family.named()
    names = {method: method for method in METHODS if method in named or method in paper.ABLATIONS}
    names["ExLM w/ Sparse DAG"] += " (paper: a table of its own, in the appendix)"
    names |= {PLUS: row_name(family, named[PLUS])} if PLUS in named else {}
    return {name: (named.get(method), paper.ABLATIONS.get(method)) for method, name in names.items()}


def sweep_rows(family: Family) -> Lines:
    """The number of states k by mask ratio p, with the vanilla MLM as k = 1; empty unless there are two ExLM cells."""
    if len(family.select(["ExLM"])) < 2:
        return {}
    cells = {(cell.p, cell.k): cell for cell in family.compared()}
    found = {}
    for p, k in sorted({*cells, *paper.SWEEP}):
        name = f"p = {percent(p)}, {MLM if k == 1 else f'ExLM, k = {k}'}"
        found[name] = (cells.get((p, k)), paper.SWEEP.get((p, k)))
    return found


def comparison_table(name: str, family: Family, lines: Lines) -> Table:
    """Our tasks and held-out numbers, then the paper's columns; one row per name."""
    ratio = percent(family.base_ratio)
    rows = []
    for label, (cell, values) in lines.items():
        row = {"model": label, **score_cells(family, cell, {score.title: score for score in family.scores})}
        row |= {"avg.": Cell(family.mean(cell, family.shares) if cell else None)}
        row |= score_cells(family, cell, EVALUATED)
        row |= dict(zip((*PAPER_COLUMNS, f"{PAPER}avg."), values or [None] * 5, strict=True))
        rows.append(row | sources(family, cell))
    return Table(name, *texts("tables", name, label=family.label, ratio=ratio, states=family.base_states), rows)


def repeated_table(family: Family) -> Table:
    """The grid of mask ratios and repetitions, with what the paper prints of it."""
    scores = {score.title: score for score in family.scores}
    rows = []
    for cell in family.full_grid:
        found = cell if cell in family.cells else None
        values: paper.Values = (paper.REPEATED_MNLI.get((cell.p, cell.r)), None, None, None)
        values = paper.SWEEP[cell.p, 1][:4] if cell.r == 1 and (cell.p, 1) in paper.SWEEP else values
        row = {"p, %": 100 * cell.p, "r": cell.r, "pʳ, %": Cell(100 * cell.hidden, digits=2)}
        row |= score_cells(family, found, scores | REPEATED)
        row |= {"entropy": _entropy_cell(family, cell, ENTROPY), "tokens": _entropy_tokens(family, cell)}
        rows.append(row | dict(zip(PAPER_COLUMNS, values, strict=True)) | sources(family, found))
    return Table("repeated-mlm", *texts("tables", "repeated-mlm", label=family.label), rows)


def _entropy_tokens(family: Family, cell: Setting) -> int | None:
    """How many held-out tokens an entropy is the mean of, over all seeds."""
    found = family.measured(cell, "entropy")
    return sum(entropy["tokens"] for entropy in found) if found else None


def _entropy_cell(family: Family, cell: Setting, score: Score) -> Cell:
    """With its error; blank where every held-out token had a visible copy."""
    found, tokens = score_cell(family, cell, score), _entropy_tokens(family, cell)
    if found.value is None:
        return Cell(text=" ", note="no held-out token without a visible copy") if tokens == 0 else Cell()
    note = f"{found.note}; over {tokens} tokens"
    return Cell(found.value, family.entropy_error(cell, score), digits=3, note=note)


def entropy_table(family: Family, cells: Sequence[Setting]) -> Table:
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.p, cell.k)):
        row = {"p, %": 100 * cell.p, "model": cell.label, "entropy, bits": _entropy_cell(family, cell, ENTROPY)}
        rows.append(row | {"per state, bits": _entropy_cell(family, cell, STATE_ENTROPY)} | sources(family, cell))
    return Table("entropy", *texts("tables", "entropy", label=family.label), rows)


def hours_table(families: Sequence[Family]) -> Table:
    titles = ("group", "source", "model", "updates", "hours", "times MLM", "tokens per second", "device", "runs")
    group = "quoted from the paper (its text: approximately 1.9 times)"
    rows: list[tuple[Any, ...]] = []
    for name, hours in paper.GPU_HOURS.items():
        ratio = Cell(hours / paper.GPU_HOURS[MLM], digits=2)
        rows.append((group, "paper", f"{name} on A100 80G", None, hours, ratio, None, BLANK, BLANK))
    for family in families:
        vanilla = score_cell(family, family.named()[MLM], HOURS).value
        for cell in family.select(METHODS, family.base_ratio):
            taken, runs = score_cell(family, cell, HOURS), family.cells[cell]
            ratio = Cell(taken.value / vanilla if taken.value is not None and vanilla else None, digits=2)
            start = (f"ours: {family.label}", "ours", row_name(family, cell), runs[0].steps, taken, ratio)
            devices = ", ".join(sorted({device(run.result) for run in runs}))
            rows.append((*start, _tokens_per_second(runs), devices, sources(family, cell)["runs"]))
    return Table("hours", *texts("tables", "hours"), [dict(zip(titles, row, strict=True)) for row in rows])


def _tokens_per_second(runs: Sequence[Pretraining]) -> int | None:
    records = [record for run in runs for record in read_log(run.path / "log.jsonl") if record.get("kind") == "train"]
    tokens, seconds = (sum(record.get(key) or 0 for record in records) for key in ("tokens", "seconds"))
    return round(tokens / seconds) if tokens and seconds else None


def efficiency_table(runs: Runs) -> Table:
    titles = ("model", "p, %", "ms per step", "tokens per second", "peak memory, GB", "times MLM", "quartiles", "clock")
    quoted = ("ExLM, k = 4", *[BLANK] * 4, Cell(paper.COST_RATIO, digits=2), BLANK, "A100 GPU time")
    rows = [{"group": "quoted from the paper", "source": "paper", **dict(zip(titles, quoted, strict=True))}]
    for path, content in runs.costs:
        group = f"ours: {path}, {content['pairs']} pairs, {device(content)}"
        quartiles = "–".join(f"{q:.2f}" for q in content["ratio_quartiles"])
        exlm = (f"ExLM, k = {content['num_states']}{late_expansion(content)}", content["ratio"], quartiles)
        for name, entry in sorted(content["models"].items(), key=lambda item: item[0] != "mlm"):
            model, ratio, spread = (MLM, 1.0, BLANK) if name == "mlm" else exlm
            speed = (1000 * entry["seconds_per_step"], round(entry["tokens_per_second"]))
            ends = (Cell(entry["peak_memory_bytes"] / 1e9, digits=2), Cell(ratio, digits=2), spread, content["clock"])
            values = (model, 100 * content["mask_ratio"], *speed, *ends)
            rows.append({"group": group, **dict(zip(titles, values, strict=True))})
    return Table("efficiency", *texts("tables", "efficiency"), rows)


def runs_table(families: Sequence[Family]) -> Table:
    rows = []
    listed = set()  # a vanilla MLM may belong to several families but is listed once
    for family in families:
        for cell in family.select(METHODS, r=None):
            for run in (run for run in family.cells[cell] if run.id not in listed):
                listed.add(run.id)
                rows.append({"group": family.label} | _pretraining_row(cell, run))
                found = sorted((t.task, t) for (i, _), t in family.finetunings.items() if i == run.id)
                rows += [{"group": family.label} | _finetuning_row(tuning, run.id) for _, tuning in found]
    return Table("runs", *texts("tables", "runs"), rows)


def _pretraining_row(cell: Setting, run: Pretraining) -> Values:
    words = {"accuracy": "held-out accuracy {:.1f}%", "perplexity": "perplexity {:.2f}"}
    words |= {"joint perplexity": "joint {:.2f}", "own mask": "own mask {:.1f}%"}
    result = ", ".join(text.format(run.scores[name]) for name, text in words.items() if name in run.scores)
    row = {"run": run.id, "kind": "pre-training", "what": cell.label, "p, %": 100 * cell.p, "r": cell.r}
    row |= {
        "updates": run.steps,
        "seeds": str(run.seed),
        "result": result,
        "hours": Cell(run.scores["hours"], digits=2),
    }
    return row | {"device": device(run.result), "directory": str(run.path)}


def _finetuning_row(tuning: Finetuning, model: str) -> Values:
    result, task = tuning.result, Score(tuning.task).title
    what = f"{task} from {model}, {result['best'] or 'one setting'}"
    row = {"run": tuning.id, "kind": "fine-tuning", "what": what, "p, %": BLANK, "r": BLANK, "updates": BLANK}
    row |= {"seeds": " ".join(map(str, result["seeds"])), "result": f"{result['metric']} {fmean(tuning.values()):.2f}"}
    return row | {"hours": BLANK, "device": device(result), "directory": str(tuning.path)}


def left_out_table(runs: Runs, families: Sequence[Family]) -> Table:
    """What was found and is not used in any table, and why."""
    found = [(str(path), "damaged", reason) for path, reason in runs.damaged]
    why = "its model is not among the runs"
    found += [(str(t.path), why, "/".join(Path(t.settings["model"]).parts[-3:])) for t in runs.unlinked]
    why = "another run has its seed, or is an MLM++ of more usual length"
    found += [(str(run.path), why, f"{run.method}, {run.steps:,} updates") for f in families for run in f.repeated]
    why = "other settings than most of its task, from scratch, or a repetition"
    found += [(str(t.path), why, t.task) for family in families for t in family.left_out]
    rows = [{"file": path, "why": why, "what": what} for path, why, what in dict.fromkeys(found)]
    return Table("left-out", *texts("tables", "left-out"), rows)
