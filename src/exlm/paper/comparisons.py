"""The tables of the report that decide: which model is best on a data set, whether ExLM is worth
its price, and which claims of the paper our runs show."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from exlm.paper.display import ACCURACY, COMPARED_WITH_PLUS, HOURS, METHODS, title, yaml_content
from exlm.paper.estimates import Number, Term, decide, spread, weighted_sum
from exlm.paper.finished_runs import ScoredRun
from exlm.paper.groups import RunGroup
from exlm.paper.page import Table, TableRow
from exlm.paper.runs import Runs
from exlm.paper.tables import as_table, variant_row
from exlm.paper.variants import EXLM, MLM, PLUS, Variant, describe
from exlm.tasks.labels.metrics import goodness

# what the tables say of each result of `decide`
UNDECIDED = {"one seed": "one seed, not decided", "unclear": "within the spread of seeds"}
AHEAD = {"yes": METHODS[EXLM], "no": METHODS[PLUS], **UNDECIDED}
VERDICTS = {"yes": "shows", "no": "does not show", **UNDECIDED}


@dataclass(frozen=True)
class ClaimTerm:
    """A term of a claim's weighted sum; claims.yaml says what absent entries mean."""

    weight: float
    method: str
    k: int | None = None
    p: float | None = None
    r: int = 1
    quantity: str | None = None


CLAIMS: dict[str, list[ClaimTerm]] = {}
for _claim, _entries in yaml_content("claims.yaml").items():
    CLAIMS[_claim] = [ClaimTerm(**term) for term in _entries]


def mine_table(runs: Runs) -> Table:
    """Every fine-tuning and baseline, under the heading of what was scored; the best come first."""
    scored_runs = [*runs.finetunings, *runs.baselines]
    by_heading: defaultdict[str, list[ScoredRun]] = defaultdict(list)
    for heading, run in zip(_headings(scored_runs), scored_runs, strict=True):
        by_heading[heading].append(run)
    rows: list[TableRow] = []
    for heading, same_rows in sorted(by_heading.items()):
        different = _different_options(same_rows)
        for run in sorted(same_rows, key=lambda run: -goodness(run.mean, run.metric)):
            settings = []
            for name, value in run.options.items():
                if value and name in different:
                    settings.append(f"{name} = {value}")
            row: TableRow = {
                "group": heading,
                "model": run.model,
                "settings": ", ".join(settings),
                "score": Number(run.mean, spread(run.scores), run.digits),
                "interval": run.interval,
                "rows": "" if run.rows is None else run.rows,
                "seeds": len(run.scores),
                "runs": run.id,
            }
            rows.append(row)
    return as_table("mine", rows)


def _headings(scored_runs: Sequence[ScoredRun]) -> list[str]:
    """For each run, its heading. Where other data or other rows were scored under the same one, it
    names these, too: their scores cannot be compared."""
    headings = [run.heading for run in scored_runs]
    data = []
    for run in scored_runs:
        checksums = " ".join(checksum[:8] for checksum in run.checksums)
        data.append(f", data {checksums} (not compared with other files or formats)")
    rows = [f", rows scored: {run.rows_scored}" for run in scored_runs]
    return _told_apart(_told_apart(headings, data), rows)


def _told_apart(headings: Sequence[str], endings: Sequence[str]) -> list[str]:
    """The headings; those that are equal and have different endings end in these."""
    endings_of = defaultdict(set)
    for heading, ending in zip(headings, endings, strict=True):
        endings_of[heading].add(ending)
    result = []
    for heading, ending in zip(headings, endings, strict=True):
        result.append(heading + ending if len(endings_of[heading]) > 1 else heading)
    return result


def _different_options(scored_runs: Sequence[ScoredRun]) -> set[str]:
    """The names of those options that are not the same in all runs that have them."""
    values = defaultdict(set)
    for run in scored_runs:
        for name, value in run.options.items():
            values[name].add(value)
    return {name for name in values if len(values[name]) > 1}


def worth_table(groups: Sequence[RunGroup]) -> Table:
    """ExLM beside the MLM of equal cost (MLM++), in joint nll, in as many passes as were tried, and
    in the mean over the tasks that both have."""
    rows: list[TableRow] = []
    for group in groups:
        for exlm in group.select(EXLM):
            for quantity in COMPARED_WITH_PLUS:
                rows += _gain(group, exlm, [quantity], sign=-1, digits=3)
            tasks = group.shared_tasks([exlm, Variant(PLUS, 1, exlm.p)])
            rows += _gain(group, exlm, tasks, sign=1, digits=2)
    return as_table("worth", rows)


def _gain(
    group: RunGroup, exlm: Variant, quantities: list[str], sign: int, digits: int
) -> list[TableRow]:
    """A row that says by how much ExLM is better than MLM++; none if one of them has no such
    quantities. `sign` is -1 where lower is better."""
    plus = Variant(PLUS, 1, exlm.p)
    row = variant_row("worth", group, exlm, {METHODS[EXLM]: quantities}, group.results)
    number_of_plus = group.results.number(plus, *quantities)
    if not (row[METHODS[EXLM]] and number_of_plus):
        return []
    hours = group.results.numbers([exlm, plus], HOURS)
    terms = [Term(sign, exlm, quantities), Term(-sign, plus, quantities)]
    gain, error = weighted_sum(group.results, terms)
    interval = None
    if error is not None:
        interval = f"{gain - 2 * error:+.{digits}f} to {gain + 2 * error:+.{digits}f}"
    compared: TableRow = {
        "group": group.label,
        "model": exlm.description,
        "score": ", ".join(map(title, quantities)),
        METHODS[PLUS]: number_of_plus,
        "ExLM better by": Number(gain, digits=digits),
        "interval": interval,
        "ahead": AHEAD[decide(gain, error)],
        "cost": Number(hours[exlm].value / hours[plus].value, digits=2),
    }
    return [row | compared]


def claims_table(groups: Sequence[RunGroup]) -> Table:
    """All claims whose variants were run, each once: two claims may have the same terms, if the
    ablations have the mask ratio of one."""
    rows: list[TableRow] = []
    for group in groups:
        meanings = set()
        for claim, claimed in CLAIMS.items():
            terms = _terms(group, claimed)
            if terms and frozenset(terms) not in meanings:
                meanings.add(frozenset(terms))
                rows += _finding(group, claim, terms)
    return as_table("findings", rows, count=len(rows))


def _terms(group: RunGroup, claimed: Sequence[ClaimTerm]) -> list[Term]:
    """The terms of a claim for the variants of a group; none if a variant was not run. A claim
    without a quantity compares the mean over the tasks that its variants share. Without such tasks
    it compares held-out accuracy, but only if p and r are the same in all variants."""
    variants = [_variant_of(group, term) for term in claimed]
    if any(variant not in group.variants for variant in variants):
        return []
    usual_quantities = group.shared_tasks(variants)
    if not usual_quantities and len({(variant.p, variant.r) for variant in variants}) == 1:
        usual_quantities = [ACCURACY]
    terms = []
    for term, variant in zip(claimed, variants, strict=True):
        quantities = [term.quantity] if term.quantity else usual_quantities
        terms.append(Term(term.weight, variant, tuple(quantities)))
    return terms


def _variant_of(group: RunGroup, term: ClaimTerm) -> Variant:
    """The variant of a claim's term, with the p and the k of the ablations where it says none."""
    p = term.p or group.base_ratio
    k = term.k or group.base_states
    return Variant(term.method, 1 if term.method in (MLM, PLUS) else k, p, term.r)


def _finding(group: RunGroup, claim: str, terms: Sequence[Term]) -> list[TableRow]:
    """A row with the verdict on a claim; none if a number is missing."""
    numbers = []
    for term in terms:
        number = group.results.number(term.variant, *term.quantities)
        if not number:
            return []
        numbers.append(number)
    difference, error = weighted_sum(group.results, terms)
    digits = max([2, *(number.digits for number in numbers)])
    summands = []
    for claimed, number in zip(CLAIMS[claim], numbers, strict=True):
        name = describe(claimed.method, claimed.k, claimed.p, claimed.r)
        summands.append(f"{claimed.weight:+g} × {number.value:.{digits}f} {name}")
    seeds = "one seed" if error is None else f"standard error {error:.{digits}f}"
    titles = " and ".join(dict.fromkeys(", ".join(map(title, term.quantities)) for term in terms))
    row: TableRow = {
        "group": group.label,
        "claim": claim,
        "our runs": VERDICTS[decide(difference, error)],
        "numbers": f"{difference:+.{digits}f} ({seeds}): {'; '.join(summands)} ({titles})",
    }
    return [row]
