"""The other experiments: main tables, ablations, k and p, entropy, cost, and the list of runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from exlm.analysis import paper_values as paper
from exlm.analysis.report_cells import (
    ACCURACY,
    ENTROPY,
    HOURS,
    METHODS,
    PERPLEXITY,
    STATE_ENTROPY,
    TITLES,
    Family,
    Score,
    Setting,
)  # fmt: skip
from exlm.analysis.report_figures import Line, bars
from exlm.analysis.report_model import (
    Cell,
    Figure,
    Missing,
    Row,
    Section,
    Table,
    columns_of,
    heading,
    paper_cells,
)  # fmt: skip
from exlm.analysis.report_repeated import scores_of
from exlm.analysis.report_runs import Json, Pretraining, Runs

MEAN = Score("mean")
MOLECULES = [(TITLES[task], Score(task, "roc_auc")) for task in paper.MOLECULE_TASKS]
GLUE_TASKS = ("qqp", "qnli", "sst-2", "cola", "rte", "mrpc", "sts-b")
TEXT = [
    ("MNLI-m", Score("mnli", median=True)),
    ("MNLI-mm", Score("mnli", part="mismatched", median=True)),
    *((TITLES[task], Score(task, median=True)) for task in GLUE_TASKS),
]
SQUAD = [(f"SQuAD {m.upper()}", Score("squad2", m, median=True)) for m in ("em", "f1")]
MAIN = ("Vanilla MLM", "Vanilla MLM++", "ExLM")
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


def main_section(
    families: list[Family], molecules: bool, values: Mapping[str, paper.Values], commands: Commands
) -> Section | None:
    """The main table of molecules or of text, or None without a run."""
    scores = MOLECULES if molecules else [*TEXT, *SQUAD]
    averaged = [score for _, score in scores[:7]] if molecules else [TEXT[0][1], *(s for _, s in TEXT[2:])]
    tasks = {score.task for _, score in scores}
    chosen = [family for family in families if tasks & set(family.tasks)]
    if not chosen:
        return None
    name, kind = ("molecules", "Molecules") if molecules else ("text", "Text")
    place = 7 if molecules else len(TEXT)
    titles = [title for title, _ in scores]
    titles[place:place] = ["Mean"]
    rows = _quoted_rows(values, len(titles))
    about = "MoleculeNet, ROC-AUC in %, means over seeds." if molecules else (
        "GLUE and SQuAD 2.0 development sets in %, medians over fine-tuning seeds (EM and F1 at threshold 0)."
    )  # fmt: skip
    section = Section(f"{kind}: main results", about)
    for family in chosen:
        rows.append(heading(f"ours: {family.label}", len(titles) + 3))
        for cell in [*family.select(MAIN, base_ratio(family)), *([None] if family.scratch else [])]:
            cells = score_cells(family, cell, scores)
            cells[place:place] = [mean_cell(family, cell, averaged)]
            start = Cell(text=label_of(cell) if cell else "no pre-training")
            ends = [seeds_cell(family, cell), runs_cell(family, cell)] if cell else [Cell(text=""), Cell(text="")]
            rows.append(Row((start, *cells, *ends)))
            if cell:
                section.missing += _missing_tasks(family, cell, scores, molecules)
    caption = (
        "* the paper's own baseline on the same data and architecture. Ours: ± s.d. over all seeds; seeds are pre-training × "
        "fine-tuning; the mean is given where every task was run."
    )
    table = Table(
        f"main-{name}", f"{kind}: main table", caption, columns_of(["model", *titles, "seeds", "runs"], []), tuple(rows)
    )
    section.parts = [table]
    section.missing += (
        [] if any("ExLM" in c.method for f in chosen for c in f.cells) else [Missing("ExLM", commands["exlm"])]
    )
    return section


def _quoted_rows(values: Mapping[str, paper.Values], count: int) -> list[Row]:
    rows = {"quoted": [heading("quoted from the paper: other systems", count + 3)]}
    rows["paper"] = [heading("quoted from the paper: its own models", count + 3)]
    for name, numbers in values.items():
        kind = "paper" if name in paper.OF_THE_PAPER else "quoted"
        rows[kind].append(Row((Cell(text=name), *paper_cells(numbers, count), Cell(text=""), Cell(text="")), kind))  # type: ignore[arg-type]
    return rows["quoted"] + rows["paper"]


def _missing_tasks(
    family: Family, cell: Setting, scores: Sequence[tuple[str, Score]], molecules: bool
) -> list[Missing]:
    """The fine-tunings that are missing, each with its own command."""
    found = []
    for task in dict.fromkeys(score.task for _, score in scores):
        for run in family.cells[cell]:
            if (run.id, task) not in family.tunings:
                recipe = finetune_recipe(task, molecules, run)
                place = f"{run.path}-{task}"
                command = f"exlm finetune {recipe} --model {run.path} --task.dataset {task} --output {place}"
                found.append(Missing(f"{label_of(cell)}, {TITLES[task]} ({family.label})", command))
    return found


def finetune_recipe(task: str, molecules: bool, run: Pretraining) -> str:
    """The paper's grids for models of its size, else one setting."""
    if molecules:
        return "recipes/molecules/finetune.yaml"
    if run.recipe["model"]["hidden_size"] < 768:
        return "recipes/text/finetune.yaml"
    if task == "squad2":
        return "recipes/text/squad2.yaml"
    return f"recipes/text/glue-{'large' if task in ('mnli', 'qqp', 'qnli', 'sst-2') else 'small'}.yaml"


def ablation_section(families: list[Family], commands: Commands) -> Section | None:
    """ExLM without one part, and the vanilla MLM at equal updates and at equal cost."""
    chosen = [f for f in families if f.select([*METHODS[2:-1], "Vanilla MLM++"], base_ratio(f))]
    about = "ExLM without one of its parts, with a sparse DAG, and the vanilla MLM with equal and with more updates (MLM++)."
    section = Section("Ablations", about)
    for number, family in enumerate(chosen, 1):
        p, k = base_ratio(family), ablated_states(family)
        cells = [c for c in family.select(METHODS, p) if c.k in (1, k)]
        named = {cell.method: cell for cell in cells}
        lines = [(m, named.get(m), paper.ABLATIONS.get(m)) for m in METHODS if m in named or m in paper.ABLATIONS]
        title = f"Ablations at p = {100 * p:.4g}%, k = {k} ({family.label})"
        section.parts.append(_compared("ablations" if number == 1 else f"ablations-{number}", title, family, lines))
        lacking = [name for name, cell, _ in lines if cell is None] + _incomplete(family, cells)
        section.missing += _analysis(family, lacking, commands)
    return section if chosen else None


def sweep_section(families: list[Family], commands: Commands) -> Section | None:
    """k and p."""
    chosen = [f for f in families if len(f.select(["ExLM"])) > 1]
    section = Section(
        "States k and mask ratio p", "The vanilla MLM and ExLM with 2, 4 and 8 states at two mask ratios."
    )
    for number, family in enumerate(chosen, 1):
        cells = {(c.p, c.k): c for c in family.select(["Vanilla MLM", "ExLM"])}
        lines, lacking = [], []
        for p, k in sorted({*cells, *paper.SWEEP}):
            name = f"p = {100 * p:.4g}%, " + ("Vanilla MLM" if k == 1 else f"ExLM, k = {k}")
            lines.append((name, cells.get((p, k)), paper.SWEEP.get((p, k))))
            lacking += [name] if (p, k) not in cells else []
        table = f"states-{number}" if number > 1 else "states"
        section.parts.append(_compared(table, f"States and mask ratio ({family.label})", family, lines))
        section.missing += _analysis(family, lacking + _incomplete(family, list(cells.values())), commands)
    return section if chosen else None


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
        ends = [seeds_cell(family, cell), runs_cell(family, cell)] if cell else [Cell(text=""), Cell()]
        rows.append(
            Row(
                (
                    Cell(text=line),
                    *numbers[: len(tasks)],
                    average,
                    *numbers[len(tasks) :],
                    *ends,
                    *paper_cells(values, 5),
                )
            )
        )
    titles = ["model", *(t for t, _ in tasks), "Avg.", *(t for t, _ in scores[len(tasks) :]), "seeds", "runs"]
    of_paper = [*(TITLES[t] for t in paper.ABLATION_TASKS), "Avg."]
    caption = (
        "Mean over seeds ± s.d. over all seeds (pre-training × fine-tuning); the average is over our tasks that are scored "
        "in %, where every one was run. Held-out accuracy and perplexity are those of each masked token's marginal."
    )
    return Table(name, title, caption, columns_of(titles, of_paper), tuple(rows))


def _incomplete(family: Family, cells: Sequence[Setting]) -> list[str]:
    """Cells that lack a task which others of the family have."""
    found = []
    for cell in cells:
        lacking = [title for title, score in scores_of(family) if not family.estimate(cell, score)]
        found += [f"{label_of(cell)}, p = {100 * cell.p:.4g}% ({', '.join(lacking)})"] if lacking else []
    return found


def _analysis(family: Family, lacking: list[str], commands: Commands) -> list[Missing]:
    return [Missing(f"{family.label}: {'; '.join(lacking)}", commands[family.label])] if lacking else []


def entropy_section(families: list[Family], commands: Commands) -> Section | None:
    """Entropy of the predictions by p and k."""
    chosen = [f for f in families if any(f.estimate(c, ENTROPY) for c in f.select(["ExLM"]))]
    about = (
        "Bits of the prediction of a masked token on held-out data: of the marginal over a mask's states, and of each "
        "state's own distribution weighted by its posterior. The paper's figure has no numbers: ExLM below MLM, lower with k."
    )
    section = Section("Entropy of ExLM and MLM", about)
    for number, family in enumerate(chosen, 1):
        end = "" if number == 1 else f"-{number}"
        cells = [c for c in family.select(["Vanilla MLM", "ExLM"]) if family.estimate(c, ENTROPY)]
        section.parts += [_entropy_figure(family, cells, end), _entropy_table(family, cells, end)]
        lacking = [
            f"{label_of(c)}, p = {100 * c.p:.4g}%" for c in family.select(["Vanilla MLM", "ExLM"]) if c not in cells
        ]
        section.missing += _analysis(family, lacking, commands)
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
        f"Entropy by mask ratio and states ({family.label}); filled: the marginal, hatched: each state's own. Error bars: "
        "s.d. over pre-training seeds where there are several, else the standard error over tokens."
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
    return Table(f"entropy{end}", f"Entropy ({family.label})", caption, columns_of(titles, []), tuple(rows))


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
                Cell(text=""),
                Cell(text=""),
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
    section.parts.append(Table("hours", "Training hours", caption, columns_of(titles, []), tuple(rows)))
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


def _efficiency_table(found: list[tuple[object, Json]]) -> Table:
    titles = ["model", "p, %", "ms per step", "tokens per second", "peak memory, GB", "times MLM", "quartiles", "clock"]
    rows = [
        heading("quoted from the paper", 8),
        Row(
            (Cell(text="ExLM, k = 4"), *[Cell()] * 4, Cell(paper.COST_RATIO), Cell(), Cell(text="A100 GPU time")),
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
    return Table("efficiency", "Steps measured side by side", caption, columns_of(titles, []), tuple(rows))


def machine(result: Json) -> str:
    """The device a result was made on, as far as it says."""
    found = result.get("machine") or {}
    device = found.get("device")
    return str((found.get("processor") if device in (None, "cpu") else device) or "not recorded")


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
                        *[Cell()] * 3,
                        Cell(text=" ".join(map(str, t.result["seeds"]))),
                        Cell(),
                        Cell(),
                        Cell(text=machine(t.result)),
                        Cell(text=str(t.path)),
                    )
                )
                for t in tunings
            ]
    caption = (
        "Ids are the first 8 hexadecimal digits of the SHA-256 of a run's identity (its settings) as canonical JSON."
    )
    return Table("runs", "Every run behind the numbers", caption, columns_of(titles, []), tuple(rows))


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
            *[Cell()] * 3,
            seeds,
            Cell(text=text),
            Cell(),
            Cell(text=machine(tuning.result)),
            Cell(text=str(tuning.path)),
        )
    )
