"""Encoders fine-tuned for a table: it is read once, then any number of seeds are trained."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from exlm.data.spelling import spelling_of
from exlm.errors import note
from exlm.ops.loss import LossSum
from exlm.storage.models import save_model, weight_files
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.inference import model_inputs, pad
from exlm.tasks.encoders.loading import (
    EncoderSource,
    TunedModel,
    load_config,
    load_encoder_tokenizer,
)
from exlm.tasks.encoders.saved_task import SavedTask, remembered
from exlm.tasks.encoders.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType
from exlm.tasks.results import SeedResult
from exlm.tasks.rows.datasets import load_labelled
from exlm.tasks.rows.reading import TextReader, note_spelling
from exlm.tasks.tables.certainty import errors_to_keep, fit_temperature
from exlm.tasks.tables.output_meaning import OutputMeaning, meaning_of
from exlm.tasks.tables.scoring import LabelledPredictions
from exlm.tasks.tables.seed_results import write_results
from exlm.tasks.tables.table_config import infer_settings
from exlm.tasks.tables.table_task import TableTask, deviations
from exlm.tasks.tables.unit_table import load_unit_table

DEFAULT_LENGTH = 512
# The largest mean of labels, in their standard deviations, that a float32 output can include
LARGEST_OFFSET = 10_000


class TableFinetuning(TableTask):
    """Encoders that are fine-tuned for a labelled table.

    The `LabelType` says what is learned of the labels. A `SavedTask` is kept with a model, with
    what the training finds out; it tells `OutputMeaning` how to read its outputs."""

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str) -> None:
        """Reads the table of a config for an encoder that is trained on a device."""
        self.encoder = encoder
        self.device = device
        self.tokenizer, self.max_length = load_encoder_tokenizer(
            encoder.name, config.max_length or DEFAULT_LENGTH
        )
        if config.task_type and LABEL_TYPES[config.task_type].of_units:
            table = load_unit_table(config, self.max_length)
        else:
            table = load_labelled(config)
        table_config = infer_settings(config, table, remembered(load_config(encoder.name)))
        molecules = table_config.molecules
        standardize = table_config.standardize
        if molecules and standardize == "none":
            note_spelling(table.texts, config.dataset)
        reader = TextReader(
            self.tokenizer, self.max_length, molecules, standardize, config.on_invalid
        )
        readable_table, self.tokens = reader.read(table)
        super().__init__(
            table_config,
            readable_table,
            rows_to_split=table.usable,
            spelling=spelling_of(self.tokenizer, molecules, standardize).as_compared,
            earlier_run=encoder.earlier_run,
        )

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> SeedResult:
        """Trains with one seed and keeps the epoch that is best on valid."""
        torch.manual_seed(seed)
        split = self.split_of(seed)
        train = split["train"]
        valid = split["valid"]
        labels = self.table.labels
        saved_task = replace(self.saved_task(train), max_length=self.max_length)
        if self.table.label_type.is_number:
            mean = np.nanmean(labels[train], 0).tolist()
            saved_task = replace(saved_task, mean=mean, std=deviations(labels[train]))
        meaning = meaning_of(saved_task)
        names = meaning.head_names
        model_settings = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": meaning.label_type.problem_type,
        }
        network = self.encoder.load(saved_task, hyper, model_settings)
        tuned = TunedModel(network, self.tokenizer)

        def validate() -> dict[str, float]:
            outputs = meaning.outputs(tuned, self.tokens, valid)
            predictions = meaning.as_predictions(outputs)
            return LabelledPredictions(saved_task, labels, predictions).score(valid)

        best_epoch = train_best_epoch(
            network=network,
            loss=partial(training_loss, meaning.label_type),
            batches=self._batches(meaning, train, hyper, seed),
            run_dir=run_dir,
            hyper=hyper,
            score=validate,
            metric=self.metric,
            device=self.device,
        )
        predicted_rows = np.flatnonzero(self.table.usable & self.rows_to_predict(split))
        outputs = meaning.outputs(tuned, self.tokens, predicted_rows)
        finish_training(network, meaning, outputs[valid], labels[valid])
        save_model(run_dir, network, self.tokenizer)
        predictions = meaning.as_predictions(outputs)
        return {
            "best_epoch": best_epoch,
            "weight_files": {"model": weight_files(self.encoder.name)},
            **write_results(self, split, saved_task, predictions, run_dir),
        }

    def _batches(
        self, meaning: OutputMeaning, rows: np.ndarray, hyper: FinetuneConfig, seed: int
    ) -> ShuffledBatches:
        """Batches of the rows to train on, with their labels."""
        assert hyper.batch_size  # filled in before
        unit_starts = self.tokens.unit_starts

        def collate(rows_of_batch: np.ndarray) -> dict[str, Tensor]:
            examples = [self.tokens.examples[row] for row in rows_of_batch]
            batch = pad(examples, self.tokenizer, meaning.padding_side)
            starts = None if unit_starts is None else unit_starts[rows_of_batch]
            length = batch["input_ids"].shape[1]
            labels = self.table.labels[rows_of_batch]
            return batch | {"labels": meaning.targets(labels, starts, length)}

        lengths = [len(example["input_ids"]) for example in self.tokens.examples]
        return ShuffledBatches(lengths, rows, hyper.batch_size, seed, collate)


def finish_training(
    network: PreTrainedModel, meaning: OutputMeaning, outputs: np.ndarray, labels: np.ndarray
) -> None:
    """Lets a network, whose outputs for the valid rows are [n, outputs], keep what its training
    found out: the errors on valid, the temperature of logits, or the scale of numbers as part of
    the network."""
    label_type = meaning.label_type
    saved_task = meaning.saved_task
    if label_type.is_number or label_type.class_per_row:
        errors = label_type.errors(labels, meaning.as_predictions(outputs))
        saved_task = replace(saved_task, validation_errors=errors_to_keep(errors))
    if label_type.is_number:
        saved_task = fold_label_scale(network, saved_task)
    else:
        truths, logits = label_type.as_rows(labels, outputs)
        temperature = fit_temperature(label_type, logits, truths)
        saved_task = replace(saved_task, temperature=temperature)
    network.config.task = saved_task.to_json()


def fold_label_scale(network: PreTrainedModel, saved_task: SavedTask) -> SavedTask:
    """Makes the last layer of a regression network return real units, in place; returns what is
    saved with it, with mean 0 and std 1. The outputs are those of its last linear layer: the heads
    of all families end with it. The layer stays as it is where float32 could not tell the labels
    apart."""
    mean = torch.tensor(saved_task.mean, dtype=torch.float64)
    std = torch.tensor(saved_task.std, dtype=torch.float64)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    has_no_layer = not layers or layers[-1].bias is None or layers[-1].out_features != len(mean)
    if has_no_layer or (mean.abs() > LARGEST_OFFSET * std).any():
        note(
            f"the head of {network.config.model_type} stays standardised; use exlm predict, "
            f"not pipelines"
        )
        return saved_task
    last = layers[-1]
    with torch.no_grad():
        last.weight.copy_(last.weight.cpu().double() * std[:, None])
        last.bias.copy_(last.bias.cpu().double() * std + mean)
    return replace(saved_task, mean=[0.0] * len(mean), std=[1.0] * len(std))


def training_loss(label_type: LabelType, network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
    """Summed over the labels of a batch."""
    outputs = network(**model_inputs(network, batch)).logits.float()
    total, count = label_type.loss(outputs, batch["labels"].to(outputs.device))
    return LossSum(total, count, torch.zeros_like(count))
