"""Ensembles: the models of all seeds, which predict for the rows of tables."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from exlm.tasks.encoders.loading import SeedModel
from exlm.tasks.rows.reading import TableTokens, TextReader
from exlm.tasks.rows.table import TextTable
from exlm.tasks.tables.network_outputs import make_predictions, run_network
from exlm.tasks.tables.predictions import PredictOptions


@dataclass(frozen=True)
class Ensemble(ABC):
    """The models of all seeds. They check the texts of rows, and then predict for them."""

    models: Sequence[SeedModel]
    molecules: bool  # whether the texts are SMILES
    options: PredictOptions
    by_frames: ClassVar[bool]  # whether they may predict for the frames of a file one by one

    @property
    def may_cut(self) -> bool:
        """Whether too long texts are cut."""
        return False

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer that spells texts before they are compared; None if none does."""

    @abstractmethod
    def check_texts(self, table: TextTable, path: str) -> tuple[TextTable, TableTokens]:
        """Rows of the file `path`, with what is wrong with them for the models, and their tokens.
        InputError as `TextTable.check` says."""

    @abstractmethod
    def predict(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        """What every model predicts for rows that were checked: [rows, outputs] by its name, NaN
        for rows that cannot be used."""


class EncoderEnsemble(Ensemble):
    """Fine-tuned encoders. All have the same tokenizer."""

    by_frames: ClassVar[bool] = True

    @property
    def may_cut(self) -> bool:
        return not self.molecules

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self.models[0].tokenizer

    def check_texts(self, table: TextTable, path: str) -> tuple[TextTable, TableTokens]:
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
        rows = np.flatnonzero(table.usable)
        return predict_tokens(self.models, tokens, rows, self.options, shows_progress)


def predict_tokens(
    models: Sequence[SeedModel],
    tokens: TableTokens,
    rows: np.ndarray,
    options: PredictOptions,
    shows_progress: bool = False,
) -> dict[str, np.ndarray]:
    """What every fine-tuned encoder predicts for some rows: [all rows, outputs] by its name, NaN
    for all other rows."""
    predictions = {}
    for model in models:
        name = model.name
        outputs = run_network(
            model.network,
            model.tokenizer,
            tokens,
            rows,
            model.saved_task.head_names,
            precision=options.precision,
            progress=name if shows_progress else None,
        )
        temperature = model.saved_task.temperature if options.calibrated else None
        predictions[name] = make_predictions(model.saved_task, outputs, temperature or 1.0)
    return predictions
