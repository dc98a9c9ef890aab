"""What a baseline leaves for predictions: the rows that it learned from.

It is fitted to them again, with the same seed, which gives the same model. So a file that somebody
passes on is data; a saved object of scikit-learn could run any code where it is loaded."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from tqdm import tqdm

from exlm.data.chemistry import molecule_problem, standardize
from exlm.data.frames import FileRows
from exlm.errors import InputError
from exlm.storage.files import read_or_empty, write_json
from exlm.tasks.baselines import BASELINES
from exlm.tasks.baselines.base import BaselineInputs
from exlm.tasks.grid import BASELINE_FILE
from exlm.tasks.reading import TableTokens
from exlm.tasks.saved_task import SavedTask
from exlm.tasks.table import TextTable
from exlm.tasks.table_predictor import TablePredictor


def fit_predict(inputs: BaselineInputs, log: Path) -> np.ndarray:
    """Predictions for all texts, [rows, classes or labels]; `log` is for the output of a
    program."""
    return inputs.all_labels(BASELINES[inputs.name].fit_predict(inputs, log))


def save_baseline(inputs: BaselineInputs, run_dir: Path) -> None:
    """Writes the rows of train and valid, and all that else is needed to fit it again."""
    rows = np.sort(np.concatenate([inputs.train, inputs.valid]))
    learned_from = replace(
        inputs,
        texts=[inputs.texts[row] for row in rows],
        pairs=[inputs.pairs[row] for row in rows] if inputs.pairs else None,
        labels=inputs.labels[rows].tolist(),
        train=np.searchsorted(rows, inputs.train).tolist(),
        valid=np.searchsorted(rows, inputs.valid).tolist(),
    )
    write_json(run_dir / BASELINE_FILE, learned_from)


def load_baseline(run_dir: Path) -> BaselineInputs:
    """What `save_baseline` wrote; InputError if the file is damaged."""
    content = read_or_empty(run_dir / BASELINE_FILE)
    try:
        labels = np.array(content.pop("labels"), dtype=float)
        train, valid = (np.array(content.pop(part), dtype=int) for part in ("train", "valid"))
        return BaselineInputs(**content, labels=labels, train=train, valid=valid)
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{run_dir / BASELINE_FILE} is damaged; restore it or train the baseline again"
        ) from None


def leave_out_what_is_no_molecule(table: TextTable) -> TextTable:
    """The table, in which the problem of every row that RDKit cannot parse is named."""
    problems = [
        problem or molecule_problem(text) or ""
        for problem, text in zip(table.problems, table.texts, strict=True)
    ]
    return replace(table, problems=problems)


def usable_texts(
    table: TextTable, task: SavedTask
) -> tuple[np.ndarray, list[str], list[str] | None]:
    """The rows that can be used, their texts as a baseline reads them, and their second texts."""
    rows = np.flatnonzero(table.usable)
    texts = [standardize(table.texts[row], task["standardize"]) for row in rows]
    return rows, texts, [table.pairs[row] for row in rows] if table.pairs else None


def in_all_rows(table: TextTable, predictions: np.ndarray) -> np.ndarray:
    """Predictions for the usable rows [usable rows, outputs] as [rows, outputs], NaN elsewhere."""
    in_table = np.full((len(table.texts), predictions.shape[1]), np.nan)
    in_table[table.usable] = predictions
    return in_table


class BaselinePredictor(TablePredictor):
    """Predictions with saved baselines."""

    fits_again: ClassVar[bool] = True

    def read(self, rows: FileRows) -> tuple[TextTable, TableTokens]:
        """Some rows of the file, of which baselines read the texts and no tokens."""
        table = self.texts_of(rows)
        if self.molecules:
            table = leave_out_what_is_no_molecule(table)
        table.check(self.path, self.options.on_invalid)
        return table, TableTokens([])

    def run(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        _, texts, pairs = usable_texts(table, self.saved)
        runs = {}
        for model in tqdm(self.models, "fitting again", unit="model", disable=not shows_progress):
            learned_from = load_baseline(model.directory)
            size = len(learned_from.texts)
            without_labels = np.full((len(texts), learned_from.labels.shape[1]), np.nan)
            inputs = replace(
                learned_from,
                texts=learned_from.texts + texts,
                pairs=learned_from.pairs + pairs if learned_from.pairs and pairs else None,
                labels=np.concatenate([learned_from.labels, without_labels]),
            )
            predictions = fit_predict(inputs, model.directory / "predict.log")[size:]
            runs[model.directory.name] = in_all_rows(table, predictions)
        return runs
