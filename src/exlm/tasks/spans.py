"""Training on windows of questions and contexts, and answers put together from them.

Everything here works for any model whose output has start_logits and end_logits [B, S].
"""

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from exlm.errors import Diverged, InputError
from exlm.model.objectives import span_loss
from exlm.tasks.inference import batches_by_length, length, model_inputs, pad
from exlm.tasks.squad import Answer, Questions
from exlm.tasks.squad_windows import QAConfig, Window
from exlm.tasks.supervised import ShuffledBatches
from exlm.train.precision import in_precision

Span = tuple[int, int]  # the first character of an answer in its context, and the one after its last


def window_batches(
    windows: list[Window], tokenizer: PreTrainedTokenizerFast, batch_size: int, seed: int
) -> ShuffledBatches:
    """Batches of the windows that can be learned from.

    Besides the inputs they hold start_positions and end_positions [B], which count the padding on the left.

    Raises:
        InputError: if there is no window to learn from.
    """
    trainable = np.flatnonzero([window.trainable for window in windows])
    if not len(trainable):
        raise InputError("no window can be learned from; look at the problems of the questions and their windows")

    def collate(chosen: np.ndarray) -> dict[str, Tensor]:
        batch = pad([windows[i].example for i in chosen], tokenizer)
        labels = torch.tensor([(windows[i].start, windows[i].end) for i in chosen]) + _left_padding(batch)[:, None]
        return batch | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}

    return ShuffledBatches([length(window.example) for window in windows], trainable, batch_size, seed, collate)


def span_training_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(sum over windows of the mean of both cross entropies, their number, 0)."""
    start, end = _span_logits(model, batch)
    total = span_loss(start, end, batch["start_positions"], batch["end_positions"])
    return total, total.new_full((), len(start)), total.new_zeros(())


def _span_logits(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Start and end logits [B, S] in float32."""
    output = model(**model_inputs(model, batch))
    return output.start_logits.float(), output.end_logits.float()


def _left_padding(batch: dict[str, Tensor]) -> Tensor:
    """[B] where the first real token of each row stands."""
    return batch["attention_mask"].argmax(1)


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


@torch.inference_mode()
def answer(
    model: nn.Module,
    questions: Questions,
    windows: list[Window],
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
    device = next(model.parameters()).device
    scores: list[dict[Span, float]] = [{} for _ in questions.ids]
    null_scores = [np.inf] * len(questions.ids)
    for rows in batches_by_length(model, [window.example for window in windows], tokens_per_batch):
        chosen = [windows[row] for row in rows]
        batch = pad([window.example for window in chosen], tokenizer)
        with in_precision(device, precision):
            start, end = _span_logits(model, batch)
        padding = _left_padding(batch)
        context = torch.zeros_like(batch["attention_mask"], dtype=torch.bool)
        for i, window in enumerate(chosen):
            context[i, torch.from_numpy(np.flatnonzero(window.offsets[:, 0] >= 0)) + padding[i]] = True
        values, *spans = best_spans(start, end, context.to(device), config.max_answer, config.n_best)
        null = (torch.tensor([window.null for window in chosen]) + padding).to(device)[:, None]
        nulls = (start.gather(1, null) + end.gather(1, null))[:, 0]
        if bool(nulls.isnan().any() | values.isnan().any()):
            raise Diverged("the model's logits are not numbers; it has diverged, train it with a lower learning rate")
        firsts, lasts = ((tokens.cpu() - padding[:, None]).numpy() for tokens in spans)
        for i, (window, null_score) in enumerate(zip(chosen, nulls.tolist(), strict=True)):
            null_scores[window.question] = min(null_score, null_scores[window.question])
            known = scores[window.question]
            for first, last, score in zip(firsts[i], lasts[i], values[i].tolist(), strict=True):
                if score > -np.inf:
                    span = int(window.offsets[first, 0]), int(window.offsets[last, 1])
                    known[span] = max(score, known.get(span, -np.inf))
    columns = zip(questions.contexts, scores, null_scores, strict=True)
    return [_best_answer(context, found, null_score, config.n_best) for context, found, null_score in columns]


def _best_answer(context: str, scores: dict[Span, float], null_score: float, number: int) -> Answer:
    """One question's answer from its spans, of which the same text counts once."""
    if null_score == np.inf:  # there is no window
        return Answer("", -np.inf, 0.0, [("", 1.0)])
    texts: dict[str, float] = {}
    for (first, last), score in sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:number]:
        texts.setdefault(context[first:last].strip(), score)
    texts.pop("", None)  # a span of white space is no answer
    text, score = next(iter(texts.items()), ("", -np.inf))
    values = np.array([*texts.values(), null_score])
    weights = np.exp(values - values.max())
    n_best = zip([*texts, ""], (weights / weights.sum()).tolist(), strict=True)
    return Answer(text, score, null_score, sorted(n_best, key=lambda pair: -pair[1]))
