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
# The precision of all scores, whatever the precision of the training. Predictions have it too, so
# that both agree on every machine.
SCORING = "fp32"
LOSS_INPUTS = {"labels", "start_positions", "end_positions"}  # what models take to compute a loss


def pad(
    examples: Sequence[Tokens], tokenizer: PreTrainedTokenizerFast, side: str | None = None
) -> dict[str, Tensor]:
    """The examples' entries and attention_mask as tensors [n, S], padded on a `side`, left or
    right; where it is None, the tokenizer chooses."""
    columns = {name: [example[name].tolist() for example in examples] for name in examples[0]}
    batch = tokenizer.pad(
        columns, padding_side=side, return_tensors="pt", return_attention_mask=True
    )
    return dict(batch)


def model_inputs(network: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a batch that the model takes, without labels, on its device. An ExLM moves
    them to its device itself, and takes no token_type_ids but 0."""
    names = inspect.signature(network.forward).parameters.keys() - LOSS_INPUTS
    device = next(network.parameters()).device
    if isinstance(network, ExLMPreTrainedModel):
        names -= {"token_type_ids"}
        device = torch.device("cpu")
    return {name: values.to(device) for name, values in batch.items() if name in names}


def batch_outputs(
    network: nn.Module,
    function: Callable[..., Tensor],
    examples: list[Tokens],
    tokenizer: PreTrainedTokenizerFast,
    precision: str = SCORING,
    progress: str | None = None,
    padding_side: str | None = None,
    rows: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs a network on the examples with the numbers `rows`, on all where absent. For every batch
    of TOKENS_PER_BATCH tokens, as `longest_first` makes them, the numbers [n] of its examples and
    what `function(**batch)` makes of them, without gradients: [n, ...] float32."""
    network.eval()
    if rows is None:
        rows = np.arange(len(examples))
    device = next(network.parameters()).device
    # Repeated MLM: such a model repeats every token of its input
    tokens_per_batch = TOKENS_PER_BATCH // getattr(getattr(network, "config", None), "repeat", 1)
    lengths = [len(examples[row]["input_ids"]) for row in rows]
    with tqdm(total=len(rows), desc=progress, unit="row", disable=not progress) as bar:
        for numbers in longest_first(lengths, tokens_per_batch, few_shapes=True):
            rows_of_batch = rows[numbers]
            batch = pad([examples[row] for row in rows_of_batch], tokenizer, padding_side)
            with torch.inference_mode(), in_precision(device, precision):
                outputs = function(**model_inputs(network, batch)).float().cpu().numpy()
            yield rows_of_batch, outputs
            bar.update(len(numbers))
