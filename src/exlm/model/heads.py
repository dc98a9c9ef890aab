"""The heads, which read the encoder's hidden states H: prediction of tokens (the paper's P), links
between states (its E; both section 4.2), and classification.

Heads switch autocast off: their products are small, and errors in log-probabilities add up along a
path. Only the product with the vocabulary, the largest, has bfloat16 operands in training; its sums
stay float32."""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.ops import transition
from exlm.ops.emission import cross_entropy, emission
from exlm.ops.expansion import Lattice
from exlm.ops.precision import at_least_float32, is_plain, linear
from exlm.ops.transition import LinkPrior, PriorStrength


class ExLMPredictionHead(nn.Module):
    """The token prediction head: linear, GELU, LayerNorm, and the product with the weight of the
    token embedding (W_P of the paper, section 4.2), plus a bias."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACT2FN[config.hidden_act]
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def transform(self, hidden: Tensor) -> Tensor:
        """All before the product with the vocabulary: [..., D] -> [..., D]."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.norm(self.activation(linear(hidden, self.dense)))

    def emission_inputs(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `exlm.ops.emission` takes besides targets: hidden states [..., D] in the precision
        of autocast, weight [V, D] and bias [V]. InputError unless the layer `is_plain`."""
        if not is_plain(self.decoder):
            raise InputError(
                "the loss of a masked language model needs the weights of its head, which are "
                "quantised or have an adapter; adapt or quantise model.exlm alone"
            )
        transformed = self.transform(hidden)
        if torch.is_autocast_enabled(hidden.device.type):
            transformed = transformed.to(torch.get_autocast_dtype(hidden.device.type))
        return transformed, self.decoder.weight, self.decoder.bias

    def target_log_probs(self, states: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities [B, T, N], at least float32, of targets [B, T] at states [B, N, D]."""
        return emission(*self.emission_inputs(states), targets)

    def cross_entropy(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-probabilities [R], at least float32, of targets [R] at hidden [R, D]."""
        return cross_entropy(*self.emission_inputs(hidden), targets)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [..., V], at least float32."""
        logits = linear(self.transform(hidden), self.decoder)
        return logits.to(at_least_float32(logits.dtype))


class ExLMTransitionHead(nn.Module):
    """Makes the links between the states of a lattice: queries and keys (paper, section 4.2), and
    with `transition: gated` a gate for each head. `exlm.ops.transition` does the rest."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__()
        self.config = config
        self.is_gated = config.transition == "gated"
        self.is_sparse = config.dag == "sparse"
        self.heads = config.num_attention_heads if self.is_gated else 1
        width = config.hidden_size
        features = 2 * width if self.is_gated else width
        self.query = nn.Linear(features, width, bias=self.is_gated)
        self.key = nn.Linear(features, width, bias=self.is_gated)
        if self.is_gated:
            self.gate = nn.Linear(features, self.heads)
            self.positions = nn.Embedding(config.max_position_embeddings, width)

    def forward(
        self, states: Tensor, lattice: Lattice, prior: PriorStrength | None = None
    ) -> Tensor:
        """The `links` [B, N, N], at least float32, from the hidden states [B, N, D] of a lattice's
        states; `prior` replaces the configuration's. InputError if the lattice has more positions
        than the gated transition has weights for."""
        target_of_state = lattice.target_of_state if self.is_sparse else None
        edges = transition.edge_mask(lattice.state_lengths, states.shape[1], target_of_state)
        if prior is None:
            prior = PriorStrength(self.config.order_prior, self.config.sticky_prior)
        link_prior = None
        if any(prior):
            link_prior = LinkPrior(prior, lattice.target_of_state, lattice.state_copy)
        if not self.is_gated:
            query = linear(states, self.query)
            key = linear(states, self.key)
            return transition.single_links(query, key, edges, link_prior)
        length = lattice.input_ids.shape[1]
        limit = self.positions.num_embeddings
        if length > limit:
            raise InputError(
                f"a sequence expands to {length} positions but max_position_embeddings is {limit}; "
                "shorten the sequences or raise it"
            )
        features = torch.cat([states, self.positions(lattice.state_index)], dim=-1)
        query = linear(features, self.query).unflatten(-1, (self.heads, -1))
        key = linear(features, self.key).unflatten(-1, (self.heads, -1))
        gate = linear(features, self.gate)
        log_gate = gate.log_softmax(-1, dtype=at_least_float32(gate.dtype))
        return transition.gated_links(query, key, log_gate, edges, link_prior)


class ExLMClassificationHead(nn.Module):
    """RoBERTa's head, for one vector per sequence: dropout, linear, tanh, dropout, linear."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__()
        # PyTorch's own, not the faster one of `exlm.ops.dropout` as elsewhere: it drops what it
        # dropped in earlier versions, and one vector per sequence takes no time.
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, int(config.num_labels or 1))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, D] -> logits [B, num_labels], at least float32."""
        with torch.autocast(hidden.device.type, enabled=False):
            inner = torch.tanh(linear(self.dropout(hidden), self.dense))
            logits = linear(self.dropout(inner), self.output)
        return logits.to(at_least_float32(logits.dtype))
