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
from exlm.tasks.table import LabelledTable


@dataclass(frozen=True)
class Rows:
    """A table's rows as tokens."""

    table: LabelledTable
    examples: list[Example]  # [rows]
    problems: list[str]  # [rows] why a row is left out, "" if it is not
    caveats: list[str]  # [rows] what else is wrong with a row, "" if nothing

    @property
    def usable(self) -> np.ndarray:
        """[rows] bool."""
        return np.array([not problem for problem in self.problems], dtype=bool)

    def report(self) -> pd.DataFrame:
        """All rows with something wrong: file (`part`, "" where there is one), row, value, reason and action."""
        table, usable = self.table, self.usable
        found = pd.DataFrame({"part": "" if table.parts is None else table.parts, "value": table.texts})
        found.insert(1, "row", table.frame.index.get_level_values(-1))
        found["reason"] = np.where(usable, self.caveats, self.problems)
        found["action"] = np.where(usable, "kept", "left out")
        return found[found["reason"] != ""]


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
    texts, pairs = table.texts, table.pairs
    examples = inference.tokenize(texts, tokenizer, pairs)
    problems, caveats = list(table.problems), []
    for row, example in enumerate(examples):
        length, caveat = inference.length(example), inference.unknown(example, tokenizer) or ""
        excess = f"{length} tokens, the limit is {max_length}" if length > max_length else ""
        if molecules:
            caveat = molecule_problem(texts[row]) or caveat
            problems[row] = problems[row] or excess or ("" if keep_doubtful else caveat)
        elif excess:
            caveat = f"{excess}; cut"
            [examples[row]] = inference.tokenize([texts[row]], tokenizer, pairs and [pairs[row]], max_length)
        elif pairs and not (texts[row] and pairs[row]):
            caveat = "one of the two texts is empty"
        caveats.append(caveat)
    return Rows(table, examples, problems, caveats)


def predict_rows(
    model: nn.Module, rows: Rows, chosen: np.ndarray, task: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> np.ndarray:
    """Predictions of the chosen rows (indices) [all rows, outputs] float64, NaN elsewhere.

    They are probabilities, or for regression values in the units of the labels. `task` is what the model remembers
    of its task (`saved_task`), and the tokenizer the one that made the rows.
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
