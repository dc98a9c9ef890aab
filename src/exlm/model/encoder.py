"""The encoder, a pre-LayerNorm Transformer: x + Attn(LN(x)), x + FFN(LN(x)), and the layout of a
batch: padded rows, or one row without padding. The last layer computes only the positions that a
head reads, and exactly."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from exlm.model.configuration_exlm import ExLMConfig
from exlm.ops.dropout import Dropout
from exlm.ops.dropout import dropout as drop
from exlm.ops.expansion import EncoderInput, tensors_to
from exlm.ops.precision import is_plain
from exlm.ops.rotary import apply_rotary

# What `torch.nn.attention.varlen.varlen_attn` calls. Unlike that function it takes dropout.
flash_attention = torch.ops.aten._flash_attention_forward
Tables = tuple[Tensor, Tensor]  # cosines and sines of the rotary positions


class Spans(NamedTuple):
    """Sequences of an unpadded row: cumulative lengths [B + 1] int32, and the largest length."""

    cu_seqlens: Tensor
    longest: int


class Unpadded(NamedTuple):
    """Where the sequences are in the only row of an unpadded layout."""

    spans: Spans  # of all positions
    output_spans: Spans  # of the output positions
    # [B, N] where each sequence's output positions are among all output positions of the row
    output_index: Tensor


@dataclass(frozen=True)
class Layout:
    """What layers read beside hidden states, on their device: R rows of L positions. Padded: a
    sequence per row. Unpadded: one row with the real tokens of all sequences."""

    # `input_ids`, `position_ids`, `inputs_embeds` and `source_token` have R rows, the other tensors
    # a row for each sequence. `source_token` counts in the row of unexpanded tokens.
    sequences: EncoderInput
    # [R, N] the only positions that a layer computes; None for all
    output_positions: Tensor | None
    # [R, 1, 1, L] bool, true where attended; None if everything is attended
    mask: Tensor | None = None
    unpadded: Unpadded | None = None  # None if padded

    def by_sequence(self, hidden: Tensor) -> Tensor:
        """The last layer's hidden states [R, N, D] as [B, N, D]. Entries after the end of a
        sequence are hidden states of other positions, and mean nothing."""
        return hidden if self.unpadded is None else hidden.squeeze(0)[self.unpadded.output_index]

    def at_tokens(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, L, D] as [B, S, D], of the first copy of every input token."""
        return gather_positions(self.by_sequence(hidden), self.sequences.first_copy)


def arrange(
    sequences: EncoderInput,
    device: torch.device,
    without_padding: bool,
    output_positions: Tensor | None = None,
    count: Tensor | None = None,
) -> Layout:
    """The layout of a batch on a device, in one row or with a row for each sequence.
    The last layer computes the `output_positions [B, N]`, of which the first `count [B]` are real;
    without both it computes all."""
    if without_padding:
        layout = _unpadded(sequences, output_positions, count)
    else:
        mask = sequences.attention_mask
        # Tested on the CPU only: to read the answer from a GPU would wait for all earlier work.
        # A graph that is traced with one batch must fit others.
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        whole = mask.device.type == "cpu" and not is_traced and bool(mask.all())
        layout = Layout(sequences, output_positions, None if whole else mask[:, None, None, :])
    on_device = replace(layout, sequences=tensors_to(layout.sequences, device))
    return tensors_to(on_device, device)


def _unpadded(
    sequences: EncoderInput, output_positions: Tensor | None, count: Tensor | None
) -> Layout:
    mask = sequences.attention_mask
    embeds = sequences.inputs_embeds
    real = mask.flatten().nonzero()[:, 0]
    places = _places_among(mask)
    source_token = sequences.source_token
    if sequences.unexpanded is not None:
        source_token = _places_among(sequences.unexpanded.attention_mask).gather(1, source_token)
    row = replace(
        sequences,
        input_ids=sequences.input_ids.flatten()[real][None],
        position_ids=sequences.position_ids.flatten(0, 1)[real][None],
        source_token=source_token.flatten()[real][None],
        inputs_embeds=None if embeds is None else embeds[mask][None],
    )
    is_output = mask
    places_of_output = None
    if output_positions is not None:
        assert count is not None
        index = torch.arange(output_positions.shape[1], device=output_positions.device)
        is_output = index < count[:, None]
        places_of_output = places.gather(1, output_positions)[is_output][None]
    unpadded = Unpadded(_spans(mask), _spans(is_output), _places_among(is_output))
    return Layout(row, places_of_output, unpadded=unpadded)


def _places_among(selected: Tensor) -> Tensor:
    """[B, S] the index of each true entry of `selected` [B, S] among all true entries."""
    return (selected.flatten().cumsum(0) - 1).clamp_(min=0).view_as(selected)


def _spans(selected: Tensor) -> Spans:
    """The spans of the sequences that consist of the true entries of each row of `selected`."""
    lengths = selected.sum(1)
    return Spans(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int(), int(lengths.max()))


def gather_positions(hidden: Tensor, index: Tensor) -> Tensor:
    """hidden [B, L, ...] at index [B, N], on any device -> [B, N, ...]."""
    first = torch.arange(hidden.shape[0], device=hidden.device)[:, None] * hidden.shape[1]
    places = (first + index.to(hidden.device)).flatten()
    return hidden.flatten(0, 1).index_select(0, places).unflatten(0, index.shape)


def sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention, as the interface of transformers has it; query [B, H, N, d], key, value
    [B, H, L, d], mask [B, 1, 1, L] bool, true where attended; the result is [B, N, H, d] and, if
    they are computed, weights [B, H, N, L]. It is PyTorch's fused kernel, or `eager_attention`
    where that kernel is slow (in bfloat16 on a CPU) or missing (with dropout on a CPU).

    The `options` are ignored. They are for implementations of other libraries, such as the scaling,
    which is always 1 / sqrt(d) here."""
    if query.device.type == "cpu" and (query.dtype == torch.bfloat16 or dropout > 0):
        return eager_attention(module, query, key, value, attention_mask, dropout)
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout
    )
    return mixed.transpose(1, 2), None


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """`sdpa_attention` by plain products."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if attention_mask is not None:
        floor = torch.zeros(attention_mask.shape, dtype=query.dtype, device=query.device)
        scores = scores + floor.masked_fill_(~attention_mask, torch.finfo(query.dtype).min)
    weights = drop(scores.softmax(-1), dropout)
    return (weights @ value).transpose(1, 2), weights


# By the name that `attn_implementation` of transformers gives, with whatever is registered there.
ALL_ATTENTION_FUNCTIONS = AttentionInterface()
ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention
ALL_ATTENTION_FUNCTIONS["eager"] = eager_attention


def unpadded_attention(
    query: Tensor, key: Tensor, value: Tensor, queries: Spans, keys: Spans, rate: float
) -> Tensor:
    """Attention within each sequence of an unpadded row, with dropout of its weights; query
    [1, H, N, d], key, value [1, H, L, d] -> [1, N, H, d]."""
    mixed, *_ = flash_attention(
        query.squeeze(0).transpose(0, 1),
        key.squeeze(0).transpose(0, 1),
        value.squeeze(0).transpose(0, 1),
        queries.cu_seqlens,
        keys.cu_seqlens,
        queries.longest,
        keys.longest,
        rate,
        is_causal=False,
        return_debug_mask=False,
    )
    return mixed.unsqueeze(0)


class ExLMAttention(nn.Module):
    is_causal = False

    def __init__(self, config: ExLMConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, tables: Tables, layout: Layout) -> Tensor:
        """hidden [R, L, D] -> [R, L, D], or [R, N, D] at the layout's output positions."""
        positions = layout.output_positions
        query, key, value = self._project(hidden, positions)
        query_tables = tables
        if positions is not None:
            cos, sin = tables
            query_tables = gather_positions(cos, positions), gather_positions(sin, positions)
        query = apply_rotary(query, *query_tables)
        key = apply_rotary(key, *tables)
        rate = self.dropout if self.training else 0.0
        if layout.unpadded is not None:
            spans, output_spans, _ = layout.unpadded
            queries = spans if positions is None else output_spans
            mixed = unpadded_attention(query, key, value, queries, spans, rate)
        else:
            # Every model has a name here: transformers sets sdpa if none is asked for.
            attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
            mixed, _ = attend(
                self,
                query,
                key,
                value,
                layout.mask,
                dropout=rate,
                scaling=query.shape[-1] ** -0.5,
                is_causal=False,
                **layout.sequences.attention_options,
            )
        return self.output(mixed.reshape(query.shape[0], query.shape[2], -1))

    def _project(
        self, hidden: Tensor, output_positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [R, H, L, d]; the query only of the `output_positions`."""
        if output_positions is None:
            query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        elif is_plain(self.qkv):
            width = hidden.shape[-1]
            query_weight, key_value_weight = self.qkv.weight.split([width, 2 * width])
            query_bias, key_value_bias = self.qkv.bias.split([width, 2 * width])
            query_hidden = gather_positions(hidden, output_positions)
            query = F.linear(query_hidden, query_weight, query_bias)
            key, value = F.linear(hidden, key_value_weight, key_value_bias).chunk(2, dim=-1)
        else:
            query, key, value = self.qkv(hidden).chunk(3, dim=-1)
            query = gather_positions(query, output_positions)
        return self._heads(query), self._heads(key), self._heads(value)

    def _heads(self, projected: Tensor) -> Tensor:
        """[R, L, D] -> [R, H, L, d]."""
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class ExLMLayer(GradientCheckpointingLayer):
    def __init__(self, config: ExLMConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = ExLMAttention(config, layer_idx)
        self.ffn_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ffn_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.activation_dropout = Dropout(config.activation_dropout)

    def forward(self, hidden: Tensor, tables: Tables, layout: Layout) -> Tensor:
        """hidden [R, L, D] -> [R, L, D], or [R, N, D] at the layout's output positions."""
        mixed = self.attention(self.attention_norm(hidden), tables, layout)
        if layout.output_positions is not None:
            hidden = gather_positions(hidden, layout.output_positions)
        hidden = hidden + self.dropout(mixed)
        inner = self.activation_dropout(self.activation(self.ffn_in(self.ffn_norm(hidden))))
        return hidden + self.dropout(self.ffn_out(inner))
