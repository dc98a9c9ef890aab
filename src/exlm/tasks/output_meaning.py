"""What the outputs of a saved model mean: how they become predictions and columns of a table.

`OutputMeaning` is for labels of rows. `UnitMeaning` is for those of residues and words, the units
of a text: labels and predictions are arrays over the units of a row, so that they do not depend on
the tokenizer. What a model says about a unit is what it says about its first token."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from exlm.data.frames import FileRows
from exlm.errors import InputError
from exlm.tasks.column_labels import note_unscored
from exlm.tasks.inference import batch_outputs, row_outputs
from exlm.tasks.label_types import LABEL_TYPES, LabelType, TaskType
from exlm.tasks.metrics import diverged
from exlm.tasks.reading import TableTokens
from exlm.tasks.saved_task import SavedTask, TunedModel
from exlm.tasks.table import TextTable, make_table
from exlm.tasks.units import read_unit_labels, spelled


class OutputMeaning:
    """How outputs are read as predictions of the labels of rows, as `saved` with the model.

    Further kinds of labels change what they need: `head_names` (how many outputs the head has) and
    `as_predictions`, or `outputs`, `columns` and `read` if a row has more than one label of a
    column. They are in MEANINGS."""

    # Whether a temperature is fitted that divides the outputs before they become probabilities;
    # never where the labels are numbers. False if the outputs are no logits of the labels.
    fits_temperature: ClassVar[bool] = True
    can_explain: ClassVar[bool] = True  # whether a row has one prediction of each name
    padding_side: ClassVar[str | None] = None  # of batches; None: as the tokenizer prefers

    def __init__(self, saved: SavedTask) -> None:
        self.saved = saved

    @property
    def label_type(self) -> LabelType:
        return LABEL_TYPES[self.saved["task_type"]]

    @property
    def names(self) -> list[str]:
        """What there is a prediction of for every row: the classes, or else the labels."""
        return self.saved["classes"] or self.saved["label_columns"]

    @property
    def titles(self) -> list[str]:
        """The columns of predictions."""
        return [f"predicted {name}" for name in self.names]

    @property
    def head_names(self) -> list[str]:
        """A name for every output of the model's head; there are as many as outputs."""
        return self.names

    def table_to_predict(
        self, rows: FileRows, path: str, text_column: str | None, pair_column: str | None = None
    ) -> TextTable:
        """The rows of a file, without labels. Where it is None, `text_column` is that of the
        training, in the same or in other letters, or one with a usual name, and `pair_column` that
        of the training. InputError for a `pair_column` if the model reads single texts."""
        trained_on_pair = self.saved["pair_column"]
        if pair_column and not trained_on_pair:
            raise InputError(
                f"pair_column names {pair_column!r}, but the model reads single texts; leave it out"
            )
        names = {str(column).lower(): str(column) for column in rows.frame}
        trained_on = self.saved["text_column"]
        if text_column is None and trained_on in rows.frame:
            text_column = trained_on
        elif text_column is None:
            text_column = names.get(trained_on.lower())
        table = make_table(rows, path, text_column, [], pair_column=pair_column or trained_on_pair)
        return replace(table, unit=self.saved.get("unit"))

    def outputs(
        self,
        tuned: TunedModel,
        tokens: TableTokens,
        rows: np.ndarray,
        progress: str | None = None,
    ) -> np.ndarray:
        """A model's outputs for some rows: [all rows, outputs] float64, NaN for all others.
        `progress` names a bar."""
        network, tokenizer = tuned
        outputs = row_outputs(
            model=network,
            function=lambda **batch: network(**batch).logits,
            width=len(self.head_names),
            examples=tokens.examples,
            rows=rows,
            tokenizer=tokenizer,
            precision=self.saved["precision"],
            progress=progress,
        )
        return outputs.astype(np.float64)

    def as_predictions(self, outputs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        """Predictions [rows, `names`] from a head's outputs: probabilities, of logits divided by a
        `temperature`, or values in the units of the labels. Models whose head returns real units
        have mean 0 and std 1."""
        if self.label_type.is_number:
            return outputs * np.asarray(self.saved["std"]) + np.asarray(self.saved["mean"])
        if self.label_type.predicts_every_class:
            return softmax(outputs / temperature, -1)
        return 1 / (1 + np.exp(-np.clip(outputs / temperature, -700, 700)))

    def columns(self, predictions: np.ndarray, table: TextTable) -> dict[str, Any]:
        """Predictions [rows, outputs] as columns: one per class, or one per label."""
        return dict(zip(self.titles, predictions.T, strict=True))

    def read(self, table: TextTable, path: str, label_columns: list[str]) -> np.ndarray:
        """The labels of a table in the form that the model was trained on: [rows, labels].
        InputError if a value is no label."""
        labelled = make_table(
            rows=table.rows,
            path=path,
            text_column=table.text_column,
            label_columns=label_columns,
            task_type=self.saved["task_type"],
            classes=self.saved["classes"] or self.saved.get("words"),
            skip_unknown_classes=True,
        )
        return labelled.labels


class UnitMeaning(OutputMeaning):
    """The labels of the residues or words of texts, a class each."""

    can_explain: ClassVar[bool] = False
    padding_side: ClassVar[str | None] = "right"  # so that tokens are counted from the first one

    def outputs(
        self,
        tuned: TunedModel,
        tokens: TableTokens,
        rows: np.ndarray,
        progress: str | None = None,
    ) -> np.ndarray:
        """Outputs for the units of some rows [all rows, units, classes] float32, NaN where none;
        Diverged if one is no number."""
        network, tokenizer = tuned
        assert tokens.unit_starts is not None  # `TextReader` found them
        shape = (*tokens.unit_starts.shape, len(self.head_names))
        result = np.full(shape, np.nan, np.float32)
        batches = batch_outputs(
            model=network,
            function=lambda **batch: network(**batch).logits,
            examples=[tokens.examples[row] for row in rows],
            tokenizer=tokenizer,
            precision=self.saved["precision"],
            progress=progress,
            padding_side=self.padding_side,
        )
        for numbers, logits in batches:
            if np.isnan(logits).any():
                raise diverged("the outputs are not numbers")
            starts = tokens.unit_starts[rows[numbers]]
            unit_logits = np.take_along_axis(logits, starts.clip(0)[..., None], 1)
            unit_logits[starts < 0] = np.nan
            result[rows[numbers]] = unit_logits
        return result

    def columns(self, predictions: np.ndarray, table: TextTable) -> dict[str, Any]:
        """The labels of every row in one string."""
        labels = spelled(predictions, table.texts, self.names, self.saved["unit"])
        return {"predicted label": labels}

    def read(self, table: TextTable, path: str, label_columns: list[str]) -> np.ndarray:
        """The classes of the units [rows, units], NaN where a row has no labels that fit."""
        [label_column] = label_columns
        labels, problems = read_unit_labels(
            table, label_column, self.saved["mask_column"], self.saved["unit"], self.names
        )
        cells = table.frame[label_column].fillna("")
        unscored = {row: problems[row] for row, cell in enumerate(cells) if cell and problems[row]}
        note_unscored(unscored, table.frame.index, path)
        return labels


# of tasks whose labels have a class of their own
MEANINGS: dict[TaskType, type[OutputMeaning]] = {"token_classification": UnitMeaning}


def meaning_of(saved: SavedTask) -> OutputMeaning:
    """What the outputs of a model of this task mean."""
    return MEANINGS.get(saved["task_type"], OutputMeaning)(saved)
