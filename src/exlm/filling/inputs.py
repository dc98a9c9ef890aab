"""The texts that `exlm fill` fills, of the command or a file, and the molecules it is told of."""

from exlm.data.chemistry import are_molecules, standardize
from exlm.data.columns import check_columns, choose_column, identifier_column
from exlm.data.frames import as_text, read_file
from exlm.data.tabular import TableOptions
from exlm.errors import InputError
from exlm.filling.options import FillSettings
from exlm.filling.results import InputText
from exlm.tasks.rows.texts import read_texts


def input_texts(texts: list[str], settings: FillSettings) -> list[InputText]:
    """The texts of the command, or else of the file."""
    if bool(texts) == (settings.file is not None):
        raise InputError(
            "give either texts after the model or --file, a file with one text per line"
        )
    if settings.file is not None:
        table_options = TableOptions(settings.header, sheet=settings.sheet)
        return _read_rows(settings.file, table_options, settings.text_column, settings.id_column)
    for option in ("text_column", "id_column", "sheet", "header"):
        if getattr(settings, option) != getattr(FillSettings, option):
            raise InputError(f"{option} is for the table of --file; leave it out")
    return [InputText(line, text) for line, text in enumerate(texts, 1)]


def _read_rows(
    file: str,
    table_options: TableOptions,
    text_column: str | None = None,
    id_column: str | None = None,
) -> list[InputText]:
    """The text of each row of a file, with its name if the file has a column of names, and with its
    problem if it cannot be filled."""
    table = read_file(file, table_options)
    columns = table.frame.columns
    check_columns(columns, file, id_column)
    [texts], problems = read_texts(table, choose_column(columns, text_column, file), None, file)
    name_column = id_column or identifier_column(columns)
    names: list[str | None] = [None] * len(texts)
    if name_column is not None:
        names = [as_text(cell) or None for cell in table.frame[name_column]]
    rows = zip(texts, names, problems, strict=True)
    return [
        InputText(line, text, name, problem or None)
        for line, (text, name, problem) in enumerate(rows, 1)
    ]


def read_known(settings: FillSettings) -> set[str] | None:
    """The canonical SMILES of the file `known`, if there is one. InputError if most of its first
    texts are no molecules."""
    if settings.known is None:
        return None
    rows = _read_rows(settings.known, TableOptions(settings.header, sheet=settings.known_sheet))
    texts = [row.text for row in rows if row.text and row.problem is None]
    if not are_molecules(texts):
        raise InputError(
            f"known is {settings.known}, which holds no molecules; give a file of SMILES"
        )
    return {standardize(text, "canonical") for text in texts}
