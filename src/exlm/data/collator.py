"""Masks rows for the `Trainer` of Hugging Face."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from exlm.data.masking import MaskRatio, mask_tokens, share_bounds
from exlm.errors import InputError


class ExLMDataCollator(TrainerCallback):
    """Masks rows for pre-training with a Trainer: a share of `mask_ratio` of a row's tokens, or a
    share that each row samples from a range. Seed, epoch and the row's index alone decide which.

    Every row has `input_ids`, with or without BOS and EOS, and `index`, its number in the data set
    (`dataset.map(..., with_indices=True)`). Give the collator to the Trainer twice, as
    `data_collator` and in `callbacks`, where it learns the epoch; and set
    `remove_unused_columns=False`, or the Trainer takes the index away. The tokenizer has BOS, EOS,
    padding and [MASK], as one of `exlm.storage.tokenizers.load_tokenizer`."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, mask_ratio: MaskRatio = 0.15, seed: int = 0
    ) -> None:
        share_bounds(mask_ratio)
        self.tokenizer = tokenizer
        self.mask_ratio = mask_ratio
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64)
        self.epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch whose masks are sampled; set it before an epoch begins if no Trainer does."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        # Workers of a DataLoader have copies of the collator, and persistent ones keep theirs from
        # epoch to epoch. In shared memory they all see the same number.
        self._epoch.share_memory_().fill_(epoch)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """input_ids, attention_mask, labels, each [rows, S]; labels -100 if unmasked. InputError
        without an index."""
        if not all("index" in row for row in rows):
            raise InputError(
                "a row has no index; add the column and set remove_unused_columns=False "
                "in the arguments"
            )
        ids_of_rows = [self._without_ends(row["input_ids"]) for row in rows]
        token_counts = np.array([len(ids) for ids in ids_of_rows])
        pad = self.tokenizer.pad_token_id
        token_ids = np.full((len(rows), token_counts.max(initial=0)), pad, dtype=np.int64)
        for row, ids in enumerate(ids_of_rows):
            token_ids[row, : len(ids)] = ids
        return mask_tokens(
            token_ids=token_ids,
            token_counts=token_counts,
            example_numbers=np.array([row["index"] for row in rows], dtype=np.int64),
            tokenizer=self.tokenizer,
            seed=self.seed,
            epoch=self.epoch,
            ratio=self.mask_ratio,
        )

    def _without_ends(self, input_ids: Sequence[int]) -> list[int]:
        """The tokens of a row without BOS and EOS around them."""
        ids = list(input_ids)
        if ids[:1] == [self.tokenizer.bos_token_id]:
            ids = ids[1:]
        if ids[-1:] == [self.tokenizer.eos_token_id]:
            ids = ids[:-1]
        return ids

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer, also in the middle of an epoch; then `on_epoch_begin` adds 1."""
        self.epoch = int(state.epoch or 0) - 1

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer. It does not say which epoch begins: of streamed rows it knows no
        number of epochs."""
        self.epoch += 1
