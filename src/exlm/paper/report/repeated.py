"""The Repeated MLM experiment: heat maps over p and r, what is corrupted, training curves."""

from statistics import fmean

from exlm.paper.report import commands, grid
from exlm.paper.report.cells import ACCURACY, CORRUPTION, ENTROPY, PERPLEXITY, TITLES, Family
from exlm.paper.report.document import PAPER, Cell, Figure, Section, Table, Value, row
from exlm.paper.report.entropy import entropy_cell, entropy_error, entropy_tokens
from exlm.paper.report.estimates import Estimate
from exlm.paper.report.figures import HeatMap, Line, Place, entropy_curve, heat_maps
from exlm.paper.report.paper_values import ABLATION_TASKS, REPEATED_MNLI, SWEEP, VANISHING, Values
from exlm.paper.report.training import training_curves

ABOUT = (
    "Each token is repeated r times before a share p is masked, so that a share p of the tokens is unreal but only pʳ "
    f"of the words have no visible copy (the paper writes k for r); pʳ below {100 * VANISHING:.4g}% is "
    "left out, as in the paper."
)
CURVES = (
    ("training loss", False, "train", "loss"),
    ("held-out accuracy", False, "eval", "accuracy"),
    ("held-out perplexity", True, "eval", "perplexity"),
)


def repeated_section(families: list[Family]) -> Section:
    name = "repeated-mlm"
    title = "Repeated MLM: corrupted semantics and unreal tokens"
    section = Section(title, ABOUT, commands.start(name, families))
    for family in filter(grid.has_repeats, families):
        section.parts += [_heat_maps(family), _score_table(family), *_measured_maps(family), *_curves(family)]
        section.missing += commands.analysis(name, family, _lacking(family))
    return section


def _heat_maps(family: Family) -> Figure:
    panels = [grid.panel_of(score.title, found) for score in family.scores if (found := grid.estimates(family, score))]
    panels.append(grid.panel_of("Held-out accuracy, %", grid.estimates(family, ACCURACY)))
    caption = (
        f"Repeated MLM ({family.label}): value ± s.d. over seeds; similar values have similar colours, grey cells are "
        "left out (pʳ vanishes), a dash is not run. Held-out accuracy counts masked tokens with a visible copy too."
    )
    return Figure("repeated-mlm", caption, heat_maps(panels, *grid.axes_of(family), VANISHING))


def _score_table(family: Family) -> Table:
    scores = [*family.scores, ACCURACY, PERPLEXITY, CORRUPTION]
    rows = []
    for p, r in grid.shown_places(family):
        cell = grid.places(family).get((p, r))
        ours: list[Value] = [family.cell(cell, score) if cell else Cell() for score in scores]
        ours += [entropy_cell(family, cell), entropy_tokens(family, cell)] if cell else [None, None]
        ends = family.sources(cell) if cell else ["", None]
        rows.append(row(100 * p, r, Cell(100 * p**r, digits=2), *ours, *_paper(p, r), *ends))
    titles = [
        *(score.title for score in family.scores),
        "held-out accuracy",
        "perplexity",
        "corrupted, %",
        "entropy",
        "tokens",
    ]
    columns = ["p, %", "r", "pʳ, %", *titles, *(PAPER + TITLES[t] for t in ABLATION_TASKS), "seeds", "runs"]
    caption = (
        "Mean over seeds ± s.d. Corrupted: words without a visible copy, as measured; entropy, in bits: of their "
        "predictions, ± the standard error over so many tokens where there is one seed, blank where there is no such "
        "token. The paper prints these numbers alone; the rest of its heat maps is colour. It has 79.6 at p = 78.9%, "
        "r = 1 by inference: its text says “from 82.8 to 79.6” at a fixed mask ratio."
    )
    return Table("repeated-mlm", f"Repeated MLM by p and r ({family.label})", caption, tuple(columns), tuple(rows))


def _paper(p: float, r: int) -> Values:
    """What the paper prints: MNLI at four places, and its vanilla rows of the table of k and p."""
    return SWEEP[p, 1][:4] if r == 1 and (p, 1) in SWEEP else (REPEATED_MNLI.get((p, r)), None, None, None)


def _measured_maps(family: Family) -> list[Figure]:
    shares, entropy = grid.estimates(family, CORRUPTION), grid.estimates(family, ENTROPY)
    panels = [_share_panel(family, list(shares))] if shares else []
    panels += [grid.panel_of("Entropy, bits", entropy, 2)] if entropy else []
    if not panels:
        return []
    caption = (
        f"Left: corrupted semantics ({family.label}), measured mean ± s.d. over sequences, below it pʳ and the s.d. of "
        "the appendix's formula. Right: entropy of the predictions of words without a visible copy, ± s.d. over seeds."
    )
    parts = [Figure("corruption", caption, heat_maps(panels, *grid.axes_of(family), VANISHING))]
    if len(entropy) > 1:
        words = f"Entropy against corrupted semantics ({family.label}); bars: s.d. of seeds, or the standard error."
        parts.append(Figure("repeated-entropy", words, entropy_curve(_entropy_lines(family, entropy))))
    return parts


def _share_panel(family: Family, found: list[Place]) -> HeatMap:
    """In percent, means over seeds."""
    words = {}
    for place in found:
        seeds = grid.measured(family, place, "corruption")
        means = (100 * fmean(m[key] for m in seeds) for key in ("mean", "std", "predicted", "predicted_std"))
        words[place] = "{:.1f} ± {:.1f}\n({:.1f} ± {:.1f})".format(*means)
    return HeatMap("Corrupted semantics, %", {(p, r): (100 * p**r) ** 0.5 for p, r in found}, words)


def _entropy_lines(family: Family, found: dict[Place, Estimate]) -> list[Line]:
    lines = []
    for p in sorted({p for p, _ in found}):
        own = sorted(((q, r) for q, r in found if q == p), key=lambda place: -place[1])
        errors = [entropy_error(family, grid.places(family)[place], ENTROPY) for place in own]
        lines.append(Line(f"{100 * p:.4g}%", [100 * p**r for _, r in own], [found[o].value for o in own], errors))
    return lines


def _curves(family: Family) -> list[Figure]:
    places = grid.places(family)
    rows = {p: {f"r = {r}": places[q, r] for q, r in sorted(places) if q == p} for p in grid.axes_of(family)[0]}
    caption = f"Training curves at fixed p, one line per r, mean over pre-training seeds ({family.label}). "
    caption += "Accuracy and perplexity are held-out; the paper's are of training."
    return training_curves("repeated-curves", caption, family, rows, CURVES)


def _lacking(family: Family) -> list[str]:
    """The cells without a run, or without a task that others have."""
    lacking = [
        f"p = {100 * p:.4g}%, r = {r}" for p, r in grid.shown_places(family) if (p, r) not in grid.places(family)
    ]
    return lacking + commands.incomplete(family, grid.places(family).values())
