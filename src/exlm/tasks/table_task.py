"""A table whose rows have labels, classes or numbers: load it once, then train any number of seeds;
and what their outputs say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from exlm.data.frames import read_frame, read_frames
from exlm.data.parts import ROWS
from exlm.data.tokenization import alphabet_name
from exlm.model.downstream import classification_loss
from exlm.storage.models import save_model
from exlm.tasks.certainty import conformal_errors, errors_to_keep, fit_temperature
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import (
    SCORING,
    EncoderSource,
    Models,
    SavedTask,
    SeedModel,
    TunedModel,
    fold_label_scale,
    load_config,
    load_encoder_tokenizer,
    prediction_names,
)
from exlm.tasks.inference import model_inputs, pad, row_outputs
from exlm.tasks.labelled import LabelledTask, positive_or_one
from exlm.tasks.metrics import as_rows
from exlm.tasks.predictions import ChunkPredictor, Predictions, PredictOptions, TablePredictor
from exlm.tasks.reading import TextReader, text_kind
from exlm.tasks.splits import RowSplit
from exlm.tasks.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.table import LABEL_TYPES, LabelledTable, make_table

DEFAULT_LENGTH = 512


class TableTask(LabelledTask):
    """A labelled table, its tokens, and how to train a model on it (`FinetuningTask`).

    A further kind of task changes what it needs of the hooks. For training: `load_table` (labels),
    `head_names` (how many outputs the head has), `batch_labels` and `loss`. For predictions:
    `outputs`, `as_predictions` and `prediction_columns`. What a hook needs of a saved model is in
    `saved`, which `saved_table` and `task_to_save` make. The flags below and those of its entry in
    LABEL_TYPES decide the rest."""

    model_classes: ClassVar[Models] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    has_baselines: ClassVar[bool] = True
    # Whether a temperature is fitted that divides the outputs before they become probabilities;
    # never where the labels are numbers. False if the outputs are no logits of the labels.
    fits_temperature: ClassVar[bool] = True
    predicts_in_chunks: ClassVar[bool] = True  # whether some rows can be predicted without the rest
    can_explain: ClassVar[bool] = True  # whether texts can be masked, and have one prediction each
    padding_side: ClassVar[str | None] = None  # of batches; None: as the tokenizer prefers
    predictor: ClassVar[type[TablePredictor]] = TablePredictor

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str = "auto") -> None:
        self.encoder = encoder
        self.device = device
        self.tokenizer, self.max_length = load_encoder_tokenizer(
            encoder.name, config.max_length or DEFAULT_LENGTH
        )
        super().__init__(config, text_kind(load_config(encoder.name)))

    def read_rows(self, table: LabelledTable) -> LabelledTable:
        reader = TextReader(
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            molecules=bool(self.config.molecules),
            standardize=self.config.standardize or "none",
            on_invalid=self.config.on_invalid,
        )
        return reader.read(table)

    def spelling(self, text: str) -> str:
        backend = self.tokenizer.backend_tokenizer
        if alphabet_name(backend):  # capitals, and no * at the end
            return backend.normalizer.normalize_str(text)
        return super().spelling(text)

    # Training

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains with one seed and keeps the epoch that is best on valid. Returns it, and what
        `record` tells."""
        torch.manual_seed(seed)
        split = self.split_of(seed)
        saved = self.task_to_save(split["train"])
        names = self.head_names(saved)
        model_settings = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": self.problem_type,
            "task": saved,
        }
        network = self.encoder.load(self.model_classes, hyper, model_settings)
        tuned = TunedModel(network, self.tokenizer, saved)
        best_epoch = self._train(tuned, run_dir, hyper, seed, split)

        predicted_rows = self.table.usable & self.rows_to_predict(split)
        outputs = self.outputs(tuned, self.table, np.flatnonzero(predicted_rows))
        network.config.task = self._completed(tuned, outputs[split["valid"]], split["valid"])
        save_model(run_dir, network, self.tokenizer)
        predictions = self.as_predictions(outputs, saved)
        return {"best_epoch": best_epoch, **self.record(run_dir, split, predictions)}

    def _train(
        self, tuned: TunedModel, run_dir: Path, hyper: FinetuneConfig, seed: int, split: RowSplit
    ) -> int:
        """Trains a network in place; returns the epoch that is best on valid, whose weights it
        has."""
        assert hyper.batch_size  # filled in before

        def collate(rows: np.ndarray) -> dict[str, Tensor]:
            examples = [self.table.examples[row] for row in rows]
            batch = pad(examples, self.tokenizer, self.padding_side)
            return batch | {"labels": self.batch_labels(batch, rows, tuned.saved)}

        def training_loss(
            model: nn.Module, batch: dict[str, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor]:
            outputs = model(**model_inputs(model, batch)).logits.float()
            total, count = self.loss(outputs, batch["labels"].to(outputs.device))
            return total, count, torch.zeros_like(count)

        def validate(_: nn.Module) -> dict[str, float]:
            outputs = self.outputs(tuned, self.table, split["valid"])
            predictions = self.as_predictions(outputs, tuned.saved)
            return self.score(predictions, split["valid"], tuned.saved["error_units"])

        lengths = [len(example["input_ids"]) for example in self.table.examples]
        return train_best_epoch(
            network=tuned.network,
            loss=training_loss,
            batches=ShuffledBatches(lengths, split["train"], hyper.batch_size, seed, collate),
            run_dir=run_dir,
            hyper=hyper,
            score=validate,
            metric=self.metric,
            device=self.device,
        )

    def _completed(self, tuned: TunedModel, outputs: np.ndarray, valid: np.ndarray) -> SavedTask:
        """What is saved with a trained network, whose outputs for the `valid` rows are [n,
        outputs]: the temperature of logits, or the scale of numbers as part of the network, and the
        errors on valid."""
        label_type = self.table.label_type
        labels = self.table.labels[valid]
        saved = tuned.saved
        if label_type.is_number or label_type.one_class:
            predictions = self.as_predictions(outputs, saved)
            errors = conformal_errors(labels, predictions, label_type.has_classes)
            saved = {**saved, "validation_errors": errors_to_keep(errors)}
        if label_type.is_number:
            return fold_label_scale(tuned.network, saved)
        if not self.fits_temperature:
            return saved
        labels, logits = as_rows(labels, outputs)
        temperature = fit_temperature(logits, labels, label_type.has_classes)
        return {**saved, "temperature": temperature}

    @staticmethod
    def head_names(saved: SavedTask) -> list[str]:
        """A name for every output of the model's head; there are as many as outputs."""
        return prediction_names(saved)

    @property
    def problem_type(self) -> str:
        """The loss, as transformers call it."""
        if self.table.label_type.has_classes:
            return "single_label_classification"
        is_number = self.table.label_type.is_number
        return "regression" if is_number else "multi_label_classification"

    def loss(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the losses of the labels of a batch (`batch_labels`), and their number."""
        return classification_loss(outputs, labels, self.problem_type)

    def batch_labels(self, batch: dict[str, Tensor], rows: np.ndarray, saved: SavedTask) -> Tensor:
        """The labels of a batch's rows as the loss takes them: [n] or [n, labels], of numbers in
        standard deviations from the mean."""
        labels = (self.table.labels[rows] - saved["mean"]) / saved["std"]
        return torch.from_numpy(labels[:, 0] if labels.shape[1] == 1 else labels).float()

    def task_to_save(self, train_rows: np.ndarray) -> SavedTask:
        """What is needed to predict with the model. `mean` and `std` [labels] are those of the
        training labels, if they are numbers."""
        mean = np.zeros(len(self.table.label_columns))
        std = np.ones(len(self.table.label_columns))
        if self.table.label_type.is_number:
            labels = self.table.labels[train_rows]
            mean = np.nanmean(labels, 0)
            std = positive_or_one(np.nanstd(labels, 0))
        return {
            **self.saved_table(train_rows),
            "max_length": self.max_length,
            "precision": SCORING,
            "mean": mean.tolist(),
            "std": std.tolist(),
        }

    # Predicting

    @classmethod
    def outputs(
        cls, tuned: TunedModel, table: LabelledTable, rows: np.ndarray, progress: str | None = None
    ) -> np.ndarray:
        """A model's outputs for some rows: [all rows, outputs] float64, NaN for all others.
        `progress` names a bar."""
        network, tokenizer, saved = tuned
        outputs = row_outputs(
            model=network,
            function=lambda **batch: network(**batch).logits,
            width=len(cls.head_names(saved)),
            table=table,
            rows=rows,
            tokenizer=tokenizer,
            precision=saved["precision"],
            progress=progress,
        )
        return outputs.astype(np.float64)

    @staticmethod
    def as_predictions(
        outputs: np.ndarray, saved: SavedTask, temperature: float = 1.0
    ) -> np.ndarray:
        """Predictions [rows, `prediction_names`] from a head's outputs: probabilities, of logits
        divided by a `temperature`, or values in the units of the labels. Models whose head returns
        real units have mean 0 and std 1."""
        label_type = LABEL_TYPES[saved["task_type"]]
        if label_type.is_number:
            return outputs * np.asarray(saved["std"]) + np.asarray(saved["mean"])
        if label_type.has_classes:
            return softmax(outputs / temperature, -1)
        return 1 / (1 + np.exp(-np.clip(outputs / temperature, -700, 700)))

    @staticmethod
    def saved_labels(table: LabelledTable, path: str, saved: SavedTask) -> np.ndarray:
        """The labels of a table in the form that the model was trained on: [rows, labels].
        InputError if a value is no label."""
        labelled = make_table(
            frame=table.frame,
            path=path,
            text_column=table.text_column,
            label_columns=saved["label_columns"],
            task_type=saved["task_type"],
            classes=saved["classes"] or saved.get("words"),
            skip_unknown_classes=True,
        )
        return labelled.labels

    @staticmethod
    def table_to_predict(
        frame: pd.DataFrame, path: str, options: PredictOptions, saved: SavedTask
    ) -> LabelledTable:
        """The rows of a frame, without labels."""
        text_column = options.text_column
        if text_column is None and saved["text_column"] in frame:
            text_column = saved["text_column"]
        return make_table(frame, path, text_column, [], pair_column=saved["pair_column"])

    @classmethod
    def predict(
        cls, models: Sequence[SeedModel], input: str, options: PredictOptions
    ) -> Predictions:
        """Predictions for a table: means over the models, with standard deviations."""
        rows = read_frame(input, options.header, options.sheet)
        return cls.predictor(cls, models, input, options, rows).predict(rows)

    @classmethod
    def chunk_predictor(
        cls, models: Sequence[SeedModel], input: str, options: PredictOptions
    ) -> ChunkPredictor | None:
        """Predicts for some rows of a table, which must not have the label columns."""
        if not cls.predicts_in_chunks or options.explain:
            return None
        rows = next(read_frames(input, options.header, ROWS, sheet=options.sheet))
        if set(options.labels_in(rows, input, models[0].saved["label_columns"])) <= set(rows):
            return None
        return cls.predictor(cls, models, input, options, rows).predict_chunk
