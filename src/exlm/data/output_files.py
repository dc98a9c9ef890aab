"""Where results for the rows of a file are written, and how: some rows at a time in constant
memory, kept if the command is interrupted, and joined at the end."""

import os
import shutil
from collections import ChainMap, Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from exlm.data.cell_texts import text_to_write
from exlm.data.decimals import decimal_marks
from exlm.data.delimited import AS_PROGRAMS_WRITE, TableLayout, find_layout
from exlm.data.formats import DataFile, data_files, format_of
from exlm.data.frames import FileRows, read_frames
from exlm.data.open_files import explain_read_errors, is_standard_input, path_of
from exlm.data.records import columns_without_names
from exlm.data.writing import check_cells
from exlm.errors import InputError, import_optional, note
from exlm.storage.files import (
    check_suffix,
    read_or_empty,
    replacing,
    sha256,
    sync,
    to_json_types,
    write_json,
)
from exlm.storage.run_directories import resumable_directory

WITH_HEADINGS = ("csv", "tsv", "txt", "xlsx")  # formats of tables that name columns above them
PIECE_ROWS = 10_000  # the most rows of a frame, whose results are a piece


def output_path(
    model: str, input: str, output: str | None, ending: str, suffixes: tuple[str, ...]
) -> Path:
    """Where to write: `output`, or a file beside the input that is named after it and the model,
    such as `x-MODEL-predictions.csv` for `x.csv` and `x.smi-MODEL-predictions.csv` for `x.smi`."""
    if output:
        target = Path(output)
    elif is_standard_input(input):
        raise InputError(
            "standard input has no name to derive another from; "
            "name the file to write with --output"
        )
    else:
        directory = Path(model).resolve()
        # The seeds of several models have the same names.
        is_seed = directory.name.startswith("seed-")
        model_name = f"{directory.parent.name}-{directory.name}" if is_seed else directory.name
        input_name = Path(input).name.removesuffix(".csv")
        target = Path(input).with_name(f"{input_name}-{model_name}-{ending}")
    check_output(target, input, suffixes)
    return target


def check_output(target: Path, input: str, suffixes: tuple[str, ...]) -> None:
    """InputError if the results for `input` cannot be written to a file `target`."""
    if target.resolve() == Path(input).resolve():
        raise InputError(f"{target} is the input itself; choose another name for --output")
    check_suffix(target, suffixes)
    folder = target.absolute().parent
    if folder.exists() and not os.access(folder, os.W_OK):
        raise InputError(f"nothing can be written to {folder}; choose another place with --output")
    if target.suffix == ".xlsx":
        import_optional("openpyxl", "excel", f"writing {target}")


def output_layout(
    input: str,
    header: bool,
    target: Path,
    label_columns: Sequence[str] = (),
    sheet: str | None = None,
) -> TableLayout:
    """How the table `target` with the rows of the file `input` is written, so that the program that
    wrote the input reads both alike: columns without a name stay so. If semicolons divide the
    input, they divide a .csv file, too, and its numbers have the mark of `_choose_decimal`."""
    input_format = format_of(input)
    if target.suffix not in (".csv", ".tsv", ".xlsx") or input_format not in WITH_HEADINGS:
        return AS_PROGRAMS_WRITE
    [file] = data_files([input], header, sheet if input_format == "xlsx" else None)
    with explain_read_errors(input):
        as_usual = TableLayout(without_names=tuple(columns_without_names(file)))
        if target.suffix != ".csv" or input_format not in ("csv", "tsv"):
            return as_usual
        separator = find_layout(file).separator
    if separator != ";":
        return as_usual
    return as_usual._replace(separator=";", decimal=_choose_decimal(file, target, label_columns))


def _choose_decimal(file: DataFile, target: Path, label_columns: Sequence[str]) -> str:
    """The mark before decimals that the `label_columns` of a file have, or else the other columns.
    A note says if it is a point, because most programs that write semicolons expect commas."""
    marks: dict[Any, dict[str, str]] = {}  # `decimal_marks` of every column
    for rows in read_frames(file, PIECE_ROWS):
        for name, column in rows.frame.items():
            marks[name] = decimal_marks(column) | marks.get(name, {})
    marks_of_labels = ChainMap(*(marks.get(name, {}) for name in label_columns))
    marks_of_table = ChainMap(*marks.values())
    if set(marks_of_labels or marks_of_table) == {","}:
        return ","
    points = "decimal points in its numbers; choose the point in a program that expects commas"
    if "," in marks_of_table:
        points = (
            "decimal points in its new numbers; other numbers there have decimal commas, such as "
            f"{marks_of_table[',']!r}"
        )
    note(f"{target} has semicolons between its cells, as {file.name}, and {points}")
    return "."


def find_writable_columns(input: DataFile, target: Path) -> list[Any]:
    """All columns that rows of a table have. It is read to its end, and InputError says if the file
    `target` cannot hold one of its cells, before there is any work for it."""
    columns = dict[Any, None]()
    for rows in read_frames(input, PIECE_ROWS):
        check_cells(rows.frame, target)
        columns |= dict.fromkeys(rows.frame)
    return list(columns)


def write_by_frames(
    input: DataFile,
    target: Path,
    settings: dict[str, Any],
    write: Callable[[FileRows, Path], dict[str, int]],
) -> dict[str, int]:
    """Turns the table `input` into the file `target`, a frame of PIECE_ROWS rows at a time.

    `write` writes the results for a frame to a file, a *piece*, and returns how many rows there are
    of every kind. All frames have the same columns. The pieces are joined at the end: Parquet files
    to one, others byte by byte. A piece of a .npy file is the numbers alone, float32. An
    interrupted command goes on after the pieces that are finished, if input and `settings` are the
    same. Returns the sums of what `write` returns."""
    identity = {**settings, "input": sha256(path_of(input.name)), "rows_of_a_piece": PIECE_ROWS}
    columns = find_writable_columns(input, target)
    unfinished = target.with_name(f".unfinished-{target.name}")
    with resumable_directory(unfinished, to_json_types(identity)) as folder:
        pieces: list[Path] = []
        counts = Counter[str]()
        total = 0
        for rows in read_frames(input, PIECE_ROWS, columns):
            piece = folder / f"{total}{target.suffix}"
            done_file = piece.with_suffix(".json")  # is written when the piece is whole
            if not done_file.exists():
                counts_of_piece = write(rows, piece)
                sync(piece)
                write_json(done_file, counts_of_piece)
            pieces.append(piece)
            counts.update(read_or_empty(done_file))
            total += len(rows.frame)
        with replacing(target) as whole:
            if target.suffix == ".parquet":
                _join_tables(pieces, whole)
            else:
                _join_bytes(pieces, whole, total)
    return dict(counts)


def describe_counts(counts: dict[str, int]) -> str:
    """Such as "3 rows, 1 problems"."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _join_bytes(pieces: Sequence[Path], whole: Path, rows: int) -> None:
    """Writes the pieces one after another; those of a .npy file after the header for all rows."""
    with whole.open("wb") as file:
        if whole.suffix == ".npy":
            width = sum(piece.stat().st_size for piece in pieces) // (4 * rows)
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
            np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            with piece.open("rb") as content:
                shutil.copyfileobj(content, file)


def _join_tables(pieces: Sequence[Path], whole: Path) -> None:
    """Where the types of a column differ between the pieces, it gets one that holds all of them, or
    strings."""
    schemas = [pq.read_schema(piece) for piece in pieces]
    schema = schemas[0]
    if any(other != schema for other in schemas):
        names = schema.names
        types = [_common_type([other.field(name).type for other in schemas]) for name in names]
        schema = pa.schema(list(zip(names, types, strict=True)))
    with pq.ParquetWriter(whole, schema) as writer:
        for piece in pieces:
            table = pq.read_table(piece)
            columns = [_as_type(table[field.name], field.type) for field in schema]
            writer.write_table(pa.table(columns, schema=schema))


def _common_type(types: Sequence[pa.DataType]) -> pa.DataType:
    """A type that holds the cells of all these types; strings, if there is no other."""
    schemas = [pa.schema([("cells", type_of_piece)]) for type_of_piece in types]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("cells").type
    except pa.ArrowException:
        return pa.string()


def _as_type(column: pa.ChunkedArray, new_type: pa.DataType) -> pa.ChunkedArray:
    """A column as another type; lists and dicts that become strings are JSON."""
    if pa.types.is_nested(column.type) and new_type == pa.string():
        return pa.chunked_array([[text_to_write(cell) for cell in column.to_pylist()]], new_type)
    return column.cast(new_type)
