"""Which of the paper's findings the runs show: a number for each claim and a verdict by one rule."""

import math
from collections.abc import Iterator

from scipy.stats import spearmanr

from exlm.paper.report.cells import ENTROPY, GAIN, JOINT, STATE_ENTROPY, Family, Score, Setting, held_out
from exlm.paper.report.document import Row, Section, Table, heading, row
from exlm.paper.report.entropy import entropy_error
from exlm.paper.report.estimates import Estimate, Noise
from exlm.paper.report.grid import estimates, has_repeats, lines_of, measured, places
from exlm.paper.report.paper_values import COST_RATIO
from exlm.paper.report.records import Json, late, machine
from exlm.paper.report.runs import Runs
from exlm.paper.report.verdicts import RULE, Difference, compare, shared_scores, verdict

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


def findings_section(families: list[Family], runs: Runs) -> Section:
    """All claims that the runs say something about."""
    rows = []
    for family in families:
        found = [*_repeated(family), *_ablations(family), *_states(family), *_together(family), *_entropies(family)]
        rows += [heading(family.label), *found] if found else []
    cost = [found for _, content in runs.efficiency for found in _cost(content)]
    rows += [heading("cost"), *cost] if cost else []
    count = sum(line.kind != "heading" and bool(line.cells[1].text) for line in rows)
    chance = (
        f" {count} claims are looked at: about one in twenty is expected beyond two standard errors by chance alone."
    )
    columns = ("claim", "our runs", "numbers")
    table = Table("findings", "The paper's claims and our numbers", RULE + chance, columns, tuple(rows))
    about = (
        "Each line is a claim of the paper, or what its method is for (masks known together), and what these runs, at "
        "their size and length, say of it. A dash: earlier runs did not record it."
    )
    return Section("Which findings show", about, parts=[table] if rows else [])


def _repeated(family: Family) -> Iterator[Row]:
    if has_repeats(family):
        for score in family.scores:
            yield from _corruption_matters(family, score)
        for score in family.shares:
            yield from _both_ends_cost(family, score)
        yield from _shares(family)
        yield from _entropy_rises(family)


def _corruption_matters(family: Family, score: Score) -> Iterator[Row]:
    """Range along the longest line of equal pʳ (unreal tokens vary) beside that of equal p (corruption varies)."""
    values, noise = estimates(family, score), family.noise(score)
    kinds = [
        [
            (name, found)
            for name, line in lines.items()
            if len(found := [values[c].value for c in line if c in values]) > 1
        ]
        for lines in lines_of(family)
    ]
    if all(kinds):
        diagonal, fixed = (max(kind, key=lambda line: len(line[1])) for kind in (kinds[0], kinds[1][::-1]))
        unreal, corrupted = (max(line) - min(line) for _, line in (diagonal, fixed))
        seed = f"{noise.deviation:.2f}" if noise else "unknown (one seed)"
        text = (
            f"{score.title}: range {corrupted:.2f} along {fixed[0]} ({len(fixed[1])} cells), {unreal:.2f} along "
            f"{diagonal[0]} ({len(diagonal[1])} cells); s.d. of a seed {seed}; decided beyond 2√2 of it; "
            "paper, MNLI: 3.2 and 0.8"
        )
        error = math.sqrt(2) * noise.deviation if noise else None
        claim = "corrupted semantics move the score more than unreal tokens do"
        yield row(claim, verdict(corrupted - unreal, error, _unit(noise)), text)


def _both_ends_cost(family: Family, score: Score) -> Iterator[Row]:
    """Whether a middle share of corruption is better than the smallest and the largest."""
    values, noise = estimates(family, score), family.noise(score)
    order = sorted(values, key=lambda place: place[0] ** place[1])
    if len(order) > 2:
        p, r = max(order[1:-1], key=lambda place: values[place].value)
        best, ends = values[p, r], [values[order[0]], values[order[-1]]]
        error = max(math.hypot(noise.error(best), noise.error(end)) for end in ends) if noise else None
        text = (
            f"{score.title}: {ends[0].value:.1f} at the smallest pʳ, {best.value:.1f} at {100 * p**r:.2g}%, "
            f"{ends[1].value:.1f} at the largest"
        )
        worse = min(best.value - end.value for end in ends)
        yield row("both very small and very large pʳ cost", verdict(worse, error, _unit(noise)), text)


def _shares(family: Family) -> Iterator[Row]:
    """Whether the measured share of words without a visible copy is what masking a fixed number of copies gives."""
    found = [share for place in places(family) for share in measured(family, place, "corruption")]
    if not found:
        return
    errors = [m["fixed_count_std"] / math.sqrt(m["sequences"]) + 1e-9 for m in found]
    away = [abs(m["mean"] - m["fixed_count"]) / error for m, error in zip(found, errors, strict=True)]
    relative = [100 * (m["mean"] / m["predicted"] - 1) for m in found]
    text = (
        f"at most {max(away):.1f} standard errors from what a fixed number of masks gives, {len(found)} models (shows "
        f"up to three); {min(relative):+.1f}% to {max(relative):+.1f}% of pʳ: slightly less for r > 1, since a fixed "
        "number of copies is masked"
    )
    word = "shows" if max(away) <= 3 else "does not show"
    yield row("the share of corrupted semantics is pʳ", word, text)


def _entropy_rises(family: Family) -> Iterator[Row]:
    found = estimates(family, ENTROPY)
    if len(found) > 3:
        rho = float(spearmanr([p**r for p, r in found], [e.value for e in found.values()]).statistic)
        error = 1 / math.sqrt(len(found) - 1)
        text = f"Spearman ρ = {rho:.2f} over {len(found)} cells (standard error without a relation {error:.2f})"
        word = verdict(rho, error)
        if word == "shows" and family.noise(ENTROPY) is None:
            word = "rises over the cells; one pre-training seed"
        yield row("entropy rises with pʳ", word, text)


def _ablations(family: Family) -> Iterator[Row]:
    cells = family.named()
    for claim, first, second in COMPARISONS:
        if first in cells and second in cells:
            difference = compare(family, cells[first], cells[second])
            yield row(claim, difference.verdict, difference.text)


def _states(family: Family) -> Iterator[Row]:
    for p in sorted({cell.p for cell in family.select(["ExLM"])}):
        cells = {cell.k: cell for cell in family.select(["ExLM"], p)}
        others = [cell for k, cell in cells.items() if k != 4]
        if 4 in cells and others:
            differences = [(compare(family, cells[4], cell), cell) for cell in others]
            closest, cell = min(differences, key=lambda pair: pair[0].value)
            text = f"against the best other, {cell.label}: {closest.text}"
            yield row(f"k = 4 is best at p = {100 * p:.4g}%", closest.verdict, text)
    yield from _higher_ratio(family)


def _higher_ratio(family: Family) -> Iterator[Row]:
    """How much ExLM and MLM lose from the lowest to the highest common mask ratio."""
    exlm = {cell.p: cell for cell in family.select(["ExLM"]) if cell.k == family.base_states}
    mlm = {cell.p: cell for cell in family.select(["Vanilla MLM"])}
    ratios = sorted(exlm.keys() & mlm.keys())
    if len(ratios) < 2 or not shared_scores(family, [*exlm.values(), *mlm.values()]):
        return
    low, high = ratios[0], ratios[-1]
    ours, theirs = compare(family, exlm[high], exlm[low]), compare(family, mlm[high], mlm[low])
    error = None if ours.error is None or theirs.error is None else math.hypot(ours.error, theirs.error)
    text = (
        f"from {100 * low:.4g}% to {100 * high:.4g}%: ExLM (k = {family.base_states}) {ours.value:+.2f}, "
        f"MLM {theirs.value:+.2f} points"
    )
    difference = Difference(ours.value - theirs.value, error, "points", ours.unit, ours.learnt)
    yield row("a higher p costs ExLM less than MLM", difference.verdict, text)


def _together(family: Family) -> Iterator[Row]:
    """Whether ExLM's masked tokens are likelier together than each by itself, and than the MLM's."""
    for cell in _usual(family):
        claim = f"ExLM knows masks together: joint nll below {{}} at p = {100 * cell.p:.4g}%"
        gain, joint = family.estimate(cell, GAIN), family.estimate(cell, JOINT)
        apart = gain.value + joint.value if gain and joint else None
        yield _below(claim.format("its own marginal"), joint, apart, _error(family, GAIN, gain))
        mlm = family.estimate(Setting("Vanilla MLM", 1, cell.p), JOINT)
        yield _below(claim.format("MLM's"), joint, mlm.value if mlm else None, _error(family, JOINT, joint, mlm))


def _usual(family: Family) -> list[Setting]:
    """ExLM with the paper's k, else its largest, at every mask ratio."""
    cells = family.select(["ExLM"])  # by p, then k
    return list(({cell.p: cell for cell in cells} | {cell.p: cell for cell in cells if cell.k == 4}).values())


def _error(family: Family, score: Score, *estimates: Estimate | None) -> float | None:
    """Standard error of a sum or difference by the spread of pre-training seeds."""
    noise = family.noise(score)
    return math.hypot(*(noise.error(estimate) for estimate in estimates if estimate)) if noise else None


def _below(claim: str, joint: Estimate | None, other: float | None, error: float | None) -> Row:
    """A claim that the joint nll is lower; blank where one of the two was not recorded."""
    if joint is None or other is None:
        return row(claim, None, None)
    words = "one seed" if error is None else f"standard error {error:.3f} over pre-training seeds"
    text = f"{joint.value:.3f} and {other:.3f} nats per masked token ({words})"
    return row(claim, verdict(other - joint.value, error), text)


def _entropies(family: Family) -> Iterator[Row]:
    for usual in _usual(family):
        cells = family.select(["ExLM"], usual.p)
        first, last, vanilla = cells[0], cells[-1], Setting("Vanilla MLM", 1, usual.p)
        for score, name in ((ENTROPY, "marginal"), (STATE_ENTROPY, "per state")):
            at = f"at p = {100 * usual.p:.4g}%"
            yield from _lower(family, f"ExLM's entropy ({name}) is below MLM's {at}", usual, vanilla, score)
            if first != last:
                yield from _lower(family, f"entropy ({name}) falls with k {at}", last, first, score)


def _lower(family: Family, claim: str, low: Setting, high: Setting, score: Score) -> Iterator[Row]:
    """A claim that one entropy is lower; without several seeds the error is that over tokens."""
    other = ENTROPY if high.k == 1 else score
    a, b, noise = family.estimate(low, score), family.estimate(high, other), family.noise(score)
    if a and b:
        errors = [entropy_error(family, low, score), entropy_error(family, high, other)]
        error = math.hypot(*([noise.error(a), noise.error(b)] if noise else errors))
        unit, of_what = (noise.unit, f"over {noise.unit} seeds") if noise else ("tokens", "over tokens of one seed")
        values = f"{low.label} {a.value:.3f}, {high.label} {b.value:.3f} bits (standard error {error:.3f} {of_what})"
        yield row(claim, verdict(b.value - a.value, error, unit, ("lower", "higher")), values + _alike(family, low))


def _alike(family: Family, cell: Setting) -> str:
    """Says so where the marginal of a mask's states is as sure as each of them."""
    both = [(held_out(run, ENTROPY.metric), held_out(run, STATE_ENTROPY.metric)) for run in family.cells[cell]]
    alike = sum(mixed is not None and own is not None and mixed - own <= 0.01 * mixed for mixed, own in both)
    runs = f" in {alike} of {len(both)} runs" if alike < len(both) else ""
    return f"; the states that are used do not differ{runs}" if alike else ""


def _unit(noise: Noise | None) -> str:
    return noise.unit if noise else ""


def _cost(content: Json) -> Iterator[Row]:
    """The measured ratio beside the paper's, which is for k = 4."""
    if content["num_states"] == 4 and not late(content):
        ratio, (low, high) = content["ratio"], content["ratio_quartiles"]
        away = f"{ratio:.2f}, paper {COST_RATIO}: {100 * (ratio / COST_RATIO - 1):+.0f}%"
        of_what = f"over {content['pairs']} pairs, {machine(content)}"
        text = f"ratio of the sums of times; quartiles {low:.2f} to {high:.2f} {of_what}"
        yield row(f"a step of ExLM (k = 4) costs about {COST_RATIO} times one of MLM", away, text)
