"""Reads the texts that `exlm fill` is to fill: those of the command, or the rows of a file."""

from exlm.data.chemistry import are_molecules, standardize
from exlm.data.columns import check_columns, choose_column, identifier_column
from exlm.data.frames import as_text, read_file
from exlm.data.tabular import TableOptions
from exlm.errors import InputError
from exlm.filling.results import FilledText
from exlm.tasks.rows.texts import read_texts


def texts_to_fill(
    file: str | None,
    texts: list[str],
    text_column: str | None,
    id_column: str | None,
    table_options: TableOptions,
) -> list[FilledText]:
    """The texts of the command, or those of the file."""
    if bool(texts) == (file is not None):
        raise InputError(
            "give either texts after the model or --file, a file with one text per line"
        )
    if file is not None:
        return read_rows(file, text_column, id_column, table_options)
    of_tables = {
        "text_column": text_column is not None,
        "id_column": id_column is not None,
        "sheet": table_options.sheet is not None,
        "header": not table_options.header,
    }
    for option, is_given in of_tables.items():
        if is_given:
            raise InputError(f"{option} is for the table of --file; leave it out")
    return [FilledText(line, text) for line, text in enumerate(texts, 1)]


def read_rows(
    file: str, text_column: str | None, id_column: str | None, table_options: TableOptions
) -> list[FilledText]:
    """The text of each row of a file, with its name if the file has a column of names, and with its
    problem if it cannot be filled."""
    table = read_file(file, table_options)
    columns = table.frame.columns
    check_columns(columns, file, id_column)
    column = choose_column(columns, text_column, file)
    [texts], problems = read_texts(table, column, None, file)
    name_column = id_column or identifier_column(columns)
    names: list[str | None] = [None] * len(texts)
    if name_column is not None:
        names = [as_text(cell) or None for cell in table.frame[name_column]]
    rows = zip(texts, names, problems, strict=True)
    return [
        FilledText(line, text, name, problem or None)
        for line, (text, name, problem) in enumerate(rows, 1)
    ]


def read_known(known: str | None, table_options: TableOptions) -> set[str] | None:
    """The canonical SMILES of the file `known`, if there is one. InputError if most of its first
    texts are no molecules."""
    if known is None:
        if table_options.sheet is not None:
            raise InputError("known_sheet is for a workbook; give it as known, or leave it out")
        return None
    rows = read_rows(known, None, None, table_options)
    texts = [row.text for row in rows if row.text and row.problem is None]
    if not are_molecules(texts):
        raise InputError(f"known is {known}, which holds no molecules; give a file of SMILES")
    return {standardize(text, "canonical") for text in texts}
