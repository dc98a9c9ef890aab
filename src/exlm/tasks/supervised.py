"""Supervised training: batches of labelled rows, their loss, model selection and predictions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.model.objectives import classification_loss
from exlm.randomness import Purpose, mix
from exlm.tasks import inference
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.inference import Example
from exlm.tasks.metrics import LOWER_IS_BETTER
from exlm.tasks.table import LabelledTable, molecule_problem, parts_and_rows
from exlm.train import distributed
from exlm.train.loop import EarlyStop, LoopConfig, Loss, fit
from exlm.train.optim import OptimizerConfig

BUCKETED_BATCHES = 8  # batches are cut from this many batches' worth of shuffled rows sorted by length


@dataclass(frozen=True)
class Rows:
    """A table's rows as tokens, with what is wrong with each ("" if nothing).

    `problems` keep a row out; `doubts` (not a molecule, tokens outside the vocabulary) only do so unless wanted.
    """

    table: LabelledTable
    examples: list[Example]
    problems: list[str]
    doubts: list[str]
    keep_doubtful: bool = False

    @property
    def usable(self) -> np.ndarray:
        """[rows] bool."""
        return np.array([not reason for reason in self.reasons()], dtype=bool)

    def reasons(self) -> list[str]:
        """Why each row is left out, "" if it is not."""
        doubts = [""] * len(self.examples) if self.keep_doubtful else self.doubts
        return [problem or doubt for problem, doubt in zip(self.problems, doubts, strict=True)]

    def report(self) -> pd.DataFrame:
        """Columns part (where parts are files), row, value, reason and action of all rows with something wrong."""
        reasons = [problem or doubt for problem, doubt in zip(self.problems, self.doubts, strict=True)]
        action = np.where(self.usable, "kept", "left out")
        bad = [row for row, reason in enumerate(reasons) if reason]
        places = parts_and_rows(self.table.parts, bad)
        content = {
            "part": [part for part, _ in places],
            "row": [row for _, row in places],
            "value": [self.table.texts[row] for row in bad],
            "reason": [reasons[row] for row in bad],
            "action": action[bad],
        }
        return pd.DataFrame(content)


def tokenize_rows(
    table: LabelledTable,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    molecules: bool,
    keep_doubtful: bool = False,
) -> Rows:
    """Tokens of every row.

    Molecules that are over-long are left out, those that RDKit cannot parse or the vocabulary lacks are doubtful.
    Text that is over-long is cut; that, unknown tokens and one empty text of two are reported, and the row is kept.
    """
    examples = inference.tokenize(table.texts, tokenizer, table.pairs)
    long = [row for row, example in enumerate(examples) if inference.length(example) > max_length]
    reasons = {row: f"{inference.length(examples[row])} tokens, the limit is {max_length}" for row in long}
    known = dict(zip(table.problems["row"], table.problems["reason"], strict=True))
    if molecules:
        known = reasons | known
        doubts = [
            molecule_problem(text) or inference.unknown(example, tokenizer) or ""
            for text, example in zip(table.texts, examples, strict=True)
        ]
    else:
        seconds = table.pairs or table.texts
        doubts = [
            (reasons[row] + "; cut" if row in reasons else "")
            or ("one of the two texts is empty" if not (text and second) else "")
            or (inference.unknown(example, tokenizer) or "")
            for row, (text, second, example) in enumerate(zip(table.texts, seconds, examples, strict=True))
        ]
        _cut(examples, long, table, tokenizer, max_length)
    problems = [known.get(row, "") for row in range(len(examples))]
    return Rows(table, examples, problems, doubts, keep_doubtful or not molecules)


def _cut(
    examples: list[Example], long: list[int], table: LabelledTable, tokenizer: PreTrainedTokenizerFast, limit: int
) -> None:
    pairs = [table.pairs[row] for row in long] if table.pairs else None
    shorter = inference.tokenize([table.texts[row] for row in long], tokenizer, pairs, limit)
    for row, example in zip(long, shorter, strict=True):
        examples[row] = example


def supervised_loss(
    model: nn.Module, batch: dict[str, Tensor], problem_type: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(sum over labelled entries, their number, 0)."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    logits = model(**inference.placed(model, inputs)).logits.float()
    total, count = classification_loss(logits, batch["labels"].to(logits.device), problem_type)
    return total, count, torch.zeros_like(count)


class RowBatches:
    """Shuffled batches of labelled rows, of similar length within a batch, as a function of the step."""

    def __init__(
        self,
        examples: list[Example],
        labels: np.ndarray,
        rows: np.ndarray,
        size: int,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
    ) -> None:
        self.examples, self.labels, self.rows = examples, labels, rows
        self.size, self.tokenizer, self.seed = size, tokenizer, seed
        self.lengths = np.array([inference.length(example) for example in examples])
        self.per_epoch = -(-len(rows) // size)
        self._epoch: tuple[int, list[np.ndarray]] | None = None

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, as row numbers."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._plan(epoch))
        return self._epoch[1]

    def _plan(self, epoch: int) -> list[np.ndarray]:
        shuffled = self.rows[np.argsort(mix(self.seed, epoch, Purpose.ORDER, self.rows))]
        window = self.size * BUCKETED_BATCHES
        batches: list[np.ndarray] = []
        for start in range(0, len(shuffled), window):
            part = shuffled[start : start + window]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches += [part[i : i + self.size] for i in range(0, len(part), self.size)]
        order = np.argsort(mix(self.seed, epoch, Purpose.BATCH_ORDER, np.arange(len(batches))))
        return [batches[i] for i in order]

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        rows = self.epoch(step // self.per_epoch)[step % self.per_epoch]
        labels = self.labels[rows]
        batch = inference.pad([self.examples[row] for row in rows], self.tokenizer)
        batch["labels"] = torch.from_numpy(labels[:, 0] if labels.shape[1] == 1 else labels).float()
        return [(0, batch)]


class Selector:
    """Scores the model on valid after every epoch and remembers the best weights; stops when patience runs out."""

    def __init__(
        self, model: nn.Module, score: Callable[[nn.Module], dict[str, float]], metric: str, patience: int
    ) -> None:
        self.model, self.score, self.patience, self.metric = model, score, patience, metric
        self.epoch, self.best_epoch, self.best = 0, 0, -np.inf
        self.weights: dict[str, Tensor] = {}

    def __call__(self, model: nn.Module, step: int) -> dict[str, float]:
        self.epoch += 1
        values = self.score(model)
        value = -values[self.metric] if self.metric in LOWER_IS_BETTER else values[self.metric]
        if not np.isfinite(value):  # constant predictions
            value = -np.inf
        if value > self.best or not self.weights:
            self.best, self.best_epoch = value, self.epoch
            self.weights = {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}
        elif self.patience and self.epoch - self.best_epoch >= self.patience:
            raise EarlyStop(values)
        return values

    def restore(self) -> None:
        self.model.load_state_dict(self.weights)


def train_selected(
    network: nn.Module,
    loss: Loss,
    batches: RowBatches,
    place: Path,
    hyper: FinetuneConfig,
    seed: int,
    score: Callable[[nn.Module], dict[str, float]],
    metric: str,
) -> int:
    """Trains a network and leaves it with the weights of the epoch that is best by `metric`; returns that epoch."""
    distributed.place(network)
    selector = Selector(network, score, metric, hyper.patience)
    place.mkdir(parents=True, exist_ok=True)
    config, name = _loop(hyper, batches.per_epoch), f"{place.parent.name} {place.name}"
    fit(network, loss, batches, config, place, seed, selector, description=name)
    selector.restore()
    return selector.best_epoch


def _loop(hyper: FinetuneConfig, per_epoch: int) -> LoopConfig:
    assert hyper.epochs and hyper.learning_rate and hyper.warmup_ratio is not None  # filled in before
    steps = hyper.epochs * per_epoch
    optimizer = OptimizerConfig(
        learning_rate=hyper.learning_rate,
        warmup_steps=int(hyper.warmup_ratio * steps),
        weight_decay=hyper.weight_decay,
        clip_norm=hyper.clip_norm,
    )
    return LoopConfig(steps, optimizer, hyper.precision, log_every=per_epoch, eval_every=per_epoch, save_every=0)


def predict_rows(
    model: PreTrainedModel,
    examples: list[Example],
    chosen: np.ndarray,
    facts: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
) -> np.ndarray:
    """[all rows, outputs] predictions of the chosen rows, NaN elsewhere."""
    rows = [examples[row] for row in chosen]
    logits = inference.run(model, lambda batch: model(**batch).logits, rows, tokenizer, precision=facts["precision"])
    result = np.full((len(examples), int(model.config.num_labels or 1)), np.nan)
    if len(chosen):
        result[chosen] = inference.probabilities(logits, facts["task_type"], facts["mean"], facts["std"])
    return result


def prediction_columns(facts: dict[str, Any]) -> list[str]:
    """Names of the output columns: one per label, or one per class."""
    return [f"predicted {name}" for name in (facts["classes"] or facts["label_columns"])]


def with_columns(frame: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """`frame` with further columns; one whose name is taken gets "exlm " in front, so that nothing is overwritten."""
    result = frame.copy()
    for name, values in columns.items():
        while name in frame:
            name = f"exlm {name}"
        result[name] = values
    return result
