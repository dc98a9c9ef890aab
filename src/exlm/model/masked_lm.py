"""Masked language models on the encoder: ExLM, the vanilla MLM and ExLM without links (CTC)."""

from dataclasses import dataclass

from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.encoder import gather_positions
from exlm.model.heads import ExLMPredictionHead, ExLMTransitionHead
from exlm.model.modeling_exlm import (
    Encoded,
    ExLMModel,
    ExLMPreTrainedModel,
    check_token_types,
    refuse,
)
from exlm.model.objectives import OBJECTIVES, LatticeOutput, Objective
from exlm.ops.expansion import Lattice
from exlm.ops.transition import PriorStrength


@dataclass
class ExLMMaskedLMOutput(MaskedLMOutput):
    """Output of `ExLMForMaskedLM`. `loss` is `total / count`, the mean over sequences (`exlm`,
    `ctc`) or masked tokens (`mlm`). `logits` [B, S, V] are those of each token's first state, at a
    [MASK] its log marginal distribution."""

    # The fields of `exlm.ops.loss.LossSum`, for averages over several batches.
    total: Tensor | None = None
    count: Tensor | None = None
    infeasible: Tensor | None = None


class ExLMForMaskedLM(ExLMPreTrainedModel):
    """Pre-training and mask filling, for every objective of `ExLMConfig.objective`."""

    _tied_weights_keys = {"head.decoder.weight": "exlm.embeddings.weight"}

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.objective: Objective = OBJECTIVES[config.objective](config)
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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        lattice: Lattice | None = None,
        prior: PriorStrength | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> ExLMMaskedLMOutput:
        """The loss if `labels` or a lattice are given; logits without a loss, or in evaluation
        mode: they need much time.

        Args:
            input_ids, attention_mask: [B, S] with [MASK] in place.
            labels: [B, S] original tokens at the masked positions, -100 elsewhere.
            lattice: the result of `expand` for these three, and in place of them.
            prior: the order prior, if it is not the configuration's (a schedule over training).
            token_type_ids: [B, S] zeros, which mean nothing to the model.
            position_ids, inputs_embeds, output_attentions: InputError unless None or false.
            output_hidden_states: whether to return the hidden states of the embedding and of every
                layer, [B, S, D] each, of a masked token its first copy's."""
        check_token_types(token_type_ids)
        reason = "the masks are found by their ids, and their copies numbered, inside the model"
        refuse(reason, position_ids=position_ids, inputs_embeds=inputs_embeds)
        every_layer = self.wants_every_layer(output_hidden_states, output_attentions)
        wants_loss = lattice is not None or labels is not None
        wants_logits = not (wants_loss and self.training)
        if lattice is not None:
            reason = "the lattice has all of its batch"
            refuse(reason, input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        elif input_ids is None:
            raise InputError("give input_ids")
        else:
            lattice = self.exlm.expand(input_ids, attention_mask, labels=labels)

        # A loss alone reads only the states, which `lattice_output` then computes.
        encoded: Encoded | None = None
        states: Tensor | None = None
        if wants_logits or every_layer:
            encoded = self.exlm.encode(lattice, every_layer=every_layer)
            states = gather_positions(encoded.hidden, lattice.state_index)
        output = self.lattice_output(lattice, states, prior)
        logits = self._logits(encoded.hidden, output) if encoded and wants_logits else None
        hidden_states = encoded.hidden_states if encoded and every_layer else None
        if not wants_loss:
            return ExLMMaskedLMOutput(logits=logits, hidden_states=hidden_states)
        loss = self.objective.loss(output)
        return ExLMMaskedLMOutput(
            loss=loss.total / loss.count.clamp(min=1),
            logits=logits,
            hidden_states=hidden_states,
            total=loss.total,
            count=loss.count,
            infeasible=loss.infeasible,
        )

    def _logits(self, hidden: Tensor, output: LatticeOutput) -> Tensor:
        """The logits [B, S, V] of `ExLMMaskedLMOutput`: those of masks from the output at their
        states, all others from the hidden states of all positions [B, L, D]."""
        lattice = output.lattice
        logits = self.head(gather_positions(hidden, lattice.first_copy))
        rows, targets = lattice.target_is_mask.nonzero(as_tuple=True)
        places = lattice.target_index[rows, targets]
        logits[rows, places] = output.log_marginals[rows, targets].to(logits.dtype)
        return logits

    def lattice_output(
        self, lattice: Lattice, states: Tensor | None = None, prior: PriorStrength | None = None
    ) -> LatticeOutput:
        """What the model says about a lattice, which objectives and evaluations read. `states` are
        its `lattice_states`, if they are computed already; `prior` is that of `forward`."""
        if states is None:
            states = self.lattice_states(lattice)
        lattice = lattice.to(states.device)
        return LatticeOutput(lattice, states, self.objective, self.head, self.transition, prior)

    def lattice_states(self, lattice: Lattice) -> Tensor:
        """Hidden states [B, N, D] of the lattice's states; the last layer computes no others."""
        return self.exlm.encode(lattice, lattice.state_index, lattice.state_lengths).hidden
