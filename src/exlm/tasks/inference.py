"""Texts to padded batches to rows of numbers, in bounded memory and in the order of the input."""

import inspect
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.model.modeling_exlm import ExLMPreTrainedModel
from exlm.train.precision import in_precision

Example = dict[str, np.ndarray]  # int32: input_ids [S] and whatever else the model takes, as token_type_ids [S]


def tokenize(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[str] | None = None,
    max_length: int | None = None,
) -> list[Example]:
    """Tokens, special ones included, of every text or pair of texts; over `max_length` the longer one is cut."""
    if not len(texts):
        return []
    second = None if pairs is None else list(pairs)
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    columns = tokenizer(list(texts), second, truncation=max_length is not None, max_length=max_length)
    return [
        {name: np.array(values, dtype=np.int32) for name, values in zip(names, row, strict=True)}
        for row in zip(*(columns[name] for name in names), strict=True)
    ]


def length(example: Example) -> int:
    """Tokens of an example."""
    return len(example["input_ids"])


def unknown(example: Example, tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Why a text cannot be encoded without loss, or None."""
    count = int((example["input_ids"] == tokenizer.unk_token_id).sum()) if tokenizer.unk_token_id is not None else 0
    return f"{count} tokens are not in the model's vocabulary" if count else None


def pad(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """Tensors [n, S] of the examples' entries and attention_mask, padded on the tokenizer's side."""
    columns = {name: [example[name].tolist() for example in examples] for name in examples[0]}
    return dict(tokenizer.pad(columns, return_tensors="pt", return_attention_mask=True))


def model_inputs(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a batch that the model takes, without labels, on its device.

    ExLM moves them by itself, once it knows the layout of its input.
    """
    network = getattr(model, "module", model)  # behind DistributedDataParallel
    taken = inspect.signature(network.forward).parameters.keys() - {"labels", "start_positions", "end_positions"}
    device = "cpu" if isinstance(network, ExLMPreTrainedModel) else next(model.parameters()).device
    return {name: values.to(device) for name, values in batch.items() if name in taken}


def run(
    model: nn.Module,
    function: Callable[[dict[str, Tensor]], Tensor],
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    tokens_per_batch: int = 16384,
    precision: str = "auto",
    progress: str | None = None,
) -> np.ndarray:
    """`function(batch) -> [n, width]` over all rows, [rows, width] float32, with the model in evaluation mode."""
    model.eval()
    device = next(model.parameters()).device
    result = np.empty((len(examples), 0), dtype=np.float32)
    with torch.inference_mode(), tqdm(total=len(examples), desc=progress, unit="row", disable=not progress) as bar:
        for rows in batches_by_length(model, examples, tokens_per_batch):
            batch = pad([examples[row] for row in rows], tokenizer)
            with in_precision(device, precision):
                values = function(model_inputs(model, batch)).float().cpu().numpy()
            result = result if result.size else np.empty((len(examples), values.shape[1]), dtype=np.float32)
            result[rows] = values
            bar.update(len(rows))
    return result


def batches_by_length(model: nn.Module, examples: Sequence[Example], tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Row numbers in batches of so many tokens, longest first, so that too large a batch fails at once."""
    room = tokens_per_batch // getattr(getattr(model, "config", None), "repeat", 1)  # the model repeats its input
    order = sorted(range(len(examples)), key=lambda row: -length(examples[row]))
    start = 0
    while start < len(order):
        size = max(1, room // length(examples[order[start]]))
        yield np.array(order[start : start + size])
        start += size
