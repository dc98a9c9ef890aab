"""The settings of a pre-training: data and masks, architecture, and the prior of the links between
states."""

import math
from dataclasses import dataclass, field
from typing import Any

from exlm.data.batching import MaskRatio, share_bounds
from exlm.errors import InputError

# also a part of a recipe
from exlm.model.configuration_exlm import ArchitectureConfig as ArchitectureConfig
from exlm.model.heads import Prior
from exlm.model.passes import Passes

# Settings that do not change what a run computes, or that another setting contains. Micro-batches
# change rounding and which units are dropped; a run that is out of memory could not go on if they
# had to stay.
REPORTING = (
    "log_every", "eval_every", "save_every", "keep_checkpoints", "max_wait", "eval_sequences", "corpus", "warmup_ratio",
    "tokens_per_micro_batch", "gradient_checkpointing",
)  # fmt: skip

# settings that runs of earlier versions did not record, with what held for them
EARLIER = {"model.state_share": 0.5}


@dataclass(frozen=True)
class DataConfig:
    """What to train on, and how it is divided and masked.

    Attributes:
        corpus: directory written by `exlm prepare`, or several of one tokenizer that are read as
            one.
        mask_ratio: share of tokens replaced by [MASK], or a range [0.02, 0.6] from which every
            sequence draws its own.
        repeat: copies of each token, masked one by one (Repeated MLM); fine-tuning then repeats its
            input too.
        tokens_per_batch: upper bound of sequences x longest sequence in one update, over all
            processes, without copies. One update of an epoch may have up to 7 sequences more, but
            less than twice as many tokens.
        tokens_per_micro_batch: the same for one forward and backward pass, with copies; smaller
            needs less memory. It may change when a run is resumed.
        eval_sequences: held-out sequences used in an evaluation; 0 takes all."""

    corpus: str | list[str]
    mask_ratio: MaskRatio = 0.15
    repeat: int = 1
    tokens_per_batch: int = 65536
    tokens_per_micro_batch: int = 16384
    eval_sequences: int = 2000

    def __post_init__(self) -> None:
        share_bounds(self.mask_ratio)
        if not 1 <= self.repeat <= 64:
            raise InputError(f"repeat is {self.repeat}; it must lie between 1 and 64")
        if self.tokens_per_batch < 8 or self.tokens_per_micro_batch < 8:
            raise InputError("tokens_per_batch and tokens_per_micro_batch must be at least 8")
        if self.eval_sequences < 0:
            raise InputError(f"eval_sequences is {self.eval_sequences}; it must be 0 (all) or more")

    @property
    def one_mask_ratio(self) -> float:
        """The share of masks of the paper's experiments, which compare one share with another;
        InputError if it is a range."""
        if not isinstance(self.mask_ratio, float | int):
            raise InputError(
                f"mask_ratio is the range {self.mask_ratio}, but an analysis needs one share; give a number"
            )
        return float(self.mask_ratio)


@dataclass(frozen=True)
class EvaluateConfig:
    """What is measured once more at the end of a pre-training, beside the scores of every
    evaluation.

    Attributes:
        by_masks: numbers of masks. Held-out sequences are judged with exactly so many masked
            tokens, each time the same sequences. A task has no mask at all, a filling a few: a
            model should be good at every number. [] for none.
        sequences: the most held-out sequences that are judged for it.
        passes: in how many passes of the network all masked tokens are judged together, such as [1,
            2, 4, all], on the sequences of `joint_nll`, which is that of one pass; each pass
            reveals the masks that are most certain. The time is that of an evaluation for every
            pass."""

    by_masks: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    sequences: int = 500
    passes: list[Passes] = field(default_factory=list)

    def __post_init__(self) -> None:
        if any(masks < 1 for masks in self.by_masks) or self.sequences < 1:
            raise InputError(
                "evaluate.by_masks and evaluate.sequences must be at least 1; give [] for no number of masks"
            )
        if any(passes != "all" and passes < 1 for passes in self.passes):
            raise InputError(
                f"evaluate.passes is {self.passes}; give numbers from 1, or all, as in [1, 2, 4, all]"
            )


def expanded_length(tokens: int, data: DataConfig, model: ArchitectureConfig) -> int:
    """The most positions to which a masked sequence of so many tokens, without BOS and EOS, can
    expand."""
    # a packed sequence can consist of BOS and EOS tokens, which all have k states
    if model.states_per_boundary > 1:
        return (tokens + 2) * data.repeat * model.states_per_boundary
    masks = math.ceil(share_bounds(data.mask_ratio)[1] * (tokens * data.repeat))
    return (tokens + 2) * data.repeat + masks * (model.states_per_mask - 1)


@dataclass(frozen=True)
class PriorConfig:
    """The order prior: terms added to the scores of links between states, not in the paper (all 0:
    the paper).

    With the full DAG a small model settles on one path through the wrong masks before it has
    learned any word, and then predicts only token frequencies. The prior favours paths that give
    each masked token a state of its own mask.

    Attributes:
        order: penalty on a link's score for every mask it skips, and for staying within a mask.
        sticky: bonus on links from a copy of one mask to the same copy of the next: copies stand
            for fillings.
        decay: two fractions of the run between which the prior falls linearly to 0; without it the
            prior is constant. The prior at the end is part of the model."""

    order: float = 0.0
    sticky: float = 0.0
    decay: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.order < math.inf and 0 <= self.sticky < math.inf):
            raise InputError(
                f"prior.order is {self.order} and prior.sticky {self.sticky}; neither may be negative"
            )
        if self.decay is not None and not 0 <= self.decay[0] < self.decay[1] <= 1:
            raise InputError(
                f"prior.decay is {self.decay}; give two fractions of the run as [0.0, 0.5]"
            )

    def at(self, step: int, steps: int) -> Prior:
        """The prior in update `step` (0-based) of `steps`; `step` = `steps` gives the prior after
        the last update."""
        begin, end = self.decay or (math.inf, math.inf)
        left = 1.0 if step / steps <= begin else max(0.0, (end - step / steps) / (end - begin))
        return Prior(left * self.order, left * self.sticky)


def identity_of(recipe: dict[str, Any], section: str) -> dict[str, Any]:
    """The settings of a section of a recipe that a resumed run must share, by `section.name`. Those
    in REPORTING are left out."""
    flat: dict[str, Any] = {}
    for key, value in recipe[section].items():
        if isinstance(value, dict):
            flat |= {
                f"{section}.{key}.{name}": item
                for name, item in value.items()
                if name not in REPORTING
            }
        elif key not in REPORTING:
            flat[f"{section}.{key}"] = value
    return flat
