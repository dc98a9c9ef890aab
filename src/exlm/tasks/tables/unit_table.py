"""Tables whose texts have a label for every residue or word: secondary structure, named
entities."""

from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerFast

from exlm.data.cell_texts import split_units
from exlm.data.columns import (
    LABELS_OF_UNITS,
    check_columns,
    listed,
    match_columns,
    preferred_columns,
)
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.labels.cells import check_no_list_as_text, row_name
from exlm.tasks.labels.column_labels import MOST_CLASSES, Labels
from exlm.tasks.rows.labelled_table import join_files
from exlm.tasks.rows.table import LabelledTable, add_labels, unlabelled_table
from exlm.tasks.rows.task_files import read_parts
from exlm.tasks.rows.units import (
    NO_LABEL,
    WORD,
    read_unit_labels,
    residue_pattern,
    unit_labels,
)


def read_unit_table(
    config: TaskConfig, max_length: int, tokenizer: PreTrainedTokenizerFast | None = None
) -> LabelledTable:
    """The table with the class of every unit that the `tokenizer` reads. Classes are all labels in
    the cells. A text has at most `max_length` units, since a model reads no more tokens."""
    files = read_parts(config)
    rows, text_column, _ = join_files(files, config)
    table = unlabelled_table(rows, config.dataset, text_column)
    label_column, *other_columns = _label_columns(table.frame, config)
    if other_columns or config.pair_column:
        raise InputError(
            "token_classification has one text column and one label column; name no others"
        )
    for part, file in files.items():
        where = config.dataset if part == "train" else f"{config.dataset}, {part} part"
        check_columns(file.frame, where, label_column, config.mask_column)
    check_no_list_as_text(table.frame[label_column], config.dataset)
    cells = table.frame[label_column].fillna("")
    has_lists = any(isinstance(cell, list) for cell in table.frame[table.text_column])
    are_words = has_lists or _are_words(table.texts, cells)
    unit = WORD if are_words else residue_pattern(tokenizer)
    labels_of_rows = map(partial(unit_labels, unit_pattern=unit), cells, table.texts)
    classes = sorted(set(chain.from_iterable(labels_of_rows)) - {NO_LABEL, ""})
    _check_classes(classes, config)
    values, label_problems = read_unit_labels(
        table, label_column, config.mask_column, unit, classes, max_length
    )
    bad_rows = [row for row, problem in enumerate(label_problems) if problem]
    if len(bad_rows) > len(label_problems) / 2:
        example = f"{row_name(table.frame.index[bad_rows[0]])}: {label_problems[bad_rows[0]]}"
        raise InputError(
            f"{config.dataset}: {len(bad_rows)} of {len(label_problems)} rows do not have a label "
            f"for each residue or word ({example}); a row has a whole text and all its labels; "
            "where a row is one word, write CoNLL"
        )
    labels = Labels(
        [label_column], values, "token_classification", class_names=classes, unit_pattern=unit
    )
    return add_labels(table, labels, label_problems, inferred={})


def _check_classes(classes: list[str], config: TaskConfig) -> None:
    """InputError if the labels seem to be measured numbers."""
    numbers = pd.to_numeric(pd.Series(classes, dtype=object), errors="coerce")
    if len(classes) > MOST_CLASSES and numbers.notna().all():
        raise InputError(
            f"{config.dataset}: the labels of residues or words are {len(classes)} different "
            "numbers; each would be a class, so replace them by a few classes, such as low and high"
        )


def _are_words(texts: Sequence[str], labels: pd.Series) -> bool:
    """Whether most texts of several words have as many labels; else units are residues. A few
    proteins may have blanks."""
    word_counts = np.array([len(split_units(text, WORD)) for text in texts])
    label_counts = np.array([len(split_units(cell, WORD)) for cell in labels])
    has_several = word_counts > 1
    has_equal_counts = (word_counts == label_counts)[has_several]
    return bool(len(has_equal_counts) and has_equal_counts.mean() > 0.5)


def _label_columns(frame: pd.DataFrame, config: TaskConfig) -> list[str]:
    if config.label_columns:
        return match_columns(config.label_columns, frame.columns)
    columns = preferred_columns(frame.columns, LABELS_OF_UNITS)
    if len(columns) == 1:
        return columns
    raise InputError(
        f"{config.dataset}: cannot tell the column of labels; "
        f"set label_columns to one of: {listed(frame.columns)}"
    )
