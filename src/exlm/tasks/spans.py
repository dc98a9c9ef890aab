"""Training on windows of questions and contexts, and answers put together from them.

Everything here works for any model whose output has start_logits and end_logits [B, S].
"""

import inspect
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from exlm.errors import Diverged, InputError
from exlm.model.objectives import span_loss
from exlm.tasks.inference import by_length, copies, pad, placed
from exlm.tasks.squad import Answer, Questions
from exlm.tasks.squad_windows import QAConfig, Windows
from exlm.tasks.supervised import RowBatches
from exlm.train.precision import in_precision

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class WindowBatches(RowBatches):
    """Shuffled batches of windows, of similar length within a batch, as a function of the step.

    They hold INPUTS [B, S] and start_positions and end_positions [B], which count the padding on the left.

    Raises:
        InputError: if there is no window to learn from.
    """

    def __init__(self, windows: Windows, tokenizer: PreTrainedTokenizerFast, size: int, seed: int) -> None:
        rows = np.flatnonzero(windows.trainable)
        if not len(rows):
            raise InputError("no window can be learned from; look at the problems of the questions and their windows")
        examples: Any = windows.examples  # the base class takes their lengths alone
        super().__init__(examples, np.stack([windows.starts, windows.ends], 1), rows, size, tokenizer, seed)
        self.windows = windows

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        rows = self.epoch(step // self.per_epoch)[step % self.per_epoch]
        batch = pad([self.windows.examples[row] for row in rows], self.tokenizer)
        positions = torch.from_numpy(self.labels[rows]) + _shift(batch)[:, None]
        batch["start_positions"], batch["end_positions"] = positions.unbind(1)
        return [(0, batch)]


def qa_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(sum over windows of the mean of both cross entropies, their number, 0)."""
    start, end = span_logits(model, batch)
    total = span_loss(start, end, batch["start_positions"], batch["end_positions"])
    return total, total.new_full((), len(start)), total.new_zeros(())


def span_logits(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Start and end logits [B, S] in float32, from those of the INPUTS that the model takes."""
    network = getattr(model, "module", model)  # behind DistributedDataParallel
    taken = inspect.signature(network.forward).parameters
    inputs = {name: batch[name] for name in INPUTS if name in batch and name in taken}
    output = model(**placed(model, inputs))
    return output.start_logits.float(), output.end_logits.float()


def _shift(batch: dict[str, Tensor]) -> Tensor:
    """[B] where the first real token of each row stands."""
    return batch["attention_mask"].argmax(1)


class Spans(NamedTuple):
    """The best spans of B windows, best first; a score of -inf marks that there are no more.

    Attributes:
        scores: [B, n] start logit plus end logit.
        starts: [B, n] first token.
        ends: [B, n] last token.
        null: [B] score of "no answer".
    """

    scores: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    null: np.ndarray


def best_spans(start: Tensor, end: Tensor, context: Tensor, longest: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Spans of up to `longest` tokens with the highest sums of start and end logits.

    Args:
        start: [B, S] logits, and `end` alike.
        context: [B, S] bool, where a span may start and end.
        longest: tokens.
        number: of spans per row.

    Returns:
        scores, first tokens and last tokens [B, number]; scores are -inf where there are fewer spans.
    """
    first, last = (logits.masked_fill(~context, -torch.inf) for logits in (start, end))
    ends = nn.functional.pad(last, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)
    sums = nn.functional.pad((first[..., None] + ends).flatten(1), (0, number), value=-torch.inf)
    scores, index = sums.topk(number, dim=1)
    return scores, index // longest, index // longest + index % longest


def answer(
    model: nn.Module,
    questions: Questions,
    windows: Windows,
    tokenizer: PreTrainedTokenizerFast,
    config: QAConfig,
    tokens_per_batch: int = 16384,
    precision: str = "auto",
) -> list[Answer]:
    """The best spans of every question over all its windows, and its score of "no answer", the least of any window.

    Args:
        model: on its device; put into evaluation mode.
        questions: what is asked.
        windows: of these questions, from `make_windows`.
        tokenizer: the one they were made with.
        config: longest answer and number of spans.
        tokens_per_batch: windows x longest window.
        precision: as in `LoopConfig`.

    Returns:
        one for each of the questions, also for those without any window.

    Raises:
        Diverged: if a logit is not a number.
    """
    model.eval()
    count, total = config.n_best, len(windows.examples)
    shape = (total, count)
    found = Spans(np.empty(shape, np.float32), np.empty(shape, int), np.empty(shape, int), np.empty(total, np.float32))
    with torch.inference_mode():
        for rows in by_length([len(offsets) for offsets in windows.offsets], tokens_per_batch // copies(model)):
            for whole, part in zip(found, _read(model, windows, rows, tokenizer, config, precision), strict=True):
                whole[rows] = part
    edges = np.searchsorted(windows.question, np.arange(len(questions.ids) + 1))
    return [
        _merge(context, windows.offsets[first:last], Spans(*(part[first:last] for part in found)), count)
        for context, first, last in zip(questions.contexts, edges[:-1], edges[1:], strict=True)
    ]


def _read(
    model: nn.Module,
    windows: Windows,
    rows: np.ndarray,
    tokenizer: PreTrainedTokenizerFast,
    config: QAConfig,
    precision: str,
) -> Spans:
    batch = pad([windows.examples[row] for row in rows], tokenizer)
    with in_precision(next(model.parameters()).device, precision):
        start, end = span_logits(model, batch)
    shift = _shift(batch)
    context = torch.zeros_like(batch["attention_mask"], dtype=torch.bool)
    for i, row in enumerate(rows):
        places = torch.from_numpy(np.flatnonzero(windows.offsets[row][:, 0] >= 0))
        context[i, places + shift[i]] = True
    null = (torch.from_numpy(windows.null[rows]) + shift).to(start.device)[:, None]
    scores, first, last = best_spans(start, end, context.to(start.device), config.max_answer, config.n_best)
    nothing = (start.gather(1, null) + end.gather(1, null))[:, 0]
    if bool(nothing.isnan().any() | scores.isnan().any()):
        raise Diverged("the model's logits are not numbers; it has diverged, train it with a lower learning rate")
    shift = shift.to(first.device)[:, None]
    return Spans(*(part.cpu().numpy() for part in (scores, first - shift, last - shift, nothing)))


def _merge(context: str, offsets: list[np.ndarray], spans: Spans, number: int) -> Answer:
    """One question's answer from the spans of its windows, the same characters and the same text counted once."""
    if not offsets:
        return Answer("", -np.inf, 0.0, [("", 1.0)])
    places: dict[tuple[int, int], float] = {}
    for window, rank in np.argwhere(np.isfinite(spans.scores)):
        first, last = spans.starts[window, rank], spans.ends[window, rank]
        place = int(offsets[window][first, 0]), int(offsets[window][last, 1])
        places[place] = max(float(spans.scores[window, rank]), places.get(place, -np.inf))
    texts: dict[str, float] = {}
    for (first, last), score in sorted(places.items(), key=lambda item: (-item[1], item[0]))[:number]:
        texts.setdefault(context[first:last].strip(), score)
    texts.pop("", None)  # a span of white space is no answer
    null = float(spans.null.min())
    text, score = next(iter(texts.items()), ("", -np.inf))
    return Answer(text, score, null, _probabilities(texts | {"": null}))


def _probabilities(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Softmax, highest first."""
    values = np.array([*scores.values()])
    weights = np.exp(values - values.max())
    pairs = zip(scores, (weights / weights.sum()).tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])
