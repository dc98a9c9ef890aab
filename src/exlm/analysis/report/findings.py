"""Which of the paper's findings the runs show: a number for each claim and a verdict by one rule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import spearmanr

from exlm.analysis.report.cells import ACCURACY, ENTROPY, STATE_ENTROPY, TITLES, Family, Score, Setting
from exlm.analysis.report.corruption import measurements
from exlm.analysis.report.document import Cell, Row, Section, Table, columns_of, heading
from exlm.analysis.report.grid import estimates, has_repeats, lines_of, places
from exlm.analysis.report.measures import entropy_error
from exlm.analysis.report.paper_values import COST_RATIO
from exlm.analysis.report.runs import Json, Runs, machine
from exlm.analysis.report.sections import ablated_states, base_ratio, label_of

RULE = (
    "Rule: a difference shows if it is larger than two standard errors; it does not show if it is as large with the "
    "other sign; otherwise it is within the spread of seeds. Standard errors come from the pooled s.d. over "
    "pre-training seeds where some cell has several, else over fine-tuning seeds (which leaves out the "
    "spread of pre-training)."
)
COMPARISONS = (
    ("ExLM scores higher than the vanilla MLM", "ExLM", "Vanilla MLM"),
    ("ExLM scores higher than an MLM with more updates (MLM++)", "ExLM", "Vanilla MLM++"),
    ("removing 2D RoPE costs", "ExLM", "ExLM w/o 2D RoPE"),
    ("removing the transitions costs", "ExLM", "ExLM w/o Transitions"),
    ("transitions matter more than 2D RoPE", "ExLM w/o 2D RoPE", "ExLM w/o Transitions"),
    ("without transitions it is still above the vanilla MLM", "ExLM w/o Transitions", "Vanilla MLM"),
    ("without 2D RoPE it is still above the vanilla MLM", "ExLM w/o 2D RoPE", "Vanilla MLM"),
    ("a sparse DAG costs", "ExLM", "ExLM w/ Sparse DAG"),
    ("a sparse DAG is above no transitions", "ExLM w/ Sparse DAG", "ExLM w/o Transitions"),
)


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, what the runs say of it, and the numbers."""

    claim: str
    verdict: str
    numbers: str


@dataclass(frozen=True)
class Difference:
    """Of two cells, averaged over the tasks that both have (held-out accuracy if there is none)."""

    value: float
    error: float | None
    words: str
    unit: str

    @property
    def text(self) -> str:
        error = "one seed" if self.error is None else f"standard error {self.error:.2f}"
        return f"{self.value:+.2f} ({error}) {self.words}"


def verdict(difference: float, error: float | None, unit: str = "pre-training") -> str:
    """What a difference says by the rule; `unit`: which seeds the error comes from."""
    if error is None:
        return "one seed, not decided"
    if abs(difference) <= 2 * error:
        return "within the spread of seeds"
    word = "shows" if difference > 0 else "does not show"
    return word if unit == "pre-training" else f"{word}, one pre-training seed"


def compare(family: Family, first: Setting, second: Setting) -> Difference:
    """First less second, in points."""
    scores = _shared(family, [first, second])
    words = (
        f"points, mean of {', '.join(TITLES.get(s.task, s.task) for s in scores)}"
        if scores
        else "points of held-out accuracy"
    )
    parts = [_difference(family, score, first, second) for score in scores or [ACCURACY]]
    errors = [error for _, error in parts]
    known = [error for error in errors if error is not None]
    error = math.sqrt(sum(e * e for e in known)) / len(parts) if len(known) == len(parts) else None
    if scores:
        words += f", higher in {sum(value > 0 for value, _ in parts)} of {len(parts)}"
        words += (
            f"; held-out accuracy {_difference(family, ACCURACY, first, second)[0]:+.2f}" if first.p == second.p else ""
        )
    units = {noise.unit for s in scores or [ACCURACY] if (noise := family.noise(s))}
    return Difference(fmean(value for value, _ in parts), error, words, min(units, default="fine-tuning"))


def _shared(family: Family, cells: Sequence[Setting]) -> list[Score]:
    """Tasks scored in percent that all cells have."""
    tasks = [Score(task) for task in family.tasks if not family.lower_is_better(task)]
    return [score for score in tasks if all(family.estimate(cell, score) for cell in cells)]


def _difference(family: Family, score: Score, first: Setting, second: Setting) -> tuple[float, float | None]:
    a, b, noise = family.estimate(first, score), family.estimate(second, score), family.noise(score)
    assert a and b
    return a.value - b.value, math.hypot(noise.error(a), noise.error(b)) if noise else None


def findings_section(families: list[Family], runs: Runs) -> Section:
    """All claims that the runs say something about."""
    rows = []
    for family in families:
        found = [*_repeated(family), *_ablations(family), *_states(family), *_entropies(family)]
        rows += [heading(family.label, 3), *map(_row, found)] if found else []
    cost = [f for _, content in runs.efficiency for f in _cost(content)]
    rows += [heading("cost", 3), *map(_row, cost)] if cost else []
    table = Table(
        "findings",
        "The paper's claims and our numbers",
        RULE,
        columns_of(["claim", "our runs", "numbers"]),
        tuple(rows),
    )
    about = "Each line is one claim of the paper and what these runs, at their size and length, say of it."
    return Section("Which findings show", about, [table] if rows else [])


def _row(finding: Finding) -> Row:
    return Row((Cell(text=finding.claim), Cell(text=finding.verdict), Cell(text=finding.numbers)))


def _repeated(family: Family) -> list[Finding]:
    if not has_repeats(family):
        return []
    found = [f for task in family.tasks if (f := _corruption_matters(family, Score(task)))]
    found += [f for task in family.tasks if (f := _too_low(family, Score(task)))]
    found += _shares(family)
    entropy = estimates(family, ENTROPY)
    if len(entropy) > 3:
        rho = float(spearmanr([p**r for p, r in entropy], [e.value for e in entropy.values()]).statistic)
        error = 1 / math.sqrt(len(entropy) - 1)
        text = f"Spearman ρ = {rho:.2f} over {len(entropy)} cells (standard error without a relation {error:.2f})"
        found.append(Finding("entropy rises with pʳ", verdict(rho, error), text))
    return found


def _shares(family: Family) -> list[Finding]:
    """Whether the measured share of words without a visible copy is the formula's."""
    measured = [m["corruption"] for place in places(family) for m in measurements(family, place) if m.get("corruption")]
    close = [abs(m["mean"] - m["predicted"]) <= 2 * m["std"] / math.sqrt(m["sequences"]) for m in measured]
    if not close:
        return []
    word = "shows" if sum(close) >= 0.9 * len(close) else "does not show"
    text = f"within two standard errors over sequences in {sum(close)} of {len(close)} models (shows from nine tenths)"
    return [Finding("the share of corrupted semantics is pʳ", word, text)]


def _corruption_matters(family: Family, score: Score) -> Finding | None:
    """S.d. of the cells at fixed p (corruption varies) against those at fixed pʳ (unreal tokens vary)."""
    values, noise = estimates(family, score), family.noise(score)
    groups = [[[values[c].value for c in line if c in values] for line in lines.values()] for lines in lines_of(family)]
    spreads = [[stdev(line) for line in lines if len(line) > 1] for lines in groups]
    if not all(spreads):
        return None
    unreal, corrupted = (math.sqrt(fmean(s * s for s in kind)) for kind in spreads)
    error = fmean(noise.error(e) for e in values.values()) if noise else None
    seed = f"{noise.deviation:.2f}" if noise else "unknown (one seed)"
    text = (
        f"{TITLES.get(score.task, score.task)}: s.d. of cells {corrupted:.2f} at fixed p ({len(spreads[1])} lines), "
        f"{unreal:.2f} at fixed pʳ ({len(spreads[0])} lines); s.d. of a seed {seed}"
    )
    return Finding(
        "corrupted semantics move the score more than unreal tokens do",
        verdict(corrupted - unreal, error, noise.unit if noise else ""),
        text,
    )


def _too_low(family: Family, score: Score) -> Finding | None:
    """Whether a middle share of corruption is better than the smallest and the largest."""
    values, noise = estimates(family, score), family.noise(score)
    order = sorted(values, key=lambda c: c[0] ** c[1])
    if len(order) < 3 or family.lower_is_better(score.task):
        return None
    best = max(order[1:-1], key=lambda c: values[c].value)
    ends = [values[order[0]], values[order[-1]]]
    worse = min(values[best].value - end.value for end in ends)
    error = max(math.hypot(noise.error(values[best]), noise.error(end)) for end in ends) if noise else None
    text = (
        f"{TITLES.get(score.task, score.task)}: {ends[0].value:.1f} at the smallest pʳ, {values[best].value:.1f} at "
        f"{100 * best[0] ** best[1]:.2g}%, {ends[1].value:.1f} at the largest"
    )
    return Finding("both very small and very large pʳ cost", verdict(worse, error, noise.unit if noise else ""), text)


def _named(family: Family) -> dict[str, Setting]:
    k, p = ablated_states(family), base_ratio(family)
    return {cell.method: cell for cell in family.cells if cell.p == p and cell.r == 1 and cell.k in (1, k)}


def _ablations(family: Family) -> list[Finding]:
    cells, found = _named(family), []
    for claim, first, second in COMPARISONS:
        if first in cells and second in cells:
            difference = compare(family, cells[first], cells[second])
            found.append(Finding(claim, verdict(difference.value, difference.error, difference.unit), difference.text))
    return found


def _states(family: Family) -> list[Finding]:
    found = []
    for p in sorted({cell.p for cell in family.select(["ExLM"])}):
        cells = {cell.k: cell for cell in family.select(["ExLM"], p)}
        others = [cell for k, cell in cells.items() if k != 4]
        if 4 in cells and others:
            closest = min(((compare(family, cells[4], cell), cell) for cell in others), key=lambda pair: pair[0].value)
            text = f"against the best other, {label_of(closest[1])}: {closest[0].text}"
            found.append(
                Finding(
                    f"k = 4 is best at p = {100 * p:.4g}%",
                    verdict(closest[0].value, closest[0].error, closest[0].unit),
                    text,
                )
            )
    return found + _higher_ratio(family)


def _higher_ratio(family: Family) -> list[Finding]:
    """How much ExLM and MLM lose from the lowest to the highest common mask ratio."""
    k = ablated_states(family)
    exlm = {cell.p: cell for cell in family.select(["ExLM"]) if cell.k == k}
    mlm = {cell.p: cell for cell in family.select(["Vanilla MLM"])}
    ratios = sorted(exlm.keys() & mlm.keys())
    if len(ratios) < 2 or not _shared(family, [*exlm.values(), *mlm.values()]):
        return []
    low, high = ratios[0], ratios[-1]
    ours, theirs = compare(family, exlm[high], exlm[low]), compare(family, mlm[high], mlm[low])
    error = None if ours.error is None or theirs.error is None else math.hypot(ours.error, theirs.error)
    text = (
        f"from {100 * low:.4g}% to {100 * high:.4g}%: ExLM (k = {k}) {ours.value:+.2f}, MLM {theirs.value:+.2f} points"
    )
    return [Finding("a higher p costs ExLM less than MLM", verdict(ours.value - theirs.value, error, ours.unit), text)]


def _entropies(family: Family) -> list[Finding]:
    found = []
    for p in sorted({cell.p for cell in family.select(["ExLM"])}):
        cells = {cell.k: cell for cell in family.select(["ExLM"], p) if family.estimate(cell, ENTROPY)}
        vanilla = [cell for cell in family.select(["Vanilla MLM"], p) if family.estimate(cell, ENTROPY)]
        percent = f"at p = {100 * p:.4g}%"
        if not cells:
            continue
        k = 4 if 4 in cells else max(cells)
        for score, name in ((ENTROPY, "marginal"), (STATE_ENTROPY, "per state")):
            if vanilla and family.estimate(cells[k], score):
                claim = f"ExLM's entropy ({name}) is below MLM's {percent}"
                found.append(_lower(family, claim, cells[k], vanilla[0], score))
            if (
                len(cells) > 1
                and family.estimate(cells[max(cells)], score)
                and family.estimate(cells[min(cells)], score)
            ):
                claim = f"entropy ({name}) falls with k {percent}"
                found.append(_lower(family, claim, cells[max(cells)], cells[min(cells)], score))
    return found


def _lower(family: Family, claim: str, low: Setting, high: Setting, score: Score) -> Finding:
    """A claim that one entropy is lower; without several seeds the error is that over tokens."""
    other = ENTROPY if high.k == 1 else score
    a, b, noise = family.estimate(low, score), family.estimate(high, other), family.noise(score)
    assert a and b
    errors = (
        [noise.error(e) for e in (a, b)]
        if noise
        else [entropy_error(family, *c) for c in ((low, score), (high, other))]
    )
    of_what = f"over {noise.unit} seeds" if noise else "over tokens of one seed"
    error = math.hypot(*errors)
    text = f"{label_of(low)} {a.value:.3f}, {label_of(high)} {b.value:.3f} bits (standard error {error:.3f} {of_what})"
    return Finding(claim, verdict(b.value - a.value, error, noise.unit if noise else ""), text)


def _cost(content: Json) -> list[Finding]:
    """The measured ratio beside the paper's, which is for k = 4."""
    states = [entry.get("num_states") for name, entry in content["models"].items() if name != "mlm"]
    ratio, quartiles = content.get("ratio"), content.get("ratio_quartiles")
    if states != [4] or not ratio or not quartiles:
        return []
    low, high = quartiles
    text = f"{ratio:.2f}, quartiles {low:.2f} to {high:.2f} over {content.get('pairs', '?')} pairs, {machine(content)}"
    verdict = "shows" if low <= COST_RATIO <= high else "does not show"
    return [
        Finding(f"a step of ExLM (k = 4) costs about {COST_RATIO} times one of MLM (quartiles hold it)", verdict, text)
    ]
