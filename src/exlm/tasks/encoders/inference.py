"""From tokens to padded batches and a model's outputs, in bounded memory and in table order."""

import inspect
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.data.batching import longest_first
from exlm.model.modeling_exlm import ExLMPreTrainedModel
from exlm.ops.precision import in_precision

# a text, int32: input_ids [S], and what else the model takes, such as token_type_ids [S]
Tokens = dict[str, np.ndarray]

TOKENS_PER_BATCH = 16384
# The precision of all scores of a training, whatever its own: that of predictions, so that both
# agree, on every machine.
SCORING = "fp32"
LOSS_INPUTS = {"labels", "start_positions", "end_positions"}  # what models take to compute a loss


def pad(
    examples: Sequence[Tokens], tokenizer: PreTrainedTokenizerFast, side: str | None = None
) -> dict[str, Tensor]:
    """The examples' entries and attention_mask as tensors [n, S], padded on a side, left or right,
    or on the one that the tokenizer prefers."""
    columns = {name: [example[name].tolist() for example in examples] for name in examples[0]}
    batch = tokenizer.pad(
        columns, padding_side=side, return_tensors="pt", return_attention_mask=True
    )
    return dict(batch)


def model_inputs(network: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a batch that the model takes, without labels, on its device. An ExLM moves
    them itself, and takes no token_type_ids but 0."""
    names = inspect.signature(network.forward).parameters.keys() - LOSS_INPUTS
    device = torch.device("cpu")
    if isinstance(network, ExLMPreTrainedModel):
        names -= {"token_type_ids"}
    else:
        device = next(network.parameters()).device
    return {name: values.to(device) for name, values in batch.items() if name in names}


def batch_outputs(
    network: nn.Module,
    function: Callable[..., Tensor],
    examples: Sequence[Tokens],
    tokenizer: PreTrainedTokenizerFast,
    precision: str = SCORING,
    progress: str | None = None,
    padding_side: str | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For every batch of TOKENS_PER_BATCH tokens, as `longest_first` makes them, the numbers [n] of
    its examples and what `function(**batch)` makes of them, without gradients: [n, ...] float32."""
    network.eval()
    device = next(network.parameters()).device
    # Repeated MLM: such a model repeats every token of its input
    tokens_per_batch = TOKENS_PER_BATCH // getattr(getattr(network, "config", None), "repeat", 1)
    lengths = [len(example["input_ids"]) for example in examples]
    with tqdm(total=len(examples), desc=progress, unit="row", disable=not progress) as bar:
        for numbers in longest_first(lengths, tokens_per_batch, few_shapes=True):
            batch = pad([examples[number] for number in numbers], tokenizer, padding_side)
            with torch.inference_mode(), in_precision(device, precision):
                outputs = function(**model_inputs(network, batch)).float().cpu().numpy()
            yield numbers, outputs
            bar.update(len(numbers))
