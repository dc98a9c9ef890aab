"""Logistic regression on frozen embeddings: what the encoders know before any fine-tuning.

    python docs/results/linear_probe.py runs/molecules/exlm-1M runs/molecules/mlm-1M

For every model, set (first task) and pooling: the strength of regularisation is chosen on valid, ROC-AUC is reported on
valid and test of the scaffold split.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedTokenizerFast

from exlm.directory import load_model
from exlm.model.downstream import pooled
from exlm.model.modeling_exlm import ExLMModel
from exlm.tasks import inference
from exlm.tasks.classification import DEFAULT_LENGTH, split_rows
from exlm.tasks.config import TaskConfig, resolve
from exlm.tasks.supervised import tokenize_rows
from exlm.tasks.table import load_table


def embeddings(
    network: ExLMModel, examples: list[inference.Example], tokenizer: PreTrainedTokenizerFast, pooling: str
) -> np.ndarray:
    """[rows, D] of unmasked sequences."""

    def function(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        nothing = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        return pooled(network, network.expand(**batch, masked=nothing), pooling)

    return inference.run(network, function, examples, tokenizer, precision="fp32")


def probe(features: np.ndarray, labels: np.ndarray, split: dict[str, np.ndarray]) -> tuple[float, float]:
    """(valid, test) ROC-AUC of the best of four regularisation strengths."""
    scores = []
    for strength in (1e-3, 1e-2, 1e-1, 1.0):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
        model.fit(features[split["train"]], labels[split["train"]])
        guesses = model.predict_proba(features)[:, 1]
        scores.append(tuple(roc_auc_score(labels[split[part]], guesses[split[part]]) for part in ("valid", "test")))
    return max(scores)


def main(models: list[str]) -> None:
    for name in ("bbbp", "bace", "clintox"):
        task, _ = resolve(TaskConfig(name))
        table = load_table(task.dataset, task.text_column, task.label_columns, task.task_type)
        for path in models:
            network, tokenizer = load_model(path, ExLMModel)
            rows = tokenize_rows(table, tokenizer, DEFAULT_LENGTH, molecules=True)
            split = split_rows(replace(task, split="scaffold"), rows, seed=0)
            for pooling in ("first", "mean"):
                features = embeddings(network, rows.examples, tokenizer, pooling)
                unit = features / np.linalg.norm(features, axis=1, keepdims=True)
                cosine = float((unit @ unit.T).mean())
                valid, test = probe(features, table.labels[:, 0], split)
                print(
                    f"{name} {path} {pooling}: valid {valid:.3f} test {test:.3f} mean cosine {cosine:.3f}", flush=True
                )


if __name__ == "__main__":
    main(sys.argv[1:])
