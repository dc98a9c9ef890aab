"""What baselines read: molecules, proteins or other texts, and what is wrong with each."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from exlm.data.chemistry import FIRST_TEXTS, contradiction, molecule_problem
from exlm.data.rows import OnInvalid, describe_unknown_words
from exlm.data.tokenization import letter_tokenizer
from exlm.tasks.rows.reading import TextReader
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.texts import first_of_each

NO_LIMIT = 10**9  # of tokens: a baseline reads the whole text


def are_single_words(texts: Sequence[str]) -> bool:
    """Whether nine in ten texts or more are a single word, perhaps with a * at the end, as proteins
    may have it."""
    present = [text for text in texts if text]
    single_words = sum(re.fullmatch(r"\w+\*?", text) is not None for text in present)
    return bool(present) and single_words >= 0.9 * len(present)


def are_proteins(texts: Sequence[str]) -> bool:
    """Whether the texts are single words in capitals, and most of the first ones have letters of
    amino acids alone."""
    letters = letter_tokenizer("protein")
    sample = list(islice(filter(None, texts), FIRST_TEXTS))
    proteins = [text.isupper() and not describe_unknown_words(text, letters) for text in sample]
    return are_single_words(texts) and sum(proteins) > len(sample) / 2


def checked_texts(
    table: TextTable, molecules: bool, proteins: bool, on_invalid: OnInvalid
) -> TextTable:
    """The table with what is wrong with each molecule or protein, as a model of such texts finds
    it. Other texts stay as they are."""
    if proteins:
        reader = TextReader(letter_tokenizer("protein"), NO_LIMIT, False, on_invalid=on_invalid)
        checked, _ = reader.read(table)
        return checked
    if not molecules:
        return table
    return replace(
        table,
        problems=first_of_each(
            table.problems, [molecule_problem(text) or "" for text in table.texts]
        ),
        warnings=first_of_each(table.warnings, map(contradiction, table.texts)),
    )
