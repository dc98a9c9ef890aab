"""Supervised training, shared by all task types: what is learned (`Supervision`), its shuffled
batches, and the choice of the best epoch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from exlm.errors import advising
from exlm.ops.loss import LossSum
from exlm.randomness import Purpose, random_bits
from exlm.storage.files import replacing, sync
from exlm.storage.run_directories import PROGRESS
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.metrics import Metric
from exlm.tasks.labels.scores import goodness
from exlm.tasks.results import SeedResult
from exlm.train import devices
from exlm.train.checkpoint import Checkpoints
from exlm.train.loop import ADVICE, LoopConfig, fit
from exlm.train.optim import OptimizerConfig
from exlm.train.tracking import RunLog

# a folder in the directory of a seed whose training is not finished
UNFINISHED = "unfinished"
MEMORY_ADVICE = (
    "lower batch_size, or max_length of the task; "
    "both change the result (train.gradient_checkpointing does not)"
)
Outputs = TypeVar("Outputs")  # what a network gives for the rows of a task
# The shuffled rows of so many batches are sorted by length before they are cut into batches.
BUCKETED_BATCHES = 8


@dataclass(eq=False)
class ShuffledBatches:
    """Gives the batch of each step. A batch has rows of similar length; an epoch's batches are in
    random order."""

    lengths: Sequence[int]  # tokens of every example
    rows: np.ndarray  # indices of the examples to train on
    batch_size: int
    seed: int  # of the order
    # from the indices of a batch to its tensors, labels included
    collate: Callable[[np.ndarray], dict[str, Tensor]]

    def __post_init__(self) -> None:
        self.per_epoch = -(-len(self.rows) // self.batch_size)
        self.batches_of_epoch = lru_cache(maxsize=1)(self._batches_of_epoch)

    def _batches_of_epoch(self, epoch: int) -> list[np.ndarray]:
        shuffled = self.rows[np.argsort(random_bits(Purpose.ORDER, self.seed, epoch, self.rows))]
        lengths = np.asarray(self.lengths)
        batches = list[np.ndarray]()
        bucket_size = self.batch_size * BUCKETED_BATCHES
        for start in range(0, len(shuffled), bucket_size):
            rows = shuffled[start : start + bucket_size]
            rows = rows[np.argsort(lengths[rows], kind="stable")]
            batches += [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        order = np.argsort(
            random_bits(Purpose.BATCH_ORDER, self.seed, epoch, np.arange(len(batches)))
        )
        return [batches[i] for i in order]

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        """The one micro-batch of a step."""
        epoch, number = divmod(step, self.per_epoch)
        return [(0, self.collate(self.batches_of_epoch(epoch)[number]))]


@dataclass(frozen=True)
class Supervision(ABC, Generic[Outputs]):
    """What a network learns with one seed, and what becomes of it when it is trained: its outputs
    (`predict`) calibrate its head, and give the results. Every task type has its own."""

    saved_task: SavedTask  # what is saved with the network
    head_settings: dict[str, Any]  # of the head, in the configuration of the network
    batches: ShuffledBatches  # of the train part, with what the loss compares outputs with

    @abstractmethod
    def loss(self, network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
        """The loss of a batch, summed over what is learned in it."""

    @abstractmethod
    def score_valid(self, network: PreTrainedModel) -> dict[str, float]:
        """The scores of the valid part by metric, after an epoch."""

    @abstractmethod
    def predict(self, network: PreTrainedModel) -> Outputs:
        """What the trained network gives for all parts that are scored."""

    def calibrate_head(self, network: PreTrainedModel, outputs: Outputs) -> SavedTask:
        """Returns the task to save with the trained network: it has what the `outputs` for the
        valid part tell. Where numbers are learned, the head is changed, so that it gives them on
        the scale of the labels. Here nothing is calibrated."""
        return self.saved_task

    @abstractmethod
    def write_results(self, outputs: Outputs, run_dir: Path) -> SeedResult:
        """Writes predictions into the directory of the seed, and returns their scores."""


@dataclass
class BestEpoch:
    """The best epoch so far. Its weights and both numbers survive an interruption in a file."""

    weights: Path  # the file
    epoch: int = 0  # of no epoch yet: epochs count from 1
    goodness: float = -np.inf

    @classmethod
    def read(cls, weights: Path) -> Self:
        """The best epoch of an interrupted training, which may be later than its newest checkpoint.
        Training then repeats it, with the same result."""
        if not weights.exists():
            return cls(weights)
        with safe_open(weights, "pt") as file:
            metadata = file.metadata()
        return cls(weights, int(metadata["epoch"]), float(metadata["best"]))

    def keep_if_best(self, network: nn.Module, epoch: int, value: float) -> None:
        """Writes the weights of an epoch that is better than all before, or the first."""
        if self.epoch and value <= self.goodness:
            return
        self.epoch = epoch
        self.goodness = value
        metadata = {"epoch": str(epoch), "best": str(float(value))}
        with replacing(self.weights) as partial:
            save_model(network, str(partial), metadata)
            sync(partial)


def train_best_epoch(
    network: PreTrainedModel,
    supervision: Supervision,
    hyper: FinetuneConfig,
    *,
    metric: str,
    metrics: Mapping[str, Metric],
    run_dir: Path,
    device: str = "auto",
) -> int:
    """Trains a network in place, gives it the weights of the epoch that is best on valid by the
    `metric`, one of `metrics`, and returns this epoch. The log goes to `run_dir`; what an
    interrupted training needs to go on is in UNFINISHED there. The seed of the batches also seeds
    dropout."""
    batches = supervision.batches
    progress = run_dir / UNFINISHED / PROGRESS
    best = BestEpoch.read(progress / "best.safetensors")

    def evaluate(step: int) -> dict[str, float]:
        epoch = step // batches.per_epoch
        values = supervision.score_valid(network)
        best.keep_if_best(network, epoch, goodness(values[metric], metrics[metric]))
        return values

    def ends_early(step: int) -> bool:
        epochs_since_best = step // batches.per_epoch - best.epoch
        return hyper.patience > 0 and epochs_since_best >= hyper.patience

    devices.place_model(network, device)
    run_dir.mkdir(parents=True, exist_ok=True)
    with advising(ADVICE, MEMORY_ADVICE):
        fit(
            network=network,
            loss=supervision.loss,
            batches=batches,
            config=_loop_config(hyper, batches.per_epoch),
            seed=batches.seed,
            log=RunLog(run_dir, description="/".join(run_dir.parts[-2:])),
            checkpoints=Checkpoints(progress),
            evaluate=evaluate,
            ends_early=ends_early,
        )
    load_model(network, best.weights)
    network.eval()
    return best.epoch


def _loop_config(hyper: FinetuneConfig, steps_per_epoch: int) -> LoopConfig:
    """The settings of the loop, which reports, evaluates and saves after every epoch."""
    assert hyper.epochs and hyper.learning_rate and hyper.warmup_ratio is not None
    return LoopConfig(
        steps=hyper.epochs * steps_per_epoch,
        optimizer=OptimizerConfig(
            learning_rate=hyper.learning_rate,
            warmup_ratio=hyper.warmup_ratio,
            weight_decay=hyper.weight_decay,
            clip_norm=hyper.clip_norm,
        ),
        precision=hyper.precision,
        log_every=steps_per_epoch,
        eval_every=steps_per_epoch,
        save_every=steps_per_epoch,
        gradient_checkpointing=hyper.gradient_checkpointing,
    )
