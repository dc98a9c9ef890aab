"""Finds the column of the texts in a table, and notices that a table has no header line."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from exlm.data.chemistry import molecule_problem
from exlm.errors import InputError

# Usual names of the column of texts, without spaces and marks, in lower case. The first names are
# preferred to the others.
USUAL_NAMES = "smiles|mol|text"
LESS_USUAL_NAMES = (
    ".*smiles|smilesstring|structure|molecule|drug|sentence|review|document|content|comment|tweet"
    "|headline|sequence|seq|aaseq|sequenceaa|proteinsequence"
)
LIST_NAMES = "tokens|words"
# What R, pandas, spreadsheets and data bases write in place of a missing text
MISSING_TEXTS = ("NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", r"\N")
# Usual names of the columns of two texts
PAIR_NAMES = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("sentencea", "sentenceb"),
    ("texta", "textb"),
    ("question", "sentence"),
    ("query", "passage"),
)
# Names of columns that number their rows; pandas calls a column without a name "Unnamed: 0".
IDENTIFIER = re.compile(r"(.*[ _-])?(?i:id|idx|index|row|cid)|.*[a-z]I[Dd]|Unnamed: \d+")
ROW_NAME = re.compile(r"(.*[ _-])?name", re.IGNORECASE)
NAMES = (USUAL_NAMES, LESS_USUAL_NAMES, LIST_NAMES)


def choose_column(
    columns: Iterable[str], text_column: str | None, where: str, may_be_pair: bool = False
) -> str:
    """The column `text_column` of the table `where`; without this, the only one with a usual name,
    or the only one. InputError if none fits; `may_be_pair`: it names the column of a second text,
    too."""
    columns = list(columns)
    if text_column is not None:
        check_columns(columns, where, text_column)
        candidates = [column for column in columns if column == text_column]
    elif len(columns) == 1 and not looks_like_data(columns[0]):
        candidates = columns
    else:
        candidates = next(filter(None, (text_columns(columns, names) for names in NAMES)), [])
    if len(candidates) == 1:
        return candidates[0]
    check_header(columns, where)
    for_pairs = " (and pair_column, if there are two texts)" if may_be_pair else ""
    raise InputError(
        f"{where}: cannot tell the text column; set text_column to one of: "
        f"{listed(columns)}{for_pairs}"
    )


def pair_columns(columns: Iterable[str]) -> tuple[str, str] | tuple[None, None]:
    """The only two columns that have names of PAIR_NAMES, if no column has one of USUAL_NAMES."""
    pairs = []
    for names in PAIR_NAMES:
        first, second = (text_columns(columns, name) for name in names)
        if len(first) == len(second) == 1:
            pairs.append((first[0], second[0]))
    if len(pairs) == 1 and not text_columns(columns, USUAL_NAMES):
        return pairs[0]
    return None, None


def text_columns(
    columns: Iterable[str], names: str = f"{USUAL_NAMES}|{LESS_USUAL_NAMES}"
) -> list[str]:
    """Those columns that have one of the usual `names`, a regular expression, in any case and with
    any marks; of `question` and `Question` the one that is spelled as the usual name."""
    columns_of_name: dict[str, list[str]] = {}
    for column in columns:
        plain_name = re.sub(r"[\W_]", "", str(column).lower())
        if re.fullmatch(names, plain_name):
            columns_of_name.setdefault(plain_name, []).append(column)
    return [
        column
        for plain_name, alike in columns_of_name.items()
        for column in ([plain_name] if plain_name in alike else alike)
    ]


def identifier_column(columns: Iterable[Any]) -> Any | None:
    """The first column of names, or else the first that numbers the rows of a table, if there is
    one."""
    names = {str(column): column for column in columns}
    for pattern in (ROW_NAME, IDENTIFIER):
        for name, column in names.items():
            if pattern.fullmatch(name):
                return column
    return None


def looks_like_data(name: str) -> bool:
    """Whether a column's name is a number, a molecule or a long text, so that it is rather a
    cell."""
    if len(name) > 60 or len(name.split()) > 8:
        return True
    if re.fullmatch(r"[-+]?\d+([.,]\d+)?(e[-+]?\d+)?", name, re.IGNORECASE):
        return True
    # A word in capitals, such as CONC, may be a molecule by accident.
    is_word = len(name) < 4 or (len(name) < 10 and name.isalpha())
    return not is_word and molecule_problem(name) is None


def check_header(columns: Iterable[Any], where: object) -> None:
    """Raises InputError if a name looks like data: the table has no header line."""
    for name in map(str, columns):
        if looks_like_data(name):
            raise InputError(
                f"{where} seems to have no header line, as its first line has {name[:80]!r}; "
                "add --header false (fine-tuning: --task.header false); "
                "columns are called column 1, column 2, ..."
            )


def check_different(columns: Sequence[str], where: object) -> None:
    """Raises InputError if two columns have the same name."""
    if len(set(columns)) < len(columns):
        check_header(columns, where)
        name = max(columns, key=columns.count)
        raise InputError(f"{where}: two columns are called {name!r}; rename or remove one")


def check_columns(columns: Iterable[Any], where: object, *names: str | None) -> None:
    """Raises InputError for the first name that is not one of the columns of the table `where`.
    None is skipped."""
    columns = list(columns)
    for name in names:
        if name is not None and name not in columns:
            check_header(columns, where)
            raise InputError(f"{where}: no column {name!r}; it has: {listed(columns)}")


def match_columns(names: Sequence[str], columns: Iterable[Any]) -> list[Any]:
    """The columns that `names` mean. The command line divides the name of a column at its commas
    and loses the spaces there; so the most neighbours that are a column together are joined, unless
    each is a column: `Ki` and `nM` mean `Ki, nM`. Names that mean nothing are returned as they
    are."""
    columns = list(columns)
    counts = Counter(_without_spaces(str(column)) for column in columns)
    by_name = {str(column): column for column in columns}
    for column in columns:
        name = _without_spaces(str(column))
        if counts[name] == 1:
            by_name[name] = column
    matches = []
    remaining = list(names)
    while remaining:
        count = 1
        for n in range(2, len(remaining) + 1):
            is_column = _without_spaces(",".join(remaining[:n])) in by_name
            if is_column and not all(name in by_name for name in remaining[:n]):
                count = n
        column = _without_spaces(",".join(remaining[:count]))
        matches.append(by_name.get(column, remaining[0]))
        remaining = remaining[count:]
    return matches


def _without_spaces(name: str) -> str:
    """A name without spaces at its ends and around its commas."""
    return re.sub(r"\s*,\s*", ",", name.strip())


def listed(names: Iterable[object], limit: int = 20) -> str:
    """Names for a message, in one line, cut short after `limit`."""
    items = [name if name.isprintable() else repr(name) for name in map(str, names)]
    end = f", ... ({len(items)} in all)" if len(items) > limit else ""
    return ", ".join(items[:limit]) + end
