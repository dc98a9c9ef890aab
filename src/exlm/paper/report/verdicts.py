"""The rule by which a number shows a finding, and the difference of two cells by it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from exlm.paper.report.cells import ACCURACY, Family, Score, Setting

PRE = "pre-training"  # whose seeds decide
NOT_LEARNT = "not decided (ExLM's held-out accuracy is far below: it has hardly left its start)"
RULE = (
    "Rule: a difference shows if it is larger than two standard errors; it does not show if it is as large with the "
    "other sign; otherwise it is within the spread of seeds. Standard errors come from the pooled s.d. over "
    "pre-training seeds where some cell has several; else over fine-tuning seeds or tokens, which cannot say how far a "
    "model pre-trained once more would differ: then the words are “higher (lower) beyond ...; one pre-training seed”. "
    "Scores of an ExLM that has less than half of the MLM's held-out accuracy decide nothing."
)


@dataclass(frozen=True)
class Difference:
    """Of two cells, averaged over the tasks that both have (held-out accuracy if there is none)."""

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


def verdict(difference: float, error: float | None, unit: str = PRE, words: Sequence[str] = ("higher", "lower")) -> str:
    """What a difference says by the rule; `unit`: what the error comes from; `words`: for its signs."""
    if error is None:
        return "one seed, not decided"
    if abs(difference) <= 2 * error:
        return "within the spread of seeds"
    if unit == PRE:
        return "shows" if difference > 0 else "does not show"
    return f"{words[difference < 0]} beyond {unit if unit == 'tokens' else f'{unit} seeds'}; one pre-training seed"


def compare(family: Family, first: Setting, second: Setting) -> Difference:
    """First less second, in points."""
    scores = shared_scores(family, [first, second])
    parts = [_difference(family, score, first, second) for score in scores or [ACCURACY]]
    known = [error for _, error in parts if error is not None]
    error = math.hypot(*known) / len(parts) if len(known) == len(parts) else None
    words = "points of held-out accuracy"
    if scores:
        higher = f"higher in {sum(value > 0 for value, _ in parts)} of {len(parts)}"
        words = f"points, mean of {', '.join(score.title for score in scores)}, {higher}"
        if first.p == second.p:
            words += f"; held-out accuracy {_difference(family, ACCURACY, first, second)[0]:+.2f}"
    units = {noise.unit for score in scores or [ACCURACY] if (noise := family.noise(score))}
    learnt = not scores or all(_learnt(family, cell) for cell in (first, second))
    return Difference(fmean(value for value, _ in parts), error, words, min(units, default="fine-tuning"), learnt)


def _learnt(family: Family, cell: Setting) -> bool:
    """Whether an ExLM has at least half of the held-out accuracy of the MLM at its mask ratio."""
    vanilla = family.estimate(Setting("Vanilla MLM", 1, cell.p), ACCURACY)
    own = family.estimate(cell, ACCURACY)
    return vanilla is None or own is None or own.value >= 0.5 * vanilla.value


def shared_scores(family: Family, cells: Sequence[Setting]) -> list[Score]:
    """Tasks scored in percent that all cells have."""
    return [score for score in family.shares if all(family.estimate(cell, score) for cell in cells)]


def _difference(family: Family, score: Score, first: Setting, second: Setting) -> tuple[float, float | None]:
    a, b, noise = family.estimate(first, score), family.estimate(second, score), family.noise(score)
    assert a and b
    return a.value - b.value, math.hypot(noise.error(a), noise.error(b)) if noise else None
