"""Turns a table's rows into tokens, padded batches and a model's outputs, in bounded memory and in table order."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem
from exlm.model.modeling_exlm import ExLMPreTrainedModel
from exlm.tasks.table import LabelledTable
from exlm.train.precision import in_precision

TOKENS_PER_BATCH = 16384
Example = dict[str, np.ndarray]  # int32: input_ids [S], and what else the model takes, such as token_type_ids [S]


@dataclass(frozen=True)
class Rows:
    """A table's rows as tokens."""

    table: LabelledTable
    examples: list[Example]  # [rows]
    problems: list[str]  # [rows] why a row is left out, "" if it is not
    caveats: list[str]  # [rows] what else is wrong with a row, "" if nothing

    @property
    def usable(self) -> np.ndarray:
        """Which rows can be used: [rows] bool."""
        return np.array(self.problems, dtype=object) == ""

    def report(self) -> pd.DataFrame:
        """All rows with something wrong: file (`part`, "" where there is one), row, value, reason and action."""
        table, usable = self.table, self.usable
        found = pd.DataFrame({"part": "" if table.parts is None else table.parts, "value": table.texts})
        found.insert(1, "row", table.frame.index.get_level_values(-1))
        found["reason"] = np.where(usable, self.caveats, self.problems)
        found["action"] = np.where(usable, "kept", "left out")
        return found[found["reason"] != ""]


def tokenize_rows(
    table: LabelledTable, tokenizer: PreTrainedTokenizerFast, max_length: int, molecules: bool, keep: bool = False
) -> Rows:
    """Tokens of every row. Over-long molecules are left out; unless `keep`, so are those that RDKit cannot parse or
    that have unknown tokens. Over-long text is cut. Caveats: cut text, unknown tokens, one text of a pair is empty."""
    texts, pairs = table.texts, table.pairs
    examples = tokenize(texts, tokenizer, pairs)
    problems, caveats = list(table.problems), []
    for row, ids in enumerate(example["input_ids"] for example in examples):
        excess = f"{len(ids)} tokens, the limit is {max_length}" if len(ids) > max_length else ""
        unknown = int((ids == tokenizer.unk_token_id).sum())
        caveat = f"{unknown} tokens are not in the model's vocabulary" if unknown else ""
        if molecules:
            caveat = molecule_problem(texts[row]) or caveat
            problems[row] = problems[row] or excess or ("" if keep else caveat)
        elif excess:
            caveat = f"{excess}; cut"
            [examples[row]] = tokenize([texts[row]], tokenizer, pairs and [pairs[row]], max_length)
        elif pairs and not (texts[row] and pairs[row]):
            caveat = "one of the two texts is empty"
        caveats.append(caveat)
    return Rows(table, examples, problems, caveats)


def tokenize(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[str] | None = None,
    max_length: int | None = None,
) -> list[Example]:
    """Tokens, with special tokens, of every text or pair. If there are over `max_length`, the longer text is cut."""
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    second = None if pairs is None else list(pairs)
    columns = tokenizer(list(texts), second, truncation=max_length is not None, max_length=max_length)
    return [
        {name: np.array(values, dtype=np.int32) for name, values in zip(names, row, strict=True)}
        for row in zip(*(columns[name] for name in names), strict=True)
    ]


def pad(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """The examples' entries and attention_mask as tensors [n, S], padded on the side that the tokenizer prefers."""
    columns = {name: [example[name].tolist() for example in examples] for name in examples[0]}
    return dict(tokenizer.pad(columns, return_tensors="pt", return_attention_mask=True))


def model_inputs(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a batch that the model takes, without labels, on its device (an ExLM moves them itself)."""
    taken = inspect.signature(model.forward).parameters.keys() - {"labels", "start_positions", "end_positions"}
    device = "cpu" if isinstance(model, ExLMPreTrainedModel) else next(model.parameters()).device
    return {name: values.to(device) for name, values in batch.items() if name in taken}


def batches_by_length(model: nn.Module, examples: Sequence[Example]) -> Iterator[np.ndarray]:
    """Row numbers in batches of TOKENS_PER_BATCH tokens. The longest come first: too large a batch fails at once."""
    room = TOKENS_PER_BATCH // getattr(getattr(model, "config", None), "repeat", 1)  # the model repeats its input
    lengths = np.array([len(example["input_ids"]) for example in examples], dtype=int)
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        rows, order = np.split(order, [max(1, room // lengths[order[0]])])
        yield rows


def run(
    model: nn.Module,
    function: Callable[[dict[str, Tensor]], Tensor],
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    precision: str = "auto",
    progress: str | None = None,
) -> np.ndarray:
    """Applies `function(batch) -> [n, width]` to all rows, the model in evaluation mode: [rows, width] float32."""
    model.eval()
    device = next(model.parameters()).device
    result = np.empty((len(examples), 0), dtype=np.float32)
    with torch.inference_mode(), tqdm(total=len(examples), desc=progress, unit="row", disable=not progress) as bar:
        for rows in batches_by_length(model, examples):
            batch = pad([examples[row] for row in rows], tokenizer)
            with in_precision(device, precision):
                values = function(model_inputs(model, batch)).float().cpu().numpy()
            result = result if result.size else np.empty((len(examples), values.shape[1]), dtype=np.float32)
            result[rows] = values
            bar.update(len(rows))
    return result
