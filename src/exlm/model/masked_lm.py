"""Masked language models on the encoder: ExLM, the vanilla MLM and ExLM without transitions
(CTC)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.encoder import at_tokens, gather_rows
from exlm.model.heads import ExLMPredictionHead, ExLMTransitionHead
from exlm.model.modeling_exlm import ExLMModel, ExLMPreTrainedModel
from exlm.model.objectives import (
    Loss,
    ctc_blocks,
    ctc_loss,
    ctc_marginals,
    exlm_loss,
    exlm_marginals,
    mlm_loss,
    visits,
)
from exlm.ops.emission import cross_entropy, emission
from exlm.ops.expansion import Lattice
from exlm.ops.transition import Prior


@dataclass
class ExLMMaskedLMOutput(MaskedLMOutput):
    """Output of `ExLMForMaskedLM`. `loss` is `total / count`, the mean over sequences (`exlm`,
    `ctc`) or masked tokens (`mlm`). `logits` [B, S, V] are those of each token's first state, at a
    [MASK] its log marginal distribution."""

    # The fields of `exlm.model.objectives.Loss`, for averages over several batches.
    total: Tensor | None = None
    count: Tensor | None = None
    infeasible: Tensor | None = None


class ExLMForMaskedLM(ExLMPreTrainedModel):
    """Pre-training and mask filling, for every objective of `ExLMConfig.objective`."""

    _tied_weights_keys = {"head.decoder.weight": "exlm.embeddings.weight"}

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.exlm = ExLMModel(config)
        self.head = ExLMPredictionHead(config)
        self.transition = ExLMTransitionHead(config) if config.has_links else None
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        lattice: Lattice | None = None,
        prior: Prior | None = None,
        return_logits: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> ExLMMaskedLMOutput:
        """The loss if `labels` are given; logits without labels, or if `return_logits` asks for
        them.

        Args:
            input_ids, attention_mask: [B, S] with [MASK] in place.
            labels: [B, S] original tokens at the masked positions, -100 elsewhere.
            lattice: the result of `expand` for these three; then `labels` only say that a loss is
                wanted.
            prior: the order prior, if it is not the configuration's (a schedule over training).
            return_logits: whether to return logits, which need much time, with a loss. Default: in
                evaluation mode.
            output_hidden_states: as for `ExLMModel`."""
        trace = self.new_trace(output_hidden_states)
        lattice = lattice or self.exlm.expand(input_ids, attention_mask, labels=labels)
        wanted = not self.training if return_logits is None else return_logits
        output = ExLMMaskedLMOutput()
        if labels is None or wanted:
            hidden = self.exlm.encode(lattice, trace=trace)
            lattice = lattice.to(hidden.device)
            states = gather_rows(hidden, lattice.state_index)
            output.logits = self._logits(hidden, states, lattice, prior)
        else:
            states = self.states(lattice, trace)
            lattice = lattice.to(states.device)
        if labels is not None:
            loss = self.loss(states, lattice, prior)
            output.loss = loss.total / loss.counted.clamp(min=1)
            output.move_to_end("loss", last=False)  # as a tuple, the output begins with the loss
            output.total, output.count, output.infeasible = loss
        if trace is not None:
            output.hidden_states = tuple(trace)
        return output

    def _logits(
        self, hidden: Tensor, states: Tensor, lattice: Lattice, prior: Prior | None
    ) -> Tensor:
        """Logits [B, S, V] as described for `ExLMMaskedLMOutput`, from all positions and from the
        lattice states."""
        logits = self.head(at_tokens(hidden, lattice))
        marginal = self.marginals(lattice, states, prior)
        rows, targets = lattice.target_is_mask.nonzero(as_tuple=True)
        logits[rows, lattice.target_index[rows, targets]] = marginal[rows, targets].to(logits.dtype)
        return logits

    def states(self, lattice: Lattice, trace: list[Tensor] | None = None) -> Tensor:
        """Hidden states [B, N, D] of the lattice states, which alone are read in training; `trace`
        as for `encode`."""
        return self.exlm.encode(lattice, lattice.state_index, lattice.state_lengths, trace=trace)

    def links(self, states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Tensor:
        """Log transitions [B, N, N] between the states of a lattice; only of a model with
        transitions."""
        assert self.transition is not None
        return self.transition(states, lattice, prior)

    def loss(self, states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Loss:
        """The objective on the states [B, N, D] of a lattice, both on the model's device."""
        config, targets = self.config, lattice.targets
        if config.objective == "exlm":
            scores = emission(*self.head.operands(states), targets)
            return exlm_loss(scores, self.links(states, lattice, prior), lattice)
        if config.objective == "mlm":  # state i is target i since nothing was expanded
            inside = slice(1, targets.shape[1] - 1)
            answers = targets[:, inside]
            losses = cross_entropy(
                *self.head.operands(states[:, inside].flatten(0, 1)), answers.flatten()
            )
            return mlm_loss(losses.view_as(answers), lattice.target_is_mask[:, inside])
        # A block is a mask; if BOS and EOS have k states, they are blocks too, as in the release.
        # The blank is `<unk>`. A target that is itself `<unk>` cannot be aligned and is left out.
        blocks, chosen = ctc_blocks(states, lattice, config)
        answers, counted = targets[:, chosen], lattice.target_is_mask[:, chosen]
        if config.states_per_boundary > 1:
            counted = (
                torch.arange(answers.shape[1], device=answers.device)
                < lattice.target_lengths[:, None]
            )
        # [B, n, 2]
        own = torch.stack([answers, torch.full_like(answers, config.unk_token_id)], dim=-1)
        scores = emission(*self.head.operands(blocks.flatten(0, 1)), own.flatten(0, 1))
        target, blank = scores.view(*own.shape, blocks.shape[2]).permute(2, 3, 0, 1)
        return ctc_loss(target, blank, counted & (answers != config.unk_token_id))

    def marginals(self, lattice: Lattice, states: Tensor, prior: Prior | None = None) -> Tensor:
        """Log marginal distribution [B, T, V] of every target given the input, the other targets
        summed out."""
        config = self.config
        if config.objective == "exlm":
            return exlm_marginals(
                visits(self.links(states, lattice, prior), lattice), self.head(states)
            )
        if config.objective == "mlm":
            return self.head(states).log_softmax(-1)
        blocks, chosen = ctc_blocks(states, lattice, config)
        assert config.unk_token_id is not None  # the blank
        found = ctc_marginals(self.head(blocks), config.unk_token_id)
        result = found.new_zeros(*lattice.targets.shape, found.shape[-1])
        result[:, chosen] = found
        return result
