"""Finds the column of the texts in a table, and notices that a table has no header line."""

import re
from collections.abc import Iterable
from typing import Any

from exlm.data.chemistry import molecule_problem
from exlm.errors import InputError

# Usual names of the column of texts, in any case, with or without spaces and marks. The first group
# is preferred.
TEXT_COLUMNS = (
    {"smiles", "mol", "text"},
    {
        "canonicalsmiles",
        "isomericsmiles",
        "smilesstring",
        "structuresmiles",
        "structure",
        "molecule",
        "drug",
    }
    | {"sequence", "sentence", "review", "document", "content", "comment", "tweet", "headline"},
)


def choose_column(columns: Iterable[str], wanted: str | None, where: str) -> str:
    """The column `wanted`, else the only one named as in TEXT_COLUMNS, or the only one. InputError
    if none fits."""
    columns = list(columns)
    if wanted is not None:
        check_columns(columns, where, wanted)
        hits = [column for column in columns if column == wanted]
    elif len(columns) == 1 and not looks_like_data(columns[0]):
        hits = columns
    else:
        hits = next(filter(None, (text_columns(columns, names) for names in TEXT_COLUMNS)), [])
    if len(hits) == 1:
        return hits[0]
    check_header(columns, where)
    raise InputError(
        f"{where}: cannot tell the text column; set text_column to one of: {listed(columns)}"
    )


def text_columns(
    columns: Iterable[str], names: Iterable[str] = frozenset().union(*TEXT_COLUMNS)
) -> list[str]:
    """Those columns that have one of the `names` of TEXT_COLUMNS."""
    return [column for column in columns if re.sub(r"[\W_]", "", str(column).lower()) in names]


def looks_like_data(name: str) -> bool:
    """Whether a column's name is a number, a molecule or a long text, so that it is rather a
    cell."""
    if (
        len(name) > 60
        or len(name.split()) > 8
        or re.fullmatch(r"[-+]?\d+([.,]\d+)?(e[-+]?\d+)?", name, re.IGNORECASE)
    ):
        return True
    return len(name) > 3 and molecule_problem(name) is None


def check_header(columns: Iterable[Any], where: object) -> None:
    """Raises InputError if a name looks like data: the table has no header line."""
    if values := [column for column in columns if looks_like_data(str(column))]:
        advice = "add --header false (fine-tuning: --task.header false); columns are called column 1, column 2, ..."
        raise InputError(
            f"{where} seems to have no header line, as its first line has {values[0][:80]!r}; {advice}"
        )


def check_columns(columns: Iterable[Any], where: object, *names: str | None) -> None:
    """Raises InputError for the first name that is not one of the columns of the table `where`.
    None is skipped."""
    columns = list(columns)
    for name in names:
        if name is not None and name not in columns:
            check_header(columns, where)
            raise InputError(f"{where}: no column {name!r}; it has: {listed(columns)}")


def listed(names: Iterable[object], limit: int = 20) -> str:
    """Names for a message, in one line, cut short after `limit`."""
    items = [name if name.isprintable() else repr(name) for name in map(str, names)]
    return ", ".join(items[:limit]) + (f", ... ({len(items)} in all)" if len(items) > limit else "")
