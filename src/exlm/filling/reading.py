"""Reads the texts that `exlm fill` is to fill: those of the command, or the rows of a file."""

from exlm.data.chemistry import are_molecules, standardize
from exlm.data.columns import check_columns, choose_column, identifier_column
from exlm.data.formats import check_sheet, format_of
from exlm.data.sources import LISTS, Source, find_sources, read_rows
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
    problem if it cannot be filled."""
    source = _source_of(file, table_options)
    rows = list(read_rows(source, text_column))
    columns = list(next((record.cells for _, record in rows if record.cells), {}))
    check_columns(columns, file, id_column)
    name_column = id_column or identifier_column(columns)
    is_table = source.reader not in LISTS and bool(columns)
    cell_column = choose_column(columns, text_column, file) if is_table else None
    texts_of_rows = []
    for line, (text, record) in enumerate(rows, 1):
        name = record.cells.get(name_column)
        problem = record.problem or None
        # `read_rows` gives "" for a cell such as `NA`, which stands for a missing text in a table.
        cell = str(record.cells.get(cell_column) or "").strip()
        if cell and not text and problem is None:
            text = cell
            problem = f"{cell} stands for a missing text"
        name = None if name is None else str(name)
        texts_of_rows.append(TextToFill(line, text, name, problem))
    return texts_of_rows


def _source_of(file: str, table_options: TableOptions) -> Source:
    """The file as a source of rows. If its ending is unknown, it has a text on each line."""
    if format_of(file):
        sources, _ = find_sources([file], table_options)
        return sources[0]
    check_sheet(table_options.sheet, [file])
    return Source(file, "lines", None)


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
