"""The models of single seeds, which predict for the rows of tables. Several are an ensemble, whose
prediction is the mean of theirs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.problems import OnInvalid
from exlm.tasks.encoders.loading import (
    load_encoder_tokenizer,
    load_finetuned,
    load_saved_task,
)
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.rows.reading import TableTokens, TextReader
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.units import RESIDUE, residue_pattern
from exlm.tasks.tables.network_outputs import make_predictions, run_network
from exlm.tasks.tables.predictions import PredictOptions
from exlm.train import devices


@dataclass(frozen=True)
class SeedModel(ABC):
    """The model of one seed: a fine-tuned encoder (`EncoderModel`) or a baseline."""

    directory: Path
    saved_task: SavedTask
    # Whether it reads tokens. Then it predicts for the frames of a file one by one, cuts too long
    # texts, and its predictions can be explained. A baseline reads whole texts, and learns again
    # each time that it predicts.
    reads_tokens: ClassVar[bool]

    @property
    def name(self) -> str:
        """The name of its directory, also where this is given as `.`."""
        return self.directory.resolve().name

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer that spells texts before they are compared; None if none does."""

    @abstractmethod
    def check_texts(
        self, table: TextTable, path: str, molecules: bool, on_invalid: OnInvalid
    ) -> tuple[TextTable, TableTokens]:
        """Rows of the file `path`, with what is wrong with them for the models of all seeds, and
        their tokens. InputError as `TextTable.check` says."""

    @abstractmethod
    def predict(
        self, table: TextTable, tokens: TableTokens, options: PredictOptions, shows_progress: bool
    ) -> np.ndarray:
        """The predictions for rows that were checked: [rows, outputs], NaN for rows that cannot be
        used."""


@dataclass(frozen=True)
class EncoderModel(SeedModel):
    """A fine-tuned encoder, which is loaded when it is used first."""

    device: str
    reads_tokens: ClassVar[bool] = True

    @property
    def network(self) -> PreTrainedModel:
        """The network on its device."""
        return self._loaded[0]

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer, which is the same for all seeds."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        network, tokenizer = load_finetuned(str(self.directory))
        devices.place_model(network, self.device)
        return network, tokenizer

    def check_texts(
        self, table: TextTable, path: str, molecules: bool, on_invalid: OnInvalid
    ) -> tuple[TextTable, TableTokens]:
        reader = TextReader(
            tokenizer=self.tokenizer,
            max_length=self.saved_task.max_length,
            molecules=molecules,
            standardize=self.saved_task.standardize,
            on_invalid=on_invalid,
            unit_pattern=self.saved_task.unit_pattern,
        )
        return reader.read(table, path)

    def predict(
        self, table: TextTable, tokens: TableTokens, options: PredictOptions, shows_progress: bool
    ) -> np.ndarray:
        rows = np.flatnonzero(table.usable)
        return self.predict_tokens(tokens, rows, options, shows_progress)

    def predict_tokens(
        self,
        tokens: TableTokens,
        rows: np.ndarray,
        options: PredictOptions,
        shows_progress: bool = False,
    ) -> np.ndarray:
        """The predictions for some rows: [all rows, outputs], NaN for all other rows."""
        outputs = run_network(
            self.network,
            self.tokenizer,
            tokens,
            rows,
            output_count=len(self.saved_task.head_names),
            precision=options.precision,
            progress=self.name if shows_progress else None,
        )
        temperature = self.saved_task.temperature if options.calibrated else None
        return make_predictions(self.saved_task, outputs, temperature or 1.0)


def open_encoder(directory: Path, device: str) -> EncoderModel:
    """The fine-tuned encoder of a directory. InputError if it is none."""
    saved_task = load_saved_task(str(directory))
    if saved_task.unit_pattern == RESIDUE:
        # earlier versions took the `*` at the end of a protein for a residue
        unit_pattern = residue_pattern(load_encoder_tokenizer(str(directory)))
        saved_task = replace(saved_task, unit_pattern=unit_pattern)
    return EncoderModel(directory, saved_task, device)
