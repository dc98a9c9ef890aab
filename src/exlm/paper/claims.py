"""Which of the paper's claims the runs show: a number for each claim, and a verdict by one rule."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr

from exlm.paper.cells import ACCURACY, ENTROPY, GAIN, JOINT, MLM, STATE_ENTROPY, Estimate, Score, Setting
from exlm.paper.families import Family
from exlm.paper.page import Table
from exlm.paper.runs import Runs, device, late_expansion
from exlm.paper.values import COST_RATIO, TEXTS, percent, texts

NOT_LEARNT = "not decided (ExLM's held-out accuracy is far below: it has hardly left its start)"
PRE = "pre-training"  # whose seeds decide
Claim = tuple[str, str | None, str | None]  # the claim, the verdict and the numbers; None where nothing was recorded


def verdict(difference: float, error: float | None, unit: str = PRE, words: Sequence[str] = ("higher", "lower")) -> str:
    """What a difference says by the rule.

    Args:
        difference: positive if the claim is right.
        error: its standard error; None if there is a single seed.
        unit: what the error comes from: seeds of `pre-training`, of `fine-tuning`, or `tokens`.
        words: for its two signs.
    """
    if error is None:
        return "one seed, not decided"
    if abs(difference) <= 2 * error:
        return "within the spread of seeds"
    if unit == PRE:
        return "shows" if difference > 0 else "does not show"
    return f"{words[difference < 0]} beyond {unit if unit == 'tokens' else f'{unit} seeds'}; one pre-training seed"


@dataclass(frozen=True)
class Difference:
    """Of two cells in points, averaged over the tasks that both have (held-out accuracy if there is none)."""

    value: float
    error: float | None
    words: str
    unit: str
    learnt: bool = True

    @property
    def verdict(self) -> str:
        return verdict(self.value, self.error, self.unit) if self.learnt else NOT_LEARNT

    @property
    def text(self) -> str:
        error = "one seed" if self.error is None else f"standard error {self.error:.2f}"
        return f"{self.value:+.2f} ({error}) {self.words}"


def compare(family: Family, first: Setting, second: Setting) -> Difference:
    """First less second."""
    scores = _shared_scores(family, [first, second])
    found = [_subtract(family, score, first, second) for score in scores or [ACCURACY]]
    errors = [error for _, error, _ in found if error is not None]
    error = math.hypot(*errors) / len(found) if len(errors) == len(found) else None
    words = "points of held-out accuracy"
    if scores:
        higher = f"higher in {sum(value > 0 for value, *_ in found)} of {len(found)}"
        words = f"points, mean of {', '.join(score.title for score in scores)}, {higher}"
        if first.p == second.p:
            words += f"; held-out accuracy {_subtract(family, ACCURACY, first, second)[0]:+.2f}"
    unit = min((unit for *_, unit in found if unit), default="fine-tuning")
    learnt = not scores or (_learnt(family, first) and _learnt(family, second))
    return Difference(fmean(value for value, *_ in found), error, words, unit, learnt)


def _subtract(family: Family, score: Score, first: Setting, second: Setting) -> tuple[float, float | None, str]:
    """First less second, its standard error and what this comes from."""
    a, b, noise = family.estimate(first, score), family.estimate(second, score), family.noise(score)
    assert a and b
    return a.value - b.value, *((math.hypot(noise.error(a), noise.error(b)), noise.unit) if noise else (None, ""))


def _learnt(family: Family, cell: Setting) -> bool:
    """Whether an ExLM has at least half of the held-out accuracy of the MLM at its mask ratio."""
    own, vanilla = family.estimate(cell, ACCURACY), family.estimate(Setting(MLM, 1, cell.p), ACCURACY)
    return own is None or vanilla is None or own.value >= 0.5 * vanilla.value


def _shared_scores(family: Family, cells: Sequence[Setting]) -> list[Score]:
    """Tasks scored in percent that all cells have."""
    return [score for score in family.shares if all(family.estimate(cell, score) for cell in cells)]


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
    """Range along the longest line of equal pʳ (unreal tokens vary) beside that of equal p (corruption varies)."""
    shares: dict[Setting, float] = {}
    for cell in family.grid:
        shares[cell] = next((s for s in shares.values() if abs(cell.hidden / s - 1) < 0.05), cell.hidden)
    falling = sorted(shares, key=lambda cell: -shares[cell])
    diagonals = {cell: f"pʳ ≈ {100 * shares[cell]:.2g}%, p varies" for cell in falling}
    rows = {cell: f"p = {percent(cell.p)}, r varies" for cell in reversed(family.grid)}
    for score in family.scores if family.repeats else ():
        values, noise = family.estimates(family.grid, score), family.noise(score)
        (diagonal, others), (fixed, cells) = (_longest_line(values, names) for names in (diagonals, rows))
        if len(others) > 1 and len(cells) > 1:
            ranges = {"corrupted": max(cells) - min(cells), "unreal": max(others) - min(others)}
            error = math.sqrt(2) * noise.deviation if noise else None
            word = verdict(ranges["corrupted"] - ranges["unreal"], error, noise.unit if noise else "")
            seed = f"{noise.deviation:.2f}" if noise else "unknown (one seed)"
            names = {"score": score.title, "fixed": fixed, "diagonal": diagonal, "seed": seed}
            yield _claim("corruption", word, cells=len(cells), others=len(others), **ranges, **names)


def _longest_line(values: Mapping[Setting, Estimate], names: Mapping[Setting, str]) -> tuple[str, list[float]]:
    """The name that most cells have, and their values."""
    lines: dict[str, list[float]] = defaultdict(list)
    for cell in (cell for cell in names if cell in values):
        lines[names[cell]].append(values[cell].value)
    return max(lines.items(), key=lambda line: len(line[1]), default=("", []))


def _both_ends_cost(family: Family) -> Iterator[Claim]:
    """Whether a middle share of corruption is better than the smallest and the largest."""
    for score in family.shares if family.repeats else ():
        values, noise = family.estimates(family.grid, score), family.noise(score)
        order = sorted(values, key=lambda cell: cell.hidden)
        if len(order) > 2:
            middle = max(order[1:-1], key=lambda cell: values[cell].value)
            first, best, last = (values[cell] for cell in (order[0], middle, order[-1]))
            error = max(math.hypot(noise.error(best), noise.error(end)) for end in (first, last)) if noise else None
            word = verdict(best.value - max(first.value, last.value), error, noise.unit if noise else "")
            found = {"first": first.value, "best": best.value, "last": last.value, "middle": 100 * middle.hidden}
            yield _claim("both-ends", word, score=score.title, **found)


def _corrupted_share(family: Family) -> Iterator[Claim]:
    """Whether the measured share of words without a visible copy is what masking a fixed number of copies gives."""
    found = [share for cell in family.grid for share in family.measured(cell, "corruption")]
    if found and family.repeats:
        errors = [m["fixed_count_std"] / math.sqrt(m["sequences"]) + 1e-9 for m in found]
        away = max(abs(m["mean"] - m["fixed_count"]) / error for m, error in zip(found, errors, strict=True))
        relative = [100 * (m["mean"] / m["predicted"] - 1) for m in found]
        word = "shows" if away <= 3 else "does not show"
        yield _claim("share", word, away=away, count=len(found), low=min(relative), high=max(relative))


def _entropy_rises(family: Family) -> Iterator[Claim]:
    found = family.estimates(family.grid, ENTROPY)
    if len(found) > 3 and family.repeats:
        rho = float(spearmanr([cell.hidden for cell in found], [e.value for e in found.values()]).statistic)
        error = 1 / math.sqrt(len(found) - 1)
        word = verdict(rho, error)
        if word == "shows" and family.noise(ENTROPY) is None:
            word = "rises over the cells; one pre-training seed"
        yield _claim("entropy-rises", word, rho=rho, count=len(found), error=error)


def _ablations(family: Family) -> Iterator[Claim]:
    cells = family.named()
    for claim, first, second in TEXTS["comparisons"]:
        if first in cells and second in cells:
            difference = compare(family, cells[first], cells[second])
            yield claim, difference.verdict, difference.text


def _four_states(family: Family) -> Iterator[Claim]:
    for usual in _usual(family):
        others = [cell for cell in family.select(["ExLM"], usual.p) if cell.k != 4]
        if usual.k == 4 and others:
            differences = [(compare(family, usual, cell), cell) for cell in others]
            closest, cell = min(differences, key=lambda pair: pair[0].value)
            ratio = percent(usual.p)
            yield _claim("four-states", closest.verdict, ratio=ratio, label=cell.label, text=closest.text)


def _higher_ratio(family: Family) -> Iterator[Claim]:
    """How much ExLM and MLM lose from the lowest to the highest common mask ratio."""
    exlm = {cell.p: cell for cell in family.select(["ExLM"]) if cell.k == family.base_states}
    mlm = {cell.p: cell for cell in family.select([MLM])}
    ratios = sorted(exlm.keys() & mlm.keys())
    if len(ratios) > 1 and _shared_scores(family, [*exlm.values(), *mlm.values()]):
        low, high = ratios[0], ratios[-1]
        ours, theirs = compare(family, exlm[high], exlm[low]), compare(family, mlm[high], mlm[low])
        error = None if ours.error is None or theirs.error is None else math.hypot(ours.error, theirs.error)
        word = Difference(ours.value - theirs.value, error, "points", ours.unit, ours.learnt).verdict
        values = {"states": family.base_states, "ours": ours.value, "theirs": theirs.value}
        yield _claim("higher-ratio", word, low=percent(low), high=percent(high), **values)


def _together(family: Family) -> Iterator[Claim]:
    """Whether ExLM's masked tokens are likelier together than each by itself, and than the MLM's."""
    for cell in _usual(family):
        joint, gain = family.estimate(cell, JOINT), family.estimate(cell, GAIN)
        mlm = family.estimate(Setting(MLM, 1, cell.p), JOINT)
        marginal = gain.value + joint.value if gain and joint else None
        for other, apart, score, estimates in (
            ("its own marginal", marginal, GAIN, [gain]),
            ("MLM's", mlm.value if mlm else None, JOINT, [joint, mlm]),
        ):
            names = {"other": other, "ratio": percent(cell.p)}
            if joint is None or apart is None:
                yield TEXTS["claims"]["together"][0].format(**names), None, None
                continue
            noise = family.noise(score)
            error = math.hypot(*(noise.error(e) for e in estimates if e)) if noise else None
            seeds = "one seed" if error is None else f"standard error {error:.3f} over pre-training seeds"
            word = verdict(apart - joint.value, error)
            yield _claim("together", word, joint=joint.value, apart=apart, seeds=seeds, **names)


def _usual(family: Family) -> list[Setting]:
    """ExLM with the paper's k, else its largest, at every mask ratio."""
    cells = family.select(["ExLM"])  # by p, then k
    return list(({cell.p: cell for cell in cells} | {cell.p: cell for cell in cells if cell.k == 4}).values())


def _entropies(family: Family) -> Iterator[Claim]:
    for usual in _usual(family):
        cells = family.select(["ExLM"], usual.p)
        for score in (ENTROPY, STATE_ENTROPY):
            yield from _lower_entropy(family, "entropy-below", usual, Setting(MLM, 1, usual.p), score)
            if len(cells) > 1:
                yield from _lower_entropy(family, "entropy-falls", cells[-1], cells[0], score)


def _lower_entropy(family: Family, claim: str, low: Setting, high: Setting, score: Score) -> Iterator[Claim]:
    """A claim that one entropy is lower; without several seeds the error is that over tokens."""
    other = ENTROPY if high.k == 1 else score
    a, b, noise = family.estimate(low, score), family.estimate(high, other), family.noise(score)
    if a and b:
        errors = [family.entropy_error(low, score), family.entropy_error(high, other)]
        error = math.hypot(*([noise.error(a), noise.error(b)] if noise else errors))
        unit, of_what = (noise.unit, f"over {noise.unit} seeds") if noise else ("tokens", "over tokens of one seed")
        both = [(run.scores.get("entropy"), run.scores.get("state entropy")) for run in family.cells[low]]
        count = sum(mixed is not None and own is not None and mixed - own <= 0.01 * mixed for mixed, own in both)
        alike = "; the states that are used do not differ" if count else ""
        alike += f" in {count} of {len(both)} runs" if 0 < count < len(both) else ""
        names = {"name": "marginal" if score == ENTROPY else "per state", "ratio": percent(low.p), "alike": alike}
        names |= {"low": low.label, "high": high.label, "of_what": of_what}
        word = verdict(b.value - a.value, error, unit, ("lower", "higher"))
        yield _claim(claim, word, a=a.value, b=b.value, error=error, **names)


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
