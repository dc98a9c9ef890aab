"""Tables whose texts have a label for every residue or word: secondary structure, named
entities."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd

from exlm.data.columns import check_columns, listed, match_columns
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.labels.cells import check_no_list_as_text, row_name
from exlm.tasks.labels.column_labels import MAX_INFERRED_CLASSES
from exlm.tasks.rows.datasets import load_labelled
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.units import (
    NO_LABEL,
    RESIDUE,
    WORD,
    labels_of_units,
    read_unit_labels,
    units,
)

# usual names of the column of labels, in any case; the first that there is
TAG_COLUMNS = ("label", "labels", "ner_tags", "tags", "ner", "tag", "pos_tags")


def load_unit_table(config: TaskConfig, max_length: int) -> TextTable:
    """The table with the class of every unit, at most `max_length` of a text, which are all that a
    model reads; classes are all labels that there are."""
    table = load_labelled(replace(config, label_columns=[]))
    label_columns = config.label_columns or [_tag_column(table.frame, config.dataset)]
    label_column, *others = match_columns(label_columns, table.frame.columns)
    if others or config.pair_column:
        raise InputError(
            "token_classification has one text column and one label column; name no others"
        )
    check_columns(table.frame, config.dataset, label_column, config.mask_column)
    check_no_list_as_text(table.frame[label_column], config.dataset)
    cells = table.frame[label_column].fillna("")
    has_lists = any(isinstance(cell, list) for cell in table.frame[table.text_column])
    unit = WORD if has_lists else _unit_of(table.texts, cells)
    names = chain.from_iterable(labels_of_units(cells, units(table.texts, unit), unit))
    classes = sorted({*names} - {NO_LABEL})
    _check_classes(classes, config)
    labels, label_problems = read_unit_labels(
        table, label_column, config.mask_column, unit, classes, max_length
    )
    problems = [
        problem or label_problem
        for problem, label_problem in zip(table.problems, label_problems, strict=True)
    ]
    wrong = [row for row, problem in enumerate(label_problems) if problem]
    if len(wrong) > len(label_problems) / 2:
        example = f"{row_name(table.frame.index[wrong[0]])}: {label_problems[wrong[0]]}"
        raise InputError(
            f"{config.dataset}: {len(wrong)} of {len(label_problems)} rows do not have a label "
            f"for each residue or word ({example}); a row has a whole text and all its labels; "
            "where a row is one word, write CoNLL"
        )
    return replace(
        table,
        labels=labels,
        label_columns=[label_column],
        problems=problems,
        class_names=classes,
        unit_pattern=unit,
    )


def _check_classes(classes: list[str], config: TaskConfig) -> None:
    """InputError if the labels are rather numbers that have been measured."""
    numbers = pd.to_numeric(pd.Series(classes, dtype=object), errors="coerce")
    if len(classes) > MAX_INFERRED_CLASSES and numbers.notna().all():
        raise InputError(
            f"{config.dataset}: the labels of residues or words are {len(classes)} different "
            "numbers; each would be a class, so replace them by a few classes, such as low and high"
        )


def _unit_of(texts: Sequence[str], labels: pd.Series) -> str:
    """The unit of which more texts have as many as labels: one blank in a protein makes no words of
    all. A text of one word says nothing of words."""
    sizes = {}
    for unit in (WORD, RESIDUE):
        units_of_texts = units(texts, unit)
        labels_of_texts = labels_of_units(labels, units_of_texts, unit)
        sizes[unit] = np.array([[*map(len, units_of_texts)], [*map(len, labels_of_texts)]])
    words, labels_of_words = sizes[WORD]
    residues, labels_of_residues = sizes[RESIDUE]
    as_words = ((words == labels_of_words) & (words > 1)).sum()
    as_residues = (residues == labels_of_residues).sum()
    if as_words == as_residues:
        return WORD if (words > 1).any() else RESIDUE
    return WORD if as_words > as_residues else RESIDUE


def _tag_column(frame: pd.DataFrame, dataset: str) -> str:
    """The first of TAG_COLUMNS that the table has, in any case."""
    names = {str(column).lower(): column for column in reversed(frame.columns)}
    for name in TAG_COLUMNS:
        if name in names:
            return names[name]
    raise InputError(
        f"{dataset}: cannot tell the column of labels; "
        f"set label_columns to one of: {listed(frame.columns)}"
    )
