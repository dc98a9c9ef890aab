"""The tables of the report that decide: which model is best on a data set, whether ExLM is worth
its price, and which claims of the paper our runs show."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import stdev

import pandas as pd

from exlm.paper.estimates import Number, decide, standard_error
from exlm.paper.families import Family
from exlm.paper.page import Row, Table
from exlm.paper.runs import Finetuning, Runs
from exlm.paper.tables import sources
from exlm.paper.values import ACCURACY, CLAIMS, COLUMNS, HOURS, PLUS, Cell, texts, title
from exlm.tasks.metrics import goodness

# what the tables say of each result of `decide`
UNDECIDED = {"one seed": "one seed, not decided", "unclear": "within the spread of seeds"}
AHEAD = {"yes": "ExLM", "no": PLUS, **UNDECIDED}
VERDICTS = {"yes": "shows", "no": "does not show", **UNDECIDED}


def mine_table(runs: Runs) -> Table:
    """Every fine-tuning beside the baselines that had the same data, split and metric; the best of
    a data set first."""
    groups: defaultdict[tuple[object, ...], list[Finetuning]] = defaultdict(list)
    for tunings in (*runs.finetunings.values(), runs.baselines):
        for tuning in tunings:
            groups[tuning.task, tuning.metric, tuning.part, *tuning.data].append(tuning)
    rows: list[Row] = []
    headings = Counter(_heading(tunings[0]) for tunings in groups.values())
    for tunings in sorted(groups.values(), key=lambda tunings: title(tunings[0].task)):
        heading = _heading(tunings[0])
        if headings[heading] > 1:  # other tables of the same name
            mark = hashlib.sha256(tunings[0].data[0].encode()).hexdigest()[:8]
            heading += f", data {mark}"
        settings = _different_settings(tunings)
        tunings.sort(key=lambda tuning: goodness(tuning.mean, tuning.metric), reverse=True)
        rows += [_mine_row(tuning, heading, settings[tuning.id]) for tuning in tunings]
    return Table("mine", *texts("tables", "mine"), rows)


def _heading(tuning: Finetuning) -> str:
    """The data set, metric and split of a fine-tuning, and settings that choose its rows."""
    unit = ", %" if tuning.in_percent else ""
    split = tuning.data[1] or "parts"
    rows = f", {tuning.rows}" if tuning.rows else ""
    return f"{title(tuning.task)}: {tuning.part} {tuning.metric}{unit}, split {split}{rows}"


def _mine_row(tuning: Finetuning, heading: str, settings: str) -> Row:
    """The mean score of a fine-tuning or a baseline over its seeds."""
    spread = stdev(tuning.values) if len(tuning.values) > 1 else None
    start = "random weights of " if tuning.from_scratch else ""
    return {
        "group": heading,
        "model": title(tuning.baseline) if tuning.baseline else start + tuning.model,
        "settings": settings,
        "score": Number(tuning.mean, spread, digits=1 if tuning.in_percent else 3),
        "seeds": len(tuning.values),
        "runs": tuning.id,
    }


def _different_settings(tunings: Sequence[Finetuning]) -> dict[str, str]:
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
    rows: list[Row] = []
    for family in groups:
        for exlm in family.select("ExLM"):
            plus = Cell(PLUS, 1, exlm.p)
            for score in COLUMNS["worth"]:
                rows += _gain(family, exlm, plus, [score], lower_is_better=True)
            rows += _gain(family, exlm, plus, family.shared_tasks([exlm, plus]))
    return Table("worth", *texts("tables", "worth"), rows)


def _gain(
    family: Family, exlm: Cell, plus: Cell, scores: list[str], lower_is_better: bool = False
) -> list[Row]:
    """A row that says by how much ExLM is better; none if one of the cells has no such scores."""
    ours = family.estimate(exlm, *scores)
    others = family.estimate(plus, *scores)
    if not (ours and others):
        return []
    sign, digits = (-1, 3) if lower_is_better else (1, 2)
    gain = sign * (ours.value - others.value)
    error = standard_error([[(1, ours)], [(-1, others)]])
    interval = None
    if error is not None:
        interval = f"{gain - 2 * error:+.{digits}f} to {gain + 2 * error:+.{digits}f}"
    hours = [family.numbers[cell][HOURS].value for cell in (exlm, plus)]
    row = {
        "group": family.label,
        "model": exlm.description,
        "score": ", ".join(map(title, scores)),
        "ExLM": ours,
        PLUS: others,
        "ExLM better by": Number(gain, digits=digits),
        "interval": interval,
        "ahead": AHEAD[decide(gain, error)],
        "cost": Number(hours[0] / hours[1], digits=2),
    }
    return [row | sources(family, exlm)]


def claims_table(groups: Sequence[Family]) -> Table:
    """All claims whose cells were run, each once: two names may mean the same cell."""
    rows: list[Row] = []
    for family in groups:
        cells = family.cells_by_name()
        meanings = set()
        for claim, terms in CLAIMS.items():
            if not all(name in cells for _, name, *_ in terms):
                continue
            meaning = frozenset((weight, cells[name], *score) for weight, name, *score in terms)
            if meaning not in meanings:
                meanings.add(meaning)
                rows += _finding(family, claim, cells)
    return Table("findings", *texts("tables", "findings", count=len(rows)), rows)


def _finding(family: Family, claim: str, cells: dict[str, Cell]) -> list[Row]:
    """A row with the verdict on a claim; none if a number is missing. A claim without a score
    compares the mean over the tasks that its cells share. Without such tasks it compares held-out
    accuracy, but only if p and r are the same in all cells."""
    terms = CLAIMS[claim]
    compared = {cells[name] for _, name, *_ in terms}
    default_scores = family.shared_tasks(compared)
    if not default_scores and len({(cell.p, cell.r) for cell in compared}) == 1:
        default_scores = [ACCURACY]
    by_cell: defaultdict[Cell, list[tuple[float, Number]]] = defaultdict(list)
    weighted = []
    titles = []
    for weight, name, *score in terms:
        scores = score or default_scores
        number = family.estimate(cells[name], *scores)
        if not number:
            return []
        by_cell[cells[name]].append((weight, number))
        weighted.append((weight, number))
        titles.append(", ".join(map(title, scores)))
    digits = max([2, *(number.digits for _, number in weighted)])
    difference = sum(weight * number.value for weight, number in weighted)
    error = standard_error(list(by_cell.values()))
    seeds = "one seed" if error is None else f"standard error {error:.{digits}f}"
    words = []
    for (weight, name, *_), (_, number) in zip(terms, weighted, strict=True):
        words.append(f"{weight:+g} × {number.value:.{digits}f} {name}")
    scored = " and ".join(dict.fromkeys(titles))
    row = {
        "group": family.label,
        "claim": claim,
        "our runs": VERDICTS[decide(difference, error)],
        "numbers": f"{difference:+.{digits}f} ({seeds}): {'; '.join(words)} ({scored})",
    }
    return [row]
