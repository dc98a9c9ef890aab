"""Linear models on frozen embeddings: what the encoders know before any fine-tuning, layer by
layer.

    python docs/results/linear_probe.py runs/late runs/mlm --layers 3 4 --data_dir DATA \\
        --output probes.jsonl

For every set, model and layer: the mean over the tokens (with `--pooling mean_max` also the maximum
beside it), standardised on the train part; the strength of regularisation is chosen for every task
on valid. Molecules: ROC-AUC of logistic regression (mean over the tasks that have both classes) or
RMSE of ridge regression; scaffold split, or random for the regressions. GLUE: its own metrics on
dev, because the labels of its test part are not public; a tenth of train is valid. One line of JSON
each; lines that are there are not computed again.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finetuned import TEXTS
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.model.modeling_exlm import ExLMModel
from exlm.storage.models import load_model
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.inference import batch_outputs
from exlm.tasks.labels.metrics import BINARY_METRICS, NUMBER_METRICS
from exlm.tasks.labels.scores import goodness
from exlm.tasks.rows.datasets import GLUE
from exlm.tasks.rows.labelled_table import read_labelled_table
from exlm.tasks.rows.reading import TextReader, Tokens
from exlm.tasks.rows.splits import RowSplit, random_split, split_rows
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.task_files import resolve
from exlm.tasks.tables.supervision import DEFAULT_LENGTH

MOLECULES = (
    "bbbp",
    "bace",
    "clintox",
    "sider",
    "tox21",
    "toxcast",
    "muv",
    "esol",
    "lipophilicity",
    "freesolv",
)
# C of scikit-learn's LogisticRegression; of ridge regression, 1 / alpha
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
PARTS = ("train", "valid", "test")
KEY = ("set", "model", "layers", "pooling")
POOLINGS = {"mean": 1, "mean_max": 2}  # how often as wide as the network


def pooled(hidden: Tensor, real: Tensor, pooling: str) -> Tensor:
    """[batch, D] of [batch, tokens, D]: the mean over the real tokens, or [batch, 2D] with their
    maximum beside it."""
    mean = (hidden * real).sum(1) / real.sum(1)
    if pooling == "mean":
        return mean
    return torch.cat([mean, hidden.masked_fill(~real, -torch.inf).amax(1)], dim=-1)


def embeddings(
    network: ExLMModel,
    examples: list[Tokens],
    usable: np.ndarray,
    tokenizer: PreTrainedTokenizerFast,
    layers: int,
    pooling: str,
) -> np.ndarray:
    """[usable rows, D or 2D]: the tokens after so many layers, pooled."""

    def function(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lattice = network.task_input(input_ids, attention_mask)
        hidden, _ = network.encode(lattice, read_layers=layers)
        return pooled(hidden, lattice.attention_mask[..., None].bool(), pooling)

    width = POOLINGS[pooling] * network.config.hidden_size
    vectors = np.full((len(examples), width), np.nan)
    rows = np.flatnonzero(usable)
    batches = batch_outputs(network, function, [examples[row] for row in rows], tokenizer)
    for numbers, vectors_of_batch in batches:
        vectors[rows[numbers]] = vectors_of_batch
    return vectors


def fitted(
    features: np.ndarray, values: np.ndarray, strength: float, regression: bool
) -> Callable[..., np.ndarray]:
    """A linear model of one task: from features to a value, or to the probability of label 1."""
    if regression:
        return Ridge(alpha=1 / strength).fit(features, values).predict
    model = LogisticRegression(C=strength, solver="newton-cholesky").fit(features, values)
    return lambda rows: model.predict_proba(rows)[:, 1]


def probe_task(
    features: np.ndarray, values: np.ndarray, split: RowSplit, metric: str
) -> tuple[float, float]:
    """The scores of one task on valid and test, with the strength that is best on valid; a score
    may be NaN where its part has one class, and both are where train has."""
    regression = metric in NUMBER_METRICS
    definition = (NUMBER_METRICS if regression else BINARY_METRICS)[metric]
    score = definition.function
    train, valid, test = (rows[~np.isnan(values[rows])] for rows in (split[part] for part in PARTS))
    found = []
    for strength in STRENGTHS if regression or len(set(values[train])) > 1 else ():
        guess = fitted(features[train], values[train], strength, regression)
        on_valid, on_test = (score(values[rows], guess(features[rows])) for rows in (valid, test))
        found.append((on_valid, on_test))
    return max(found, key=lambda pair: goodness(pair[0], definition), default=(np.nan, np.nan))


def probe(
    features: np.ndarray, labels: np.ndarray, split: RowSplit, metric: str
) -> dict[str, float]:
    """The mean scores over the tasks on valid and test."""
    rows = split["train"]
    spread = features[rows].std(0)
    scaled = (features - features[rows].mean(0)) / np.where(spread > 0, spread, 1.0)
    valid, test = np.nanmean(
        [probe_task(scaled, values, split, metric) for values in labels.T], axis=0
    )
    return {"valid": float(valid), "test": float(test)}


def parts_of(task: TaskConfig, table: TextTable, rows_to_split: np.ndarray) -> RowSplit:
    """Train, valid and test. Of GLUE, dev is test, and a tenth of train is valid."""
    every_row = np.arange(len(table.texts))
    split = split_rows(task, table, seed=0, rows_to_split=rows_to_split, groups=every_row)
    if task.dataset not in GLUE:
        return split
    carved = random_split(split["train"], (0.9, 0.1, 0.0), seed=0, groups=every_row)
    return {"train": carved["train"], "valid": carved["valid"], "test": split["valid"]}


def lines(
    name: str,
    models: list[str],
    layers: list[int],
    pooling: str,
    data_dir: str | None,
    done: set[tuple],
) -> Iterator[Any]:
    """What is missing of a set: a record for every model and layer."""
    task, _ = resolve(TaskConfig(name, data_dir=data_dir))
    table, text = read_labelled_table(task), task.dataset in GLUE
    regression = table.labels.task_type == "regression"
    metric = GLUE[name].metric if text else "rmse" if regression else "roc_auc"
    task = replace(task, split="parts" if text else "random" if regression else "scaffold")
    # models of one corpus have the same tokens and splits
    prepared: dict[str, tuple[list[Tokens], np.ndarray, RowSplit]] = {}
    for path in models:
        wanted = [n for n in layers if (name, path, n, pooling) not in done]
        if not wanted:
            continue
        network, tokenizer = load_model(path, ExLMModel)
        if max(wanted) > network.config.num_hidden_layers:
            raise InputError(
                f"{path} has {network.config.num_hidden_layers} layers; give --layers up to that"
            )
        vocabulary = tokenizer.backend_tokenizer.to_str()
        if vocabulary not in prepared:
            reader = TextReader(tokenizer, DEFAULT_LENGTH, molecules=not text)
            checked, tokens = reader.read(table)
            split = parts_of(task, checked, table.usable)
            prepared[vocabulary] = tokens.examples, checked.usable, split
        examples, usable, split = prepared[vocabulary]
        for count in wanted:
            vectors = embeddings(network, examples, usable, tokenizer, count, pooling)
            features = np.nan_to_num(vectors)
            scores = probe(features, table.labels.values, split, metric)
            yield {"set": name, "model": path, "layers": count, "pooling": pooling, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", required=True)
    parser.add_argument("--sets", nargs="+", default=MOLECULES, choices=MOLECULES + TEXTS)
    parser.add_argument("--pooling", default="mean", choices=POOLINGS)
    parser.add_argument("--data_dir")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    there = map(
        json.loads, options.output.read_text().splitlines() if options.output.exists() else []
    )
    done = {tuple(record[name] for name in KEY) for record in there}
    try:
        with options.output.open("a") as file:
            for name in options.sets:
                for record in lines(
                    name, options.models, options.layers, options.pooling, options.data_dir, done
                ):
                    file.write(json.dumps(record) + "\n")
                    file.flush()
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
