"""Objectives: what a model learns at the masks, one class each in `OBJECTIVES`.

Losses are sums, not means, so that an update over several batches or processes is normalised by
global counts. A loss sees one micro-batch, never the whole update."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from exlm.ops import alignment
from exlm.ops.expansion import Lattice
from exlm.ops.loss import LossSum as LossSum  # so that other files with objectives find it here
from exlm.ops.precision import exact_on_cpu
from exlm.ops.transition import PriorStrength

if TYPE_CHECKING:
    # The configuration reads OBJECTIVES, so here it is a type alone.
    from exlm.model.configuration_exlm import ExLMConfig
    from exlm.model.heads import ExLMPredictionHead, ExLMTransitionHead

# Stands for log 0, so that a mean over tokens stays finite.
SMALLEST_LOG_PROBABILITY = -87.5


@dataclass(frozen=True)
class LatticeOutput:
    """What the network says about the states of a lattice: the paper's P (`emission`) and E
    (`links`), and what follows from these.

    All tensors are on the network's device. An objective does not need all of them, so each is
    computed when it is first asked for."""

    lattice: Lattice
    states: Tensor  # [B, N, D] hidden states of the lattice's states
    objective: "Objective"
    head: "ExLMPredictionHead"
    transition_head: "ExLMTransitionHead | None"
    prior: PriorStrength | None = None  # the order prior, if it is not the configuration's

    @cached_property
    def emission(self) -> Tensor:
        """Log-probabilities [B, T, N] of the targets at the states."""
        return self.head.target_log_probs(self.states, self.lattice.targets)

    @cached_property
    def links(self) -> Tensor:
        """Log-probabilities [B, N, N] of the links between states; only of a model with links."""
        assert self.transition_head is not None
        return self.transition_head(self.states, self.lattice, self.prior)

    @cached_property
    def log_marginals(self) -> Tensor:
        """Log-probabilities [B, T, V] of every target by itself: what the objective computes of
        this output (`Objective.marginals`), kept for all who read it."""
        return self.objective.marginals(self)

    @property
    def free_emission(self) -> Tensor:
        """Log 1, [B, T, N]: every state emits every token, so that the links alone count."""
        return self.links.new_zeros(*self.lattice.targets.shape, self.links.shape[1])

    @cached_property
    def visits(self) -> Tensor:
        """P(path is at state u when it emits target i) [B, T, N], over all paths of T states. The
        links alone decide it, whatever the targets are."""
        lattice = self.lattice
        visits, _ = alignment.posterior(
            self.free_emission, self.links, lattice.target_lengths, lattice.state_lengths
        )
        return visits

    def log_likelihood(self, emission: Tensor) -> Tensor:
        """log f [B], summed over all paths along the links, for an emission [B, T, N]."""
        lattice = self.lattice
        return alignment.log_likelihood(
            emission, self.links, lattice.target_lengths, lattice.state_lengths
        )


class Objective(ABC):
    """What is learned at the masks. A new objective is a subclass with a line in `OBJECTIVES`."""

    expands: ClassVar[bool]  # whether a [MASK] becomes states; if not, it is a token like any other
    has_links: ClassVar[bool]  # whether the states are linked

    def __init__(self, config: "ExLMConfig") -> None:
        self.config = config

    @abstractmethod
    def loss(self, output: LatticeOutput) -> LossSum:
        """The loss of a batch. Its gradient trains the model."""

    @abstractmethod
    def marginals(self, output: LatticeOutput) -> Tensor:
        """Log marginal distribution [B, T, V] of every target: its log-probabilities given the
        input, summed over all values of the other targets."""

    def joint(self, output: LatticeOutput, scored: Tensor) -> Tensor:
        """Log-probability [B] in float64 of the targets that are `scored` [B, T], together, given
        how many masks there are. All other masks are summed out: they may have any token. Here
        targets are independent, so their marginals are multiplied."""
        log_probs = output.log_marginals.gather(-1, output.lattice.targets[..., None])[..., 0]
        return torch.where(scored, log_probs, 0.0).double().sum(1)


class ExLM(Objective):
    """States Alignment (paper, section 4.3): the states, linked by the transition matrix, emit the
    targets along any path."""

    expands = True
    has_links = True

    def loss(self, output: LatticeOutput) -> LossSum:
        """-log f / T: the paper's L_SA = -log f_{M, L} (section 4.3), divided by the number of
        targets as in the release."""
        value = output.log_likelihood(output.emission)
        infeasible = value == -torch.inf
        loss = torch.where(infeasible, 0.0, -value / output.lattice.target_lengths)
        return LossSum(loss.sum(), value.new_full((), len(value)), infeasible.sum())

    def marginals(self, output: LatticeOutput) -> Tensor:
        """Exact: a mixture over the states u, by how probably the path is there,
        p(y_i) = sum_u P(path is at u when it emits i) p_u(y_i)."""
        visits = output.visits
        with torch.autocast(visits.device.type, enabled=False), exact_on_cpu(visits.device):
            probabilities = output.head(output.states).softmax(-1).to(visits.dtype)
            return (visits @ probabilities).log().clamp(min=SMALLEST_LOG_PROBABILITY)

    def joint(self, output: LatticeOutput, scored: Tensor) -> Tensor:
        """log f with the emissions of the scored targets alone, minus log f without emissions: the
        share of the paths' weight that these targets leave."""
        emission_of_scored = torch.where(scored[:, :, None], output.emission, 0.0)
        emitting_paths = output.log_likelihood(emission_of_scored).double()
        return emitting_paths - output.log_likelihood(output.free_emission).double()


class VanillaMLM(Objective):
    """Every masked token is predicted at its own position, by cross entropy."""

    expands = False
    has_links = False

    def loss(self, output: LatticeOutput) -> LossSum:
        # State i is target i, since nothing was expanded; the first and the last are BOS and EOS.
        inside = slice(1, output.lattice.targets.shape[1] - 1)
        targets = output.lattice.targets[:, inside]
        masked = output.lattice.target_is_mask[:, inside]
        rows = output.states[:, inside].flatten(0, 1)
        losses = output.head.cross_entropy(rows, targets.flatten())
        total = torch.where(masked, losses.view_as(targets), 0.0).sum()
        return LossSum(total, masked.sum(), masked.new_zeros((), dtype=torch.int64))

    def marginals(self, output: LatticeOutput) -> Tensor:
        return output.head(output.states).log_softmax(-1)


class CTC(Objective):
    """ExLM without links: the k states of each mask emit its token among blanks, `<unk>`.

    A block is a mask; if BOS and EOS have k states, they are blocks too, as in the release. A
    target that is itself `<unk>` cannot be aligned and is left out."""

    expands = True
    has_links = False

    def loss(self, output: LatticeOutput) -> LossSum:
        """The loss of a sequence is the mean of the CTC losses of its blocks."""
        lattice = output.lattice
        blank = self._blank()
        blocks, block_targets = self._blocks(output)
        targets = lattice.targets[:, block_targets]
        if self.config.states_per_boundary > 1:
            index = torch.arange(targets.shape[1], device=targets.device)
            real = index < lattice.target_lengths[:, None]
        else:
            real = lattice.target_is_mask[:, block_targets]
        aligned = real & (targets != blank)

        target_and_blank = torch.stack([targets, torch.full_like(targets, blank)], dim=-1)
        log_probs = output.head.target_log_probs(
            blocks.flatten(0, 1), target_and_blank.flatten(0, 1)
        )
        log_probs = log_probs.unflatten(0, targets.shape)  # [B, n, 2, k]
        of_target = log_probs[:, :, 0].movedim(2, 0)  # [k, B, n]
        of_blank = log_probs[:, :, 1].movedim(2, 0)
        per_sequence = aligned.sum(1, keepdim=True).clamp(min=1)
        value = single_target_ctc(of_target, of_blank) / per_sequence
        total = -torch.where(aligned, value, 0.0).sum()
        return LossSum(total, aligned.any(1).sum(), aligned.new_zeros((), dtype=torch.int64))

    def marginals(self, output: LatticeOutput) -> Tensor:
        blank = self._blank()
        blocks, block_targets = self._blocks(output)
        log_probs = output.head(blocks).log_softmax(-1).movedim(2, 0)  # [k, B, n, V]
        of_token = single_target_ctc(log_probs, log_probs[..., blank, None].expand_as(log_probs))
        of_token[..., blank] = -torch.inf  # no target is the blank
        marginals = of_token.new_zeros(*output.lattice.targets.shape, of_token.shape[-1])
        marginals[:, block_targets] = of_token.log_softmax(-1).clamp(min=SMALLEST_LOG_PROBABILITY)
        return marginals

    def _blocks(self, output: LatticeOutput) -> tuple[Tensor, slice]:
        """The k states of each target [B, n, k, D], and a slice of these targets: all if BOS and
        EOS have k states too. The caller must ignore blocks that hold EOS or padding, of sequences
        with fewer masks than others."""
        k = self.config.states_per_mask
        target_count = output.lattice.targets.shape[1]
        if self.config.states_per_boundary == k:
            of_targets = output.states[:, : target_count * k]
            return of_targets.unflatten(1, (target_count, k)), slice(0, target_count)
        of_masks = output.states[:, 1 : 1 + (target_count - 2) * k]
        return of_masks.unflatten(1, (target_count - 2, k)), slice(1, target_count - 1)

    def _blank(self) -> int:
        assert self.config.unk_token_id is not None
        return self.config.unk_token_id


# By the name of the setting `objective`.
OBJECTIVES: dict[str, type[Objective]] = {"exlm": ExLM, "mlm": VanillaMLM, "ctc": CTC}


def single_target_ctc(target: Tensor, blank: Tensor) -> Tensor:
    """Log-probability [...] that k states emit blanks, then one target at least once, then blanks
    (CTC, Graves et al. 2006); `target` and `blank` [k, ...] are their log-probabilities at each
    state."""
    # Log-probabilities of all beginnings of paths: before the target, at it, and after it. After
    # one state no path is after the target; log 0 in place of None would have NaN as its gradient.
    before_target, at_target, after_target = blank[0], target[0], None
    for target_here, blank_here in zip(target[1:], blank[1:], strict=True):
        leaves_target = at_target + blank_here
        if after_target is None:
            after_target = leaves_target
        else:
            after_target = torch.logaddexp(after_target + blank_here, leaves_target)
        at_target = torch.logaddexp(before_target, at_target) + target_here
        before_target = before_target + blank_here
    return at_target if after_target is None else torch.logaddexp(at_target, after_target)
