"""What predicting with fine-tuned models takes and gives: models of several seeds, options, and
predictions that can be scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from rdkit.DataStructs import BulkTanimotoSimilarity, ExplicitBitVect
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.chemistry import fingerprints
from exlm.data.columns import check_columns, listed, match_columns
from exlm.errors import InputError
from exlm.tasks.encoders import Models, SavedTask, load_finetuned
from exlm.tasks.metrics import RowScorer
from exlm.tasks.reading import ReadOptions
from exlm.train import distributed

# one SMILES a line, beside the model of every seed: random splits differ
TRAINING_MOLECULES = "train.smi"

# from some rows of a table to these rows with predictions, and how many there are of every kind
ChunkPredictor = Callable[[pd.DataFrame], tuple[pd.DataFrame, dict[str, int]]]


@dataclass(frozen=True)
class PredictOptions(ReadOptions):
    """How to predict.

    Attributes:
        calibrated: divide the logits by the temperature that was fitted on the validation rows, so
            that probabilities are closer to how often they are right. Which class is the most
            probable stays the same for one model.
        label_columns: the columns of the labels, in the order of the training; where absent, those
            with the names of the training.
        interval: a share of rows, such as 0.9. Add bounds of every number, `lower ...` and
            `upper ...`, or the possible classes, `set ...`, that contain the truth in this share of
            rows, if they are like the validation rows. `coverage` in the scores is the true share.
        explain: an .html page to write: by how much each prediction changes when a token or word is
            masked, drawn on the molecules; the numbers are in the column `explanation`. Takes a
            prediction for every token of a row, and memory for the whole table.
        distance: add a column: 1 - a molecule's highest Tanimoto similarity (ECFP4) to a training
            molecule.
        precision: fp32, which gives the same numbers on all machines, within rounding; bf16, which
            is faster on some; or auto, as in training."""

    calibrated: bool = False
    interval: float | None = None
    explain: str | None = None
    distance: bool = False
    precision: Literal["auto", "bf16", "fp32"] = "fp32"
    label_columns: list[str] | None = None

    def labels_in(self, frame: pd.DataFrame, path: str, trained_on: list[str]) -> list[str]:
        """The columns of a table that have, or would have, the labels that were `trained_on`.
        InputError if `label_columns` names others, or not as many."""
        if self.label_columns is None:
            return trained_on
        names = match_columns(self.label_columns, frame.columns)
        check_columns(frame, path, *names)
        if len(names) != len(trained_on):
            raise InputError(
                f"label_columns names {listed(names)}; give the columns of {listed(trained_on)}, "
                "in this order"
            )
        return names


class TunedModel(NamedTuple):
    """A model with the head of a task, its tokenizer, and what is saved with it about its task
    (`saved_task`)."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    saved: SavedTask


@dataclass(frozen=True)
class SeedModel:
    """The model of one seed, loaded when it is used first: the ensemble of a fine-tuning has
    several. `model_classes` have the head of its kind of task."""

    directory: Path
    saved: SavedTask
    model_classes: Models
    device: str

    @cached_property
    def loaded(self) -> TunedModel:
        """The model on its device."""
        network, tokenizer = load_finetuned(str(self.directory), self.model_classes)
        distributed.place_model(network, self.device)
        return TunedModel(network, tokenizer, self.saved)


@dataclass(frozen=True)
class Predictions:
    """What the models predict for a file, and how it can be scored."""

    frame: pd.DataFrame  # all of the file, with predictions, or in `problem` why a row has none
    counts: dict[str, int]  # of rows, by what they are
    # how rows are scored, by the model's name; of several, `ensemble` is the first
    scorers: Mapping[str, RowScorer] = field(default_factory=dict)
    labelled: np.ndarray = field(default_factory=lambda: np.arange(0))  # the rows to score
    note: str = ""  # why there are no scores, if the file has labels
    # the metrics of every label, by the first of `scorers`; {} if there is only one label
    label_scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    texts: Sequence[str] | None = None  # [rows] the first text of every row, if it is a table


def training_molecules(run_dirs: Sequence[Path]) -> set[str]:
    """The molecules that models were trained on, as far as these are kept beside them."""
    files = [run_dir / TRAINING_MOLECULES for run_dir in run_dirs]
    lines = [file.read_text(encoding="utf-8").splitlines() for file in files if file.is_file()]
    return set(chain.from_iterable(lines))


def training_fingerprints(run_dirs: Sequence[Path]) -> list[ExplicitBitVect]:
    """The ECFP4 (2,048 bits) of the molecules that models were trained on. InputError if these were
    not kept."""
    for run_dir in run_dirs:
        if not (run_dir / TRAINING_MOLECULES).is_file():
            raise InputError(
                f"{run_dir / TRAINING_MOLECULES} does not exist; "
                "distances need a model fine-tuned on molecules by this version"
            )
    molecules = sorted(training_molecules(run_dirs))
    return [bits for bits in fingerprints(molecules) if bits is not None]


def distance_to_training(training: Sequence[ExplicitBitVect], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 to one of these: [rows],
    from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it."""
    distances = np.full(len(smiles), np.nan)
    for row, molecule in enumerate(fingerprints(smiles)):
        if molecule is not None:
            distances[row] = 1 - max(BulkTanimotoSimilarity(molecule, training), default=0.0)
    return distances
