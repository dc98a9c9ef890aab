"""A kind of task is a class that trains and predicts, and a line in the table of kinds."""

import numpy as np
import pandas as pd
import pytest
from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, BertForTokenClassification

from exlm import InputError
from exlm.storage.models import save_model
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import load_encoder_tokenizer
from exlm.tasks.finetune import finetune
from exlm.tasks.predict import evaluate
from exlm.tasks.predictions import Predictions
from exlm.tasks.task import KINDS
from tests.tasks.tiny_models import predicted, save_family


class Tagging:
    """Stands in for a class that trains: it saves models with new heads. Predicting counts the
    models and labels."""

    model_classes = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    metric, summary, invalid_rows = "accuracy", "tags", pd.DataFrame()
    data_settings = {"departures": []}

    def __init__(self, encoder, config, device="auto"):
        self.encoder, self.config = encoder, config
        self.tokenizer, _ = load_encoder_tokenizer(encoder.name)

    def check_seed(self, seed):
        pass

    def train_seed(self, run_dir, hyper, seed):
        settings = {"num_labels": 3, "task": {"task_type": self.config.task_type}}
        network = self.encoder.load(self.model_classes, hyper, settings)
        save_model(run_dir, network, self.tokenizer)
        return {"best_epoch": 1, "scores": {"valid": {"accuracy": 0.5 + seed / 10}}}

    @classmethod
    def chunk_predictor(cls, models, input, options):
        return None

    @staticmethod
    def predict(models, input, options):
        networks = [model.loaded.network for model in models]
        assert all(isinstance(network, BertForTokenClassification) for network in networks)
        frame = pd.read_csv(input).assign(models=len(networks), tags=networks[0].config.num_labels)
        return Predictions(
            frame,
            {"rows tagged": len(frame)},
            {"ensemble": lambda rows: {"accuracy": 1.0}},
            np.arange(len(frame)),
        )


def test_one_line_makes_a_new_kind_known_to_every_command(tmp_path, monkeypatch, capsys):
    model, data, out = (
        save_family(tmp_path / "model", "bert"),
        str(tmp_path / "data.csv"),
        str(tmp_path / "out"),
    )
    pd.DataFrame({"text": ["Ada lives in Rome"]}).to_csv(data, index=False)
    task = TaskConfig(data, task_type="tagging")
    with pytest.raises(InputError, match="no task_type 'tagging'; use one of binary,"):
        finetune(out, str(model), task)
    monkeypatch.setitem(KINDS, "tagging", Tagging)
    report = finetune(out, str(model), task, FinetuneConfig(precision="fp32"), [0, 1])
    assert report["valid"]["accuracy"]["max"] == 0.6 and report["best_seed"] == 1
    frame = predicted(out, data)
    assert frame.loc[0, "models"] == 2 and frame.loc[0, "tags"] == 3
    assert evaluate(out, data, resamples=2)["metrics"]["ensemble"]["accuracy"]["value"] == 1.0
