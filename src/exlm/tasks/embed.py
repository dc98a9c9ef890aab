"""One vector per row of a table; every row of the input appears in the output."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

from exlm.data import frames
from exlm.model.modeling_exlm import ExLMModel
from exlm.storage.models import fingerprint, load_model
from exlm.tasks.inference import ReadOptions, check_kind, run, text_kind, tokenize_rows
from exlm.tasks.table import LabelledTable, make_table
from exlm.train import distributed

Pooling = Literal["mean", "first"]


def embed(
    model: str,
    input: str,
    output: str | None = None,
    pooling: Pooling = "mean",
    layers: int | None = None,
    max_length: int = 512,
    **options: Any,
) -> Path:
    """Writes one vector per row of a table, in constant memory; if it is interrupted, the same
    command goes on.

    Args:
        model: a pre-trained or fine-tuned model directory.
        input: a table or a list of texts, in any format that `exlm prepare` reads; `-` is standard
            input.
        output: `.parquet` (the columns of the input, and row (from 0), text, embedding and
            problem), `.csv` (the same with a column for each dimension) or `.npy` ([rows, width]
            float32, NaN for rows that cannot be used); INPUT-MODEL-embeddings.parquet beside the
            input where absent.
        pooling: mean over the tokens, or the first state.
        layers: how many of the layers to use; where absent all, or with late expansion those before
            the expansion.
        max_length: longest text in tokens.
        options: the settings of `ReadOptions`."""
    settings = {name: value for name, value in locals().items() if name not in ("input", "output")}
    chosen = ReadOptions(**options)
    target = frames.output_path(
        model, input, output, "embeddings.parquet", (".parquet", ".csv", ".npy")
    )
    network, tokenizer = load_model(model, ExLMModel, layers)
    distributed.to_device(network, chosen.device)
    first = make_table(
        next(frames.read_frames(input, chosen.header, frames.ROWS)), input, chosen.text_column, []
    )
    known, keep = text_kind(network.config), chosen.on_invalid == "keep"
    molecules = check_kind(first.texts, known.molecules, chosen.molecules, input)

    def write(frame: pd.DataFrame, path: Path) -> dict[str, int]:
        table, begin = make_table(frame, input, first.text_column, []), frame.index[0] == 0
        table = tokenize_rows(
            table, tokenizer, max_length, molecules, keep, known.standardize, begin
        )
        table.check(input, chosen.on_invalid, begin)
        progress = f"embed, from row {frame.index[0] + 1}"
        _write(path, table, embeddings(network, tokenizer, table, pooling, progress))
        return table.counts("embedded")

    settings |= {"weights": fingerprint(model)}
    counts = frames.write_in_parts(input, chosen.header, target, settings, write)
    print(
        f"{frames.in_words(counts)}: {target}; texts of column {first.text_column!r} (--text_column names another)"
    )
    return target


def _write(path: Path, table: LabelledTable, vectors: np.ndarray) -> None:
    """Writes a part of the result. A .csv file has its header line in the first part alone, a .npy
    file nowhere."""
    text = {} if table.text_column == "text" else {"text": table.texts}
    columns = {"row": table.frame.index} | text | {"problem": table.problems}
    if path.suffix == ".csv":
        columns |= {f"embedding {i}": values for i, values in enumerate(vectors.T)}
    frame = frames.with_columns(table.frame, columns)
    if path.suffix == ".npy":
        vectors.tofile(path)
    elif path.suffix == ".csv":
        frames.write_frame(frame, path, header=frame.index[0] == 0)
    else:
        cells = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        pq.write_table(frames.as_arrow(frame).append_column("embedding", cells), path)


def embeddings(
    network: ExLMModel,
    tokenizer: PreTrainedTokenizerFast,
    table: LabelledTable,
    pooling: Pooling,
    progress: str | None = None,
) -> np.ndarray:
    """The vectors [rows, width] float32, NaN for rows that cannot be used."""
    usable, width = np.flatnonzero(table.usable), network.config.hidden_size
    pooled = partial(network.embedding, pooling=pooling)
    return run(
        network, pooled, width, table, usable, tokenizer, precision="fp32", progress=progress
    )
