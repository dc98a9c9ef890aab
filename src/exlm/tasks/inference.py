"""Texts to padded batches to rows of numbers, in bounded memory and in the order of the input."""

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


def placed(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch where the model wants it: ExLM moves it by itself, once it knows the layout."""
    if isinstance(getattr(model, "module", model), ExLMPreTrainedModel):
        return batch
    device = next(model.parameters()).device
    return {name: values.to(device) for name, values in batch.items()}


def run(
    model: nn.Module,
    function: Callable[[dict[str, Tensor]], Tensor],
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    tokens_per_batch: int = 16384,
    precision: str = "auto",
    progress: str | None = None,
) -> np.ndarray:
    """`function(batch) -> [n, width]` over all rows, longest first, so that too large a batch fails at once.

    Returns:
        [rows, width] float32 in the order of `examples`.
    """
    model.eval()
    device = next(model.parameters()).device
    result: np.ndarray | None = None
    with (
        torch.inference_mode(),
        tqdm(total=len(examples), desc=progress, unit="row", disable=progress is None) as bar,
    ):
        for chosen in by_length([length(example) for example in examples], tokens_per_batch // copies(model)):
            batch = placed(model, pad([examples[i] for i in chosen], tokenizer))
            with in_precision(device, precision):
                values = function(batch).float().cpu().numpy()
            if result is None:
                result = np.empty((len(examples), values.shape[1]), dtype=np.float32)
            result[chosen] = values
            bar.update(len(chosen))
    return np.empty((0, 0), dtype=np.float32) if result is None else result


def copies(model: nn.Module) -> int:
    """How often the model repeats each token of its input."""
    return int(getattr(getattr(model, "config", None), "repeat", 1))


def by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Row numbers in batches of so many tokens, longest first, so that too large a batch fails at once."""
    order = np.argsort([-length for length in lengths], kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens_per_batch // lengths[order[start]])
        yield order[start : start + size]
        start += size


def probabilities(logits: np.ndarray, task_type: str, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """[rows, outputs] logits to probabilities, or to the labels' own units for regression. Float64."""
    logits = logits.astype(np.float64)
    if task_type == "regression":
        return logits * np.asarray(std) + np.asarray(mean)
    if task_type == "multiclass":
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        return shifted / shifted.sum(1, keepdims=True)
    return 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
