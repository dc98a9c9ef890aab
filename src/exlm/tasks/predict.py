"""Predictions and embeddings for the rows of a table; every row of the input appears in the output."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from exlm.errors import InputError
from exlm.model.downstream import pooled
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import load_model
from exlm.storage import replacing
from exlm.tasks.encoders import load_finetuned, saved_task
from exlm.tasks.finetune import seed_directories
from exlm.tasks.frames import read_frame, with_columns, write_frame
from exlm.tasks.inference import predict_rows, prediction_columns, run, tokenize_rows
from exlm.tasks.metrics import evaluate
from exlm.tasks.question_answering import answer_file
from exlm.tasks.table import make_table
from exlm.train import distributed


def predict(model: str, input: str, output: str | None = None, text_column: str | None = None) -> pd.DataFrame:
    """Adds a fine-tuned model's predictions to a table.

    A directory with several seeds is an ensemble: predictions are means, further columns have the standard deviations.
    Rows that cannot be used stay in the output, marked in the column `problem`. If the label columns are present
    too, the metrics are printed.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: CSV, TSV, JSONL or Parquet file; for question answering also SQuAD JSON.
        output: .csv, .tsv or .parquet file to write; INPUT-predictions.csv beside the input where absent.
        text_column: column of the SMILES or text; found by its name where absent.
    """
    target = _target(input, output, "predictions.csv", (".csv", ".tsv", ".parquet"))
    run_dirs = [str(path) for path in seed_directories(model)]
    task = saved_task(run_dirs[0])
    if task["task_type"] == "question_answering":
        return answer_file(run_dirs, input, target, task)
    frame = read_frame(input)
    column = text_column or (task["text_column"] if task["text_column"] in frame else None)
    table = make_table(frame, input, column, [], pair_column=task["pair_column"])
    runs = []
    for run_dir in run_dirs:
        network, tokenizer = load_finetuned(run_dir, "classification")
        rows = tokenize_rows(table, tokenizer, task["max_length"], task["molecules"])
        distributed.to_device(network)
        runs.append(predict_rows(network, rows, np.flatnonzero(rows.usable), task, tokenizer))
    predictions = np.mean(runs, 0)
    columns: dict[str, Any] = {}
    for i, name in enumerate(prediction_columns(task)):
        columns[name] = predictions[:, i]
        if len(runs) > 1:
            columns[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
    result = with_columns(frame, columns | {"problem": rows.problems})
    write_frame(result, target)
    print(f"{rows.usable.sum()} rows predicted, {(~rows.usable).sum()} marked in the column problem: {target}")
    if not all(name in frame for name in task["label_columns"]):
        return result
    known = table.text_column, task["label_columns"], task["task_type"], task["classes"]
    try:
        labels = make_table(frame, input, *known).labels
        scored = rows.usable & ~np.isnan(labels).all(1)
        scores = evaluate(task["task_type"], labels[scored], predictions[scored])
        print(f"{scored.sum()} labelled rows: " + "  ".join(f"{name} {score:.4f}" for name, score in scores.items()))
    except InputError as error:
        print(f"not scored: {error}")
    return result


def _target(input: str, output: str | None, ending: str, suffixes: tuple[str, ...]) -> Path:
    """Where to write: `output`, or a name beside the input."""
    target = Path(output) if output else Path(input).with_name(f"{Path(input).name.split('.')[0]}-{ending}")
    if target.suffix not in suffixes:
        raise InputError(f"cannot write {target}; the name must end in {' or '.join(suffixes)}")
    return target


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
    target = _target(input, output, "embeddings.parquet", (".parquet", ".npy"))
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
