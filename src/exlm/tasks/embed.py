"""One vector per row of a table; every row of the input appears in the output."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from exlm.errors import InputError
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import load_model
from exlm.storage import replacing
from exlm.tasks.frames import output_path, read_frame, with_columns
from exlm.tasks.inference import OnInvalid, Rows, check_kind, run, text_kind, tokenize_rows
from exlm.tasks.table import make_table
from exlm.train import distributed

Chunks = Iterator[tuple[slice, np.ndarray]]  # some rows at a time, with their vectors [rows, width]


def embed(
    model: str,
    input: str,
    output: str | None = None,
    pooling: Literal["mean", "first"] = "mean",
    layers: int | None = None,
    text_column: str | None = None,
    molecules: bool | None = None,
    max_length: int = 512,
    rows_per_chunk: int = 20000,
    header: bool = True,
    on_invalid: OnInvalid = "skip",
    device: str = "auto",
) -> Path:
    """Writes one vector per row of a table.

    Args:
        model: a pre-trained or fine-tuned model directory.
        input: a table or a list of texts, in any format that `exlm prepare` reads; `-` is standard input.
        output: `.parquet` (the columns of the input, and row (from 0), text, embedding and problem), `.csv` (the same
            with a column for each dimension) or `.npy` ([rows, width] float32, NaN for rows that cannot be used);
            INPUT-embeddings.parquet beside the input where absent.
        pooling: mean over the tokens, or the first state.
        layers: how many of the layers to use; where absent all, or with late expansion those before the expansion.
        text_column: column of the SMILES or text; found by its name where absent.
        molecules: whether the texts are SMILES; then rows that RDKit cannot parse are marked. Where absent, the model
            knows, and for older models the texts decide.
        max_length: longest text in tokens.
        rows_per_chunk: rows whose vectors are held in memory at a time.
        header: whether a table has a header line; without it, its columns are called `column 1`, `column 2`, ...
        on_invalid: mark molecules that RDKit cannot parse (`skip`), embed them too (`keep`), or stop (`error`).
        device: auto, cpu, cuda or one of several (cuda:1).
    """
    target = output_path(input, output, "embeddings.parquet", (".parquet", ".csv", ".npy"))
    if rows_per_chunk < 1:
        raise InputError(f"rows_per_chunk is {rows_per_chunk}; it must be at least 1")
    network, tokenizer = load_model(model, ExLMModel, layers)
    distributed.to_device(network, device)
    table, known = make_table(read_frame(input, header), input, text_column, []), text_kind(network.config)
    molecules = check_kind(table.texts, known.molecules, molecules, input)
    rows = tokenize_rows(table, tokenizer, max_length, molecules, on_invalid == "keep", known.standardize)
    rows.check(input, on_invalid)
    usable, count, width = rows.usable, len(rows.examples), network.config.hidden_size

    def embedding(batch: dict[str, Tensor]) -> Tensor:
        return network.embedding(**batch, pooling=pooling)

    def chunks() -> Chunks:
        for start in range(0, count, rows_per_chunk):
            chunk = slice(start, min(start + rows_per_chunk, count))
            vectors = np.full((chunk.stop - start, width), np.nan, dtype=np.float32)
            if usable[chunk].any():
                examples = [rows.examples[start + row] for row in np.flatnonzero(usable[chunk])]
                vectors[usable[chunk]] = run(network, embedding, examples, tokenizer, "fp32", "embed")
            yield chunk, vectors

    with replacing(target) as partial:
        if target.suffix == ".npy":
            array = np.lib.format.open_memmap(partial, "w+", np.float32, (count, width))
            for chunk, vectors in chunks():
                array[chunk] = vectors
            array.flush()
        else:
            (_write_csv if target.suffix == ".csv" else _write_parquet)(partial, rows, chunks())
    texts = f"texts of column {table.text_column!r} (--text_column names another)"
    print(f"{usable.sum()} rows embedded, {(~usable).sum()} marked in the column problem: {target}; {texts}")
    return target


def _described(rows: Rows) -> pd.DataFrame:
    """The input's columns, and those of the output except for the vectors."""
    table = rows.table
    text = {} if table.text_column == "text" else {"text": table.texts}
    return with_columns(table.frame, {"row": range(len(table.texts))} | text | {"problem": rows.problems})


def _write_csv(path: Path, rows: Rows, chunks: Chunks) -> None:
    frame = _described(rows)
    with path.open("w", encoding="utf-8", newline="") as stream:
        for chunk, vectors in chunks:
            names = [f"embedding {i}" for i in range(vectors.shape[1])]
            part = pd.concat([frame.iloc[chunk], pd.DataFrame(vectors, frame.index[chunk], names)], axis=1)
            part.to_csv(stream, index=False, header=chunk.start == 0)


def _write_parquet(path: Path, rows: Rows, chunks: Chunks) -> None:
    frame = _described(rows)
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException:  # a column of JSONL or Excel with cells of several types
        table = pa.Table.from_pandas(frame.astype(str), preserve_index=False)
    writer = None
    for chunk, vectors in chunks:
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        part = table.slice(chunk.start, len(vectors)).append_column("embedding", flat)
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    if writer:
        writer.close()
