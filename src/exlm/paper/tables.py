"""The tables of the report: the paper's with our numbers beside its own, what training costs, and every run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from exlm.paper import values as paper
from exlm.paper.families import Family
from exlm.paper.page import BLANK, PAPER, Number, Row, Table
from exlm.paper.runs import Pretraining, Runs, device, late_expansion
from exlm.paper.values import MLM, PLUS, TEXTS, HeldOut, Setting, in_order, percent, texts, title
from exlm.train.tracking import read_log

EVALUATED = (HeldOut.ACCURACY, HeldOut.PERPLEXITY, HeldOut.JOINT_PERPLEXITY, HeldOut.OWN_MASK)
PAPER_COLUMNS = tuple(PAPER + title(task) for task in paper.ABLATION_TASKS)


def our_scores(family: Family, cell: Setting | None, scores: Iterable[str]) -> Row:
    return {title(score): family.estimate(cell, score) for score in scores}


def lacking(family: Family, cell: Setting | None, name: str) -> str:
    """What has not been run of a row, in words: some tasks, or the whole cell, by the name of the row."""
    if cell not in family.cells:
        return name
    tasks = [title(task) for task in family.tasks if not family.estimate(cell, task)]
    return f"{cell.description} ({', '.join(tasks)})" if tasks else ""


def sources(family: Family, cell: Setting | None) -> Row:
    """The last two columns of most tables: seeds (pre-training × fine-tuning) and runs."""
    if not (runs := family.cells.get(cell) if cell else None):
        return {"seeds": BLANK, "runs": None}
    ids = [run.id for run in runs]
    counts = sorted({len(t.result["seeds"]) for (id, _), t in family.finetunings.items() if id in ids})
    return {"seeds": f"{len(runs)} × {'–'.join(map(str, counts)) or 0}", "runs": " ".join(ids)}


def row_name(family: Family, cell: Setting) -> str:
    """The label of a cell; of MLM++ with its updates, and the ratio of costs that they come from."""
    if cell.method != PLUS:
        return cell.label
    run = family.cells[cell][0]
    ratio = family.cost_ratios.get(run.study, 0.0)
    why = f" = {ratio:.2f} (measured cost) × {family.steps:,}" * (abs(ratio * family.steps - run.steps) <= 1)
    return f"{cell.label}, {run.steps:,} updates{why}"


def main_cells(family: Family) -> list[Setting]:
    return family.select([MLM, PLUS, "ExLM"], family.base_ratio)


def main_table(name: str, chosen: Sequence[Family]) -> Table:
    """Other systems' results and the paper's own, then ours by family."""
    main = paper.MAIN_TABLES[name]
    rows: list[Row] = []
    for source, whose in (("quoted", "other systems"), ("paper", "its own models")):
        for model, values in main.paper.items():
            if (model in paper.OF_THE_PAPER) == (source == "paper"):
                start = {"group": f"quoted from the paper: {whose}", "source": source, "model": model}
                rows.append(start | dict(zip(main.columns, values, strict=True)) | {"seeds": BLANK, "runs": BLANK})
    for family in chosen:
        for cell in main_cells(family):
            row: Row = {"group": f"ours: {family.label}", "model": row_name(family, cell)}
            for column, score in main.columns.items():
                ours = family.estimate(cell, score, main.of_medians) if score else None
                row[column] = family.mean(cell, main.averaged, main.of_medians) if column == "mean" else ours
            rows.append(row | sources(family, cell))
    tunings = [tuning for family in chosen for tuning in family.finetunings.values()]
    caveats = sorted({f"{title(tuning.task)}: {word}" for tuning in tunings for word in tuning.caveats})
    heading, caption = texts("tables", name)
    return Table(name, heading, caption + f" † not the published parts: {'; '.join(caveats)}." * bool(caveats), rows)


def ablation_table(family: Family) -> Table:
    """ExLM without one part and the vanilla MLM; empty unless there is an ablation or an MLM++."""
    cells: dict[str, tuple[Setting | None, paper.Values | None]] = {}
    named = family.named()
    for method in in_order({*named, *paper.ABLATIONS}) if named.keys() - {MLM, "ExLM"} else ():
        cell = named.get(method)
        name = row_name(family, cell) if cell and method == PLUS else method
        name += " (paper: a table of its own, in the appendix)" * (method == "ExLM w/ Sparse DAG")
        cells[name] = (cell, paper.ABLATIONS.get(method))
    return _comparison("ablations", family, cells)


def sweep_table(family: Family) -> Table:
    """The number of states k by mask ratio p, with the vanilla MLM as k = 1; empty unless there are two ExLM cells."""
    cells: dict[str, tuple[Setting | None, paper.Values | None]] = {}
    known = {(cell.p, cell.k): cell for cell in family.compared()}
    for p, k in sorted({*known, *paper.SWEEP}) if len(family.select(["ExLM"])) > 1 else ():
        name = f"p = {percent(p)}, {MLM if k == 1 else f'ExLM, k = {k}'}"
        cells[name] = (known.get((p, k)), paper.SWEEP.get((p, k)))
    return _comparison("sweep", family, cells)


def _comparison(name: str, family: Family, cells: dict[str, tuple[Setting | None, paper.Values | None]]) -> Table:
    """Our tasks and held-out numbers, then the paper's columns; one row per name."""
    rows = []
    for label, (cell, values) in cells.items():
        row: Row = {"lacking": lacking(family, cell, label), "model": label} | our_scores(family, cell, family.tasks)
        row |= {"avg.": family.mean(cell, family.shares)} | our_scores(family, cell, EVALUATED)
        row |= dict(zip((*PAPER_COLUMNS, f"{PAPER}avg."), values or (None,) * 5, strict=True))
        rows.append(row | sources(family, cell))
    words = {"label": family.label, "ratio": percent(family.base_ratio), "states": family.base_states}
    return Table(name, *texts("tables", name, **words), rows)


def repeated_table(family: Family) -> Table:
    """The grid of mask ratios and repetitions, with what the paper prints of it."""
    rows = []
    for cell in family.full_grid if family.grid else ():
        values: paper.Values = (paper.REPEATED_MNLI.get((cell.p, cell.r)), None, None, None)
        values = paper.SWEEP[cell.p, 1][:4] if cell.r == 1 and (cell.p, 1) in paper.SWEEP else values
        row: Row = {"lacking": lacking(family, cell, f"p = {percent(cell.p)}, r = {cell.r}")}
        row |= {"p, %": 100 * cell.p, "r": cell.r, "pʳ, %": Number(100 * cell.hidden, digits=2)}
        row |= our_scores(family, cell, [*family.tasks, HeldOut.ACCURACY, HeldOut.PERPLEXITY, HeldOut.CORRUPTION])
        row |= {"entropy": _entropy(family, cell, HeldOut.ENTROPY), "tokens": _entropy_tokens(family, cell)}
        rows.append(row | dict(zip(PAPER_COLUMNS, values, strict=True)) | sources(family, cell))
    return Table("repeated-mlm", *texts("tables", "repeated-mlm", label=family.label), rows)


def entropy_table(family: Family) -> Table:
    """Of ExLM and of the MLM at its mask ratios; empty unless an ExLM's is known."""
    known = any(family.estimates(family.select(["ExLM"]), HeldOut.ENTROPY))
    rows = []
    for cell in sorted(family.compared(), key=lambda cell: (cell.p, cell.k)) if known else ():
        entropy, own = (_entropy(family, cell, score) for score in (HeldOut.ENTROPY, HeldOut.STATE_ENTROPY))
        row = {"lacking": "" if entropy else cell.description, "p, %": 100 * cell.p, "model": cell.label}
        rows.append(row | {"entropy, bits": entropy, "per state, bits": own} | sources(family, cell))
    return Table("entropy", *texts("tables", "entropy", label=family.label), rows)


def _entropy_tokens(family: Family, cell: Setting) -> int | None:
    """How many held-out tokens an entropy is the mean of, over all seeds."""
    samples = family.values.get((cell, HeldOut.TOKENS))
    return sum(int(sample.values[0]) for sample in samples) if samples else None


def _entropy(family: Family, cell: Setting, score: str) -> Number | None:
    """With the number of its tokens; blank where every held-out token had a visible copy."""
    found, tokens = family.estimate(cell, score), _entropy_tokens(family, cell)
    if found:
        return replace(found, note=f"{found.note}; over {tokens} tokens")
    return Number(None, note="no held-out token without a visible copy") if tokens == 0 else None


def hours_table(chosen: Sequence[Family]) -> Table:
    """Of the paper and of the families, which have ExLM and the vanilla MLM."""
    titles = ("group", "source", "model", "updates", "hours", "times MLM", "tokens per second", "device", "runs")
    group = "quoted from the paper (its text: approximately 1.9 times)"
    rows: list[tuple[object, ...]] = []
    for name, hours in paper.GPU_HOURS.items():
        ratio = Number(hours / paper.GPU_HOURS[MLM], digits=2)
        rows.append((group, "paper", f"{name} on A100 80G", None, hours, ratio, None, BLANK, BLANK))
    for family in chosen:
        found = family.estimates(family.select(p=family.base_ratio), HeldOut.HOURS)
        vanilla = found[family.named()[MLM]].value
        for cell, taken in found.items():
            runs = family.cells[cell]
            start = (f"ours: {family.label}", "ours", row_name(family, cell), runs[0].steps, taken)
            ratio = Number(taken.value / vanilla if vanilla else None, digits=2)
            devices = ", ".join(sorted({device(run.result) for run in runs}))
            rows.append((*start, ratio, _tokens_per_second(runs), devices, sources(family, cell)["runs"]))
    return Table("hours", *texts("tables", "hours"), [dict(zip(titles, row, strict=True)) for row in rows])


def _tokens_per_second(runs: Sequence[Pretraining]) -> int | None:
    records = [record for run in runs for record in read_log(run.path / "log.jsonl") if record.get("kind") == "train"]
    tokens, seconds = (sum(record.get(key) or 0 for record in records) for key in ("tokens", "seconds"))
    return round(tokens / seconds) if tokens and seconds else None


def efficiency_table(runs: Runs) -> Table:
    titles = ("model", "p, %", "ms per step", "tokens per second", "peak memory, GB", "times MLM", "quartiles", "clock")
    quoted = ("ExLM, k = 4", *[BLANK] * 4, Number(paper.COST_RATIO, digits=2), BLANK, "A100 GPU time")
    rows: list[Row] = [{"group": "quoted from the paper", "source": "paper", **dict(zip(titles, quoted, strict=True))}]
    for path, content in runs.costs:
        group = f"ours: {path}, {content['pairs']} pairs, {device(content)}"
        quartiles = "–".join(f"{q:.2f}" for q in content["ratio_quartiles"])
        exlm = (f"ExLM, k = {content['num_states']}{late_expansion(content)}", content["ratio"], quartiles)
        for name, entry in sorted(content["models"].items(), key=lambda item: item[0] != "mlm"):
            model, ratio, spread = (MLM, 1.0, BLANK) if name == "mlm" else exlm
            speed = (1000 * entry["seconds_per_step"], round(entry["tokens_per_second"]))
            ends = (Number(entry["peak_memory_bytes"] / 1e9, digits=2), Number(ratio, digits=2), spread)
            values = (model, 100 * content["mask_ratio"], *speed, *ends, content["clock"])
            rows.append({"group": group, **dict(zip(titles, values, strict=True))})
    return Table("efficiency", *texts("tables", "efficiency"), rows)


def runs_table(families: Sequence[Family]) -> Table:
    """Pre-trainings, each followed by its fine-tunings."""
    titles = ("group", "run", "kind", "what", "p, %", "r", "updates", "seeds", "result", "hours", "device", "directory")
    rows: dict[str, tuple[object, ...]] = {}  # by run: a vanilla MLM may belong to several families, but is listed once
    for family in families:
        for cell, run in family.runs_by_cell:
            if run.id in rows:
                continue
            result = ", ".join(
                text.format(run.scores[name]) for name, text in TEXTS["results"].items() if name in run.scores
            )
            start = (family.label, run.id, "pre-training", cell.label, 100 * cell.p, cell.r, run.steps, str(run.seed))
            hours = Number(run.scores[HeldOut.HOURS], digits=2)
            rows[run.id] = (*start, result, hours, device(run.result), str(run.path))
            for _, tuning in sorted((task, t) for (id, task), t in family.finetunings.items() if id == run.id):
                what = f"{title(tuning.task)} from {run.id}, {tuning.result['best'] or 'one setting'}"
                result = f"{tuning.result['metric']} {fmean(tuning.scores[tuning.task]):.2f}"
                seeds = " ".join(map(str, tuning.result["seeds"]))
                begin = (family.label, tuning.id, "fine-tuning", what, BLANK, BLANK, BLANK, seeds)
                rows[tuning.id] = (*begin, result, BLANK, device(tuning.result), str(tuning.path))
    return Table("runs", *texts("tables", "runs"), [dict(zip(titles, row, strict=True)) for row in rows.values()])


def left_out_table(runs: Runs, families: Sequence[Family]) -> Table:
    """What was found and is not used in any table, and why."""
    found = [(path, "damaged", reason) for path, reason in runs.damaged]
    why = "its model is not among the runs"
    found += [(t.path, why, "/".join(Path(t.settings["model"]).parts[-3:])) for t in runs.finetunings[None]]
    why = "another run has its seed, or is an MLM++ of more usual length"
    found += [(run.path, why, f"{run.cell.method}, {run.steps:,} updates") for f in families for run in f.repeated]
    why = "other settings than most of its task, from scratch, or a repetition"
    found += [(t.path, why, t.task) for family in families for t in family.left_out]
    rows: list[Row] = [{"file": str(path), "why": why, "what": what} for path, why, what in dict.fromkeys(found)]
    return Table("left-out", *texts("tables", "left-out"), rows)
