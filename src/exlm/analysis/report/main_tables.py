"""The main tables: molecules (MoleculeNet) and text (GLUE, SQuAD 2.0), beside the rows that the paper has."""

from collections.abc import Mapping, Sequence

from exlm.analysis.report import paper_values as paper
from exlm.analysis.report.cells import TITLES, Family, Score, Setting
from exlm.analysis.report.document import BLANK, Cell, Missing, Row, Section, Table, columns_of, heading, paper_cells
from exlm.analysis.report.runs import Pretraining
from exlm.analysis.report.sections import Commands, base_ratio, label_of, mean_cell, runs_cell, score_cells, seeds_cell

MOLECULES = [(TITLES[task], Score(task, "roc_auc")) for task in paper.MOLECULE_TASKS]
GLUE_TASKS = ("qqp", "qnli", "sst-2", "cola", "rte", "mrpc", "sts-b")
TEXT = [
    ("MNLI-m", Score("mnli", median=True)),
    ("MNLI-mm", Score("mnli", part="mismatched", median=True)),
    *((TITLES[task], Score(task, median=True)) for task in GLUE_TASKS),
]
SQUAD = [(f"SQuAD {m.upper()}", Score("squad2", m, median=True)) for m in ("em", "f1")]
MAIN = ("Vanilla MLM", "Vanilla MLM++", "ExLM")


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
            ends = [seeds_cell(family, cell), runs_cell(family, cell)] if cell else scratch_cells(family, scores)
            rows.append(Row((start, *cells, *ends)))
            if cell:
                section.missing += _missing_tasks(family, cell, scores, molecules)
    caption = (
        "* the paper's own baseline on the same data and architecture. Ours: ± s.d. over all seeds; seeds are "
        "pre-training × fine-tuning; the mean is given where every task was run."
    )
    departures = sorted({word for family in chosen for word in family.departures})
    caption += f" † not the published parts: {'; '.join(departures)}." if departures else ""
    table = Table(
        f"main-{name}", f"{kind}: main table", caption, columns_of(["model", *titles, "seeds", "runs"]), tuple(rows)
    )
    section.parts = [table]
    section.missing += (
        [] if any("ExLM" in c.method for f in chosen for c in f.cells) else [Missing("ExLM", commands["exlm"])]
    )
    return section


def scratch_cells(family: Family, scores: Sequence[tuple[str, Score]]) -> list[Cell]:
    """Seeds and runs of the models without pre-training."""
    found = [e for _, score in scores if (e := family.estimate(None, score))]
    counts = sorted({e.count for e in found})
    runs = tuple(dict.fromkeys(run for e in found for run in e.runs))
    return [Cell(text=f"0 × {'–'.join(map(str, counts)) or 0}"), Cell(links=runs) if runs else BLANK]


def _quoted_rows(values: Mapping[str, paper.Values], count: int) -> list[Row]:
    rows = {"quoted": [heading("quoted from the paper: other systems", count + 3)]}
    rows["paper"] = [heading("quoted from the paper: its own models", count + 3)]
    for name, numbers in values.items():
        kind = "paper" if name in paper.OF_THE_PAPER else "quoted"
        rows[kind].append(Row((Cell(text=name), *paper_cells(numbers, count), BLANK, BLANK), kind))  # type: ignore[arg-type]
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
