"""The tables of the report that decide: which model is best on a data set, whether ExLM is worth
its price, and which claims of the paper our runs show."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from exlm.paper.display import (
    ACCURACY,
    CLAIMS,
    COMPARED_WITH_PLUS,
    DIGITS,
    HOURS,
    METHODS,
    Row,
    title,
)
from exlm.paper.estimates import Term, decide, spread, weighted_sum
from exlm.paper.groups import RunGroup
from exlm.paper.models import EXLM, MLM, PLUS, Model, describe
from exlm.paper.page import SPREAD, Table
from exlm.paper.runs import Runs, records
from exlm.paper.tables import as_table, mean_entries, model_row
from exlm.tasks.labels.metrics import goodness

# what the tables say of each result of `decide`
UNDECIDED = {"one seed": "one seed, not decided", "unclear": "within the spread of seeds"}
AHEAD = {"yes": METHODS[EXLM], "no": METHODS[PLUS], **UNDECIDED}
VERDICTS = {"yes": "shows", "no": "does not show", **UNDECIDED}


def mine_table(runs: Runs) -> Table:
    """Every fine-tuning and baseline, under the heading of what was scored; the best come first."""
    scored = pd.concat([runs.finetunings, runs.baselines])
    checksums = scored["data"].map(lambda data: " ".join(checksum[:8] for checksum in data))
    data = ", data " + checksums + " (not compared with other files or formats)"
    # Where other data or other rows were scored under a heading, it names these, too.
    for ending in (data, ", rows scored: " + scored["rows_scored"]):
        is_ambiguous = ending.groupby(scored["heading"]).transform("nunique") > 1
        scored["heading"] += ending.where(is_ambiguous, "")
    rows: list[Row] = []
    for heading, same_rows in scored.groupby("heading"):
        different = pd.DataFrame(list(same_rows["options"])).nunique() > 1
        for run in sorted(records(same_rows), key=lambda run: -goodness(run.mean, run.metric)):
            options = [f"{n} = {v}" for n, v in run.options.items() if v and different[n]]
            row: Row = {
                "group": heading,
                "model": run.model,
                "settings": ", ".join(options),
                "score": run.mean,
                "score" + SPREAD: spread(run.scores),
                "digits": run.digits,
                "interval": run.interval,
                "rows": run.rows,
                "seeds": len(run.scores),
                "runs": run.id,
            }
            rows.append(row)
    columns = ["model", "settings", "score", "interval", "rows", "seeds", "runs"]
    return as_table("mine", columns, rows)


def worth_table(groups: Sequence[RunGroup]) -> Table:
    """ExLM beside the MLM of equal cost (MLM++), in joint nll, in as many passes as were tried, and
    in the mean over the tasks that both have."""
    rows: list[Row] = []
    for group in groups:
        for exlm in group.select(EXLM):
            for quantity in COMPARED_WITH_PLUS:
                rows += _gain(group, exlm, [quantity], sign=-1, digits=3)
            tasks = group.shared_tasks([exlm, Model(PLUS, 1, exlm.p)])
            rows += _gain(group, exlm, tasks, sign=1, digits=2)
    columns = ["model", "score", METHODS[EXLM], METHODS[PLUS], "ExLM better by", "interval"]
    return as_table("worth", [*columns, "ahead", "cost", "seeds", "runs"], rows)


def _gain(group: RunGroup, exlm: Model, quantities: list[str], sign: int, digits: int) -> list[Row]:
    """A row that says by how much ExLM is better than MLM++; none if one of them has no such
    quantities. `sign` is -1 where lower is better."""
    plus = Model(PLUS, 1, exlm.p)
    row = model_row(group, exlm, {METHODS[EXLM]: quantities}, group.means)
    row |= mean_entries(plus, {METHODS[PLUS]: quantities}, group.means)
    if row[METHODS[EXLM]] is None or row[METHODS[PLUS]] is None:
        return []
    gain, error = weighted_sum(group.means, [(sign, exlm, quantities), (-sign, plus, quantities)])
    interval = None
    if error is not None:
        interval = f"{gain - 2 * error:+.{digits}f} to {gain + 2 * error:+.{digits}f}"
    hours = group.means.by_model([exlm, plus], HOURS)
    compared: Row = {
        "group": group.label,
        "digits": digits,
        "model": exlm.description,
        "score": ", ".join(map(title, quantities)),
        "ExLM better by": gain,
        "interval": interval,
        "ahead": AHEAD[decide(gain, error)],
        "cost": hours[exlm][0] / hours[plus][0],
    }
    return [row | compared]


def claims_table(groups: Sequence[RunGroup]) -> Table:
    """All claims whose models were run, each once: two claims may have the same terms, if the
    ablations have the mask ratio of one."""
    rows: list[Row] = []
    for group in groups:
        meanings = set()
        for claim, claimed in CLAIMS.items():
            terms = _terms(group, claimed)
            if terms and frozenset(terms) not in meanings:
                meanings.add(frozenset(terms))
                rows += _finding(group, claim, terms)
    return as_table("findings", ["claim", "our runs", "numbers"], rows, count=len(rows))


def _terms(group: RunGroup, claimed: Sequence[dict[str, Any]]) -> list[Term]:
    """The terms of a claim for the models of a group; none if a model was not run. A claim without
    a quantity compares the mean over the tasks that its models share. Without such tasks it
    compares held-out accuracy, but only if p and r are the same in all models."""
    models = [_model_of(group, term) for term in claimed]
    if any(model not in group.models for model in models):
        return []
    usual_quantities = group.shared_tasks(models)
    if not usual_quantities and len({(model.p, model.r) for model in models}) == 1:
        usual_quantities = [ACCURACY]
    terms: list[Term] = []
    for term, model in zip(claimed, models, strict=True):
        quantities = [term["quantity"]] if "quantity" in term else usual_quantities
        terms.append((term["weight"], model, tuple(quantities)))
    return terms


def _model_of(group: RunGroup, term: dict[str, Any]) -> Model:
    """The model of a claim's term, with the p and the k of the ablations where it says none."""
    k = 1 if term["method"] in (MLM, PLUS) else term.get("k", group.base_states)
    return Model(term["method"], k, term.get("p", group.base_ratio), term.get("r", 1))


def _finding(group: RunGroup, claim: str, terms: Sequence[Term]) -> list[Row]:
    """A row with the verdict on a claim; none if a number is missing."""
    titles = [", ".join(map(title, quantities)) for _, _, quantities in terms]
    digits = max(2, *(DIGITS.get(name, 1) for name in titles))
    summands = []
    for claimed, (weight, model, quantities) in zip(CLAIMS[claim], terms, strict=True):
        mean = group.means.mean(model, *quantities)
        if not mean:
            return []
        model_name = describe(**{n: claimed[n] for n in ("method", "k", "p", "r") if n in claimed})
        summands.append(f"{weight:+g} × {mean[0]:.{digits}f} {model_name}")
    difference, error = weighted_sum(group.means, terms)
    seeds = "one seed" if error is None else f"standard error {error:.{digits}f}"
    of_what = " and ".join(dict.fromkeys(titles))
    row: Row = {
        "group": group.label,
        "claim": claim,
        "our runs": VERDICTS[decide(difference, error)],
        "numbers": f"{difference:+.{digits}f} ({seeds}): {'; '.join(summands)} ({of_what})",
    }
    return [row]
