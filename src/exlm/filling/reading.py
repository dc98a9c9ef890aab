"""Reads the texts that `exlm fill` is to fill: those of the command, or the rows of a file."""

import pandas as pd

from exlm.data.chemistry import are_molecules, standardize
from exlm.data.columns import MISSING_TEXTS, check_columns, choose_column, identifier_column
from exlm.data.formats import format_of, reader_name
from exlm.data.frames import as_text, read_file
from exlm.data.sources import LISTS, text_of
from exlm.data.tabular import TableOptions
from exlm.errors import InputError
from exlm.filling.results import TextToFill


def texts_to_fill(
    file: str | None,
    texts: list[str],
    text_column: str | None,
    id_column: str | None,
    table_options: TableOptions,
) -> list[TextToFill]:
    """The texts of the command, or those of the file."""
    if bool(texts) == (file is not None):
        raise InputError(
            "give either texts after the model or --file, a file with one text per line"
        )
    if file is not None:
        return read_texts(file, text_column, id_column, table_options)
    for option, value in (("id_column", id_column), ("sheet", table_options.sheet)):
        if value is not None:
            raise InputError(f"{option} is for the table of --file; leave it out")
    return [TextToFill(line, text) for line, text in enumerate(texts, 1)]


def read_texts(
    file: str, text_column: str | None, id_column: str | None, table_options: TableOptions
) -> list[TextToFill]:
    """The text of each row of a file, with its name if the file has a column of names, and with its
    problem if it cannot be filled. If its ending is unknown, it has a text on each line."""
    reader = reader_name(file) if format_of(file) else "lines"
    rows = read_file(file, table_options, reader)
    columns = rows.frame.columns
    check_columns(columns, file, id_column)
    name_column = id_column or identifier_column(columns)
    column = choose_column(columns, None if reader in LISTS else text_column, file)
    missing_texts = () if reader in LISTS else MISSING_TEXTS
    names = rows.frame.get(name_column, pd.Series("", rows.frame.index))
    cells = rows.frame[column].tolist()
    texts_of_rows = []
    for line, (cell, name, problem) in enumerate(
        zip(cells, names, rows.problems_of_rows, strict=True), 1
    ):
        text = text_of(cell, f"{file}, row {line}")
        if text in missing_texts and not problem:
            problem = f"{text} stands for a missing text"
        texts_of_rows.append(TextToFill(line, text, as_text(name) or None, problem or None))
    return texts_of_rows


def usable_texts(texts: list[TextToFill]) -> list[str]:
    """The texts that have no problem."""
    return [to_fill.text for to_fill in texts if to_fill.problem is None]


def read_known(known: str | None, table_options: TableOptions) -> set[str] | None:
    """The canonical SMILES of the file `known`, if there is one. InputError if most of its first
    texts are no molecules."""
    is_workbook = known is not None and format_of(known) == "xlsx"
    if table_options.sheet is not None and not is_workbook:
        raise InputError(
            "known_sheet is for a workbook; give an .xlsx file with known, or leave it out"
        )
    if known is None:
        return None
    texts = [text for text in usable_texts(read_texts(known, None, None, table_options)) if text]
    if not are_molecules(texts):
        raise InputError(f"known is {known}, which holds no molecules; give a file of SMILES")
    return {standardize(text, "canonical") for text in texts}
