"""The rows of a table: their texts and, if these are read, their labels; and why some of them
cannot be used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from exlm.data.chemistry import Standardize, is_reduced_mixture
from exlm.data.columns import check_columns, choose_column
from exlm.data.frames import FileRows
from exlm.data.problems import HAS_SPECIAL_TOKENS, HAS_UNREAD_UNITS, OnInvalid
from exlm.errors import InputError
from exlm.tasks.labels.column_labels import Labels
from exlm.tasks.rows.texts import first_of_each, read_texts

UNUSABLE = "marked in the column problem"  # among counts of rows


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """All rows of files, with their texts. `texts`, `pairs`, `problems` and `warnings` are
    [rows]."""

    frame: pd.DataFrame  # every row and column, in order; by (part, row) where it joins files
    texts: list[str]  # the SMILES or text of each row, "" where missing
    pairs: list[str] | None  # the second text of each row, where the task has two
    text_column: str
    pair_column: str | None
    problems: list[str]  # why a row cannot be used, "" if it can
    warnings: list[str]  # what is odd about a row that can be used, "" if nothing
    is_cut: np.ndarray  # [rows] bool, whether the text was longer than the model reads
    separators: Mapping[str, str]  # of the files, as `FileRows` says

    @property
    def usable(self) -> np.ndarray:
        """Which rows have no problem: [rows] bool."""
        return np.array(self.problems, dtype=object) == ""

    @property
    def was_cut(self) -> np.ndarray:
        """Which rows are used with a text that was cut: [rows] bool."""
        return self.is_cut & self.usable

    @property
    def parts(self) -> np.ndarray | None:
        """[rows] the file that each row is from (train, valid, test, ...), or None if there is one
        file."""
        index = self.frame.index
        return None if index.nlevels == 1 else np.array(index.get_level_values(0), dtype=str)

    def counts(self, done: str, standardize: Standardize) -> dict[str, int]:
        """How many rows can be used, for which something is `done`, and how many cannot; how many
        are cut, have special tokens, or units that the tokenizer reads as nothing; and what
        `reduced_mixtures` counts."""
        usable = int(self.usable.sum())
        counts = {f"rows {done}": usable, UNUSABLE: len(self.problems) - usable}
        if cut := int(self.was_cut.sum()):
            counts["cut to max_length"] = cut
        if special := sum(text.startswith(HAS_SPECIAL_TOKENS) for text in self.warnings):
            counts["with special tokens of the model in their texts"] = special
        has_unread = np.array([HAS_UNREAD_UNITS in text for text in self.warnings], dtype=bool)
        if unread := int((has_unread & self.usable).sum()):
            counts["with words or residues that the tokenizer reads as nothing"] = unread
        return counts | self.reduced_mixtures(standardize)

    def reduced_mixtures(self, standardize: Standardize) -> dict[str, int]:
        """How many molecules `standardize` reduces to one of several organic components; {} if
        none."""
        molecules = [*self.texts, *(self.pairs or [])]
        count = sum(is_reduced_mixture(text, standardize) for text in molecules)
        return {"mixtures reduced to one organic component": count} if count else {}

    def reported_rows(self) -> pd.DataFrame:
        """All rows with a problem or a warning: part ("" where there is one file), row (from 1),
        value, reason, action."""
        action_if_usable = np.where(self.is_cut, "cut", "kept")
        rows = pd.DataFrame(
            {
                "part": "" if self.parts is None else self.parts,
                "row": self.frame.index.get_level_values(-1) + 1,
                "value": self.texts,
                "reason": np.where(self.usable, self.warnings, self.problems),
                "action": np.where(self.usable, action_if_usable, "left out"),
            }
        )
        return rows[rows["reason"] != ""]

    def check(self, path: str, on_invalid: OnInvalid) -> None:
        """InputError if no row can be used and these rows begin the file `path`, or if a row has a
        problem or a warning and `on_invalid` is `error`."""
        reported_rows = self.reported_rows()
        none_usable = not self.usable.any()
        begins_file = self.frame.index.get_level_values(-1)[0] == 0
        if (none_usable and begins_file) or (on_invalid == "error" and len(reported_rows)):
            subject = "no row can be used, the first: " if none_usable else ""
            raise InputError(f"{path}: {subject}{first_reported_row(reported_rows)}; correct it")


@dataclass(frozen=True, kw_only=True)
class LabelledTable(TextTable):
    """All rows of files, with their texts and labels."""

    labels: Labels
    # what was inferred to read the labels, by the setting that can say otherwise
    inferred: Mapping[str, str]


Table = TypeVar("Table", bound=TextTable)  # with labels or without


def add_labels(
    table: TextTable,
    labels: Labels,
    label_problems: Sequence[str],
    inferred: Mapping[str, str],
) -> LabelledTable:
    """The table with its labels; `label_problems` [rows] say why a row cannot be used with them, ""
    if it can."""
    return LabelledTable(
        frame=table.frame,
        texts=table.texts,
        pairs=table.pairs,
        text_column=table.text_column,
        pair_column=table.pair_column,
        problems=first_of_each(table.problems, label_problems),
        warnings=table.warnings,
        is_cut=table.is_cut,
        separators=table.separators,
        labels=labels,
        inferred=inferred,
    )


def first_reported_row(reported_rows: pd.DataFrame) -> str:
    """The first of `TextTable.reported_rows` in words: part, row, value and reason."""
    first = reported_rows.iloc[0]
    words = f"{first.part} row {first.row}, value {str(first.value)[:80]!r}: {first.reason}"
    return words.strip()


def unlabelled_table(
    rows: FileRows, path: str, text_column: str | None, pair_column: str | None = None
) -> TextTable:
    """The texts of the file `path`; a `text_column` of None is found by its usual names. InputError
    if a column is missing."""
    check_columns(rows.frame, path, text_column, pair_column)
    column = choose_column(rows.frame, text_column, path)
    texts, problems = read_texts(rows, column, pair_column, path)
    return TextTable(
        frame=rows.frame,
        texts=texts[0],
        pairs=texts[1] if pair_column else None,
        text_column=column,
        pair_column=pair_column,
        problems=problems,
        warnings=[""] * len(problems),
        is_cut=np.zeros(len(problems), dtype=bool),
        separators=rows.separators,
    )
