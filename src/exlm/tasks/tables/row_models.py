"""The models of all seeds that predict for the rows of tables."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from exlm.tasks.encoders.loading import SeedModel
from exlm.tasks.rows.reading import TableTokens, TextReader
from exlm.tasks.rows.table import TextTable
from exlm.tasks.tables.output_meaning import meaning_of
from exlm.tasks.tables.predictions import PredictOptions


@dataclass(frozen=True)
class RowModels(ABC):
    """Fine-tuned models of all seeds, which read the texts of rows and predict for them."""

    models: Sequence[SeedModel]
    molecules: bool  # whether the texts are SMILES
    options: PredictOptions
    in_chunks: ClassVar[bool]  # whether they may predict for some rows of a file at a time

    @property
    def may_cut(self) -> bool:
        """Whether too long texts are cut."""
        return False

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """What spells texts before they are compared; None if nothing does."""

    @abstractmethod
    def read(self, table: TextTable, path: str) -> tuple[TextTable, TableTokens]:
        """Rows of the file `path`, with what is wrong for the models, and their tokens."""

    @abstractmethod
    def predict(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        """What every model predicts for rows that were read: [rows, outputs] by its name, NaN for
        rows that cannot be used."""


class Encoders(RowModels):
    """Fine-tuned encoders. All have the same tokenizer."""

    in_chunks: ClassVar[bool] = True

    @property
    def may_cut(self) -> bool:
        return not self.molecules

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self.models[0].loaded.tokenizer

    def read(self, table: TextTable, path: str) -> tuple[TextTable, TableTokens]:
        saved_task = self.models[0].saved_task
        reader = TextReader(
            tokenizer=self.tokenizer,
            max_length=saved_task.max_length,
            molecules=self.molecules,
            standardize=saved_task.standardize,
            on_invalid=self.options.on_invalid,
        )
        return reader.read(table, path)

    def predict(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        return self.predict_tokens(tokens, np.flatnonzero(table.usable), shows_progress)

    def predict_tokens(
        self, tokens: TableTokens, rows: np.ndarray, shows_progress: bool = False
    ) -> dict[str, np.ndarray]:
        """What every model predicts for some rows: [all rows, outputs], NaN for all others."""
        predictions = {}
        for model in self.models:
            name = model.directory.name
            meaning = meaning_of(model.saved_task)
            progress = name if shows_progress else None
            outputs = meaning.outputs(model.loaded, tokens, rows, self.options.precision, progress)
            temperature = model.saved_task.temperature if self.options.calibrated else None
            predictions[name] = meaning.as_predictions(outputs, temperature or 1.0)
        return predictions
