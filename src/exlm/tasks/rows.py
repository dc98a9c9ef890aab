"""The rows of a labelled table as tokens, and a model's predictions for them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import nn
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem
from exlm.tasks import inference
from exlm.tasks.inference import Example
from exlm.tasks.table import LabelledTable, parts_and_rows


@dataclass(frozen=True)
class Rows:
    """A table's rows as tokens.

    Attributes:
        table: where they come from.
        examples: [rows] tokens.
        problems: [rows] why a row is left out, "" if it is not.
        caveats: [rows] what else is wrong with a row, "" if nothing.
    """

    table: LabelledTable
    examples: list[Example]
    problems: list[str]
    caveats: list[str]

    @property
    def usable(self) -> np.ndarray:
        """[rows] bool."""
        return np.array([not problem for problem in self.problems], dtype=bool)

    def report(self) -> pd.DataFrame:
        """Columns part (where parts are files), row, value, reason and action of all rows with something wrong."""
        reasons = [problem or caveat for problem, caveat in zip(self.problems, self.caveats, strict=True)]
        reported = [row for row, reason in enumerate(reasons) if reason]
        found = [
            (*where, self.table.texts[row], reasons[row], "left out" if self.problems[row] else "kept")
            for row, where in zip(reported, parts_and_rows(self.table.parts, reported), strict=True)
        ]
        return pd.DataFrame(found, columns=["part", "row", "value", "reason", "action"])


def tokenize_rows(
    table: LabelledTable,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    molecules: bool,
    keep_doubtful: bool = False,
) -> Rows:
    """Tokens of every row.

    Over-long molecules are left out, and so are those that RDKit cannot parse or that have tokens outside the
    vocabulary, unless `keep_doubtful`. Over-long text is cut; that, unknown tokens and one empty text of two are
    caveats, and the row is kept.
    """
    examples = inference.tokenize(table.texts, tokenizer, table.pairs)
    lengths = [inference.length(example) for example in examples]
    too_long = {row: f"{n} tokens, the limit is {max_length}" for row, n in enumerate(lengths) if n > max_length}
    found = dict(zip(table.problems["row"], table.problems["reason"], strict=True))
    if molecules:
        found = too_long | found
        caveats = [molecule_problem(text) or "" for text in table.texts]
    else:
        both = zip(table.texts, table.pairs or table.texts, strict=True)
        caveats = ["" if text and second else "one of the two texts is empty" for text, second in both]
        caveats = [f"{too_long[row]}; cut" if row in too_long else caveat for row, caveat in enumerate(caveats)]
    caveats = [caveat or inference.unknown(examples[row], tokenizer) or "" for row, caveat in enumerate(caveats)]
    problems = [
        found.get(row) or (caveat if molecules and not keep_doubtful else "") for row, caveat in enumerate(caveats)
    ]
    if not molecules:
        texts, pairs = ([column[row] for row in too_long] if column else None for column in (table.texts, table.pairs))
        for row, example in zip(too_long, inference.tokenize(texts or [], tokenizer, pairs, max_length), strict=True):
            examples[row] = example
    return Rows(table, examples, problems, caveats)


def predict_rows(
    model: nn.Module, rows: Rows, chosen: np.ndarray, task: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> np.ndarray:
    """Predictions of the chosen rows [all rows, outputs] float64, NaN elsewhere.

    They are probabilities, or for regression values in the units of the labels.

    Args:
        model: on its device.
        rows: of a table.
        chosen: indices of the rows to predict.
        task: what the model remembers of its task (`saved_task`).
        tokenizer: the one that made the rows.
    """
    examples = [rows.examples[row] for row in chosen]
    logits = inference.run(model, lambda batch: model(**batch).logits, examples, tokenizer, precision=task["precision"])
    result = np.full((len(rows.examples), len(prediction_columns(task))), np.nan)
    if not len(chosen):
        return result
    values = logits.astype(np.float64)
    if task["task_type"] == "regression":
        values = values * np.asarray(task["std"]) + np.asarray(task["mean"])
    elif task["task_type"] == "multiclass":
        values = np.exp(values - values.max(1, keepdims=True))
        values = values / values.sum(1, keepdims=True)
    else:
        values = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    result[chosen] = values
    return result


def prediction_columns(task: dict[str, Any]) -> list[str]:
    """Names of the output columns: one per label, or one per class."""
    return [f"predicted {name}" for name in (task["classes"] or task["label_columns"])]


def with_columns(frame: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """`frame` with further columns; one whose name is taken gets "exlm " in front, so that nothing is overwritten."""
    result = frame.copy()
    for name, values in columns.items():
        while name in frame:
            name = f"exlm {name}"
        result[name] = values
    return result
