"""Linear models on frozen embeddings: what the encoders know before any fine-tuning, layer by layer.

    python docs/results/linear_probe.py runs/late/seed-0 runs/mlm/seed-0 --layers 3 4 --data_dir DATA

For every model, layer and set: mean and maximum over the tokens, standardised; the strength of regularisation is chosen
on valid. ROC-AUC (mean over tasks) of logistic regression, or RMSE of ridge regression, on test: scaffold split, or
random for the regressions. One line of JSON each.
"""

import argparse
import json
from dataclasses import replace

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedTokenizerFast

from exlm.data.frames import read_frame
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import load_model
from exlm.tasks import inference
from exlm.tasks.classification import DEFAULT_LENGTH
from exlm.tasks.config import TaskConfig, resolve
from exlm.tasks.inference import tokenize_rows
from exlm.tasks.labelled import split_rows
from exlm.tasks.table import make_table

SETS = ("bbbp", "bace", "clintox", "sider", "esol", "lipophilicity", "freesolv")


def embeddings(network: ExLMModel, rows: inference.Rows, tokenizer: PreTrainedTokenizerFast, layers: int) -> np.ndarray:
    """[rows, 2 D]: mean and maximum over the tokens after so many layers."""

    def function(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        lattice = network.expand_unmasked(**batch)
        hidden, real = network.encode(lattice, depth=layers), lattice.attention_mask[..., None]
        mean = (hidden * real).sum(1) / real.sum(1)
        return torch.cat([mean, hidden.masked_fill(~real, -torch.inf).amax(1)], dim=1)

    width, usable = 2 * network.config.hidden_size, np.flatnonzero(rows.usable)
    return inference.run(network, function, width, rows, usable, tokenizer, precision="fp32").astype(float)


def probe(features: np.ndarray, labels: np.ndarray, split: dict[str, np.ndarray], regression: bool) -> float:
    """The test score of the strength that is best on valid."""
    found = []
    for strength in (1e-3, 1e-2, 1e-1, 1.0):
        model = Ridge(1 / strength) if regression else LogisticRegression(C=strength, max_iter=500)
        fitted = make_pipeline(StandardScaler(), model)
        known = split["train"][~np.isnan(labels[split["train"]])]
        fitted.fit(features[known], labels[known])
        guesses = fitted.predict(features) if regression else fitted.predict_proba(features)[:, 1]
        scores = [score(labels[split[part]], guesses[split[part]], regression) for part in ("valid", "test")]
        found.append((scores[0] if not regression else -scores[0], scores[1]))
    return max(found)[1]


def score(labels: np.ndarray, guesses: np.ndarray, regression: bool) -> float:
    """RMSE or ROC-AUC; NaN where a part has one class."""
    if regression:
        return float(np.sqrt(np.mean((labels - guesses) ** 2)))
    known = ~np.isnan(labels)
    return float(roc_auc_score(labels[known], guesses[known])) if len(set(labels[known])) > 1 else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", required=True)
    parser.add_argument("--data_dir")
    options = parser.parse_args()
    for name in SETS:
        task, _ = resolve(TaskConfig(name, data_dir=options.data_dir))
        table = make_table(read_frame(task.dataset), task.dataset, task.text_column, task.label_columns, task.task_type)
        regression = task.task_type == "regression"
        for path in options.models:
            network, tokenizer = load_model(path, ExLMModel)
            rows = tokenize_rows(table, tokenizer, DEFAULT_LENGTH, molecules=True)
            split = split_rows(replace(task, split="random" if regression else "scaffold"), rows, seed=0)
            for layers in options.layers:
                features = np.nan_to_num(embeddings(network, rows, tokenizer, layers))
                scores = [probe(features, labels, split, regression) for labels in table.labels.T]
                print(
                    json.dumps({"set": name, "model": path, "layers": layers, "test": float(np.nanmean(scores))}),
                    flush=True,
                )


if __name__ == "__main__":
    main()
