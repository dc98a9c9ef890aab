"""The tables of ablations and of the number of states, beside the paper's."""

from collections.abc import Sequence

from exlm.paper.report import commands
from exlm.paper.report.cells import ABLATED, EVALUATED, EVALUATION, METHODS, TITLES, Family, Setting
from exlm.paper.report.document import BLANK, PAPER, Section, Table, Value, row
from exlm.paper.report.paper_values import ABLATION_TASKS, ABLATIONS, SWEEP, Values
from exlm.paper.report.training import training_curves

SPARSE = "ExLM w/ Sparse DAG"
CURVES = (
    ("held-out accuracy", False, "eval", "accuracy"),
    ("held-out perplexity", True, "eval", "perplexity"),
    ("joint perplexity", True, "eval", "joint_perplexity"),
    ("own mask", False, "eval", "own_states"),
)
Lines = Sequence[tuple[str, Setting | None, Values | None]]


def ablation_section(families: list[Family]) -> Section:
    """ExLM without one part, and the vanilla MLM at equal updates and at equal cost."""
    about = "ExLM without one of its parts or with a sparse DAG; the vanilla MLM with equal and more updates (MLM++)."
    section = Section("Ablations", about, commands.start("ablations", families))
    for family in families:
        if family.select([*ABLATED, "Vanilla MLM++"], family.base_ratio):
            named = family.named()
            names = {m: m for m in METHODS} | {SPARSE: f"{SPARSE} (paper: a table of its own, in the appendix)"}
            names |= {plus.method: family.name(plus) for plus in named.values() if plus.method == "Vanilla MLM++"}
            lines = [(names[m], named.get(m), ABLATIONS.get(m)) for m in METHODS if m in named or m in ABLATIONS]
            title = f"Ablations at p = {100 * family.base_ratio:.4g}%, k = {family.base_states}"
            _add_table(section, "ablations", title, family, lines)
    return section


def states_section(families: list[Family]) -> Section:
    """The number of states k, and the mask ratio p."""
    about = "The vanilla MLM and ExLM with 2, 4 and 8 states at two mask ratios."
    section = Section("States k and mask ratio p", about, commands.start("sweep", families))
    for family in families:
        if len(family.select(["ExLM"])) > 1:
            cells = {(c.p, c.k): c for c in family.compared()}
            names = {(p, k): f"p = {100 * p:.4g}%, " + ("Vanilla MLM" if k == 1 else f"ExLM, k = {k}")
                     for p, k in sorted({*cells, *SWEEP})}  # fmt: skip
            lines = [(name, cells.get(place), SWEEP.get(place)) for place, name in names.items()]
            _add_table(section, "sweep", "States and mask ratio", family, lines)
            rows = {p: {c.label: c for c in family.compared() if c.p == p} for p in sorted({p for p, _ in cells})}
            caption = f"Training curves of ExLM and MLM, mean over pre-training seeds ({family.label})."
            section.parts += training_curves("sweep-curves", caption, family, rows, CURVES)
    return section


def _add_table(section: Section, experiment: str, title: str, family: Family, lines: Lines) -> None:
    """Our tasks and held-out numbers, then the paper's columns, one row per name; and what is missing of it."""
    rows = []
    for name, cell, values in lines:
        ours: list[Value] = [None] * (len(family.scores) + 1 + len(EVALUATED))
        if cell:
            ours = [family.cell(cell, score) for score in (*family.scores, *EVALUATED.values())]
            ours.insert(len(family.scores), family.mean(cell, family.shares))
        rows.append(row(name, *ours, *(values or [None] * 5), *(family.sources(cell) if cell else [BLANK, None])))
    of_paper = [PAPER + title for title in (*(TITLES[t] for t in ABLATION_TASKS), "avg.")]
    titles = ["model", *(score.title for score in family.scores), "avg.", *EVALUATED]
    caption = (
        "Mean over seeds ± s.d. over all seeds (pre-training × fine-tuning); the average is over our tasks that are "
        f"scored in %, where every one was run. {EVALUATION}"
    )
    columns = (*titles, *of_paper, "seeds", "runs")
    section.parts.append(Table(experiment, f"{title} ({family.label})", caption, columns, tuple(rows)))
    lacking = [name for name, cell, _ in lines if not cell]
    lacking += commands.incomplete(family, [cell for _, cell, _ in lines if cell])
    section.missing += commands.analysis(experiment, family, lacking)
