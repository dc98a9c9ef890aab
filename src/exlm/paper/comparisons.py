"""The tables of the report that decide whether ExLM is worth its price and which claims of the
paper our runs show, and the rule by which a difference counts."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import variance
from typing import Any, NamedTuple

from scipy.stats import t as student

from exlm.paper.display import CLAIMS, DIGITS, DISPLAY, METHODS, MLMS, Row, Variant, title
from exlm.paper.groups import RunGroup, SeedMeans
from exlm.paper.page import Table
from exlm.paper.tables import describe_seeds, make_table, mean_entries, model_row
from exlm.pretrain.run import SMALLEST_TIE

EXLM = METHODS["exlm"]  # this and the next are columns of the table of equal cost
MLM_PLUS_PLUS = METHODS["mlm-plus-plus"]
ROUNDING = 1e-9  # numbers that differ by a smaller share of them are equal


class Term(NamedTuple):
    """A summand of a claim: the mean of some quantities of a model, times a weight."""

    weight: float
    model: Variant
    quantities: Sequence[str]


class Difference(NamedTuple):
    """A sum of terms, and how far it may lie from 0 by chance."""

    value: float  # NaN if no run of a model has all of its quantities
    error: float | None = None  # its standard error; None if a model has one seed
    freedom: int = 0  # degrees of freedom of the standard error
    size: float = 0.0  # the sum without signs; rounding is a share of it

    @property
    def margin(self) -> float | None:
        """The half of its 95% interval, by Student's t: chance stays within it in 95 of 100 cases.
        None if a model has one seed."""
        if self.error is None:
            return None
        return self.error * float(student.ppf(0.975, self.freedom))


def worth_table(groups: Sequence[RunGroup]) -> Table:
    """ExLM beside the MLM of equal cost (MLM++), in joint nll, in as many passes as were tried, and
    in the mean over the tasks that both have."""
    rows: list[Row] = []
    for group in groups:
        for exlm in group.select("exlm"):
            for quantity in DISPLAY["compared_with_plus"]:
                rows += _gain_row(group, exlm, [quantity], sign=-1, digits=3)
            tasks = group.shared_tasks([exlm, Variant("mlm-plus-plus", 1, exlm.p)])
            rows += _gain_row(group, exlm, tasks, sign=1, digits=2)
    return make_table("worth", rows)


def _gain_row(
    group: RunGroup, exlm: Variant, quantities: list[str], sign: int, digits: int
) -> list[Row]:
    """The row that says by how much ExLM is better than MLM++, in a list; [] if one of them lacks
    the quantities. `sign` is -1 where lower is better."""
    plus = Variant("mlm-plus-plus", 1, exlm.p)
    means = mean_entries(exlm, {EXLM: quantities}, group.means)
    means |= mean_entries(plus, {MLM_PLUS_PLUS: quantities}, group.means)
    if means[EXLM] is None or means[MLM_PLUS_PLUS] is None:
        return []
    terms = [Term(sign, exlm, quantities), Term(-sign, plus, quantities)]
    gain = weighted_sum(group.means, terms)
    interval = None
    if gain.margin is not None:
        low, high = gain.value - gain.margin, gain.value + gain.margin
        interval = f"{low:+.{digits}f} to {high:+.{digits}f}"
    hours = group.means.by_model([exlm, plus], "training/hours")
    rows = [model_row(group, model, {"": quantities}, group.means) for model in (exlm, plus)]
    row = {
        "group": group.label,
        "digits": digits,
        "model": exlm.description,
        "score": ", ".join(map(title, quantities)),
        **means,
        "ExLM better by": gain.value,
        "interval": interval,
        "ahead": decide(gain, EXLM, MLM_PLUS_PLUS),
        "cost": hours[exlm][0] / hours[plus][0],
        "seeds": "; ".join(row["seeds"] for row in rows),
        "runs": " ".join(row["runs"] for row in rows),
    }
    return [row]


def claims_table(groups: Sequence[RunGroup]) -> Table:
    """All claims whose models were run. Of claims with the same terms only the first has a row:
    `exlm` and `exlm at p = 15%` are the same model, if the ablations have this mask ratio."""
    rows: list[Row] = []
    for group in groups:
        judged = set()
        for claim, entries in CLAIMS.items():
            terms = _make_terms(group, entries)
            if terms and frozenset(terms) not in judged:
                judged.add(frozenset(terms))
                rows += _claim_row(group, claim, terms)
    return make_table("claims", rows, count=len(rows))


def _make_terms(group: RunGroup, entries: Sequence[dict[str, Any]]) -> list[Term]:
    """The terms of a claim for the models of a group; [] if a model was not run. A claim without
    a quantity compares the mean over the tasks that its models share. Without such tasks it
    compares held-out accuracy, but only if p and r are the same in all models."""
    models = [_find_model(group, entry) for entry in entries]
    if any(model not in group.models for model in models):
        return []
    usual_quantities = group.shared_tasks(models)
    if not usual_quantities and len({(model.p, model.r) for model in models}) == 1:
        usual_quantities = ["evaluation/accuracy"]
    terms: list[Term] = []
    for entry, model in zip(entries, models, strict=True):
        quantities = [entry["quantity"]] if "quantity" in entry else usual_quantities
        terms.append(Term(entry["weight"], model, tuple(quantities)))
    return terms


def _find_model(group: RunGroup, entry: dict[str, Any]) -> Variant:
    """The model of a claim's entry, with the p and the k of the ablations where it says none."""
    k = 1 if entry["method"] in MLMS else entry.get("k", group.base_states)
    return Variant(entry["method"], k, entry.get("p", group.base_ratio), entry.get("r", 1))


def _claim_row(group: RunGroup, claim: str, terms: Sequence[Term]) -> list[Row]:
    """The row with the verdict on a claim, in a list; [] if a number is missing."""
    titles = [", ".join(map(title, term.quantities)) for term in terms]
    digits = max(2, *(DIGITS.get(name, 1) for name in titles))
    all_quantities = defaultdict[Variant, dict[str, None]](dict)  # in their order
    for _, model, quantities in terms:
        all_quantities[model] |= dict.fromkeys(quantities)
    summands = []
    seeds = []
    for weight, model, quantities in terms:
        # Only runs that have all numbers of the claim count.
        ids = group.means.run_by_run(model, *all_quantities[model]).index
        if ids.empty:
            return []
        mean = group.means.run_by_run(model, *quantities)[ids].mean()
        summands.append(f"{weight:+g} × {mean:.{digits}f} {model.description}")
        seeds.append(describe_seeds(group, ids, quantities))
    difference = weighted_sum(group.means, terms)
    verdict = decide(difference, "shows", "does not show")
    if _links_tie_nothing(group, terms):
        verdict = "does not show: both are equal, as the links tie no masks together"
    error = difference.error
    spread = "one seed" if error is None else f"standard error {error:.{digits}f}"
    of_what = " and ".join(dict.fromkeys(titles))
    row: Row = {
        "group": group.label,
        "claim": claim,
        "our runs": verdict,
        "numbers": f"{difference.value:+.{digits}f} ({spread}): {'; '.join(summands)} ({of_what})",
        "seeds": "; ".join(seeds),
        "rows": _scored_rows(group, terms),
    }
    return [row]


def _links_tie_nothing(group: RunGroup, terms: Sequence[Term]) -> bool:
    """Whether the claim compares marginal and joint nll of one model, which differ by what its
    links tie, and they are equal in every run."""
    nlls = [("evaluation/nll",), ("evaluation/joint_nll",)]
    models = {term.model for term in terms}
    if [term.quantities for term in terms] != nlls or len(models) > 1:
        return False
    marginal, joint = (group.means.run_by_run(terms[0].model, *names) for names in nlls)
    return bool(((marginal - joint).dropna().abs() < SMALLEST_TIE).all())


def _scored_rows(group: RunGroup, terms: Sequence[Term]) -> str:
    """How many rows of each task were scored, in words."""
    names = {name for term in terms for name in term.quantities}
    finetunings = [tuning for tuning in group.finetunings if tuning.task in names]
    counts = {title(tuning.task): tuning.scored_rows.count for tuning in finetunings}
    return ", ".join(f"{task} {count}" for task, count in counts.items())


def weighted_sum(means: SeedMeans, terms: Sequence[Term]) -> Difference:
    """The sum of terms. Its standard error is pooled over the pre-training seeds of the models.
    Models are independent, but quantities of one run are not. So the terms of a model, whose
    weights differ in sign alone, are first added up in every run."""
    sums: dict[Variant, Any] = {}  # of each run, by its id
    size = 0.0
    weights = {model: abs(weight) for weight, model, _ in terms}
    for weight, model, quantities in terms:
        values = means.run_by_run(model, *quantities)
        sums[model] = sums.get(model, 0) + math.copysign(1, weight) * values
        size += weights[model] * float(values.abs().mean())
    # Only runs that have all quantities count.
    by_seed = {model: values.dropna() for model, values in sums.items()}
    seed_counts = {model: len(values) for model, values in by_seed.items()}
    total = sum(weights[model] * float(values.mean()) for model, values in by_seed.items())
    if min(seed_counts.values()) < 2:
        return Difference(total)
    squares = sum((seed_counts[model] - 1) * variance(values) for model, values in by_seed.items())
    freedom = sum(count - 1 for count in seed_counts.values())
    factor = sum(weights[model] ** 2 / count for model, count in seed_counts.items())
    return Difference(total, math.sqrt(squares / freedom * factor), freedom, size)


def decide(difference: Difference, yes: str, no: str) -> str:
    """The words `yes` for a positive difference and `no` for a negative one, if it is larger than
    its margin by more than rounding; else why nothing is decided."""
    if difference.margin is None:
        return "one seed, not decided"
    if abs(difference.value) - difference.margin <= ROUNDING * difference.size:
        return "within the spread of seeds"
    return yes if difference.value > 0 else no
