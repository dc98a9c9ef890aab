"""The main tables: molecules (MoleculeNet) and text (GLUE, SQuAD 2.0), beside the rows that the paper has."""

from dataclasses import dataclass

from exlm.paper.report import commands
from exlm.paper.report import paper_values as paper
from exlm.paper.report.cells import Family, Score
from exlm.paper.report.document import BLANK, Cell, Kind, Missing, Row, Section, Table, cells, heading, row


@dataclass(frozen=True)
class Layout:
    """Titles and scores before and behind the mean, which leaves out `not_averaged`."""

    kind: str
    about: str
    values: dict[str, paper.Values]
    before: dict[str, Score]
    behind: dict[str, Score]
    not_averaged: str
    recipe: str

    @property
    def scores(self) -> list[Score]:
        return [*self.before.values(), *self.behind.values()]


MOLECULES = Layout(
    "Molecules", "MoleculeNet, ROC-AUC in %, means over seeds.", paper.MOLECULES,
    {Score(task).title: Score(task, "roc_auc") for task in paper.MOLECULE_TASKS}, {}, "",
    "recipes/molecules/paper-exlm.yaml",
)  # fmt: skip
TEXT = Layout(
    "Text", "GLUE and SQuAD 2.0 development sets in %, medians over fine-tuning seeds (EM and F1 at threshold 0).",
    paper.TEXT,
    {"MNLI-m": Score("mnli", median=True), "MNLI-mm": Score("mnli", part="mismatched", median=True)}
    | {Score(t).title: Score(t, median=True) for t in ("qqp", "qnli", "sst-2", "cola", "rte", "mrpc", "sts-b")},
    {f"SQuAD {m.upper()}": Score("squad2", m, median=True) for m in ("em", "f1")}, "MNLI-mm",
    "recipes/text/paper-base-exlm.yaml",
)  # fmt: skip


def main_section(families: list[Family], layout: Layout) -> Section:
    """One table of the families that were fine-tuned on any of its columns."""
    section = Section(f"{layout.kind}: main results", layout.about, _start(families, layout))
    chosen = [family for family in families if {score.task for score in layout.scores} & set(family.tasks)]
    if not chosen:
        return section
    rows = _quoted_rows(layout)
    for family in chosen:
        rows += [heading(f"ours: {family.label}"), *_rows(family, layout, section)]
    caption = (
        "* the paper's own baseline on the same data and architecture. Ours: ± s.d. over all seeds; seeds are "
        "pre-training × fine-tuning; the mean is given where every task was run."
    )
    departures = sorted({word for family in chosen for word in family.departures})
    caption += f" † not the published parts: {'; '.join(departures)}." if departures else ""
    columns = ("model", *layout.before, "mean", *layout.behind, "seeds", "runs")
    name = f"main-{layout.kind.lower()}"
    section.parts = [Table(name, f"{layout.kind}: main table", caption, columns, tuple(rows))]
    if not any(family.select(["ExLM"]) for family in chosen):
        section.missing.append(Missing("ExLM", f"exlm pretrain {layout.recipe}"))
    return section


def _start(families: list[Family], layout: Layout) -> str:
    """Fine-tuning of the first ExLM, else its pre-training."""
    for family in families:
        if family.molecules == (layout is MOLECULES) and (found := family.select(["ExLM"])):
            return commands.finetunings(family, found[0], layout.scores)[0].command
    return f"exlm pretrain {layout.recipe}"


def _rows(family: Family, layout: Layout, section: Section) -> list[Row]:
    averaged = [score for title, score in layout.before.items() if title != layout.not_averaged]
    rows = []
    for cell in family.select(["Vanilla MLM", "Vanilla MLM++", "ExLM"], family.base_ratio):
        numbers = [family.cell(cell, score) for score in layout.scores]
        numbers.insert(len(layout.before), Cell(family.mean(cell, averaged)))
        rows.append(row(family.name(cell), *numbers, *family.sources(cell)))
        section.missing += commands.finetunings(family, cell, layout.scores)
    return rows


def _quoted_rows(layout: Layout) -> list[Row]:
    """Other systems first, then the paper's own models."""
    rows = {"quoted": [heading("quoted from the paper: other systems")]}
    rows["paper"] = [heading("quoted from the paper: its own models")]
    for name, values in layout.values.items():
        kind: Kind = "paper" if name in paper.OF_THE_PAPER else "quoted"
        rows[kind].append(Row(cells([name, *values, BLANK, BLANK]), kind))
    return rows["quoted"] + rows["paper"]
