"""From the logits of fine-tuned models to predictions for the rows of a table, and how well these
are calibrated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rdkit.DataStructs import BulkTanimotoSimilarity
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.chemistry import fingerprints
from exlm.data.frames import read_frame, with_columns
from exlm.errors import InputError
from exlm.tasks.encoders import Models, load_finetuned
from exlm.tasks.inference import ReadOptions, check_kind, run, tokenize_rows
from exlm.tasks.metrics import as_rows, score_predictions
from exlm.tasks.table import LabelledTable, TaskType, make_table
from exlm.tasks.token_labels import read_labels, spelled, unit_logits
from exlm.train import distributed

BINS = 15  # of the calibration error
# predictions for molecules with a larger distance to those of the training deserve less trust
FAR = 0.7
# one SMILES a line, beside the model of every seed: random splits differ
TRAINING_MOLECULES = "train.smi"

Score = Callable[[np.ndarray], dict[str, float]]


@dataclass(frozen=True)
class PredictOptions(ReadOptions):
    """How to predict.

    Attributes:
        calibrated: divide the logits by the temperature that was fitted on the validation rows, so
            that probabilities are closer to how often they are right. Which class is the most
            probable stays the same for one model.
        distance: add a column: 1 - a molecule's highest Tanimoto similarity (ECFP4) to a training
            molecule."""

    calibrated: bool = False
    distance: bool = False


@dataclass(frozen=True)
class Member:
    """The model of one seed, loaded when it is used first: the ensemble of a fine-tuning has
    several."""

    directory: Path
    task: dict[str, Any]  # what was saved with it (`saved_task`)
    models: Models
    device: str

    @cached_property
    def loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """The model on its device, and its tokenizer."""
        network, tokenizer = load_finetuned(str(self.directory), self.models)
        distributed.to_device(network, self.device)
        return network, tokenizer


@dataclass(frozen=True)
class Predictions:
    """What the models predict for a file, and how it can be scored."""

    # all rows and columns of the file with the predictions; `problem` says why a row has none
    frame: pd.DataFrame
    counts: dict[str, int]  # of rows, by what they are
    # By the model's name (of several, `ensemble` is the first) a function from positions of rows
    # [n] to their metrics.
    scores: Mapping[str, Score] = field(default_factory=dict)
    # positions of the rows that can be scored
    labelled: np.ndarray = field(default_factory=lambda: np.arange(0))
    note: str = ""  # why there are no scores, "" if the file has no labels


def predict_table(
    members: Sequence[Member], input: str, options: PredictOptions, part: pd.DataFrame | None = None
) -> Predictions:
    """Predictions for a table, or for one `part` of it: means over the models, with standard
    deviations."""
    task = members[0].task
    if options.calibrated and any("temperature" not in member.task for member in members):
        raise InputError(
            "calibrated probabilities need a classification that was fine-tuned by this version of exlm"
        )
    frame = read_frame(input, options.header) if part is None else part
    begin = frame.index[0] == 0  # the first rows tell what the texts are
    column = options.text_column or (task["text_column"] if task["text_column"] in frame else None)
    table = make_table(frame, input, column, [], pair_column=task["pair_column"])
    molecules = check_kind(
        table.texts if begin else [], task["molecules"], options.molecules, input
    )
    keep, how = options.on_invalid == "keep", task.get("standardize", "none")
    runs = dict[str, np.ndarray]()  # the predictions of every model
    for member in members:
        network, tokenizer = member.loaded
        rows = tokenize_rows(
            table, tokenizer, task["max_length"], molecules, keep, how, check=begin
        )
        rows.check(input, options.on_invalid, begin)
        logits = predict_logits(network, rows, np.flatnonzero(rows.usable), member.task, tokenizer)
        temperature = member.task["temperature"] if options.calibrated else 1.0
        runs[member.directory.name] = as_predictions(logits, member.task, temperature)
    columns = _columns([*runs.values()], table.texts, task)
    counts = rows.counts("predicted")
    if options.distance:
        columns["distance to training"] = distance_to_training(
            [m.directory for m in members], table.texts
        )
        far = int((columns["distance to training"] > FAR).sum())
        counts[f"far from the training molecules (distance over {FAR})"] = far
    result = with_columns(frame, columns | {"problem": rows.problems})
    if part is not None or not all(
        name in frame for name in (*task["label_columns"], task.get("mask_column")) if name
    ):
        return Predictions(result, counts)
    known = table.text_column, task["label_columns"], task["task_type"], task["classes"]
    try:
        labels = (
            read_labels(table, task)[0]
            if "unit" in task
            else make_table(frame, input, *known).labels
        )
    except InputError as error:
        return Predictions(result, counts, note=str(error))
    if len(runs) > 1:
        runs = {"ensemble": np.mean([*runs.values()], 0), **runs}
    scores = {
        name: partial(_score, labels, task["task_type"], predictions)
        for name, predictions in runs.items()
    }
    return Predictions(
        result, counts, scores, np.flatnonzero(rows.usable & ~np.isnan(labels).all(1))
    )


def distance_to_training(run_dirs: Sequence[Path], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 (2,048 bits) to a training
    molecule: [rows], from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it.
    InputError if the molecules were not kept."""
    known = set[str]()
    for path in (run_dir / TRAINING_MOLECULES for run_dir in run_dirs):
        if not path.is_file():
            raise InputError(
                f"{path} does not exist; distances need a model fine-tuned on molecules by this version"
            )
        known |= set(path.read_text(encoding="utf-8").splitlines())
    references = list(filter(None, fingerprints(sorted(known))))
    similarities = (
        one and max(BulkTanimotoSimilarity(one, references), default=0.0)
        for one in fingerprints(smiles)
    )
    return 1 - np.array([*similarities], dtype=float)


def _score(
    labels: np.ndarray, task_type: TaskType, predictions: np.ndarray, rows: np.ndarray
) -> dict[str, float]:
    """The metrics of some rows, and if the predictions are probabilities, their calibration
    error."""
    scores = score_predictions(task_type, labels[rows], predictions[rows])
    if task_type != "regression":
        scores["calibration_error"] = calibration_error(*as_rows(labels[rows], predictions[rows]))
    return scores


def _columns(runs: list[np.ndarray], texts: list[str], task: dict[str, Any]) -> dict[str, Any]:
    """The columns to add, from the predictions [rows, outputs] or [rows, units, classes] of every
    model."""
    means = np.mean(runs, 0)
    if "unit" in task:
        return prediction_values(means, texts, task)
    columns: dict[str, Any] = {}
    for i, name in enumerate(prediction_columns(task)):
        columns[name] = means[:, i]
        if len(runs) > 1:
            columns[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
    if task["task_type"] in ("binary", "multiclass"):
        best = means.argmax(1) if task["classes"] else (means[:, 0] >= 0.5).astype(int)
        classes = pd.Series(best, dtype="Int64").mask(np.isnan(means[:, 0]))
        named = classes.map(dict(enumerate(task["classes"]))) if task["classes"] else classes
        # without the index: that of a part begins at its first row
        columns["predicted class"] = named.array
        columns["confidence"] = (
            means.max(1) if task["classes"] else np.maximum(means, 1 - means)[:, 0]
        )
    return columns


def predict_logits(
    model: nn.Module,
    table: LabelledTable,
    chosen: np.ndarray,
    task: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
) -> np.ndarray:
    """A model's outputs for the chosen rows: [all rows, outputs] float64, NaN for others; `task`
    was saved with it. Of units they are [all rows, units, classes]."""
    if "unit" in task:
        return unit_logits(model, table, chosen, task, tokenizer)
    width = len(prediction_columns(task))

    def outputs(**batch: Tensor) -> Tensor:
        return model(**batch).logits

    logits = run(model, outputs, width, table, chosen, tokenizer, task["precision"])
    return logits.astype(np.float64)


def as_predictions(
    logits: np.ndarray, task: dict[str, Any], temperature: float = 1.0
) -> np.ndarray:
    """Probabilities, of logits divided by a `temperature`, or values in the units of the labels:
    [rows, outputs]. Models whose head returns real units have mean 0 and std 1 in `task`."""
    if task["task_type"] == "regression":
        return logits * np.asarray(task["std"]) + np.asarray(task["mean"])
    if task["task_type"] in ("multiclass", "token_classification"):
        return softmax(logits / temperature, -1)
    return 1 / (1 + np.exp(-np.clip(logits / temperature, -700, 700)))


def prediction_columns(task: dict[str, Any]) -> list[str]:
    """Names of the output columns: one per label, or one per class."""
    return [f"predicted {name}" for name in (task["classes"] or task["label_columns"])]


def prediction_values(
    predictions: np.ndarray, texts: list[str], task: dict[str, Any]
) -> dict[str, Any]:
    """The output columns, of predictions [rows, outputs] or of units [rows, units, classes]."""
    if predictions.ndim == 3:
        return {"predicted label": spelled(predictions, texts, task)}
    return dict(zip(prediction_columns(task), predictions.T, strict=True))


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The divisor of logits [rows, outputs], 0.05 to 20, that makes the labels most probable (Guo
    et al., 2017)."""

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        if logits.shape[1] > labels.shape[1]:
            return float(-np.take_along_axis(log_softmax(scaled, 1), labels.astype(int), 1).mean())
        return float(np.nanmean(np.logaddexp(0, scaled) - labels * scaled))

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def calibration_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """The expected calibration error: by how much confidence, which is the probability of the
    predicted class, and accuracy differ, on average over 15 bins of equal width. Labels are [rows,
    1] class indices with probabilities [rows, classes], or both are [rows, labels], where NaN is a
    missing label. NaN if there is no label."""
    if probabilities.shape[1] > labels.shape[1]:
        confidence, right = probabilities.max(1), probabilities.argmax(1) == labels[:, 0]
    else:
        known = ~np.isnan(labels)
        labels, probabilities = labels[known], probabilities[known]
        confidence, right = (
            np.maximum(probabilities, 1 - probabilities),
            (probabilities >= 0.5) == (labels == 1),
        )
    if not len(confidence):
        return float("nan")
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(bins, weights=confidence - right)).sum() / len(confidence))
