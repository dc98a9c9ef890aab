"""Which of the paper's claims the runs show: a number for each claim, and a verdict by one rule.

The sentences are in texts.yaml: of a claim, and of the numbers that speak for or against it.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import spearmanr

from exlm.paper.families import Family
from exlm.paper.page import Table
from exlm.paper.runs import Runs, device, late_expansion
from exlm.paper.values import COST_RATIO, MLM, TEXTS, HeldOut, Setting, percent, texts, title

NOT_LEARNT = "not decided (ExLM's held-out accuracy is far below: it has hardly left its start)"
Claim = tuple[str, str | None, str | None]  # the claim, the verdict and the numbers; None where nothing was recorded


def verdict(
    difference: float, error: float | None, unit: str = "pre-training", words: Sequence[str] = ("higher", "lower")
) -> str:
    """What a difference says by the rule; it is positive if the claim is right.

    Args:
        error: its standard error; None if there is a single seed.
        unit: what the error comes from: seeds of `pre-training`, which alone decide, of `fine-tuning`, or `tokens`.
        words: for the two signs where the unit cannot decide.
    """
    if error is None:
        return "one seed, not decided"
    if abs(difference) <= 2 * error:
        return "within the spread of seeds"
    if unit == "pre-training":
        return "shows" if difference > 0 else "does not show"
    return f"{words[difference < 0]} beyond {unit if unit == 'tokens' else f'{unit} seeds'}; one pre-training seed"


class Difference(NamedTuple):
    """Of two cells in points, averaged over the tasks that both have (held-out accuracy if there is none)."""

    value: float
    error: float | None
    unit: str
    learnt: bool  # whether both have left their start, without which their scores say nothing
    text: str

    @property
    def verdict(self) -> str:
        return verdict(self.value, self.error, self.unit) if self.learnt else NOT_LEARNT


def compare(family: Family, first: Setting, second: Setting) -> Difference:
    """First less second. An ExLM has learnt if it has half of the held-out accuracy of the MLM at its mask ratio."""
    both = (first, second)
    tasks = [task for task in family.shares if len(family.estimates(both, task)) == 2]
    estimates = {score: family.estimates(both, score) for score in tasks or [HeldOut.ACCURACY]}
    values = [found[first].value - found[second].value for found in estimates.values()]
    noises = [family.noise(score) for score in estimates]
    errors = [noise.error(*found.values()) for noise, found in zip(noises, estimates.values(), strict=True)]
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) / len(values) if len(known) == len(values) else None
    text = f"{fmean(values):+.2f} ({'one seed' if error is None else f'standard error {error:.2f}'}) points"
    if tasks:
        higher = sum(value > 0 for value in values)
        text += f", mean of {', '.join(map(title, tasks))}, higher in {higher} of {len(values)}"
    else:
        text += " of held-out accuracy"
    accuracy = family.estimates([*both, *(Setting(MLM, 1, cell.p) for cell in both)], HeldOut.ACCURACY)
    if tasks and first.p == second.p:
        text += f"; held-out accuracy {accuracy[first].value - accuracy[second].value:+.2f}"
    pairs = [(accuracy[cell], accuracy.get(Setting(MLM, 1, cell.p))) for cell in both]
    learnt = not tasks or all(mlm is None or own.value >= 0.5 * mlm.value for own, mlm in pairs)
    return Difference(fmean(values), error, min(noise.unit for noise in noises), learnt, text)


def claims_table(families: Sequence[Family], runs: Runs) -> Table:
    """All claims that the runs say something about, by family."""
    found = [(family.label, claim) for family in families for make in CLAIMS for claim in make(family)]
    found += [("cost", claim) for claim in _cost(runs)]
    count = sum(word is not None for _, (_, word, _) in found)
    titles = ("group", "claim", "our runs", "numbers")
    rows = [dict(zip(titles, (label, *claim), strict=True)) for label, claim in found]
    return Table("findings", *texts("tables", "findings", count=count), rows)


def _claim(name: str, word: str, /, **numbers: Any) -> Claim:
    """A claim of texts.yaml with these numbers."""
    claim, text = texts("claims", name, **numbers)
    return claim, word, text


def _corruption_matters(family: Family) -> Iterator[Claim]:
    """Range along the longest line of equal p (corruption varies) beside that of equal pʳ (unreal tokens vary)."""
    equal: dict[Setting, float] = {}  # pʳ, or that of an earlier cell within 5%
    for cell in family.grid:
        equal[cell] = next((share for share in equal.values() if abs(cell.hidden / share - 1) < 0.05), cell.hidden)
    for task in family.tasks:
        values, noise = family.estimates(family.grid, task), family.noise(task)
        lines: list[dict[str, list[float]]] = [defaultdict(list), defaultdict(list)]
        for cell in sorted(values, key=lambda cell: -cell.p):
            lines[0][f"p = {percent(cell.p)}, r varies"].append(values[cell].value)
        for cell in sorted(values, key=lambda cell: -equal[cell]):
            lines[1][f"pʳ ≈ {100 * equal[cell]:.2g}%, p varies"].append(values[cell].value)
        (fixed, cells), (diagonal, others) = (max(d.items(), key=lambda x: len(x[1]), default=("", [])) for d in lines)
        if len(cells) > 1 and len(others) > 1:
            corrupted, unreal = max(cells) - min(cells), max(others) - min(others)
            deviation = noise.deviation
            word = verdict(corrupted - unreal, deviation and math.sqrt(2) * deviation, noise.unit)
            seed = "unknown (one seed)" if deviation is None else f"{deviation:.2f}"
            found = {"score": title(task), "fixed": fixed, "diagonal": diagonal, "seed": seed, "unreal": unreal}
            yield _claim("corruption", word, corrupted=corrupted, cells=len(cells), others=len(others), **found)


def _both_ends_cost(family: Family) -> Iterator[Claim]:
    """Whether a middle share of corruption is better than the smallest and the largest."""
    for task in family.shares:
        found, noise = family.estimates(family.grid, task), family.noise(task)
        if len(found) > 2:
            first, *between, last = sorted(found, key=lambda cell: cell.hidden)
            middle, end = (max(cells, key=lambda cell: found[cell].value) for cells in (between, (first, last)))
            best = found[middle].value
            word = verdict(best - found[end].value, noise.error(found[middle], found[end]), noise.unit)
            numbers = {"first": found[first].value, "best": best, "last": found[last].value}
            yield _claim("both-ends", word, score=title(task), middle=100 * middle.hidden, **numbers)


def _corrupted_share(family: Family) -> Iterator[Claim]:
    """Whether the measured share of words without a visible copy is what masking a fixed number of copies gives."""
    found = [run.scores for cell in family.grid for run in family.cells[cell] if HeldOut.CORRUPTION in run.scores]
    if found:
        frame = pd.DataFrame(found).filter(like="corruption ").rename(columns=lambda name: name.split()[1])
        error = frame["fixed_count_std"] / frame["sequences"] ** 0.5 + 1e-9
        away = ((frame["mean"] - frame["fixed_count"]).abs() / error).max()
        relative = 100 * (frame["mean"] / frame["predicted"] - 1)
        word = "shows" if away <= 3 else "does not show"
        yield _claim("share", word, away=away, count=len(frame), low=relative.min(), high=relative.max())


def _entropy_rises(family: Family) -> Iterator[Claim]:
    found = family.estimates(family.grid, HeldOut.ENTROPY)
    if len(found) > 3:
        rho = float(spearmanr([cell.hidden for cell in found], [e.value for e in found.values()]).statistic)
        error = 1 / math.sqrt(len(found) - 1)
        word = verdict(rho, error)
        if word == "shows" and family.noise(HeldOut.ENTROPY).deviation is None:
            word = "rises over the cells; one pre-training seed"
        yield _claim("entropy-rises", word, rho=rho, count=len(found), error=error)


def _ablations(family: Family) -> Iterator[Claim]:
    cells = family.named()
    for claim, first, second in TEXTS["comparisons"]:
        if first in cells and second in cells:
            difference = compare(family, cells[first], cells[second])
            yield claim, difference.verdict, difference.text


def _usual(family: Family) -> list[Setting]:
    """ExLM with the paper's k, else its largest, at every mask ratio."""
    groups = groupby(family.select(["ExLM"]), key=lambda cell: cell.p)
    return [max(cells, key=lambda cell: (cell.k == 4, cell.k)) for _, cells in groups]


def _four_states(family: Family) -> Iterator[Claim]:
    for usual in (cell for cell in _usual(family) if cell.k == 4):
        others = [cell for cell in family.select(["ExLM"], usual.p) if cell != usual]
        if others:
            found, cell = min(((compare(family, usual, cell), cell) for cell in others), key=lambda pair: pair[0].value)
            yield _claim("four-states", found.verdict, ratio=percent(usual.p), label=cell.label, text=found.text)


def _higher_ratio(family: Family) -> Iterator[Claim]:
    """How much ExLM and MLM lose from the lowest to the highest common mask ratio."""
    exlm = {cell.p: cell for cell in family.select(["ExLM"]) if cell.k == family.base_states}
    mlm = {cell.p: cell for cell in family.select([MLM])}
    ratios, cells = sorted(exlm.keys() & mlm.keys()), [*exlm.values(), *mlm.values()]
    if len(ratios) > 1 and any(len(family.estimates(cells, task)) == len(cells) for task in family.shares):
        low, high = ratios[0], ratios[-1]
        ours, theirs = (compare(family, cells[high], cells[low]) for cells in (exlm, mlm))
        error = None if ours.error is None or theirs.error is None else math.hypot(ours.error, theirs.error)
        word = ours._replace(value=ours.value - theirs.value, error=error).verdict
        names = {"low": percent(low), "high": percent(high), "states": family.base_states}
        yield _claim("higher-ratio", word, ours=ours.value, theirs=theirs.value, **names)


def _together(family: Family) -> Iterator[Claim]:
    """Whether ExLM's masked tokens are likelier together than each by itself, and than the MLM's."""
    for cell in _usual(family):
        joint, gain = family.estimate(cell, HeldOut.JOINT), family.estimate(cell, HeldOut.GAIN)
        mlm = family.estimate(Setting(MLM, 1, cell.p), HeldOut.JOINT)
        for other, score, against in (("its own marginal", HeldOut.GAIN, gain), ("MLM's", HeldOut.JOINT, mlm)):
            names = {"other": other, "ratio": percent(cell.p)}
            if joint is None or against is None:
                yield TEXTS["claims"]["together"][0].format(**names), None, None
                continue
            apart = joint.value + against.value if score == HeldOut.GAIN else against.value
            error = family.noise(score).error(*([against] if score == HeldOut.GAIN else [joint, against]))
            seeds = "one seed" if error is None else f"standard error {error:.3f} over pre-training seeds"
            word = verdict(apart - joint.value, error)
            yield _claim("together", word, joint=joint.value, apart=apart, seeds=seeds, **names)


def _entropies(family: Family) -> Iterator[Claim]:
    """Whether an entropy is lower than the MLM's, and lower with more states; of one seed, by errors over tokens."""
    for usual in _usual(family):
        cells = family.select(["ExLM"], usual.p)
        pairs = {"entropy-below": (usual, Setting(MLM, 1, usual.p)), "entropy-falls": (cells[-1], cells[0])}
        for score, (claim, (low, high)) in product((HeldOut.ENTROPY, HeldOut.STATE_ENTROPY), pairs.items()):
            a, b = family.estimate(low, score), family.estimate(high, HeldOut.ENTROPY if high.method == MLM else score)
            if a is None or b is None or low == high:
                continue
            mixed, own = (family.estimate(low, score) for score in (HeldOut.ENTROPY, HeldOut.STATE_ENTROPY))
            alike = mixed and own and mixed.value - own.value <= 0.01 * mixed.value  # a mixture as narrow as each
            noise = family.noise(score)
            error, unit, of_what = noise.error(a, b), noise.unit, f"over {noise.unit} seeds"
            if error is None:
                error, unit, of_what = math.hypot(a.spread or 0, b.spread or 0), "tokens", "over tokens of one seed"
            names = {
                "name": "marginal" if score == HeldOut.ENTROPY else "per state",
                "ratio": percent(low.p),
                "low": low.label,
            }
            names |= {"high": high.label, "alike": "; the states that are used do not differ" if alike else ""}
            word = verdict(b.value - a.value, error, unit, ("lower", "higher"))
            yield _claim(claim, word, a=a.value, b=b.value, error=error, of_what=of_what, **names)


def _cost(runs: Runs) -> Iterator[Claim]:
    """The measured ratio beside the paper's, which is for k = 4."""
    for _, content in runs.costs:
        if content["num_states"] == 4 and not late_expansion(content):
            ratio, (low, high) = content["ratio"], content["ratio_quartiles"]
            word = f"{ratio:.2f}, paper {COST_RATIO}: {100 * (ratio / COST_RATIO - 1):+.0f}%"
            of_what = {"pairs": content["pairs"], "device": device(content), "paper": COST_RATIO}
            yield _claim("cost", word, low=low, high=high, **of_what)


CLAIMS = (
    _corruption_matters, _both_ends_cost, _corrupted_share, _entropy_rises, _ablations, _four_states, _higher_ratio,
    _together, _entropies,
)  # fmt: skip
