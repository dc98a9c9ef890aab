"""Finds columns of a table by their names."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pandas as pd

from exlm.data.cell_texts import text_to_read
from exlm.data.chemistry import are_molecules, molecule_problem
from exlm.data.open_files import STANDARD_INPUT, advice_on_name
from exlm.errors import InputError

# Usual names of columns, as regular expressions for names in lower case without spaces and marks.
# Of several in a tuple, the first are preferred.
BEST_TEXT_NAMES = "smiles|mol|text"
TEXT_NAMES_BY_RANK = (
    BEST_TEXT_NAMES,
    ".*smiles|smilesstring|structure|molecule|drug|sentence|review|document|content|tweet|headline"
    "|sequence|seq|aaseq|sequenceaa|proteinsequence",
)
# Of molecules, as "SMILES (isomeric)", or of something else, as "SMILES source"
NAMES_THAT_BEGIN_WITH_SMILES = "smiles.+"
LAST_TEXT_NAMES_BY_RANK = (
    "comment",  # most often a remark on the text
    "tokens|words",
)
FIRST_TEXT_NAMES = "premise|question|query|(sentence|question|text)[1a]"
SECOND_TEXT_NAMES = "hypothesis|sentence|passage|(sentence|question|text)[2b]"
ALL_TEXT_NAMES = "|".join(
    [*TEXT_NAMES_BY_RANK, *LAST_TEXT_NAMES_BY_RANK, FIRST_TEXT_NAMES, SECOND_TEXT_NAMES]
)
LABELS_OF_UNITS = ("labels?", "nertags", "tags", "ner", "tag", "postags")
# Columns that name or number the rows; these expressions are for whole names, with capitals, spaces
# and marks. pandas calls a column without a name "Unnamed: 0".
ROW_NAME = re.compile(r"(.*[ _-])?name", re.IGNORECASE)
IDENTIFIER = re.compile(r"(.*[ _-])?(?i:id|idx|index|row|cid)|.*[a-z]I[Dd]|Unnamed: \d+(\.1)*")


def choose_column(
    frame: pd.DataFrame,
    text_column: str | None,
    where: str,
    label_columns: Collection[str] = (),
) -> str:
    """The column `text_column` of the table `where`; without this, the only one with a usual name,
    or the only one. A column that is empty in all rows of `frame` is taken only if no other one has
    a usual name. InputError if none fits, which proposes all but the `label_columns`."""
    columns = list(frame.columns)
    if text_column is not None:
        check_columns(columns, where, text_column)
        return text_column
    filled = [name for name in columns if any(map(text_to_read, frame[name]))]
    candidates = _usual_text_columns(frame[filled]) or _usual_text_columns(frame)
    if len(columns) == 1 and not looks_like_data(columns[0]):
        candidates = columns
    if len(candidates) == 1:
        return candidates[0]
    check_header(columns, where)
    proposals = [name for name in candidates or filled or columns if name not in label_columns]
    raise InputError(
        f"{where}: cannot tell the text column; set text_column to one of: "
        f"{listed(proposals)} (and pair_column, if there are two texts)"
        f"{_advice_on_title(columns)}"
    )


def _usual_text_columns(frame: pd.DataFrame) -> list[str]:
    """The columns with the best usual name of texts that any column has; [] if none has one."""
    columns = list(frame.columns)
    if best := preferred_columns(columns, TEXT_NAMES_BY_RANK):
        return best
    molecules = [
        name
        for name in find_usual_columns(columns, NAMES_THAT_BEGIN_WITH_SMILES)
        if are_molecules(map(text_to_read, frame[name]))
    ]
    return molecules or preferred_columns(columns, LAST_TEXT_NAMES_BY_RANK)


def pair_columns(columns: Iterable[str]) -> tuple[str, str] | tuple[None, None]:
    """The columns of first and second texts, if just one column has a usual name of each and none
    has one of BEST_TEXT_NAMES; else None for both."""
    firsts = find_usual_columns(columns, FIRST_TEXT_NAMES)
    seconds = find_usual_columns(columns, SECOND_TEXT_NAMES)
    if len(firsts) == len(seconds) == 1 and not find_usual_columns(columns, BEST_TEXT_NAMES):
        return firsts[0], seconds[0]
    return None, None


def preferred_columns(columns: Iterable[str], usual_names: Sequence[str]) -> list[str]:
    """The columns with the first of these names that any column has; [] if none has one."""
    matches = (find_usual_columns(columns, names) for names in usual_names)
    return next(filter(None, matches), [])


def find_usual_columns(columns: Iterable[str], names: str) -> list[str]:
    """The columns with one of the usual `names`, a regular expression, in any case and with any
    marks. If there are `question` and `Question`, `question` alone is returned."""
    plain_names = {column: re.sub(r"[\W_]", "", str(column).lower()) for column in columns}
    matches = {column: name for column, name in plain_names.items() if re.fullmatch(names, name)}
    return [column for column, name in matches.items() if name not in matches or column == name]


def identifier_column(columns: Collection[Any]) -> Any | None:
    """The column `name` or `id` of a table, in any case; or else its first column of names, or the
    first that numbers its rows, if there is one."""
    for pattern in ("(?i:name)", "(?i:id)", ROW_NAME, IDENTIFIER):
        for column in columns:
            if re.fullmatch(pattern, str(column)):
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
                "add --header false (fine-tuning: --task.header false), and columns are called "
                "column 1, column 2, ..., or delete the line if it is a title"
            )


def check_different(columns: Sequence[str], where: object) -> None:
    """Raises InputError if two columns have the same name."""
    if len(set(columns)) < len(columns):
        check_header(columns, where)
        name = max(columns, key=columns.count)
        raise InputError(f"{where}: two columns are called {name!r}; rename or remove one")


def check_columns(
    columns: Iterable[Any], where: object, *names: str | None, way_out: str = ""
) -> None:
    """Raises InputError, which may name a way out, for the first name that is not one of the
    columns of the table `where`. None is skipped."""
    columns = list(columns)
    for name in names:
        if name is not None and name not in columns:
            check_header(columns, where)
            advice = _advice_on_title(columns) or way_out
            if where == STANDARD_INPUT and columns == ["text"]:
                advice = f"; for a table, {advice_on_name(STANDARD_INPUT, '.csv')}"
            raise InputError(f"{where}: no column {name!r}; it has: {listed(columns)}{advice}")


def _advice_on_title(columns: Iterable[Any]) -> str:
    """What to do if the first line of a table has no name for some of its columns, as a title."""
    if any(re.fullmatch(r"Unnamed: [1-9]\d*", str(column)) for column in columns):
        return (
            "; the first line has no names for the columns called Unnamed: if it is a title, "
            "delete the lines above the names"
        )
    return ""


def match_columns(names: Sequence[str], columns: Iterable[Any]) -> list[Any]:
    """The columns that `names` mean. The command line divides the name of a column at its commas
    and loses the spaces there: `Ki` and `nM` mean the column `Ki, nM`, unless `Ki` and `nM` are
    columns. As many neighbours as possible are joined. Names that mean no column stay."""
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
        count = _count_names_to_join(remaining, by_name)
        name = _without_spaces(",".join(remaining[:count]))
        matches.append(by_name.get(name, remaining[0]))
        remaining = remaining[count:]
    return matches


def _count_names_to_join(names: Sequence[str], columns: Collection[str]) -> int:
    """The most names at the beginning that are one column together and not a column each; else 1.
    For example 2 for the names `Ki`, `nM`, `pH` and the column `Ki,nM`."""
    for count in range(len(names), 1, -1):
        are_columns = all(name in columns for name in names[:count])
        if not are_columns and _without_spaces(",".join(names[:count])) in columns:
            return count
    return 1


def _without_spaces(name: str) -> str:
    """A name in one line, without spaces at its ends and around its commas."""
    return re.sub(r"\s*,\s*", ",", in_one_line(name))


def in_one_line(name: str) -> str:
    """A name as messages, cards and reports show it: with one space where it has line breaks, tabs
    or several spaces."""
    return " ".join(name.split())


def listed(names: Iterable[object], limit: int = 20) -> str:
    """Names for a message, in one line, cut short after `limit`."""
    items = [name if name.isprintable() else repr(name) for name in map(str, names)]
    end = f", ... ({len(items)} in all)" if len(items) > limit else ""
    return ", ".join(items[:limit]) + end
