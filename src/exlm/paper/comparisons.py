"""The tables of the report that decide: which model is best on a data set, whether ExLM is worth
its price, and which claims of the paper our runs show."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import pandas as pd

from exlm.paper.estimates import Number, Term, decide, spread, weighted_sum
from exlm.paper.families import Family
from exlm.paper.page import Table
from exlm.paper.records import TableRow, TunedRun
from exlm.paper.runs import Runs
from exlm.paper.tables import as_table, cell_row
from exlm.paper.values import (
    ACCURACY,
    CLAIMS,
    HOURS,
    PLUS,
    VALUES,
    Cell,
    ClaimTerm,
    percent,
    title,
)
from exlm.tasks.labels.metrics import goodness

# what the tables say of each result of `decide`
UNDECIDED = {"one seed": "one seed, not decided", "unclear": "within the spread of seeds"}
AHEAD = {"yes": "ExLM", "no": PLUS, **UNDECIDED}
VERDICTS = {"yes": "shows", "no": "does not show", **UNDECIDED}


def mine_table(runs: Runs) -> Table:
    """Every fine-tuning beside the baselines that had the same data, split and metric; the best of
    a data set first."""
    groups: defaultdict[tuple[str, str], list[TunedRun]] = defaultdict(list)
    for tuning in [*runs.finetunings, *runs.baselines]:
        groups[tuning.heading, tuning.rows_identity[0]].append(tuning)
    headings = Counter(heading for heading, _ in groups)
    rows: list[TableRow] = []
    for (heading, _), tunings in sorted(groups.items(), key=lambda group: group[0][0]):
        if headings[heading] > 1:  # other tables of the same name
            heading += f", data {tunings[0].data_digits}"
        settings = _different_settings(tunings)
        tunings.sort(key=lambda tuning: goodness(tuning.mean, tuning.metric), reverse=True)
        for tuning in tunings:
            start = "random weights of " if tuning.from_scratch else ""
            digits = 1 if tuning.in_percent else 3
            row = {
                "group": heading,
                "model": title(tuning.baseline) if tuning.baseline else start + tuning.start,
                "settings": settings[tuning.id],
                "score": Number(tuning.mean, spread(tuning.values), digits),
                "seeds": len(tuning.values),
                "runs": tuning.id,
            }
            rows.append(row)
    return as_table("mine", rows)


def _different_settings(tunings: Sequence[TunedRun]) -> dict[str, str]:
    """By the id of each fine-tuning or baseline, those of its settings that are not the same in all
    that have them."""
    settings = pd.json_normalize([tuning.settings for tuning in tunings]).astype(object)
    settings = settings.filter(regex="^(train[.]|start_from|task[.](?!data))")
    words = settings.map(lambda value: "" if value is None or value != value else str(value))
    different = words.columns[words.replace("", pd.NA).nunique() > 1]
    return {
        tuning.id: ", ".join(f"{name} = {row[name]}" for name in different if row[name])
        for tuning, (_, row) in zip(tunings, words.iterrows(), strict=True)
    }


def worth_table(groups: Sequence[Family]) -> Table:
    """ExLM beside the MLM of equal cost (MLM++), in joint nll, in as many passes as were measured,
    and in the mean over the tasks that both have."""
    rows: list[TableRow] = []
    for family in groups:
        for exlm in family.select("ExLM"):
            for score in VALUES["worth"]:
                rows += _gain(family, exlm, [score], sign=-1, digits=3)
            tasks = family.shared_tasks([exlm, Cell(PLUS, 1, exlm.p)])
            rows += _gain(family, exlm, tasks, sign=1, digits=2)
    return as_table("worth", rows)


def _gain(family: Family, exlm: Cell, scores: list[str], sign: int, digits: int) -> list[TableRow]:
    """A row that says by how much ExLM is better than MLM++; none if one of them has no such
    scores. `sign` is -1 where lower is better."""
    plus = Cell(PLUS, 1, exlm.p)
    ours = cell_row("worth", family, exlm, {"ExLM": scores}, family.results)
    others = family.results.number(plus, *scores)
    if not (ours["ExLM"] and others):
        return []
    hours = family.results.numbers([exlm, plus], HOURS)
    terms = [Term(sign, exlm, scores), Term(-sign, plus, scores)]
    gain, error = weighted_sum(family.results, terms)
    interval = None
    if error is not None:
        interval = f"{gain - 2 * error:+.{digits}f} to {gain + 2 * error:+.{digits}f}"
    compared = {
        "group": family.label,
        "model": exlm.description,
        "score": ", ".join(map(title, scores)),
        PLUS: others,
        "ExLM better by": Number(gain, digits=digits),
        "interval": interval,
        "ahead": AHEAD[decide(gain, error)],
        "cost": Number(hours[exlm].value / hours[plus].value, digits=2),
    }
    return [ours | compared]


def claims_table(groups: Sequence[Family]) -> Table:
    """All claims whose cells were run, each once: two names may mean the same cell."""
    rows: list[TableRow] = []
    for family in groups:
        meanings = set()
        for claim, claimed in CLAIMS.items():
            terms = _terms(family, claimed)
            if terms and frozenset(terms) not in meanings:
                meanings.add(frozenset(terms))
                rows += _finding(family, claim, terms)
    return as_table("findings", rows, count=len(rows))


def _terms(family: Family, claimed: Sequence[ClaimTerm]) -> list[Term]:
    """The terms of a claim for the cells of a family; none if a cell was not run. A claim without a
    score compares the mean over the tasks that its cells share. Without such tasks it compares
    held-out accuracy, but only if p and r are the same in all cells."""
    k = f", k = {family.base_states}"
    p = f", p = {percent(family.base_ratio)}"
    by_name = {cell.description: cell for cell in family.cells}
    names = [term.name.format(k=k, p=p) for term in claimed]
    if not by_name.keys() >= set(names):
        return []
    cells = [by_name[name] for name in names]
    default_scores = family.shared_tasks(cells)
    if not default_scores and len({(cell.p, cell.r) for cell in cells}) == 1:
        default_scores = [ACCURACY]
    terms = []
    for term, cell in zip(claimed, cells, strict=True):
        scores = [term.score] if term.score else default_scores
        terms.append(Term(term.weight, cell, tuple(scores)))
    return terms


def _finding(family: Family, claim: str, terms: Sequence[Term]) -> list[TableRow]:
    """A row with the verdict on a claim; none if a number is missing."""
    numbers = []
    for term in terms:
        number = family.results.number(term.cell, *term.scores)
        if not number:
            return []
        numbers.append(number)
    difference, error = weighted_sum(family.results, terms)
    digits = max([2, *(number.digits for number in numbers)])
    words = []
    for claimed, number in zip(CLAIMS[claim], numbers, strict=True):
        short_name = claimed.name.format(k="", p="")
        words.append(f"{claimed.weight:+g} × {number.value:.{digits}f} {short_name}")
    seeds = "one seed" if error is None else f"standard error {error:.{digits}f}"
    scores = " and ".join(dict.fromkeys(", ".join(map(title, term.scores)) for term in terms))
    row = {
        "group": family.label,
        "claim": claim,
        "our runs": VERDICTS[decide(difference, error)],
        "numbers": f"{difference:+.{digits}f} ({seeds}): {'; '.join(words)} ({scores})",
    }
    return [row]
