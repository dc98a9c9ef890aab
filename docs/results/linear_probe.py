"""Linear models on frozen embeddings: what the encoders know before any fine-tuning, layer by layer.

    python docs/results/linear_probe.py runs/late runs/mlm --layers 3 4 --data_dir DATA --output probes.jsonl

For every set, model and layer: mean over the tokens, or mean and maximum, standardised on the train part; the strength
of regularisation is chosen for every task on valid. ROC-AUC of logistic regression (mean over the tasks that have both
classes) or RMSE of ridge regression: scaffold split, or random for the regressions. One line of JSON each; lines that
are there are not computed again. All tasks of a set are fitted together, in float64: the fits do not influence each
other, but share the product of the features.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from exlm.data.frames import read_frame
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import load_model
from exlm.tasks import inference
from exlm.tasks.classification import DEFAULT_LENGTH
from exlm.tasks.config import TaskConfig, resolve
from exlm.tasks.inference import tokenize_rows
from exlm.tasks.labelled import split_rows
from exlm.tasks.splits import Split
from exlm.tasks.table import make_table

SETS = ("bbbp", "bace", "clintox", "sider", "tox21", "toxcast", "muv", "esol", "lipophilicity", "freesolv")
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C of scikit-learn's LogisticRegression; of ridge regression, 1 / alpha
STEPS = 300  # of L-BFGS, at most


def embeddings(network: ExLMModel, rows: inference.Rows, tokenizer: PreTrainedTokenizerFast, layers: int) -> np.ndarray:
    """[usable rows, 2 D]: mean and maximum over the tokens after so many layers."""

    def function(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lattice = network.expand_unmasked(input_ids, attention_mask)
        hidden, real = network.encode(lattice, depth=layers), lattice.attention_mask[..., None].bool()
        mean = (hidden * real).sum(1) / real.sum(1)
        return torch.cat([mean, hidden.masked_fill(~real, -torch.inf).amax(1)], dim=1)

    width, usable = 2 * network.config.hidden_size, np.flatnonzero(rows.usable)
    return inference.run(network, function, width, rows, usable, tokenizer, precision="fp32").astype(float)


def logistic(features: Tensor, labels: Tensor, strength: float, weights: Tensor) -> Tensor:
    """Weights [D + 1, tasks] of logistic regressions of `labels` [rows, tasks], NaN where missing; the last row is the
    intercept, which is not shrunk. The search begins at `weights`."""
    known = ~labels.isnan()
    targets, weights = labels.nan_to_num(), weights.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=STEPS, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = features @ weights[:-1] + weights[-1]
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        value = strength * (losses * known).sum() + (weights[:-1] ** 2).sum() / 2
        value.backward()
        return value

    optimizer.step(closure)
    return weights.detach()


def ridge(features: Tensor, labels: Tensor, strength: float) -> Tensor:
    """Weights [D + 1, 1] of a ridge regression on standardised features."""
    center = labels.mean(0)
    products = features.T @ features + torch.eye(features.shape[1], dtype=features.dtype) / strength
    return torch.cat([torch.linalg.solve(products, features.T @ (labels - center)), center[None]])


def probe(features: np.ndarray, labels: np.ndarray, split: Split, regression: bool) -> dict[str, float]:
    """The scores on valid and test, each task with the strength that is best for it on valid."""
    rows = split["train"]
    spread = features[rows].std(0)
    scaled = torch.from_numpy((features - features[rows].mean(0)) / np.where(spread > 0, spread, 1.0))
    learned = torch.from_numpy(labels[rows])
    weights = torch.zeros(scaled.shape[1] + 1, labels.shape[1], dtype=torch.float64)
    found = []  # by strength, part and task
    for strength in STRENGTHS:
        known = scaled[rows], learned, strength
        weights = ridge(*known) if regression else logistic(*known, weights)
        guesses = (scaled @ weights[:-1] + weights[-1]).numpy()
        found.append([_scores(labels[split[part]], guesses[split[part]], regression) for part in ("valid", "test")])
    scores = np.array(found)
    sign = -1 if regression else 1
    best = np.where(np.isnan(scores[:, 0]), -np.inf, sign * scores[:, 0]).argmax(0)
    chosen = np.take_along_axis(scores, best[None, None, :], 0)[0]
    return {part: float(np.nanmean(values)) for part, values in zip(("valid", "test"), chosen, strict=True)}


def _scores(labels: np.ndarray, guesses: np.ndarray, regression: bool) -> list[float]:
    """RMSE or ROC-AUC of every task; NaN where a task has one class."""
    scores = []
    for truth, guess in zip(labels.T, guesses.T, strict=True):
        known = ~np.isnan(truth)
        if regression:
            scores.append(float(np.sqrt(np.mean((truth[known] - guess[known]) ** 2))))
        else:
            scores.append(roc_auc_score(truth[known], guess[known]) if len(set(truth[known])) > 1 else float("nan"))
    return scores


def lines(name: str, models: list[str], layers: list[int], data_dir: str | None, done: set[tuple]) -> Iterator[Any]:
    """What is missing of a set: a record for every model, layer and way of pooling."""
    task, _ = resolve(TaskConfig(name, data_dir=data_dir))
    table = make_table(read_frame(task.dataset), task.dataset, task.text_column, task.label_columns, task.task_type)
    regression = task.task_type == "regression"
    task = replace(task, split="random" if regression else "scaffold")
    for path in models:
        wanted = [n for n in layers if (name, path, n) not in done]
        if not wanted:
            continue
        network, tokenizer = load_model(path, ExLMModel)
        rows = tokenize_rows(table, tokenizer, DEFAULT_LENGTH, molecules=True)
        split = split_rows(task, rows, seed=0)
        for count in wanted:
            features = np.nan_to_num(embeddings(network, rows, tokenizer, count))
            width = features.shape[1] // 2
            mean, both = (probe(part, table.labels, split, regression) for part in (features[:, :width], features))
            yield {"set": name, "model": path, "layers": count, "mean": mean, "mean and maximum": both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", required=True)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--data_dir")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    there = map(json.loads, options.output.read_text().splitlines() if options.output.exists() else [])
    done = {(record["set"], record["model"], record["layers"]) for record in there}
    with options.output.open("a") as file:
        for name in options.sets:
            for record in lines(name, options.models, options.layers, options.data_dir, done):
                file.write(json.dumps(record) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
