"""From the logits of fine-tuned models to predictions for the rows of a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import softmax
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.tasks.applicability import FAR, distance_to_training
from exlm.tasks.calibration import calibration_error
from exlm.tasks.encoders import Models, load_finetuned
from exlm.tasks.frames import read_frame, with_columns
from exlm.tasks.inference import OnInvalid, Rows, check_kind, run, tokenize_rows
from exlm.tasks.metrics import evaluate
from exlm.tasks.table import make_table
from exlm.train import distributed

Score = Callable[[np.ndarray], dict[str, float]]


@dataclass(frozen=True)
class PredictOptions:
    """How to predict; `exlm.tasks.predict.predict` explains each option."""

    text_column: str | None = None
    molecules: bool | None = None
    header: bool = True
    on_invalid: OnInvalid = "skip"
    calibrated: bool = False
    distance: bool = False


@dataclass(frozen=True)
class Member:
    """The model of one seed, not yet loaded: the ensemble of a fine-tuning has several."""

    directory: Path
    task: dict[str, Any]  # what was saved with it (`saved_task`)
    models: Models
    device: str = "auto"

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """The model on its device, and its tokenizer."""
        network, tokenizer = load_finetuned(str(self.directory), self.models)
        distributed.to_device(network, self.device)
        return network, tokenizer


@dataclass(frozen=True)
class Predictions:
    """What the models predict for a file.

    Attributes:
        frame: all rows and columns of the file with the predictions; the column `problem` says why a row has none.
        summary: how many rows have a prediction, in one sentence.
        scores: by the name of the model (with several, `ensemble` is the first), a function that gives the metrics on
            some rows: positions [n], of which one may occur more than once.
        labelled: positions of the rows that can be scored.
        note: why there are no scores, "" if the file has no labels.
    """

    frame: pd.DataFrame
    summary: str
    scores: dict[str, Score] = field(default_factory=dict)
    labelled: np.ndarray = field(default_factory=lambda: np.arange(0))
    note: str = ""


def predict_table(members: Sequence[Member], input: str, options: PredictOptions) -> Predictions:
    """Predictions for the rows of a table: means over the models, with standard deviations if there are several."""
    task = members[0].task
    if options.calibrated and any("temperature" not in member.task for member in members):
        raise InputError("calibrated probabilities need a classification that was fine-tuned by this version of exlm")
    frame = read_frame(input, options.header)
    column = options.text_column or (task["text_column"] if task["text_column"] in frame else None)
    table = make_table(frame, input, column, [], pair_column=task["pair_column"])
    molecules = check_kind(table.texts, task["molecules"], options.molecules, input)
    keep, how = options.on_invalid == "keep", task.get("standardize", "none")
    plain, calibrated = list[np.ndarray](), list[np.ndarray]()  # of every model
    for member in members:
        network, tokenizer = member.load()
        rows = tokenize_rows(table, tokenizer, task["max_length"], molecules, keep, how)
        rows.check(input, options.on_invalid)
        logits = predict_logits(network, rows, np.flatnonzero(rows.usable), member.task, tokenizer)
        plain.append(as_predictions(logits, member.task))
        calibrated.append(as_predictions(logits, member.task, member.task.get("temperature", 1.0)))
    chosen = calibrated if options.calibrated else plain
    columns = _columns(chosen, task)
    summary = f"{rows.usable.sum()} rows predicted, {(~rows.usable).sum()} marked in the column problem"
    if options.distance:
        columns["distance to training"] = distance_to_training([m.directory for m in members], table.texts)
        far = int((columns["distance to training"] > FAR).sum())
        summary += f"; {far} rows are far from the training molecules (distance over {FAR})"
    result = with_columns(frame, columns | {"problem": rows.problems})
    if not all(name in frame for name in task["label_columns"]):
        return Predictions(result, summary)
    known = table.text_column, task["label_columns"], task["task_type"], task["classes"]
    try:
        labels = make_table(frame, input, *known).labels
    except InputError as error:
        return Predictions(result, summary, note=str(error))
    scores = dict[str, Score]()
    if len(members) > 1:
        scores["ensemble"] = _score(labels, task, np.mean(chosen, 0), np.mean(calibrated, 0))
    for member, own, own_calibrated in zip(members, chosen, calibrated, strict=True):
        scores[member.directory.name] = _score(labels, member.task, own, own_calibrated)
    return Predictions(result, summary, scores, np.flatnonzero(rows.usable & ~np.isnan(labels).all(1)))


def _score(labels: np.ndarray, task: dict[str, Any], predictions: np.ndarray, calibrated: np.ndarray) -> Score:
    """The metrics of some rows, with the calibration errors of what is predicted and of calibrated probabilities."""

    def score(rows: np.ndarray) -> dict[str, float]:
        scores = evaluate(task["task_type"], labels[rows], predictions[rows])
        if task["task_type"] != "regression":
            scores["calibration_error"] = calibration_error(labels[rows], predictions[rows])
        if "temperature" in task:
            scores["calibration_error_calibrated"] = calibration_error(labels[rows], calibrated[rows])
        return scores

    return score


def _columns(runs: list[np.ndarray], task: dict[str, Any]) -> dict[str, Any]:
    """The columns to add: predictions [rows, outputs] of every model become means and standard deviations, and for one
    label also the predicted class and its confidence, which is its probability."""
    columns: dict[str, Any] = {}
    means = np.mean(runs, 0)
    for i, name in enumerate(prediction_columns(task)):
        columns[name] = means[:, i]
        if len(runs) > 1:
            columns[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
    if task["task_type"] in ("binary", "multiclass"):
        best = means.argmax(1) if task["classes"] else (means[:, 0] >= 0.5).astype(int)
        classes = pd.Series(best, dtype="Int64").mask(np.isnan(means[:, 0]))
        columns["predicted class"] = classes.map(dict(enumerate(task["classes"]))) if task["classes"] else classes
        columns["confidence"] = means.max(1) if task["classes"] else np.maximum(means, 1 - means)[:, 0]
    return columns


def predict_logits(
    model: nn.Module, rows: Rows, chosen: np.ndarray, task: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> np.ndarray:
    """The model's outputs for the chosen rows: [all rows, outputs] float64, NaN for the other rows. `task` is what is
    saved with the model about its task."""
    result = np.full((len(rows.examples), len(prediction_columns(task))), np.nan)
    if len(chosen):
        examples = [rows.examples[row] for row in chosen]
        result[chosen] = run(model, lambda batch: model(**batch).logits, examples, tokenizer, task["precision"])
    return result


def as_predictions(logits: np.ndarray, task: dict[str, Any], temperature: float = 1.0) -> np.ndarray:
    """Probabilities, or values in the units of the labels: [rows, outputs]. Dividing the logits by a `temperature` over
    1 brings probabilities nearer to each other. Models whose head returns real units have mean 0 and std 1 in `task`.
    """
    if task["task_type"] == "regression":
        return logits * np.asarray(task["std"]) + np.asarray(task["mean"])
    if task["task_type"] == "multiclass":
        return softmax(logits / temperature, 1)
    return 1 / (1 + np.exp(-np.clip(logits / temperature, -700, 700)))


def prediction_columns(task: dict[str, Any]) -> list[str]:
    """Names of the output columns: one per label, or one per class."""
    return [f"predicted {name}" for name in (task["classes"] or task["label_columns"])]
