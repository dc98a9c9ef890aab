"""Texts to padded batches to rows of numbers, in bounded memory and in the order of the input."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.train.loop import autocast


def tokenize(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Token ids with BOS and EOS of every text."""
    return tokenizer(list(texts))["input_ids"] if len(texts) else []


def too_long(ids: Sequence[int], max_length: int) -> str | None:
    """Why a text has too many tokens, or None."""
    return f"{len(ids)} tokens, the limit is {max_length}" if len(ids) > max_length else None


def foreign(ids: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Why a text cannot be encoded without loss, or None."""
    unknown = list(ids).count(tokenizer.unk_token_id)
    return f"{unknown} tokens are not in the model's vocabulary" if unknown else None


def pad(rows: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, Tensor]:
    """input_ids and attention_mask [n, S], padded on the right."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_token_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def run(
    model: nn.Module,
    function: Callable[[dict[str, Tensor]], Tensor],
    ids: Sequence[Sequence[int]],
    pad_token_id: int,
    tokens_per_batch: int = 16384,
    precision: str = "auto",
    progress: str | None = None,
) -> np.ndarray:
    """`function(batch) -> [n, width]` over all rows, longest first, so that too large a batch fails at once.

    Returns:
        [rows, width] float32 in the order of `ids`.
    """
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort([-len(row) for row in ids], kind="stable")
    result: np.ndarray | None = None
    start = 0
    with (
        torch.inference_mode(),
        tqdm(total=len(ids), desc=progress, unit="row", disable=progress is None) as bar,
    ):
        while start < len(order):
            size = max(1, tokens_per_batch // len(ids[order[start]]))
            chosen = order[start : start + size]
            batch = pad([ids[i] for i in chosen], pad_token_id)
            with autocast(device, precision):
                values = function(batch).float().cpu().numpy()
            if result is None:
                result = np.empty((len(ids), values.shape[1]), dtype=np.float32)
            result[chosen] = values
            start += len(chosen)
            bar.update(len(chosen))
    return np.empty((0, 0), dtype=np.float32) if result is None else result


def probabilities(logits: np.ndarray, task_type: str, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """[rows, outputs] logits to probabilities, or to the labels' own units for regression. Float64."""
    logits = logits.astype(np.float64)
    if task_type == "regression":
        return logits * np.asarray(std) + np.asarray(mean)
    if task_type == "multiclass":
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        return shifted / shifted.sum(1, keepdims=True)
    return 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
