"""A network on the rows of a table: its outputs, the predictions that they stand for, and the
targets that it learns.

If the units of a text (residues or words) have labels, labels and predictions are arrays over units
and do not depend on the tokenizer. A network says about a unit what it says about the unit's first
token; `unit_starts` (`TableTokens`) has the place of this token."""

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.ops.expansion import IGNORED
from exlm.tasks.encoders.inference import SCORING, batch_outputs
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.scores import diverged
from exlm.tasks.rows.reading import UNREAD, TableTokens


def padding_side(tokens: TableTokens) -> str | None:
    """The side on which batches are padded: right if there are units, whose tokens are counted from
    the left; else None, for the side that the tokenizer prefers."""
    return None if tokens.unit_starts is None else "right"


def run_network(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tokens: TableTokens,
    rows: np.ndarray,
    output_count: int,
    precision: str = SCORING,
    progress: str | None = None,
) -> np.ndarray:
    """The outputs of a network for some `rows` of a table, NaN for all other rows:
    [all rows, output_count] float64, or of units [all rows, units, output_count] float32.
    `progress` is the title of a bar. Diverged if an output for a unit is not a number."""
    if tokens.unit_starts is None:
        outputs = np.full((len(tokens.examples), output_count), np.nan)
    else:
        outputs = np.full((*tokens.unit_starts.shape, output_count), np.nan, np.float32)
    batches = batch_outputs(
        network=network,
        function=lambda **batch: network(**batch).logits,
        examples=tokens.examples,
        tokenizer=tokenizer,
        precision=precision,
        progress=progress,
        padding_side=padding_side(tokens),
        rows=rows,
    )
    for rows_of_batch, logits in batches:
        if tokens.unit_starts is not None:
            logits = _logits_of_units(logits, tokens.unit_starts[rows_of_batch])
        outputs[rows_of_batch] = logits
    return outputs


def _logits_of_units(logits: np.ndarray, unit_starts: np.ndarray) -> np.ndarray:
    """The logits of units [n, units, outputs], out of the logits of tokens [n, S, outputs]: NaN
    where a row has no such unit, -inf where the tokenizer reads it as nothing."""
    if np.isnan(logits).any():
        raise diverged("the outputs are not numbers")
    unit_logits = np.take_along_axis(logits, unit_starts.clip(0)[..., None], 1)
    unit_logits[unit_starts < 0] = np.nan
    unit_logits[unit_starts == UNREAD] = -np.inf
    return unit_logits


def make_predictions(
    saved_task: SavedTask, outputs: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """The predictions that outputs stand for: [rows, classes or labels], or of units
    [rows, units, classes]. They are probabilities, of logits divided by a `temperature`, or numbers
    on the scale of the labels."""
    predictions = saved_task.label_type.predictions(outputs / temperature)
    if saved_task.label_type.is_number:
        # 0 and 1 where the head itself returns numbers on this scale
        return predictions * np.array(saved_task.std) + np.array(saved_task.mean)
    return predictions


def make_targets(saved_task: SavedTask, labels: np.ndarray) -> Tensor:
    """The labels of a batch's rows [n, labels] as the loss takes them: numbers in standard
    deviations from the mean."""
    if saved_task.label_type.is_number:
        labels = (labels - saved_task.mean) / saved_task.std
    return saved_task.label_type.targets(labels)


def make_token_targets(labels: np.ndarray, unit_starts: np.ndarray, length: int) -> Tensor:
    """The class of every token [n, length] of a batch, from the `labels` of its units [n, units]:
    the first token of a unit has its class, all other tokens have IGNORED."""
    targets = np.full((len(labels), length), IGNORED)
    row, unit = np.nonzero((unit_starts >= 0) & ~np.isnan(labels))
    targets[row, unit_starts[row, unit]] = labels[row, unit]
    return torch.from_numpy(targets)
