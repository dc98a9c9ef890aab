"""One vector per row of a table; every row of the input appears in the output."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

from exlm.data import frames, output_files, writing
from exlm.data.chemistry import Standardize
from exlm.data.delimited import TableLayout
from exlm.errors import note
from exlm.model.modeling_exlm import ExLMModel, Pooling
from exlm.storage.models import load_model, weight_hash
from exlm.tasks.encoders.inference import batch_outputs
from exlm.tasks.encoders.saved_task import TextSettings, read_text_settings
from exlm.tasks.rows.reading import ReadOptions, TableTokens, note_spelling, reader_for
from exlm.tasks.rows.table import TextTable, unlabelled_table
from exlm.train import devices


def embed(
    model: str,
    input: str,
    output: str | None = None,
    pooling: Pooling = "mean",
    layers: int | None = None,
    max_length: int | None = None,
    pair_column: str | None = None,
    standardize: Standardize | None = None,
    **options: Any,
) -> Path:
    """Writes one vector per row of a table, in constant memory; if it is interrupted, the same
    command goes on.

    Args:
        model: a pre-trained or fine-tuned model directory.
        input: a table or a list of texts, in any format that `exlm prepare` reads; `-` is standard
            input with a text in each line, and `-.csv`, `-.jsonl`, ... with a table.
        output: `.parquet` (the columns of the input, and row (from 0), text, embedding and
            problem; also cut, whether the end of a too long text was left out, but for molecules),
            `.csv` (the same with a column for each dimension) or `.npy` ([rows, width] float32, NaN
            for rows that cannot be used); INPUT-MODEL-embeddings.parquet beside the input where
            absent.
        pooling: mean over the tokens, or the first state.
        layers: how many of the layers to use; where absent those that the fine-tuning used, or else
            all, with late expansion those before the expansion.
        max_length: longest text in tokens; where absent that of the fine-tuning, or 512.
        pair_column: column of a second text: the vector is that of the pair, read together.
        standardize: rewrite molecules as RDKit's canonical SMILES (`canonical`), also without salts
            and charges (`parent`), or not (`none`); where absent, as in the training of the model.
        options: the settings of `ReadOptions`."""
    read_options = ReadOptions(**options)
    suffixes = (".parquet", ".csv", ".npy")
    target = output_files.output_path(model, input, output, "embeddings.parquet", suffixes)
    network, tokenizer = load_model(model, ExLMModel, layers)
    devices.place_model(network, read_options.device)
    first_rows = next(frames.read_frames(read_options.file(input), output_files.PIECE_ROWS))
    text_settings = read_text_settings(network.config)
    _note_pairs(first_rows, pair_column, text_settings)
    text_column = read_options.text_column or text_settings.text_column_in(first_rows.frame, input)
    first = unlabelled_table(first_rows, input, text_column, pair_column)
    reader = reader_for(first, tokenizer, max_length, text_settings, standardize, read_options)
    if reader.molecules and reader.standardize == "none":
        note_spelling(first.texts, input)
    layout = output_files.output_layout(
        input, read_options.header, target, sheet=read_options.sheet
    )

    def write(rows: frames.FileRows, path: Path) -> dict[str, int]:
        table = unlabelled_table(rows, input, first.text_column, pair_column)
        table, tokens = reader.read(table, input)
        progress = f"embed, from row {rows.frame.index[0] + 1}"
        vectors = embeddings(network, tokenizer, table, tokens, pooling, progress)
        _write(path, input, table, vectors, layout, may_cut=not reader.molecules)
        return table.counts("embedded", reader.standardize)

    identity = {
        "model": model,
        "pooling": pooling,
        "layers": layers,
        "max_length": reader.max_length,
        "options": {**options, "pair_column": pair_column, "standardize": standardize},
        "weights": weight_hash(model),
    }
    counts = output_files.write_by_frames(read_options.file(input), target, identity, write)
    print(
        f"{output_files.describe_counts(counts)}: {target}; "
        f"texts of column {first.text_column!r} (--text_column names another)"
    )
    return target


def _note_pairs(
    rows: frames.FileRows, pair_column: str | None, text_settings: TextSettings
) -> None:
    """Says if second texts are there that the model was trained on, and are not read."""
    second = text_settings.pair_column
    if pair_column is None and second in rows.frame:
        note(
            f"the model was trained on pairs; add --pair_column {second!r} to embed both "
            "texts of a row"
        )


def _write(
    path: Path,
    input: str,
    table: TextTable,
    vectors: np.ndarray,
    layout: TableLayout,
    may_cut: bool,
) -> None:
    """Writes a piece of the result for `input`, with a column `cut` where texts may be cut. A .csv
    file has its header line in the first piece alone, a .npy file nowhere."""
    if path.suffix == ".npy":
        vectors.tofile(path)
        return
    columns: dict[str, Any] = {"row": table.frame.index}
    if table.text_column != "text":
        columns["text"] = table.texts
    if may_cut:
        columns["cut"] = table.was_cut
    columns["problem"] = table.problems
    if path.suffix == ".csv":
        columns |= {f"embedding {i}": values for i, values in enumerate(vectors.T)}
        frame = writing.add_columns(table.frame, columns, input, "exlm embed")
        writing.write_frame(frame, path, header=frame.index[0] == 0, layout=layout)
    else:
        # It stands in the frame for its name alone: Arrow keeps vectors, pandas would not.
        columns["embedding"] = None
        frame = writing.add_columns(table.frame, columns, input, "exlm embed")
        name = frame.columns[-1]
        cells = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        rows = writing.as_arrow(frame.drop(columns=name))
        pq.write_table(rows.append_column(name, cells), path)


def embeddings(
    network: ExLMModel,
    tokenizer: PreTrainedTokenizerFast,
    table: TextTable,
    tokens: TableTokens,
    pooling: Pooling,
    progress: str | None = None,
) -> np.ndarray:
    """The vectors of the rows of a table: [rows, width] float32, NaN where a row cannot be used."""
    vectors = np.full((len(table.texts), network.config.hidden_size), np.nan, dtype=np.float32)
    for rows, vectors_of_batch in batch_outputs(
        network=network,
        function=partial(network.embedding, pooling=pooling),
        examples=tokens.examples,
        tokenizer=tokenizer,
        progress=progress,
        rows=np.flatnonzero(table.usable),
    ):
        vectors[rows] = vectors_of_batch
    return vectors
