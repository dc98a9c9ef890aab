"""What a baseline leaves for predictions: the rows that it learned from.

It is fitted to them again, with the same seed, which gives the same model. So a file that somebody
passes on is data; a saved object of scikit-learn could run any code where it is loaded."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import standardize
from exlm.data.frames import FileRows
from exlm.data.tokenization import letter_tokenizer
from exlm.errors import InputError
from exlm.storage.files import read_or_empty, write_json
from exlm.tasks.baselines import BASELINES
from exlm.tasks.baselines.base import BaselineInputs
from exlm.tasks.baselines.texts import are_proteins, are_single_words, checked_texts
from exlm.tasks.encoders.results import BASELINE_FILE
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.rows.reading import TableTokens
from exlm.tasks.rows.table import TextTable
from exlm.tasks.tables.predictor import TablePredictor


def save_baseline(learned: BaselineInputs, run_dir: Path) -> None:
    """Writes all that is needed to fit a baseline again."""
    content = vars(learned) | {"task": learned.saved_task.to_json()}
    for name in ("saved_task", "log"):
        del content[name]
    for name in ("labels", "train", "valid"):
        content[name] = content[name].tolist()
    write_json(run_dir / BASELINE_FILE, content)


def load_baseline(run_dir: Path) -> BaselineInputs:
    """What `save_baseline` wrote; InputError if the file is damaged."""
    content = read_or_empty(run_dir / BASELINE_FILE)
    try:
        saved_task = SavedTask.from_json(content.pop("task"))
        content["labels"] = np.array(content["labels"], dtype=float)
        for part in ("train", "valid"):
            content[part] = np.array(content[part], dtype=int)
        return BaselineInputs(**content, saved_task=saved_task, log=run_dir / "predict.log")
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{run_dir / BASELINE_FILE} is damaged; restore it or train the baseline again"
        ) from None


def predict_table(learned: BaselineInputs, table: TextTable) -> np.ndarray:
    """Fits a baseline to the rows that it learns from, and predicts for a table: [rows, classes or
    labels], NaN for rows that cannot be used."""
    rows = np.flatnonzero(table.usable)
    texts = [standardize(table.texts[row], learned.saved_task.standardize) for row in rows]
    pairs = None
    if learned.pairs and table.pairs:
        pairs = learned.pairs + [table.pairs[row] for row in rows]
    without_labels = np.full((len(rows), learned.labels.shape[1]), np.nan)
    inputs = replace(
        learned,
        texts=learned.texts + texts,
        pairs=pairs,
        labels=np.concatenate([learned.labels, without_labels]),
    )
    fitted = inputs.all_labels(BASELINES[learned.name].fit_predict(inputs))
    predictions = np.full((len(table.texts), fitted.shape[1]), np.nan)
    predictions[rows] = fitted[len(learned.texts) :]
    return predictions


class BaselinePredictor(TablePredictor):
    """Predictions with saved baselines."""

    fits_again: ClassVar[bool] = True

    def read(self, rows: FileRows) -> tuple[TextTable, TableTokens]:
        """Some rows of the file, of which baselines read the texts and no tokens."""
        proteins = not self.molecules and are_proteins(
            load_baseline(self.models[0].directory).texts
        )
        on_invalid = self.options.on_invalid
        table = checked_texts(self.texts_of(rows), self.molecules, proteins, on_invalid)
        table.check(self.path, on_invalid)
        return table, TableTokens([])

    def _tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer of proteins, which spells texts of single words, as in the training."""
        learned = load_baseline(self.models[0].directory)
        return letter_tokenizer("protein") if are_single_words(learned.texts) else None

    def predictions_by_model(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        """What every baseline predicts, by the name of its seed."""
        by_model = {}
        for model in tqdm(self.models, "fitting again", unit="model", disable=not shows_progress):
            learned = load_baseline(model.directory)
            by_model[model.directory.name] = predict_table(learned, table)
        return by_model
