"""Supervised training, shared by all kinds of task: shuffled batches, and the choice of the best
epoch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from exlm.randomness import Purpose, draw
from exlm.storage.files import replacing, sync
from exlm.storage.runs import PROGRESS
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.metrics import rank
from exlm.train import distributed
from exlm.train.loop import EarlyStop, LoopConfig, LossFunction, fit
from exlm.train.optim import OptimizerConfig

# in the directory of a seed whose training is not finished (`unfinished`)
UNFINISHED = "unfinished"
MEMORY_ADVICE = "lower batch_size, or max_length of the task; both change the result (train.gradient_checkpointing does not)"
# so many batches at a time: their shuffled rows are sorted by length and cut into batches
BUCKETED_BATCHES = 8


@dataclass(eq=False)
class ShuffledBatches:
    """Gives the batch of each step. A batch has rows of similar length; an epoch's batches are in
    random order."""

    lengths: Sequence[int]  # tokens of every example
    rows: np.ndarray  # indices of the examples to train on
    batch_size: int
    seed: int  # seed of the order
    # from the indices of a batch to its tensors, labels included
    collate: Callable[[np.ndarray], dict[str, Tensor]]

    def __post_init__(self) -> None:
        self.per_epoch = -(-len(self.rows) // self.batch_size)
        self.epoch = lru_cache(maxsize=1)(self._epoch)

    def _epoch(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, as indices."""
        shuffled = self.rows[np.argsort(draw(Purpose.ORDER, self.seed, epoch, self.rows))]
        lengths, batches = np.asarray(self.lengths), list[np.ndarray]()
        for start in range(0, len(shuffled), window := self.batch_size * BUCKETED_BATCHES):
            rows = shuffled[start : start + window]
            rows = rows[np.argsort(lengths[rows], kind="stable")]
            batches += [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        order = np.argsort(draw(Purpose.BATCH_ORDER, self.seed, epoch, np.arange(len(batches))))
        return [batches[i] for i in order]

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        """The one micro-batch of a step."""
        epoch, number = divmod(step, self.per_epoch)
        return [(0, self.collate(self.epoch(epoch)[number]))]


def train_best_epoch(
    network: PreTrainedModel,
    loss: LossFunction,
    batches: ShuffledBatches,
    run_dir: Path,
    hyper: FinetuneConfig,
    score: Callable[[nn.Module], dict[str, float]],
    metric: str,
    device: str = "auto",
) -> int:
    """Trains a network in place, gives it the weights of its best epoch by `metric` of `score`, the
    metrics on valid, and returns that epoch. The log goes to `run_dir`; what an interrupted
    training needs to go on is in UNFINISHED there. The batches' seed also seeds dropout."""
    assert hyper.epochs and hyper.learning_rate and hyper.warmup_ratio is not None
    every = batches.per_epoch
    steps = hyper.epochs * every
    warmup = int(hyper.warmup_ratio * steps)
    optimizer = OptimizerConfig(
        hyper.learning_rate, warmup, weight_decay=hyper.weight_decay, clip_norm=hyper.clip_norm
    )
    config = LoopConfig(
        steps=steps,
        optimizer=optimizer,
        precision=hyper.precision,
        log_every=every,
        eval_every=every,
        save_every=every,
        gradient_checkpointing=hyper.gradient_checkpointing,
    )
    kept = run_dir / UNFINISHED / PROGRESS
    weights, best, best_epoch = kept / "best.safetensors", -np.inf, 0
    # its epoch may be later than the newest checkpoint; then it is repeated, with the same score
    if weights.exists():
        with safe_open(weights, "pt") as file:
            best, best_epoch = float(file.metadata()["best"]), int(file.metadata()["epoch"])

    def evaluate(model: nn.Module, step: int) -> dict[str, float]:
        nonlocal best, best_epoch
        epoch, values = step // every, score(model)
        value = rank(values[metric], metric)
        if value > best or not best_epoch:
            best, best_epoch = value, epoch
            with replacing(weights) as partial:
                save_model(model, str(partial), {"epoch": str(epoch), "best": str(float(value))})
                sync(partial)
        elif hyper.patience and epoch - best_epoch >= hyper.patience:
            raise EarlyStop(values)
        return values

    distributed.to_device(network, device)
    run_dir.mkdir(parents=True, exist_ok=True)
    name = "/".join(run_dir.parts[-2:])
    fit(
        model=network,
        loss=loss,
        batches=batches,
        config=config,
        directory=run_dir,
        seed=batches.seed,
        evaluate=evaluate,
        description=name,
        checkpoints=kept,
        memory_advice=MEMORY_ADVICE,
    )
    load_model(network, weights)
    network.eval()
    return best_epoch
