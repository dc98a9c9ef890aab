"""From questions to answers: cuts contexts into windows, trains on them, finds the best spans, and
lets models vote."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.model.downstream import span_loss
from exlm.ops.precision import in_precision
from exlm.tasks.inference import batches_by_length, model_inputs, pad
from exlm.tasks.metrics import diverged
from exlm.tasks.questions import QuestionProblem
from exlm.tasks.reading import Tokens
from exlm.tasks.supervised import ShuffledBatches

MIN_STEP = 16  # each window must begin at least this many tokens after the one before
N_BEST = 20  # spans that are kept for each question


@dataclass(eq=False)
class Window:
    """A question and a piece of its context that the model reads at a time: S tokens.

    Attributes:
        row: row of the question.
        example: [S] by name: input_ids and, where the tokenizer makes them, token_type_ids.
        offsets: int32 [S, 2]: first character of a context token, one after its last; -1 for other
            tokens.
        null: position of CLS (or BOS), which stands for "no answer".
        label: first and last token of the first reference answer. `null` twice if there is no
            answer, or if another window holds all of the answer but this one does not. None if no
            window of the question holds all of it."""

    row: int
    example: Tokens
    offsets: np.ndarray
    null: int
    label: tuple[int, int] | None


def make_windows(
    questions: pd.DataFrame, tokenizer: PreTrainedTokenizerFast, max_length: int, stride: int
) -> tuple[list[Window], list[QuestionProblem]]:
    """Cuts each context into as many windows of `max_length` tokens as it needs, which share
    `stride` tokens. Each begins with the question. Problems are questions that get no windows, as
    they are too long beside a long context, and those that cannot be learned from. InputError if a
    window has neither a CLS nor a BOS token."""
    windows: list[Window] = []
    problems: list[QuestionProblem] = []
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    columns = questions[["question", "context", "answers"]]
    for row, question, context, answers in columns.itertuples():
        size = len(tokenizer.tokenize(question, verbose=False))
        is_long = size > room - stride - MIN_STEP
        if is_long and size + len(tokenizer.tokenize(context, verbose=False)) > room:
            problem = f"longer than the window: of {max_length} tokens it takes {size}"
            problems.append(QuestionProblem(row, question, problem))
            continue
        encoding = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        count = len(encoding["input_ids"])
        question_windows = [_window(row, encoding, number, tokenizer) for number in range(count)]
        windows += question_windows
        if answers:
            text, start = answers[0]
            label_windows(question_windows, text, start)
            if all(window.label is None for window in question_windows):
                problem = "no window holds all of it; not used for training"
                problems.append(QuestionProblem(row, text, problem))
    return windows, problems


def _window(
    row: int, encoding: BatchEncoding, number: int, tokenizer: PreTrainedTokenizerFast
) -> Window:
    """One window of a question, labelled as if there were no answer."""
    names = [name for name in ("input_ids", "token_type_ids") if name in encoding]
    example = {name: np.array(encoding[name][number], dtype=np.int32) for name in names}
    in_context = np.array([sequence == 1 for sequence in encoding.sequence_ids(number)])
    is_special = np.array([sequence is None for sequence in encoding.sequence_ids(number)])
    offsets = np.array(encoding["offset_mapping"][number], dtype=np.int32)
    offsets[~in_context] = -1
    for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        positions = np.flatnonzero(is_special & (example["input_ids"] == token))
        if len(positions):
            null = int(positions[0])
            return Window(row, example, offsets, null, label=(null, null))
    raise InputError(
        "the tokenizer puts neither CLS nor BOS before or behind its texts, for answers that are "
        "missing"
    )


def label_windows(windows: list[Window], text: str, start: int) -> None:
    """Labels all windows of a question with its answer, which begins at character `start`: None for
    all of them if none holds all of the answer."""
    stop = start + len(text)
    # A token may begin before the answer, or omit its last space. So the whole answer is all tokens
    # that touch it, in any window.
    begins, ends = np.concatenate([window.offsets for window in windows]).T
    touches = (begins < stop) & (ends > start)
    first_character = begins[touches].min(initial=stop)
    last_character = ends[touches].max(initial=start)
    for window in windows:
        begins, ends = window.offsets.T
        tokens = np.flatnonzero((begins < stop) & (ends > start))
        if not len(tokens):
            continue
        first, last = tokens[[0, -1]].tolist()
        if begins[first] <= first_character and ends[last] >= last_character:
            window.label = (first, last)
    if all(window.label == (window.null, window.null) for window in windows):
        for window in windows:
            window.label = None


def window_batches(
    windows: list[Window], tokenizer: PreTrainedTokenizerFast, batch_size: int, seed: int
) -> ShuffledBatches:
    """Batches of the windows that can be learned from, with the positions [B] of labels in the
    padded rows."""
    trainable = np.flatnonzero([window.label is not None for window in windows])
    if not len(trainable):
        raise InputError(
            "no window can be learned from; look at the problems of the questions and their windows"
        )

    def collate(numbers: np.ndarray) -> dict[str, Tensor]:
        batch = pad([windows[number].example for number in numbers], tokenizer)
        padding_on_the_left = batch["attention_mask"].argmax(1)
        labels = torch.tensor([windows[number].label for number in numbers])
        starts, ends = (labels + padding_on_the_left[:, None]).T
        return {**batch, "start_positions": starts, "end_positions": ends}

    lengths = [len(window.offsets) for window in windows]
    return ShuffledBatches(lengths, trainable, batch_size, seed, collate)


def span_training_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(sum over windows of the mean of the start's and the end's cross entropy, number of windows,
    0)."""
    output = model(**model_inputs(model, batch))
    start = output.start_logits.float()
    end = output.end_logits.float()
    total = span_loss(start, end, batch["start_positions"], batch["end_positions"])
    return total, total.new_full((), len(start)), total.new_zeros(())


def best_spans(start: Tensor, end: Tensor, longest: int) -> list[tuple[float, int, int]]:
    """The N_BEST spans of at most `longest` of the S tokens: (sum of start and end logit, first
    token, last token)."""
    # [S, longest]: the logit of each end that a span may have, by its distance from the start
    ends = nn.functional.pad(end, (0, longest), value=-torch.inf).unfold(0, longest, 1)[:-1]
    sums = (start[:, None] + ends).flatten()
    scores, indices = sums.topk(min(N_BEST, len(sums)))
    spans = []
    for score, index in zip(scores.tolist(), indices.tolist(), strict=True):
        first, distance = divmod(index, longest)
        if score > -np.inf:
            spans.append((score, first, first + distance))
    return spans


def answer(
    model: nn.Module,
    questions: pd.DataFrame,
    windows: list[Window],
    tokenizer: PreTrainedTokenizerFast,
    max_answer: int,
    precision: str = "auto",
) -> pd.DataFrame:
    """Finds the best spans (up to `max_answer` tokens) of every question over all its windows, by
    the start_logits and end_logits [B, S] of a model. The score of "no answer" is the lowest that
    any window gives.

    Returns one row for each question: answer (the best span's text, "" if there is none),
    null_minus_best (how much higher, in logits, "no answer" scores than the best span) and
    candidates (texts with probabilities, best first; "" stands for no answer and is last). A
    question without windows has "", NaN and no candidates. Raises Diverged if a logit is not a
    number."""
    model.eval()
    device = next(model.parameters()).device
    read_windows: defaultdict[int, list[tuple[Window, Tensor]]] = defaultdict(list)
    for numbers in batches_by_length(model, [window.example for window in windows]):
        batch = pad([windows[number].example for number in numbers], tokenizer)
        with torch.inference_mode(), in_precision(device, precision):
            output = model(**model_inputs(model, batch))
            logits = torch.stack([output.start_logits, output.end_logits], 1).float().cpu()
        masks = batch["attention_mask"].bool()
        for number, padded, mask in zip(numbers, logits, masks, strict=True):
            window = windows[number]
            read_windows[window.row].append((window, padded[:, mask]))
    answers = [
        _best_answer(context, read_windows[row], max_answer)
        for row, context in zip(questions.index, questions["context"], strict=True)
    ]
    return pd.DataFrame(answers, questions.index, ["answer", "null_minus_best", "candidates"])


def _best_answer(
    context: str, windows: list[tuple[Window, Tensor]], max_answer: int
) -> tuple[str, float, dict[str, float]]:
    """The row that `answer` returns for one question, from its windows and their start and end
    logits [2, S]."""
    if not windows:
        return "", np.nan, {}
    if any(logits.isnan().any() for _, logits in windows):
        raise diverged("the logits are not numbers")
    null_score = min(float(logits[:, window.null].sum()) for window, logits in windows)
    # the score of every span by its first character and the one after its last
    spans: dict[tuple[int, int], float] = {}
    for window, logits in windows:
        tokens = np.flatnonzero(window.offsets[:, 0] >= 0)
        offsets = window.offsets[tokens].tolist()
        start, end = logits[:, tokens]
        for score, first, last in best_spans(start, end, max_answer):
            span = (offsets[first][0], offsets[last][1])
            spans[span] = max(score, spans.get(span, score))
    by_score = sorted(spans.items(), key=lambda item: (-item[1], item[0]))
    # The same text counts once. A span of white space is no answer.
    texts: dict[str, float] = {}
    for (first, stop), score in by_score[:N_BEST]:
        texts.setdefault(context[first:stop].strip(), score)
    texts.pop("", None)
    best_text, best_score = next(iter(texts.items()), ("", -np.inf))
    probabilities = softmax([*texts.values(), null_score]).tolist()
    candidates = dict(zip([*texts, ""], probabilities, strict=True))
    return best_text, null_score - best_score, candidates


def vote(questions: pd.DataFrame, runs: list[pd.DataFrame]) -> pd.DataFrame:
    """A table with id, question, answer ("" for none), probability and null_minus_best. The last
    two are means over `runs` (what `answer` returned for each model). The answer is the candidate
    with the highest mean probability. If there are several models, `probability std` is the
    standard deviation of theirs. Numbers are NaN for a question that no model has read."""
    answers = []
    mean_probabilities = []
    probabilities_by_run = []
    for candidates_by_run in zip(*[run["candidates"] for run in runs], strict=True):
        texts = list(dict.fromkeys(chain(*candidates_by_run)))
        if not texts:
            answers.append("")
            mean_probabilities.append(np.nan)
            probabilities_by_run.append(np.full(len(runs), np.nan))
            continue
        shares = [[by_text.get(text, 0.0) for text in texts] for by_text in candidates_by_run]
        probabilities = np.array(shares)  # [runs, texts]
        means = (probabilities / len(runs)).sum(0)
        best = means.argmax()
        answers.append(texts[best])
        mean_probabilities.append(means[best])
        probabilities_by_run.append(probabilities[:, best])
    table = questions[["id", "question"]].copy()
    table["answer"] = answers
    table["probability"] = mean_probabilities
    table["null_minus_best"] = np.column_stack([run["null_minus_best"] for run in runs]).mean(1)
    if len(runs) > 1:
        table["probability std"] = np.std(probabilities_by_run, 1, ddof=1)
    return table
