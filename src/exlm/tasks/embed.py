"""One vector per row of a table; every row of the input appears in the output."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from exlm.errors import InputError
from exlm.model.downstream import pooled
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import load_model
from exlm.storage import replacing
from exlm.tasks.frames import output_path, read_frame
from exlm.tasks.inference import run, tokenize_rows
from exlm.tasks.table import make_table
from exlm.train import distributed


def embed(
    model: str,
    input: str,
    output: str | None = None,
    pooling: Literal["mean", "first"] = "mean",
    layers: int | None = None,
    text_column: str | None = None,
    molecules: bool = True,
    max_length: int = 512,
    rows_per_chunk: int = 20000,
) -> Path:
    """Writes one vector per row of a table.

    Args:
        model: a pre-trained or fine-tuned model directory.
        input: CSV, TSV, JSONL or Parquet file.
        output: `.parquet` (columns row, text, embedding, problem) or `.npy` ([rows, width] float32, NaN for rows
            that cannot be used); INPUT-embeddings.parquet beside the input where absent.
        pooling: mean over the tokens, or the first state.
        layers: how many of the layers to use; where absent all, or with late expansion those before the expansion.
        text_column: column of the SMILES or text; found by its name where absent.
        molecules: whether the texts are SMILES; then rows that RDKit cannot parse are marked.
        max_length: longest text in tokens.
        rows_per_chunk: rows whose vectors are held in memory at a time.
    """
    target = output_path(input, output, "embeddings.parquet", (".parquet", ".npy"))
    if rows_per_chunk < 1:
        raise InputError(f"rows_per_chunk is {rows_per_chunk}; it must be at least 1")
    network, tokenizer = load_model(model, ExLMModel, None if layers is None else {"task_layers": layers})
    distributed.to_device(network)
    rows = tokenize_rows(make_table(read_frame(input), input, text_column, []), tokenizer, max_length, molecules)
    usable, count, width = rows.usable, len(rows.examples), network.config.hidden_size

    def embedding(batch: dict[str, Tensor]) -> Tensor:
        return pooled(network, network.expand_unmasked(**batch), pooling)

    def chunks() -> Iterator[tuple[slice, np.ndarray]]:
        """Yields some rows at a time with their vectors [rows, width]."""
        for start in range(0, count, rows_per_chunk):
            chunk = slice(start, min(start + rows_per_chunk, count))
            vectors = np.full((chunk.stop - start, width), np.nan, dtype=np.float32)
            if usable[chunk].any():
                examples = [rows.examples[start + row] for row in np.flatnonzero(usable[chunk])]
                vectors[usable[chunk]] = run(network, embedding, examples, tokenizer, progress="embed")
            yield chunk, vectors

    with replacing(target) as partial:
        if target.suffix == ".npy":
            array = np.lib.format.open_memmap(partial, "w+", np.float32, (count, width))
            for chunk, vectors in chunks():
                array[chunk] = vectors
            array.flush()
        else:
            vector = pa.list_(pa.float32(), width)
            types = {"row": pa.int64(), "text": pa.string(), "embedding": vector, "problem": pa.string()}
            with pq.ParquetWriter(partial, pa.schema(list(types.items()))) as writer:
                for chunk, vectors in chunks():
                    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width)
                    columns = [range(count)[chunk], rows.table.texts[chunk], flat, rows.problems[chunk]]
                    writer.write_table(pa.table(columns, schema=writer.schema))
    print(f"{usable.sum()} rows embedded, {(~usable).sum()} marked in the column problem: {target}")
    return target
