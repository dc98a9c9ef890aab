"""The tables of the report: the paper's tables and claims with our numbers, the cost of training,
and all runs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from exlm.paper import values as paper
from exlm.paper.families import Family, mean_and_spread, standard_error, verdict
from exlm.paper.page import PAPER, Number, Row, Table
from exlm.paper.runs import Finetuning, Runs, device
from exlm.paper.values import MLM, PLUS, TEXTS, HeldOut, Setting, percent, rank, texts, title

EVALUATED = (HeldOut.ACCURACY, HeldOut.PERPLEXITY, HeldOut.JOINT_PERPLEXITY, HeldOut.OWN_MASK)
JOINT = (HeldOut.JOINT_NLL, HeldOut.JOINT_NLL_2, HeldOut.JOINT_NLL_4, HeldOut.JOINT_NLL_ALL)
BY_MASKS = tuple(score for score in paper.EVALUATION if score.startswith("nll at"))
PAPER_COLUMNS = tuple(
    PAPER + name for name in (*map(title, paper.ABLATION_TASKS), "avg.", "GPU hours")
)


def sources(family: Family, cell: Setting) -> Row:
    """The last two columns of most tables: seeds (pre-training × fine-tuning) and runs."""
    runs = family.cells.get(cell, [])
    ids = [run.id for run in runs]
    counts = sorted(
        {len(tuning.result["seeds"]) for run in runs for tuning in run.tunings.values()}
    )
    return {
        "seeds": f"{len(ids)} × {'–'.join(map(str, counts)) or 0}" if ids else "",
        "runs": " ".join(ids) or None,
    }


def caveats(tunings: Iterable[Finetuning]) -> str:
    """A sentence that names the data sets of ours that differ from the published ones."""
    words = {
        f"{title(t.task)}: {word}"
        for t in tunings
        for word in t.result["settings"].get("departures") or ()
    }
    return f" Not the published data: {'; '.join(sorted(words))}." if words else ""


def main_cells(family: Family) -> list[Setting]:
    return [cell for cell in family.select(MLM, PLUS, "ExLM") if cell.p == family.base_ratio]


def main_table(name: str, chosen: Sequence[Family], baselines: Sequence[Finetuning] = ()) -> Table:
    """A main table: results of other systems, then the paper's own, then ours by family, then
    baselines."""
    main, rows = paper.MAIN_TABLES[name], list[Row]()
    medians = main["of_medians"]
    columns = {
        column: [score] if score else main["averaged"] for column, score in main["columns"].items()
    }
    for source, whose in (("quoted", "other systems"), ("paper", "its own models")):
        for model, values in main["paper"].items():
            if (model in paper.OF_THE_PAPER) == (source == "paper"):
                start = {
                    "group": f"quoted from the paper: {whose}",
                    "source": source,
                    "model": model,
                    "updates": "",
                }
                rows.append(
                    start
                    | dict(zip(main["columns"], values, strict=True))
                    | {"seeds": "", "runs": ""}
                )
    for family in chosen:
        for cell in main_cells(family):
            start = {
                "group": f"ours: {family.label}",
                "model": cell.label,
                "updates": family.cells[cell][0].steps,
            }
            own = {
                name: family.estimate(cell, *scores, of_medians=medians)
                for name, scores in columns.items()
            }
            rows.append(start | own | sources(family, cell))
    for baseline in dict.fromkeys(tuning.baseline for tuning in baselines):
        tuned = [tuning for tuning in baselines if tuning.baseline == baseline]
        found = {score: values for tuning in tuned for score, values in tuning.scores.items()}
        start = {
            "group": "ours: baselines on the same data",
            "model": title(str(baseline)),
            "updates": "",
        }
        own = {name: mean_and_spread([found], scores, medians) for name, scores in columns.items()}
        counts = sorted({len(tuning.result["seeds"]) for tuning in tuned})
        end = {"seeds": "–".join(map(str, counts)), "runs": " ".join(tuning.id for tuning in tuned)}
        rows.append(start | own | end)
    heading, caption = texts("tables", name)
    tunings = [tuning for family in chosen for tuning in family.tunings]
    return Table(name, heading, caption + caveats([*tunings, *baselines]), rows)


def _table(
    name: str,
    family: Family,
    lines: Iterable[tuple[Row, Setting, paper.Values]],
    held_out: Sequence[HeldOut],
) -> Table:
    """The table of an experiment: first cells, our tasks and their mean, held-out scores, and the
    paper's numbers."""
    rows, lacking = [], []
    needed = [*held_out[:1], *(family.tasks if name != "entropy" else ())]
    for start, cell, values in lines:
        row = start | {title(task): family.estimate(cell, task) for task in needed[1:]}
        if len(needed) > 2:
            row["avg."] = family.estimate(cell, *family.shares)
        row |= {score: family.estimate(cell, score) for score in held_out}
        rows.append(row | dict(zip(PAPER_COLUMNS, values, strict=False)) | sources(family, cell))
        if any(family.estimate(cell, score) is None for score in needed):
            lacking.append(cell.description)
    words = {
        "label": family.label,
        "ratio": percent(family.base_ratio),
        "states": family.base_states,
    }
    heading, caption = texts("tables", name, **words)
    return Table(name, heading, caption + caveats(family.tunings), rows, lacking)


def ablation_table(family: Family) -> Table:
    """ExLM without one of its parts, and the vanilla MLM, with hours of training. Empty if there is
    only one method."""
    named, lines = (
        {cell.method: cell for name, cell in family.named().items() if name == cell.method},
        [],
    )
    for method in sorted(named.keys() | paper.ABLATIONS.keys(), key=rank) if len(named) > 1 else ():
        usual = Setting(
            method, 1 if method in (MLM, PLUS) else family.base_states, family.base_ratio
        )
        cell = named.get(method, usual)
        start = {
            "model": method,
            "updates": next((run.steps for run in family.cells.get(cell, ())), None),
        }
        values = (*paper.ABLATIONS.get(method, (None,) * 5), paper.GPU_HOURS.get(method))
        lines.append((start, cell, values))
    return _table("ablations", family, lines, (*EVALUATED, HeldOut.HOURS))


def sweep_table(family: Family) -> Table:
    """Rows for each p and k; k = 1 is the vanilla MLM. The table is empty unless there are two
    cells of ExLM."""
    lines = []
    ours = {(cell.p, cell.k) for cell in family.compared()}
    for p, k in sorted(ours | paper.SWEEP.keys()) if len(family.select("ExLM")) > 1 else ():
        cell = Setting(MLM if k == 1 else "ExLM", k, p)
        lines.append(
            ({"p, %": 100 * p, "model": cell.label}, cell, paper.SWEEP.get((p, k), (None,) * 5))
        )
    return _table("sweep", family, lines, EVALUATED)


def repeated_table(family: Family) -> Table:
    """The grid of p and r, with the numbers that the paper prints. Empty if no run repeated its
    tokens."""
    lines = []
    for cell in family.grid:
        printed = (paper.REPEATED_MNLI.get((cell.p, cell.r)), *[None] * 4)
        values = paper.SWEEP.get((cell.p, cell.r), printed) if cell.r == 1 else printed
        start = {"p, %": 100 * cell.p, "r": cell.r, "pʳ, %": Number(100 * cell.p**cell.r, digits=2)}
        lines.append((start, cell, values))
    corruption = (HeldOut.CORRUPTION, HeldOut.CORRUPTION_STD, HeldOut.PREDICTED_STD)
    held_out = (HeldOut.ACCURACY, HeldOut.PERPLEXITY, *corruption, HeldOut.ENTROPY, HeldOut.TOKENS)
    return _table("repeated-mlm", family, lines, held_out)


def entropy_table(family: Family) -> Table:
    """The entropies of ExLM and the vanilla MLM. Empty unless the entropy of an ExLM was
    measured."""
    cells = family.compared() if family.estimates(family.select("ExLM"), HeldOut.ENTROPY) else []
    cells = sorted(cells, key=lambda cell: (cell.p, cell.k))
    lines = [({"p, %": 100 * cell.p, "model": cell.label}, cell, ()) for cell in cells]
    return _table(
        "entropy", family, lines, (HeldOut.ENTROPY, HeldOut.STATE_ENTROPY, HeldOut.TOKENS)
    )


def efficiency_table(runs: Runs) -> Table:
    """The cost of a step: the ratio stated in the paper's text, and all of our measurements."""
    titles = (
        "group",
        "model",
        "ms per step",
        "tokens per second",
        "memory, GB",
        "times MLM",
        "quartiles",
        "clock",
    )
    quoted = (
        "quoted from the paper",
        "ExLM, k = 4",
        "",
        "",
        "",
        paper.COST_RATIO,
        "",
        "A100 GPU time",
    )
    rows: list[Row] = [{"source": "paper", **dict(zip(titles, quoted, strict=True))}]
    for path, content in runs.costs.items():
        group = f"ours: {path}, p = {percent(content['mask_ratio'])}, {content['pairs']} pairs, {device(content)}"
        layers = content.get("recipe", {}).get("model", {}).get("expanded_layers", "all")
        exlm = f"ExLM, k = {content['num_states']}, expanded layers: {layers}"
        quartiles = "–".join(f"{q:.2f}" for q in content["ratio_quartiles"])
        for key, name, ratio, spread in (
            ("mlm", MLM, 1.0, ""),
            ("exlm", exlm, content["ratio"], quartiles),
        ):
            entry = content["models"][key]
            memory = Number(entry["peak_memory_bytes"] / 1e9, digits=2)
            speed = (1000 * entry["seconds_per_step"], round(entry["tokens_per_second"]), memory)
            values = (group, name, *speed, Number(ratio, digits=2), spread, content["clock"])
            rows.append(dict(zip(titles, values, strict=True)))
    return Table("efficiency", *texts("tables", "efficiency"), rows)


def worth_table(families: Sequence[Family]) -> Table:
    """ExLM beside the MLM of equal cost (MLM++), in joint nll, in as many passes as were measured,
    and in the mean over the tasks that both have."""
    rows: list[Row] = []
    for family, cell in ((each, cell) for each in families for cell in each.select("ExLM")):
        both = cell, Setting(PLUS, 1, cell.p)
        tasks = [task for task in family.shares if len(family.estimates(both, task)) == 2]
        hours = [estimate.value for estimate in family.estimates(both, HeldOut.HOURS).values()]
        scores_of_rows: list[tuple[int, list[str]]] = [(-1, [score]) for score in JOINT]
        for sign, scores in [*scores_of_rows, (1, tasks)]:
            if len(found := family.estimates(both, *scores)) == 2:
                (exlm, mlm), digits = found.values(), 3 if sign < 0 else 2
                gain, error = (
                    sign * (exlm.value - mlm.value),
                    standard_error([(1, exlm), (-1, mlm)]),
                )
                low, high = (f"{gain + side * (error or 0.0):+.{digits}f}" for side in (-2, 2))
                ahead = {"shows": "ExLM", "does not show": PLUS}.get(
                    said := verdict(gain, error), said
                )
                row: Row = {
                    "group": family.label,
                    "model": cell.description,
                    "score": ", ".join(map(title, scores)),
                }
                row |= {"ExLM": exlm, PLUS: mlm, "ExLM better by": Number(gain, digits=digits)}
                row |= {"interval": None if error is None else f"{low} to {high}", "ahead": ahead}
                rows.append(
                    row | {"cost": Number(hours[0] / hours[1], digits=2)} | sources(family, cell)
                )
    return Table("worth", *texts("tables", "worth"), rows)


def masks_table(families: Sequence[Family]) -> Table:
    """Marginal nll by the number of masks: a model should be good with few masks, of which a task
    has none."""
    rows: list[Row] = []
    for family, cell in ((each, cell) for each in families for cell in each.cells):
        scores: Row = {score: family.estimate(cell, score) for score in BY_MASKS}
        if any(scores.values()):
            start: Row = {"group": family.label, "model": cell.description}
            rows.append(start | scores | sources(family, cell))
    return Table("masks", *texts("tables", "masks"), rows)


def claims_table(families: Sequence[Family]) -> Table:
    """All claims whose cells were run, each once. A claim without a score compares the mean over
    the tasks that its cells share. Without such tasks it compares held-out accuracy, but only if p
    and r are the same in all cells."""
    rows: list[Row] = []
    for family in families:
        named, said = family.named(), set[frozenset]()
        for claim, *parts in TEXTS["claims"]:
            meant = frozenset((weight, named.get(name), *score) for weight, name, *score in parts)
            cells = {cell for _, cell, *_ in meant if cell}
            if meant in said or not all(name in named for _, name, *_ in parts):
                continue
            said.add(meant)  # two names may mean the same cell
            tasks = [
                task for task in family.shares if len(family.estimates(cells, task)) == len(cells)
            ]
            alike = len({(cell.p, cell.r) for cell in cells}) == 1
            terms, words, scores = [], [], []
            for weight, name, *score in parts:
                of_cell = score or tasks or [HeldOut.ACCURACY] * alike
                if estimate := family.estimate(named[name], *of_cell):
                    digits = max(2, estimate.digits)
                    terms.append((weight, estimate))
                    words.append(f"{weight:+g} × {estimate.value:.{digits}f} {name}")
                    scores.append(", ".join(map(title, of_cell)))
            if len(terms) == len(parts):
                difference, error = (
                    sum(weight * estimate.value for weight, estimate in terms),
                    standard_error(terms),
                )
                seeds = "one seed" if error is None else f"standard error {error:.{digits}f}"
                of_what = " and ".join(dict.fromkeys(scores))
                numbers = f"{difference:+.{digits}f} ({seeds}): {'; '.join(words)} ({of_what})"
                row = {
                    "group": family.label,
                    "claim": claim,
                    "our runs": verdict(difference, error),
                }
                rows.append(row | {"numbers": numbers})
    return Table("findings", *texts("tables", "findings", count=len(rows)), rows)


def runs_table(families: Sequence[Family], baselines: Sequence[Finetuning]) -> Table:
    """All pre-trainings, each followed by its fine-tunings, and then all baselines."""
    # by run id, as a vanilla MLM may belong to several families but is listed once
    rows: dict[str, Row] = {}
    for family in families:
        for run in (run for run in family.runs if run.id not in rows):
            result = ", ".join(
                f"{name} {run.scores[name]:.2f}" for name in EVALUATED if name in run.scores
            )
            row: Row = {
                "group": family.label,
                "run": run.id,
                "kind": "pre-training",
                "what": run.cell.label,
            }
            row |= {
                "p, %": 100 * run.cell.p,
                "r": run.cell.r,
                "updates": run.steps,
                "seeds": str(run.seed),
            }
            row |= {"result": result, "hours": Number(run.scores[HeldOut.HOURS], digits=2)}
            rows[run.id] = row | {"device": device(run.result), "directory": str(run.path)}
            for task, tuning in sorted(run.tunings.items()):
                what = f"{title(task)} from {run.id}, {tuning.result['best'] or 'one setting'}"
                rows[tuning.id] = _tuning_row(family.label, "fine-tuning", what, tuning)
    for tuning in sorted(baselines, key=lambda tuning: (str(tuning.baseline), tuning.task)):
        what = f"{title(tuning.task)}, {title(str(tuning.baseline))}"
        rows[tuning.id] = _tuning_row("baselines", "baseline", what, tuning)
    return Table("runs", *texts("tables", "runs"), list(rows.values()))


def _tuning_row(group: str, kind: str, what: str, tuning: Finetuning) -> Row:
    content = tuning.result
    row: Row = {
        "group": group,
        "run": tuning.id,
        "kind": kind,
        "what": what,
        "p, %": "",
        "r": "",
        "updates": "",
    }
    result = f"{content['metric']} {fmean(tuning.scores[tuning.task]):.2f}"
    row |= {"seeds": " ".join(map(str, content["seeds"])), "result": result, "hours": ""}
    return row | {"device": device(content), "directory": str(tuning.path)}


def left_out_table(runs: Runs, families: Sequence[Family]) -> Table:
    """Files and runs that were found but are used in no table, with the reason."""
    used = {run.id for family in families for run in family.runs}
    tunings_used = [tuning for family in families for tuning in family.tunings]
    used |= {tuning.id for tuning in tunings_used}
    shared = {(tuning.task, tuning.shared) for tuning in tunings_used}
    found = [(path, "damaged", reason) for path, reason in runs.damaged.items()]
    repeated = [run for run in runs.pretrainings.values() if run.id not in used]
    found += [
        (run.path, "another run has its seed", f"{run.cell.description}, seed {run.seed}")
        for run in repeated
    ]
    for model, tuning in (
        (model, tuning) for model, tunings in runs.finetunings.items() for tuning in tunings
    ):
        if tuning.id not in used:
            name = "/".join(Path(tuning.result["settings"]["model"]).parts[-3:])
            reason = "a repetition of another run" if model else "its model is not among the runs"
            if model and tuning.result["settings"].get("from_scratch"):
                reason = "from scratch"
            elif model and (tuning.task, tuning.shared) not in shared:
                reason = "other settings than most of its task"
            found.append((tuning.path, reason, f"{title(tuning.task)} from {name}"))
    rows: list[Row] = [
        {"file": str(path), "why": reason, "what": what} for path, reason, what in found
    ]
    return Table("left-out", *texts("tables", "left-out"), rows)
