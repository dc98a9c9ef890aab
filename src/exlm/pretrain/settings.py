"""The settings of a pre-training: data and masks, architecture, evaluation, and the prior of the
links between states."""

import math
from dataclasses import dataclass, field
from typing import Any

from exlm.data.masking import MaskRatio, share_bounds
from exlm.errors import InputError, check_at_least
from exlm.identity import NOT_IDENTITY, identity_of

# The architecture, too, is a section of a recipe.
from exlm.model.configuration_exlm import ArchitectureConfig as ArchitectureConfig
from exlm.model.passes import Passes
from exlm.ops.transition import PriorStrength
from exlm.train.loop import LoopConfig


@dataclass(frozen=True)
class DataConfig:
    """What to train on, and how it is divided and masked.

    Attributes:
        corpus: directory written by `exlm prepare`, or several of one tokenizer that are read as
            one.
        mask_ratio: share of tokens replaced by [MASK], or a range [0.02, 0.6] from which every
            sequence samples its own.
        repeat: how often each token stands in the input, each time masked by itself (Repeated MLM);
            fine-tuning then repeats its input too.
        tokens_per_batch: upper bound of sequences x longest sequence in one update, over all
            processes, without repeats. One update of an epoch may have up to 7 sequences more, but
            less than twice as many tokens.
        tokens_per_micro_batch: the same for one forward and backward pass, with repeats; smaller
            needs less memory. It may change when a run is resumed.
        eval_sequences: held-out sequences used in an evaluation; 0 takes all."""

    corpus: str | list[str] = field(metadata=NOT_IDENTITY)
    mask_ratio: MaskRatio = 0.15
    repeat: int = 1
    tokens_per_batch: int = 65536
    # This number changes rounding and what dropout drops, but a run that is out of memory could
    # not go on if the number had to stay.
    tokens_per_micro_batch: int = field(default=16384, metadata=NOT_IDENTITY)
    eval_sequences: int = field(default=2000, metadata=NOT_IDENTITY)

    def __post_init__(self) -> None:
        share_bounds(self.mask_ratio)
        if not 1 <= self.repeat <= 64:
            raise InputError(f"repeat is {self.repeat}; it must lie between 1 and 64")
        check_at_least(self, tokens_per_batch=8, tokens_per_micro_batch=8, eval_sequences=0)

    @property
    def one_mask_ratio(self) -> float:
        """The share of masks of the paper's experiments, which compare one share with another;
        InputError if it is a range."""
        if not isinstance(self.mask_ratio, float | int):
            raise InputError(
                f"mask_ratio is the range {self.mask_ratio}, but an analysis needs one share; "
                "give a number"
            )
        return float(self.mask_ratio)


@dataclass(frozen=True)
class EvaluateConfig:
    """What is evaluated at the end of a pre-training, beside the scores of every evaluation.

    Attributes:
        by_masks: numbers of masks. Held-out sequences are scored with exactly so many masked
            tokens, each time the same sequences. A task has no mask at all, a filling a few: a
            model should be good at every number. [] for none.
        sequences: the most held-out sequences that are scored for by_masks.
        passes: in how many passes of the network all masked tokens are scored together, such as [1,
            2, 4, all], on the sequences of `joint_nll`, the score in one pass; each pass reveals
            the masks that are most certain. Every pass takes as long as an evaluation."""

    by_masks: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    sequences: int = 500
    passes: list[Passes] = field(default_factory=list)

    def __post_init__(self) -> None:
        if any(masks < 1 for masks in self.by_masks) or self.sequences < 1:
            raise InputError(
                f"evaluate.by_masks is {self.by_masks} and evaluate.sequences {self.sequences}; "
                "all must be at least 1, and [] gives no number of masks"
            )
        counts = [passes for passes in self.passes if passes != "all"]
        if any(isinstance(count, str) or count < 1 for count in counts):
            raise InputError(
                f"evaluate.passes is {self.passes}; "
                "give numbers from 1, or all, as in [1, 2, 4, all]"
            )


@dataclass(frozen=True)
class PriorSchedule:
    """The order prior: terms added to the scores of links between states, not in the paper (all 0:
    the paper).

    With the full DAG a small model settles on one path through the wrong masks before it has
    learned any token, and then predicts only token frequencies. The prior favours paths that give
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
                f"prior.order is {self.order} and prior.sticky {self.sticky}; "
                "both must be 0 or a positive number"
            )
        if self.decay is not None and not 0 <= self.decay[0] < self.decay[1] <= 1:
            raise InputError(
                f"prior.decay is {self.decay}; give two fractions of the run as [0.0, 0.5]"
            )

    def at(self, step: int, steps: int) -> PriorStrength:
        """The prior in update `step` (0-based) of `steps`; `step` = `steps` gives the prior after
        the last update."""
        share = 1.0
        if self.decay is not None:
            begin, end = self.decay
            if step / steps > begin:
                share = max(0.0, (end - step / steps) / (end - begin))
        return PriorStrength(share * self.order, share * self.sticky)


@dataclass(frozen=True)
class Recipe:
    """All settings of a pre-training, as `recipe.yaml` has them; `pretrain` describes `output`,
    `data`, `model` and `train`.

    Attributes:
        prior: order prior of the links between states, and its schedule. An MLM has none.
        seed: seed of initial weights, order, masks and dropout.
        evaluate: what is evaluated at the end alone.
        start_from: directory of a pre-trained model of this library; what fits is taken from it,
            the others are sampled.
        compile: compile the encoder layers with torch.compile.
        license: licence of the weights, for the model's card, as the Hugging Face hub names it
            (apache-2.0)."""

    output: str
    data: DataConfig
    model: ArchitectureConfig
    prior: PriorSchedule = field(default_factory=PriorSchedule)
    train: LoopConfig = field(default_factory=LoopConfig)
    seed: int = 0
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    start_from: str | None = None
    compile: bool = False
    license: str | None = None


def evaluation_settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings in a recorded recipe by which the run scores held-out sequences. Where an
    earlier version did not record one, it had the default."""
    sequences = recipe["data"].get("eval_sequences", DataConfig.eval_sequences)
    evaluate = identity_of(EvaluateConfig()) | recipe.get("evaluate", {})
    return {
        "data.eval_sequences": sequences,
        **{f"evaluate.{name}": value for name, value in evaluate.items()},
    }
