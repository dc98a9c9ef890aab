"""Predictions and embeddings for the rows of a table; every row of the input appears in the output."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import PreTrainedModel

from exlm.directory import load_model
from exlm.errors import InputError
from exlm.model.modeling_exlm import ExLMForSequenceClassification, ExLMModel
from exlm.tasks import inference
from exlm.tasks.metrics import evaluate
from exlm.tasks.supervised import predict_rows, prediction_columns, tokenize_rows
from exlm.tasks.table import load_table, molecule_problem
from exlm.train import distributed


def predict(model: str, input: str, output: str | None = None, text_column: str | None = None) -> pd.DataFrame:
    """Adds a fine-tuned model's predictions to a table.

    A directory with several seeds is used as an ensemble: means, and their standard deviations in further columns.
    Rows that cannot be used stay in the output, marked in the column `problem`. If the label columns are present
    too, the metrics are printed.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: CSV, TSV, JSONL or Parquet file.
        output: CSV to write; INPUT-predictions.csv where absent.
        text_column: column of the SMILES or text; found by its name where absent.
    """
    members = [load_model(path, ExLMForSequenceClassification) for path in _members(model)]
    facts = members[0][0].config.task
    table = load_table(input, text_column, [], check=molecule_problem if facts["molecules"] else None)
    target = Path(output or f"{Path(input).name.split('.')[0]}-predictions.csv")
    runs = []
    for network, tokenizer in members:
        rows = tokenize_rows(table, tokenizer, facts["max_length"])
        distributed.place(network)
        runs.append(predict_rows(network, rows.ids, np.flatnonzero(rows.usable), facts, tokenizer.pad_token_id))
    frame = table.frame.copy()
    for i, name in enumerate(prediction_columns(facts)):
        frame[name] = np.mean(runs, 0)[:, i]
        if len(runs) > 1:
            frame[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
    frame["problem"] = rows.problems
    target.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(target, index=False)
    _report(frame, target, rows.usable, np.mean(runs, 0), input, text_column, facts)
    return frame


def _members(model: str) -> list[str]:
    """The model directories of an ensemble, or the one directory."""
    seeds = sorted(Path(model).glob("seed-*/config.json"))
    return [str(path.parent) for path in seeds] or [model]


def _report(
    frame: pd.DataFrame,
    target: Path,
    usable: np.ndarray,
    predictions: np.ndarray,
    input: str,
    text_column: str | None,
    facts: dict[str, Any],
) -> None:
    print(f"{int(usable.sum())} rows predicted, {int((~usable).sum())} marked in the column problem: {target}")
    if all(column in frame for column in facts["label_columns"]):
        table = load_table(input, text_column, facts["label_columns"], facts["task_type"])
        scored = usable & ~np.isnan(table.labels).all(1)
        values = evaluate(facts["task_type"], table.labels[scored], predictions[scored])
        print("  ".join(f"{name} {value:.4f}" for name, value in values.items()))


def embed(
    model: str,
    input: str,
    output: str | None = None,
    pooling: Literal["mean", "first"] = "mean",
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
            that cannot be used); INPUT-embeddings.parquet where absent.
        pooling: mean over the tokens, or the first state.
        text_column: column of the SMILES or text; found by its name where absent.
        molecules: the texts are SMILES: rows that RDKit cannot parse are marked.
        max_length: longest text in tokens.
        rows_per_chunk: rows held in memory at a time.
    """
    target = Path(output or f"{Path(input).name.split('.')[0]}-embeddings.parquet")
    if target.suffix not in (".parquet", ".npy"):
        raise InputError(f"cannot write embeddings to {target}; the name must end in .parquet or .npy")
    network, tokenizer = load_model(model, ExLMModel)
    distributed.place(network)
    table = load_table(input, text_column, [], check=molecule_problem if molecules else None)
    known = dict(zip(table.problems["row"], table.problems["reason"], strict=True))
    target.parent.mkdir(parents=True, exist_ok=True)
    writer = _Writer(target, len(table.texts), network.config.hidden_size)
    bad = 0
    for start in range(0, len(table.texts), rows_per_chunk):
        texts = table.texts[start : start + rows_per_chunk]
        ids, problems = inference.tokenize(texts, tokenizer, max_length)
        problems = [known.get(start + i) or problem for i, problem in enumerate(problems)]
        good = np.array([problem is None for problem in problems])
        vectors = np.full((len(texts), network.config.hidden_size), np.nan, dtype=np.float32)
        if good.any():
            vectors[good] = inference.run(
                network,
                lambda batch: pool(network, batch, pooling),
                [ids[i] for i in np.flatnonzero(good)],
                tokenizer.pad_token_id,
                progress="embed",
            )
        writer.write(start, texts, vectors, problems)
        bad += int((~good).sum())
    writer.close()
    print(f"{len(table.texts) - bad} rows embedded, {bad} marked: {target}")
    return target


def pool(model: PreTrainedModel, batch: dict[str, Tensor], pooling: str) -> Tensor:
    """[n, D]: the first state, or the mean over the real tokens."""
    nothing = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    hidden = model(**batch, masked=nothing).last_hidden_state.float()
    if pooling == "first":
        return hidden[:, 0]
    weight = batch["attention_mask"][..., None].float()
    return (hidden * weight).sum(1) / weight.sum(1)


class _Writer:
    """Appends chunks to a Parquet file or fills a memory-mapped npy file."""

    def __init__(self, path: Path, rows: int, width: int) -> None:
        self.array = np.lib.format.open_memmap(path, "w+", np.float32, (rows, width)) if path.suffix == ".npy" else None
        vector = pa.list_(pa.float32(), width)
        self.schema = pa.schema(
            [("row", pa.int64()), ("text", pa.string()), ("embedding", vector), ("problem", pa.string())]
        )
        self.parquet = None if self.array is not None else pq.ParquetWriter(path, self.schema)

    def write(self, start: int, texts: list[str], vectors: np.ndarray, problems: list[str | None]) -> None:
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
