"""Masked batches for the Trainer of Hugging Face."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from .data.batching import mask_tokens
from .errors import InputError


class ExLMDataCollator(TrainerCallback):
    """Masks rows for pre-training with a Trainer. The masked tokens depend on seed, epoch and the row's index alone.

    Every row has `input_ids`, with or without BOS and EOS, and `index`, its number in the data set (`dataset.map(...,
    with_indices=True)`). Give the collator to the Trainer twice, as `data_collator` and in `callbacks`, where it learns
    the epoch; and set `remove_unused_columns=False`, or the Trainer takes the index away.

    Args:
        tokenizer: with BOS, EOS, padding and [MASK], as `exlm.pretrained.load_tokenizer` gives it.
        mask_ratio: share of each row's tokens that become [MASK].
        seed: of the masks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mask_ratio: float = 0.15, seed: int = 0) -> None:
        if not 0 < mask_ratio < 1:
            raise InputError(f"mask_ratio is {mask_ratio}; it must lie strictly between 0 and 1")
        self.tokenizer, self.mask_ratio, self.seed = tokenizer, mask_ratio, seed
        self.epoch = 0

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """input_ids, attention_mask and labels, each [rows, S]; labels are -100 where nothing was masked. InputError if
        a row has no index."""
        if not all("index" in row for row in rows):
            raise InputError("a row has no index; add the column and set remove_unused_columns=False in the arguments")
        bos, eos = [self.tokenizer.bos_token_id], [self.tokenizer.eos_token_id]
        texts = [list(row["input_ids"]) for row in rows]
        texts = [text[1:] if text[:1] == bos else text for text in texts]
        texts = [text[:-1] if text[-1:] == eos else text for text in texts]
        lengths = np.array([len(text) for text in texts])
        tokens = np.full((len(texts), lengths.max(initial=0)), self.tokenizer.pad_token_id, dtype=np.int64)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = text
        index = np.array([row["index"] for row in rows], dtype=np.int64)
        return mask_tokens(tokens, lengths, index, self.tokenizer, self.seed, self.epoch, self.mask_ratio)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer, also when it resumes in the middle of an epoch."""
        self.epoch = int(state.epoch or 0) - 1

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer. It does not say which epoch begins: of streamed rows it knows no number of epochs."""
        self.epoch += 1
