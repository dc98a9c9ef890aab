"""A task type is a class that trains and predicts or, for the rows of tables, an object."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import (
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    BertForTokenClassification,
)

from exlm import InputError
from exlm.ops.loss import LossSum
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.inference import model_inputs, pad
from exlm.tasks.encoders.loading import OTHER_HEADS
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.encoders.training import ShuffledBatches, Supervision
from exlm.tasks.finetune import finetune
from exlm.tasks.labels.label_types import LABEL_TYPES, Classes
from exlm.tasks.labels.metrics import Metric
from exlm.tasks.predict import evaluate
from exlm.tasks.results import best_seed_directory
from exlm.tasks.rows.labelled_table import read_labelled_table
from exlm.tasks.rows.reading import tokenize
from exlm.tasks.tables.predictions import Evaluation, Predictions, Predictor
from exlm.tasks.task import Task
from exlm.tasks.task_kinds import OTHER_TASK_KINDS, TaskKind
from tests.tasks.tiny_models import predicted, save_family


def predict_tags(models, path, options):
    """Counts the models and labels."""
    networks = [model.network for model in models]
    assert all(isinstance(network, BertForTokenClassification) for network in networks)
    frame = pd.read_csv(path).assign(models=len(networks), tags=networks[0].config.num_labels)
    predictions = Predictions(
        frame,
        {"rows tagged": len(frame)},
        Evaluation({"ensemble": lambda rows: {"accuracy": 1.0}}, np.arange(len(frame))),
    )
    return Predictor(lambda must_score: predictions)


class TagSupervision(Supervision):
    """A network learns no more than small outputs."""

    def loss(self, network, batch):
        logits = network(**model_inputs(network, batch)).logits
        return LossSum(logits.square().sum(), torch.tensor(1.0), torch.tensor(0.0))

    def score_valid(self, network):
        return {"share_of_tags": 0.5 + self.batches.seed / 10}

    def predict(self, network):
        return self.score_valid(network)

    def write_results(self, outputs, run_dir):
        return {"scores": {"valid": outputs}}


class Tagging:
    """Stands in for a class of labelled data."""

    def __init__(self, encoder, config):
        self.encoder = encoder
        self.task = Task(
            config=config,
            metric="share_of_tags",
            metrics={"share_of_tags": Metric()},
            summary="tags",
            reported_rows=pd.DataFrame(),
            identity={},
            departures=[],
        )

    def supervise(self, seed, hyper):
        tokenizer = self.encoder.tokenizer
        examples = tokenize(["Ada lives in Rome"], tokenizer)
        return TagSupervision(
            saved_task=SavedTask(task_type="tagging"),
            head_settings={"num_labels": 3},
            batches=ShuffledBatches([6], np.arange(1), 1, seed, lambda _: pad(examples, tokenizer)),
        )


def test_one_line_makes_a_new_task_type_known_to_every_command(tmp_path, monkeypatch, capsys):
    model, data, out = (
        save_family(tmp_path / "model", "bert"),
        str(tmp_path / "data.csv"),
        str(tmp_path / "out"),
    )
    pd.DataFrame({"text": ["Ada lives in Rome"]}).to_csv(data, index=False)
    task = TaskConfig(data, task_type="tagging")
    with pytest.raises(InputError, match="no task_type 'tagging'; use one of binary,"):
        finetune(out, str(model), task)
    monkeypatch.setitem(OTHER_TASK_KINDS, "tagging", TaskKind(Tagging, predict_tags))
    monkeypatch.setitem(OTHER_HEADS, "tagging", MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING)
    report = finetune(out, str(model), task, FinetuneConfig(precision="fp32"), [0, 1])
    assert report["valid"]["share_of_tags"]["max"] == 0.6 and report["best_seed"] == 1
    assert best_seed_directory(out) == Path(out, "seed-1")
    frame = predicted(out, data)
    assert frame.loc[0, "models"] == 2 and frame.loc[0, "tags"] == 3
    assert evaluate(out, data, resamples=2)["metrics"]["ensemble"]["accuracy"]["value"] == 1.0


class Grades(Classes):
    """Classes in order. An output for each but the first: whether the label is at least it."""

    def class_names(self, readings):
        """The numbers in their order; words would come in that of their letters."""
        if readings.numbers.isna().all(axis=None):
            raise InputError("grades are numbers, from the lowest")
        return super().class_names(readings)

    problem_type = "multi_label_classification"  # an output does not depend on the others

    def head_names(self, names):
        return [f"at least {name}" for name in names[1:]]

    def loss(self, outputs, targets):
        steps = torch.arange(1, outputs.shape[1] + 1, device=outputs.device)
        is_reached = (targets[:, None] >= steps).float()
        losses = binary_cross_entropy_with_logits(outputs, is_reached, reduction="none").mean(1)
        return losses.sum(), losses.new_full((), len(losses))

    def predictions(self, outputs):
        at_least = np.minimum.accumulate(expit(outputs), 1)
        ones = np.ones((len(outputs), 1))
        return -np.diff(np.hstack([ones, at_least, 0 * ones]))


def test_one_entry_makes_a_new_task_type_of_rows(tmp_path, monkeypatch):
    model = save_family(tmp_path / "model", "bert")
    frame = pd.DataFrame({"text": [f"{town} {i}" for i in range(20) for town in ("Rome", "Oslo")]})
    frame["grade"] = [i % 3 for i in range(40)]
    frame.to_csv(tmp_path / "grades.csv", index=False)
    monkeypatch.setitem(LABEL_TYPES, "grades", Grades())
    words = frame.assign(grade=frame["grade"].map({0: "poor", 1: "fair", 2: "good"}))
    words.to_csv(tmp_path / "words.csv", index=False)
    with pytest.raises(InputError, match="grades are numbers"):
        read_labelled_table(TaskConfig(str(tmp_path / "words.csv"), task_type="grades"))
    hyper = FinetuneConfig(epochs=1, batch_size=8, learning_rate=1e-3, precision="fp32")
    task = TaskConfig(str(tmp_path / "grades.csv"), task_type="grades", split="random")
    out = str(tmp_path / "out")
    finetune(out, str(model), task, hyper, [0])
    assert AutoConfig.from_pretrained(out).id2label == {0: "at least 1", 1: "at least 2"}
    table = predicted(out, str(tmp_path / "grades.csv"))
    shares = table[[f"predicted {grade}" for grade in range(3)]]
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert table["predicted class"].astype(int).tolist() == shares.to_numpy().argmax(1).tolist()
    calibrated = predicted(out, str(tmp_path / "grades.csv"), calibrated=True)
    np.testing.assert_allclose(calibrated[shares.columns].sum(axis=1), 1)
