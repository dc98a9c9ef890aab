"""What baselines read: the texts and labels of rows, and what is wrong with each text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import SAMPLE_SIZE, contradiction, molecule_problem
from exlm.data.problems import OnInvalid, describe_unknown_words
from exlm.data.tokenization import letter_tokenizer
from exlm.tasks.labels.label_types import LabelType
from exlm.tasks.rows.reading import TextReader
from exlm.tasks.rows.table import Table
from exlm.tasks.rows.texts import first_of_each

NO_LIMIT = 10**9  # of tokens: a baseline reads the whole text


@dataclass(frozen=True)
class FitInputs:
    """What a baseline learns from, and the texts that it has to predict."""

    texts: list[str]  # [rows] SMILES, standardized, or texts; all of them are predicted
    pairs: list[str] | None  # [rows] the second texts, if the task is on pairs
    # [rows, labels] of the labels that train has, or indices of classes [rows, 1]. NaN where a
    # label is missing, and in rows that are only predicted
    labels: np.ndarray
    train: np.ndarray  # numbers of the rows to learn from
    valid: np.ndarray  # numbers of the rows that choose the epoch or the regularisation
    label_type: LabelType
    outputs: int  # how many predictions a row has: one for each class, or else for each label
    # how good predictions [rows, outputs] are on valid; higher is better
    goodness_on_valid: Callable[[np.ndarray], float]
    seed: int
    epochs: int | None  # the most epochs of a program; None for its default
    log: Path  # gets the output of a program


def protein_letters(texts: Sequence[str]) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a model of proteins if most of the first texts are capital letters of amino
    acids, else None."""
    letters = letter_tokenizer("protein")
    sample = list(islice(filter(None, texts), SAMPLE_SIZE))
    proteins = [text.isupper() and not describe_unknown_words(text, letters) for text in sample]
    return letters if sum(proteins) > len(sample) / 2 else None


def check_texts(
    table: Table,
    molecules: bool,
    letters: PreTrainedTokenizerFast | None,
    on_invalid: OnInvalid,
) -> Table:
    """The table with what is wrong with each molecule, or with each protein if their `letters` are
    given, as a model of such texts finds it. Other texts stay as they are."""
    if letters is not None:
        checked, _ = TextReader(letters, NO_LIMIT, False, on_invalid=on_invalid).read(table)
        return checked
    if not molecules:
        return table
    problems = [molecule_problem(text) or "" for text in table.texts]
    warnings = first_of_each(table.warnings, map(contradiction, table.texts))
    return replace(table, problems=first_of_each(table.problems, problems), warnings=warnings)
