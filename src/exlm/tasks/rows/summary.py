"""A table in words: what it holds, and what may be wrong with its labels."""

from unicodedata import normalize

import pandas as pd

from exlm.data.columns import in_one_line, listed
from exlm.tasks.rows.table import LabelledTable


def describe_table(table: LabelledTable, molecules: bool) -> str:
    """A table in one line: how many molecules or texts, how many of them can be used, the labels,
    and what was inferred."""
    texts = "pairs of texts" if table.pairs else "texts"
    if molecules:
        texts = "molecules"
    usable = int(table.usable.sum())
    if usable < len(table.texts):
        texts += f" ({usable} usable)"
    labels = table.labels.values[table.usable]
    titles = map(table.labels.type.title, map(in_one_line, table.labels.columns), labels.T)
    line = f"{len(table.texts)} {texts}, {table.labels.task_type} of {listed(titles, limit=5)}"
    names = table.labels.class_names or []
    if table.labels.type.is_binary:
        names = table.labels.binary_names or ["0", "1"]
    counts = [f"{in_one_line(name)} {(labels == i).sum()}" for i, name in enumerate(names)]
    if counts:
        line += f" (classes and how many: {listed(counts)})"
    if not table.inferred:
        return line
    options = ", ".join(f"task.{option} = {value}" for option, value in table.inferred.items())
    return f"{line} (found without being told, set it if it is wrong: {in_one_line(options)})"


def remarks_on_labels(table: LabelledTable) -> list[str]:
    """What may be wrong with the labels of a table: spellings of one class, and numbers that are
    taken for classes."""
    names = pd.Series(table.labels.class_names or [], dtype=object)
    keys = names.map(lambda name: " ".join(normalize("NFKC", name).casefold().split()))
    remarks = [
        f"the classes {', '.join(map(repr, spellings))} differ only in case, spaces or how "
        "accents are encoded; write them alike if they are one"
        for _, spellings in names.groupby(keys, sort=False)
        if len(spellings) > 1
    ]
    joined = names[names.str.contains("[;|]")]
    if 0 < len(names) < 3 * len(joined):
        remarks.append(
            f"classes such as {joined.iloc[0]!r} seem to be several labels in one cell; to predict "
            "each, give it a column of 0 and 1"
        )
    is_guess = "task_type" in table.inferred and len(names) > 0
    if is_guess and names.str.fullmatch(r"[-+]?\d+").all():
        positive = f", or --positive {names[1]} for the scores of two classes, such as ROC-AUC"
        remarks.append(
            f"the {len(names)} whole numbers in {in_one_line(table.labels.columns[0])} are taken "
            "for classes; add --task_type regression to predict them as numbers"
            f"{positive if len(names) == 2 else ''}"
        )
    elif is_guess and len(names) == 2 and joined.empty:
        remarks.append(
            f"of the two classes none is taken for the positive one; add --positive {names[0]} or "
            f"--positive {names[1]} for the scores of two classes, such as ROC-AUC"
        )
    return remarks
