"""What the outputs of a saved model mean: how they become predictions and columns of a table.

`OutputMeaning` is for labels of rows. `UnitMeaning` is for those of residues and words, the units
of a text: labels and predictions are arrays over the units of a row, so that they do not depend on
the tokenizer. What a model says about a unit is what it says about its first token."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from exlm.ops.expansion import IGNORED
from exlm.tasks.encoders.inference import SCORING, batch_outputs
from exlm.tasks.encoders.loading import TunedModel
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.cells import class_values
from exlm.tasks.labels.column_labels import label_cells, note_unscored, read_labels
from exlm.tasks.labels.scores import diverged
from exlm.tasks.rows.reading import TableTokens
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.units import read_unit_labels, spell_labels
from exlm.tasks.tables.certainty import class_sets


class OutputMeaning:
    """How outputs are read as predictions of the labels of rows."""

    padding_side: ClassVar[str | None] = None  # of batches; None: as the tokenizer prefers

    def __init__(self, saved_task: SavedTask) -> None:
        self.saved_task = saved_task
        self.label_type = saved_task.label_type
        # there is a prediction of every class, or else of every label
        names = saved_task.class_names or saved_task.label_columns
        self.titles = [f"predicted {name}" for name in names]  # of the columns of predictions
        self.head_names = self.label_type.head_names(names)  # of every output

    @property
    def label_names(self) -> list[str] | None:
        """What labels are called in a table; None if they are numbers, 0 and 1 included."""
        return self.saved_task.class_names or self.saved_task.binary_names

    def outputs(
        self,
        tuned: TunedModel,
        tokens: TableTokens,
        rows: np.ndarray,
        precision: str = SCORING,
        progress: str | None = None,
    ) -> np.ndarray:
        """A model's outputs for some rows: [all rows, outputs] float64, or as `UnitMeaning` says,
        NaN for all others. `progress` names a bar."""
        network, tokenizer = tuned
        result = self._empty_outputs(tokens)
        batches = batch_outputs(
            network=network,
            function=lambda **batch: network(**batch).logits,
            examples=[tokens.examples[row] for row in rows],
            tokenizer=tokenizer,
            precision=precision,
            progress=progress,
            padding_side=self.padding_side,
        )
        for numbers, logits in batches:
            result[rows[numbers]] = self._read_logits(logits, tokens, rows[numbers])
        return result

    def _empty_outputs(self, tokens: TableTokens) -> np.ndarray:
        """The array of `outputs` with NaN alone."""
        return np.full((len(tokens.examples), len(self.head_names)), np.nan)

    def _read_logits(self, logits: np.ndarray, tokens: TableTokens, rows: np.ndarray) -> np.ndarray:
        """What `outputs` has of the logits [n, ...] of some rows."""
        return logits

    def targets(self, labels: np.ndarray, unit_starts: np.ndarray | None, length: int) -> Tensor:
        """The labels of a batch's rows [n, labels] as the loss takes them, numbers in standard
        deviations from the mean. `unit_starts` are those of the rows (`TableTokens`), `length` is
        the number of tokens in the batch."""
        if self.label_type.is_number:
            labels = (labels - self.saved_task.mean) / self.saved_task.std
        return self.label_type.targets(labels)

    def as_predictions(self, outputs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        """Predictions [rows, `names`] from a head's outputs: probabilities, of logits divided by a
        `temperature`, or values in the units of the labels. Models whose head returns real units
        have mean 0 and std 1."""
        predictions = self.label_type.predictions(outputs / temperature)
        if self.label_type.is_number:
            return predictions * np.array(self.saved_task.std) + np.array(self.saved_task.mean)
        return predictions

    def columns(
        self, predictions_of_models: Sequence[np.ndarray], table: TextTable
    ) -> dict[str, Any]:
        """The predictions of one or several models, [rows, outputs] each, as columns: the mean of
        every class or label and, of several models, its standard deviation; and if a row has one
        class, the predicted one and its probability."""
        means = np.mean(predictions_of_models, 0)
        columns = dict[str, Any]()
        for output, title in enumerate(self.titles):
            columns[title] = means[:, output]
            if len(predictions_of_models) > 1:
                of_models = [predictions[:, output] for predictions in predictions_of_models]
                # A label may itself be called `NAME std`.
                std = "std over seeds" if f"{title} std" in self.titles else "std"
                columns[f"{title} {std}"] = np.std(of_models, 0, ddof=1)
        if not self.label_type.class_per_row:
            return columns
        best = self.label_type.most_probable(means)[:, 0]
        class_names = np.array(class_values(self.label_names or [0, 1]), dtype=object)
        # a label or a class may itself be called `class`
        title = "most probable class" if "predicted class" in columns else "predicted class"
        columns[title] = np.where(np.isnan(means[:, 0]), None, class_names[best])
        columns["confidence"] = self.label_type.class_probabilities(means)[:, 0].max(-1)
        return columns

    def interval_columns(self, predictions: np.ndarray, margins: np.ndarray) -> dict[str, Any]:
        """The bounds of predicted numbers, or the set of possible classes, of predictions [rows,
        outputs] whose errors are at most the `margins` [labels]."""
        label_columns = self.saved_task.label_columns
        if self.label_type.class_per_row:
            probabilities = self.label_type.class_probabilities(predictions)[:, 0]
            sets = class_sets(probabilities, margins[0], self.label_names or [0, 1])
            return {f"set {label_columns[0]}": sets}
        columns = {}
        for name, numbers, margin in zip(label_columns, predictions.T, margins, strict=True):
            columns[f"lower {name}"] = numbers - margin
            columns[f"upper {name}"] = numbers + margin
        return columns

    def read(self, table: TextTable, path: str, label_columns: list[str]) -> tuple[np.ndarray, int]:
        """The labels of a table in the form that the model was trained on: [rows, labels], NaN in
        columns that it lacks; and how many usable rows have a label that the model does not
        know."""
        with_all_labels = table.frame.reindex(columns=label_columns, fill_value="")
        cells = label_cells(with_all_labels, label_columns, table.problems)
        task_type = self.saved_task.task_type
        labels = read_labels(
            cells,
            path,
            task_type,
            self.label_names,
            skip_unknown=True,
            is_doubtful=table.doubtful_points(cells),
        )
        return labels.values, labels.unknown_rows


class UnitMeaning(OutputMeaning):
    """The labels of the residues or words of texts, a class each."""

    padding_side: ClassVar[str | None] = "right"  # so that tokens are counted from the first one

    def _empty_outputs(self, tokens: TableTokens) -> np.ndarray:
        """NaN for all units [rows, units, classes] float32."""
        assert tokens.unit_starts is not None  # `TextReader` found them
        return np.full((*tokens.unit_starts.shape, len(self.head_names)), np.nan, np.float32)

    def _read_logits(self, logits: np.ndarray, tokens: TableTokens, rows: np.ndarray) -> np.ndarray:
        """The logits of the units [n, units, classes], NaN where there is none; Diverged if one is
        no number."""
        assert tokens.unit_starts is not None
        if np.isnan(logits).any():
            raise diverged("the outputs are not numbers")
        starts = tokens.unit_starts[rows]
        unit_logits = np.take_along_axis(logits, starts.clip(0)[..., None], 1)
        unit_logits[starts < 0] = np.nan
        return unit_logits

    def targets(self, labels: np.ndarray, unit_starts: np.ndarray | None, length: int) -> Tensor:
        """The class of every token [n, length]: a unit's class belongs to its first token, all
        others have IGNORED."""
        assert unit_starts is not None  # `TextReader` found them
        targets = np.full((len(labels), length), IGNORED)
        row, unit = np.nonzero((unit_starts >= 0) & ~np.isnan(labels))
        targets[row, unit_starts[row, unit]] = labels[row, unit]
        return torch.from_numpy(targets)

    def columns(
        self, predictions_of_models: Sequence[np.ndarray], table: TextTable
    ) -> dict[str, Any]:
        """The labels of every row in one string, from predictions [rows, units, classes]."""
        means = np.mean(predictions_of_models, 0)
        unit_pattern = self.saved_task.unit_pattern
        return {"predicted label": spell_labels(means, table.texts, self.head_names, unit_pattern)}

    def read(self, table: TextTable, path: str, label_columns: list[str]) -> tuple[np.ndarray, int]:
        """The classes of the units [rows, units], NaN where a row has no labels that fit; and how
        many usable rows have such labels."""
        [label_column] = label_columns
        labels, problems = read_unit_labels(
            table,
            label_column,
            mask_column=self.saved_task.mask_column,
            unit_pattern=self.saved_task.unit_pattern,
            class_names=self.head_names,
            most_units=self.saved_task.max_length,
        )
        cells = table.frame[label_column].fillna("")
        usable_rows = np.flatnonzero(table.usable)
        unscored = {
            int(row): problems[row] for row in usable_rows if cells.iloc[row] and problems[row]
        }
        note_unscored(unscored, table.frame.index, path)
        return labels, len(unscored)


def meaning_of(saved_task: SavedTask) -> OutputMeaning:
    """What the outputs of a model of this task mean."""
    return UnitMeaning(saved_task) if saved_task.label_type.of_units else OutputMeaning(saved_task)
