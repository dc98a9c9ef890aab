"""Predictions and embeddings for the rows of a table; every row of the input appears in the output."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.model.downstream import pooled
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import load_model
from exlm.storage import replacing
from exlm.tasks import inference
from exlm.tasks.encoders import load_finetuned, task_facts
from exlm.tasks.frames import read_frame, write_frame
from exlm.tasks.grid import members
from exlm.tasks.inference import Example
from exlm.tasks.metrics import evaluate
from exlm.tasks.question_answering import answer_file
from exlm.tasks.supervised import predict_rows, prediction_columns, tokenize_rows, with_columns
from exlm.tasks.table import LabelledTable, make_table
from exlm.train import distributed


def predict(model: str, input: str, output: str | None = None, text_column: str | None = None) -> pd.DataFrame:
    """Adds a fine-tuned model's predictions to a table.

    A directory with several seeds is used as an ensemble: means, and their standard deviations in further columns.
    Rows that cannot be used stay in the output, marked in the column `problem`. If the label columns are present
    too, the metrics are printed.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: CSV, TSV, JSONL or Parquet file; for question answering also SQuAD JSON.
        output: .csv, .tsv or .parquet file to write; INPUT-predictions.csv beside the input where absent.
        text_column: column of the SMILES or text; found by its name where absent.
    """
    target = _target(input, output, "predictions.csv", (".csv", ".tsv", ".parquet"))
    places = [str(path) for path in members(model)]
    facts = task_facts(places[0])
    if facts["task_type"] == "question_answering":
        return answer_file(places, input, target, facts)
    table = _table(input, text_column, facts)
    runs = []
    for place in places:
        network, tokenizer = load_finetuned(place, "classification")
        rows = tokenize_rows(table, tokenizer, facts["max_length"], facts["molecules"])
        distributed.place(network)
        runs.append(predict_rows(network, rows.examples, np.flatnonzero(rows.usable), facts, tokenizer))
    columns: dict[str, Any] = {}
    for i, name in enumerate(prediction_columns(facts)):
        columns[name] = np.mean(runs, 0)[:, i]
        if len(runs) > 1:
            columns[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
    frame = with_columns(table.frame, columns | {"problem": rows.reasons()})
    write_frame(frame, target)
    print(f"{rows.usable.sum()} rows predicted, {(~rows.usable).sum()} marked in the column problem: {target}")
    if all(column in table.frame for column in facts["label_columns"]):
        print(_scores(table, input, facts, rows.usable, np.mean(runs, 0)))
    return frame


def _table(input: str, text_column: str | None, facts: dict[str, Any]) -> LabelledTable:
    """The input's texts; its columns are those of the training table where it has them."""
    frame = read_frame(input)
    column = text_column or (facts["text_column"] if facts["text_column"] in frame else None)
    return make_table(frame, input, column, [], pair_column=facts["pair_column"])


def _target(input: str, output: str | None, ending: str, suffixes: tuple[str, ...]) -> Path:
    """Where to write: `output`, or a name beside the input."""
    target = Path(output) if output else Path(input).with_name(f"{Path(input).name.split('.')[0]}-{ending}")
    if target.suffix not in suffixes:
        raise InputError(f"cannot write {target}; the name must end in {' or '.join(suffixes)}")
    return target


def _scores(
    table: LabelledTable, input: str, facts: dict[str, Any], usable: np.ndarray, predictions: np.ndarray
) -> str:
    """The metrics of the labelled rows as one line, or why there are none."""
    columns = (table.text_column, facts["label_columns"], facts["task_type"], facts["classes"])
    try:
        table = make_table(table.frame, input, *columns)
        scored = usable & ~np.isnan(table.labels).all(1)
        values = evaluate(facts["task_type"], table.labels[scored], predictions[scored])
    except InputError as error:
        return f"not scored: {error}"
    return f"{scored.sum()} labelled rows: " + "  ".join(f"{name} {value:.4f}" for name, value in values.items())


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
        layers: how many of the layers to use; where absent all, or with late expansion those before it.
        text_column: column of the SMILES or text; found by its name where absent.
        molecules: the texts are SMILES: rows that RDKit cannot parse are marked.
        max_length: longest text in tokens.
        rows_per_chunk: rows held in memory at a time.
    """
    target = _target(input, output, "embeddings.parquet", (".parquet", ".npy"))
    if rows_per_chunk < 1:
        raise InputError(f"rows_per_chunk is {rows_per_chunk}; it must be at least 1")
    network, tokenizer = load_model(model, ExLMModel, None if layers is None else {"task_layers": layers})
    distributed.place(network)
    table = make_table(read_frame(input), input, text_column, [])
    rows = tokenize_rows(table, tokenizer, max_length, molecules)
    reasons = rows.reasons()
    with replacing(target) as partial:
        writer = _Writer(partial, len(table.texts), network.config.hidden_size)
        for start in range(0, len(table.texts), rows_per_chunk):
            part = slice(start, start + rows_per_chunk)
            vectors = _vectors(network, rows.examples[part], reasons[part], tokenizer, pooling)
            writer.write(start, table.texts[part], vectors, reasons[part])
        writer.close()
    print(f"{rows.usable.sum()} rows embedded, {(~rows.usable).sum()} marked in the column problem: {target}")
    return target


def _vectors(
    network: ExLMModel, examples: list[Example], reasons: list[str], tokenizer: PreTrainedTokenizerFast, pooling: str
) -> np.ndarray:
    """[rows, D] float32, NaN where there is a reason against a row."""

    def embedding(batch: dict[str, Tensor]) -> Tensor:
        return pooled(network, network.expand_unmasked(**batch), pooling).float()

    good = np.array([not reason for reason in reasons])
    vectors = np.full((len(examples), network.config.hidden_size), np.nan, dtype=np.float32)
    if good.any():
        chosen = [examples[i] for i in np.flatnonzero(good)]
        vectors[good] = inference.run(network, embedding, chosen, tokenizer, progress="embed")
    return vectors


class _Writer:
    """Appends chunks to a Parquet file or fills a memory-mapped npy file."""

    def __init__(self, path: Path, rows: int, width: int) -> None:
        self.array = (
            np.lib.format.open_memmap(path, "w+", np.float32, (rows, width)) if path.name.endswith(".npy") else None
        )
        vector = pa.list_(pa.float32(), width)
        self.schema = pa.schema(
            [("row", pa.int64()), ("text", pa.string()), ("embedding", vector), ("problem", pa.string())]
        )
        self.parquet = None if self.array is not None else pq.ParquetWriter(path, self.schema)

    def write(self, start: int, texts: list[str], vectors: np.ndarray, problems: list[str]) -> None:
        if self.array is not None:
            self.array[start : start + len(vectors)] = vectors
            return
        assert self.parquet is not None
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        rows = pa.array(np.arange(start, start + len(texts)))
        columns = [rows, pa.array(texts, pa.string()), flat, pa.array(problems, pa.string())]
        self.parquet.write_table(pa.Table.from_arrays(columns, schema=self.schema))

    def close(self) -> None:
        if self.array is not None:
            self.array.flush()
        if self.parquet is not None:
            self.parquet.close()
