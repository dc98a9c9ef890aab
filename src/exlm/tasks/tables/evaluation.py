"""How predictions for the rows of a file that have labels are scored."""

from collections.abc import Mapping

import numpy as np

from exlm.data.columns import listed
from exlm.errors import InputError, note
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.column_labels import label_cells, note_unscored, read_labels
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.units import read_unit_labels
from exlm.tasks.tables.predictions import Evaluation
from exlm.tasks.tables.scoring import LabelledPredictions


def evaluate_table(
    table: TextTable,
    path: str,
    label_columns: list[str],
    saved_task: SavedTask,
    predictions: Mapping[str, np.ndarray],
    margins: Mapping[str, np.ndarray],
    is_seen: np.ndarray | None,
) -> Evaluation:
    """How the predictions of models for the file `path` are scored.

    Args:
        table: the rows of the file.
        label_columns: its columns of labels, some of which it may lack.
        predictions: [rows, outputs] by the name of the model; of several models the ensemble comes
            first.
        margins: the errors that bounds allow [labels], by the name of the model; {} for no bounds.
        is_seen: [rows] whether a text was in the training; None if this is not known.

    InputError if labels cannot be read, or if there are none."""
    mask_column = saved_task.mask_column
    if mask_column and mask_column not in table.frame:
        raise InputError(
            f"the table has no column {mask_column}, which the model was trained with; add it"
        )
    if saved_task.label_type.of_units:
        labels, unknown_labels = _read_unit_labels(table, path, label_columns, saved_task)
    else:
        labels, unknown_labels = _read_row_labels(table, path, label_columns, saved_task)
    is_labelled = table.usable & ~np.isnan(labels).all(1)
    if not is_labelled.any():
        raise InputError(
            f"no row has a prediction and a label in {listed(label_columns, 5)}; "
            "name the column that has the labels with label_columns"
        )
    missing = [name for name in label_columns if name not in table.frame]
    if missing:
        note(f"{path} has no column {listed(missing)}; the other labels are scored")
    rows = np.flatnonzero(is_labelled)
    scored = {
        name: LabelledPredictions(saved_task, labels, of_model, margins.get(name))
        for name, of_model in predictions.items()
    }
    first = next(iter(scored.values()))
    return Evaluation(
        scorers={name: labelled.evaluate for name, labelled in scored.items()},
        rows=rows,
        seen_rows=None if is_seen is None else int(is_seen[is_labelled].sum()),
        unknown_labels=unknown_labels,
        labels=first.score_labels(rows),
        classes=first.score_classes(rows),
        confusion=first.confusion(rows),
    )


def _read_row_labels(
    table: TextTable, path: str, label_columns: list[str], saved_task: SavedTask
) -> tuple[np.ndarray, int]:
    """The labels of rows in the form that the model was trained on: [rows, labels], NaN in columns
    that the table lacks; and how many usable rows have a label that the model does not know."""
    with_all_labels = table.frame.reindex(columns=label_columns, fill_value="")
    cells = label_cells(with_all_labels, label_columns, table.problems)
    labels = read_labels(
        cells,
        path,
        saved_task.task_type,
        saved_task.label_names,
        skip_unknown=True,
        is_doubtful=table.doubtful_points(cells),
    )
    return labels.values, labels.unknown_rows


def _read_unit_labels(
    table: TextTable, path: str, label_columns: list[str], saved_task: SavedTask
) -> tuple[np.ndarray, int]:
    """The classes of units [rows, units], NaN where a row has no labels that fit; and how many
    usable rows have such labels."""
    [label_column] = label_columns
    labels, problems = read_unit_labels(
        table,
        label_column,
        mask_column=saved_task.mask_column,
        unit_pattern=saved_task.unit_pattern,
        class_names=saved_task.head_names,
        most_units=saved_task.max_length,
    )
    cells = table.frame[label_column].fillna("")
    unscored = {
        int(row): problems[row]
        for row in np.flatnonzero(table.usable)
        if cells.iloc[row] and problems[row]
    }
    note_unscored(unscored, table.frame.index, path)
    return labels, len(unscored)
