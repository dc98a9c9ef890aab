"""One vector per row of a table; every row of the input appears in the output."""

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

from exlm.data.frames import (
    ROWS,
    as_arrow,
    in_words,
    output_path,
    read_frames,
    with_columns,
    write_frame,
    write_in_parts,
)
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import fingerprint, load_model
from exlm.tasks.inference import OnInvalid, Rows, check_kind, run, text_kind, tokenize_rows
from exlm.tasks.table import make_table
from exlm.train import distributed

Pooling = Literal["mean", "first"]


def embed(
    model: str,
    input: str,
    output: str | None = None,
    pooling: Pooling = "mean",
    layers: int | None = None,
    text_column: str | None = None,
    molecules: bool | None = None,
    max_length: int = 512,
    header: bool = True,
    on_invalid: OnInvalid = "skip",
    device: str = "auto",
) -> Path:
    """Writes one vector per row of a table, in constant memory; if it is interrupted, the same command goes on.

    Args:
        model: a pre-trained or fine-tuned model directory.
        input: a table or a list of texts, in any format that `exlm prepare` reads; `-` is standard input.
        output: `.parquet` (the columns of the input, and row (from 0), text, embedding and problem), `.csv` (the same
            with a column for each dimension) or `.npy` ([rows, width] float32, NaN for rows that cannot be used);
            INPUT-MODEL-embeddings.parquet beside the input where absent.
        pooling: mean over the tokens, or the first state.
        layers: how many of the layers to use; where absent all, or with late expansion those before the expansion.
        text_column: column of the SMILES or text; found by its name where absent.
        molecules: whether the texts are SMILES; then rows that RDKit cannot parse are marked. Where absent, the model
            knows, and for older models the texts decide.
        max_length: longest text in tokens.
        header: whether a table has a header line; without it, its columns are called `column 1`, `column 2`, ...
        on_invalid: mark molecules that RDKit cannot parse (`skip`), embed them too (`keep`), or stop (`error`).
        device: auto, cpu, cuda or one of several (cuda:1).
    """
    settings = {name: value for name, value in locals().items() if name not in ("input", "output")}
    target = output_path(model, input, output, "embeddings.parquet", (".parquet", ".csv", ".npy"))
    network, tokenizer = load_model(model, ExLMModel, layers)
    distributed.to_device(network, device)
    first, known = make_table(next(read_frames(input, header, ROWS)), input, text_column, []), text_kind(network.config)
    molecules = check_kind(first.texts, known.molecules, molecules, input)

    def write(frame: pd.DataFrame, path: Path) -> dict[str, int]:
        table, begin = make_table(frame, input, first.text_column, []), frame.index[0] == 0
        rows = tokenize_rows(table, tokenizer, max_length, molecules, on_invalid == "keep", known.standardize, begin)
        rows.check(input, on_invalid, begin)
        _write(path, rows, embeddings(network, tokenizer, rows, pooling, f"embed, from row {frame.index[0] + 1}"))
        return rows.counts("embedded")

    counts = write_in_parts(input, header, target, settings | {"weights": fingerprint(model)}, write)
    texts = f"texts of column {first.text_column!r} (--text_column names another)"
    print(f"{in_words(counts)}: {target}; {texts}")
    return target


def _write(path: Path, rows: Rows, vectors: np.ndarray) -> None:
    """Writes a part of the result. A .csv file has its header line in the first part alone, a .npy file nowhere."""
    table = rows.table
    text = {} if table.text_column == "text" else {"text": table.texts}
    columns = {"row": table.frame.index} | text | {"problem": rows.problems}
    if path.suffix == ".csv":
        columns |= {f"embedding {i}": values for i, values in enumerate(vectors.T)}
    frame = with_columns(table.frame, columns)
    if path.suffix == ".npy":
        vectors.tofile(path)
    elif path.suffix == ".csv":
        write_frame(frame, path, header=frame.index[0] == 0)
    else:
        cells = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        pq.write_table(as_arrow(frame).append_column("embedding", cells), path)


def embeddings(
    network: ExLMModel, tokenizer: PreTrainedTokenizerFast, rows: Rows, pooling: Pooling, progress: str | None = None
) -> np.ndarray:
    """The vectors [rows, width] float32, NaN for rows that cannot be used."""
    usable, width = np.flatnonzero(rows.usable), network.config.hidden_size
    return run(network, partial(network.embedding, pooling=pooling), width, rows, usable, tokenizer, "fp32", progress)
