"""Results for the rows of a large file: made a part at a time, in constant memory, kept, and joined at the end."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from exlm.data.files import digest
from exlm.data.frames import read_frames
from exlm.storage import plain, read, replacing, sync, unfinished, write_json

ROWS = 10_000  # of a part


def write_in_parts(
    input: str,
    header: bool,
    target: Path,
    settings: dict[str, Any],
    write: Callable[[pd.DataFrame, Path], dict[str, int]],
) -> dict[str, int]:
    """Turns the table `input` into the file `target`, ROWS rows at a time, which all have the same columns:
    `write` writes the results for some of them to a file, and returns how many there are of every kind.

    The parts are joined at the end: Parquet files to one, others byte by byte. A part of a .npy file is the numbers
    alone, float32. A command that was interrupted goes on behind the parts that are finished, if input and `settings`
    are the same. Returns the sums of what `write` returns."""
    begun = plain({**settings, "input": digest(input), "rows_of_a_part": ROWS})
    with unfinished(target.with_name(f".unfinished-{target.name}"), begun) as kept:
        common = pd.concat([frame.iloc[:0] for frame in read_frames(input, header, ROWS)])
        parts, rows, counts = list[Path](), 0, list[dict[str, int]]()
        for frame in read_frames(input, header, ROWS, common):
            parts.append(kept / f"{rows}{target.suffix}")
            done = parts[-1].with_suffix(".json")  # is written when the part is whole
            if not done.exists():
                found = write(frame, parts[-1])
                sync(parts[-1])
                write_json(done, found)
            counts.append(read(done))
            rows += len(frame)
        with replacing(target) as whole:
            if target.suffix == ".parquet":
                _join_tables(parts, whole)
            else:
                _join_bytes(parts, whole, rows)
    return {name: sum(count[name] for count in counts) for name in counts[0]}


def in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _join_bytes(parts: Sequence[Path], whole: Path, rows: int) -> None:
    with whole.open("wb") as file:
        if whole.suffix == ".npy":
            shape = rows, sum(part.stat().st_size for part in parts) // (4 * rows)
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, file)


def _join_tables(parts: Sequence[Path], whole: Path) -> None:
    """Where the types of a column differ between the parts, it gets one that holds all of them, or strings."""
    schemas = [pq.read_schema(part) for part in parts]
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException:
        same = {name: len({schema.field(name).type for schema in schemas}) == 1 for name in schemas[0].names}
        schema = pa.schema([field if same[field.name] else pa.field(field.name, pa.string()) for field in schemas[0]])
    with pq.ParquetWriter(whole, schema) as writer:
        for part in parts:
            writer.write_table(pq.read_table(part).cast(schema))
