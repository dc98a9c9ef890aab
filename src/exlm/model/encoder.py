"""The layers of the encoder, a pre-LayerNorm Transformer, and the rows of positions that they read.

A layer computes x + Attention(LN(x)), and of that y + FeedForward(LN(y)). The last layer computes
only the positions that a head reads; their hidden states are the same as if it computed all."""

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
from exlm.ops.expansion import EncoderInput, tensors_to, to_device
from exlm.ops.precision import is_plain
from exlm.ops.rotary import apply_rotary

# What `torch.nn.attention.varlen.varlen_attn` calls. Unlike that function it takes dropout.
flash_attention = torch.ops.aten._flash_attention_forward
Tables = tuple[Tensor, Tensor]  # cosines and sines of the rotary positions


class Spans(NamedTuple):
    """Where B sequences begin and end in one row, in which they follow each other without
    padding."""

    starts: Tensor  # [B + 1] int32, where each sequence begins, and where the last one ends
    longest: int  # the largest number of positions of a sequence
    # [B, N] where in the row each position of each sequence is; of padding it is any place
    places: Tensor


@dataclass(frozen=True, kw_only=True)
class Layout:
    """In which rows, R of L positions, the layers read the positions of B sequences.

        padded: a sequence per row, R = B        unpadded: all real positions in one row, R = 1
            a b c                                    a b c d e
            d e .

    What stands at the positions is in the `EncoderInput`; `to_rows` fetches it from there. All
    tensors but `real` are on the model's device."""

    device: torch.device  # the model's
    mask: Tensor | None = None  # [R, 1, 1, L] bool, true where attended; None: everywhere
    spans: Spans | None = None  # of the sequences; None if padded
    # The numbers of the real positions, of all B * L, on the device of the `EncoderInput`; None if
    # padded.
    real: Tensor | None = None
    # [R, L] in a late expansion, where each position's token is in the rows of the layers before
    # it; None if nothing is copied between layers
    source: Tensor | None = None
    token_places: Tensor  # [B, S] where in its row the first copy of each input token is
    # [R, N] where in their rows the only positions are that a layer computes; None for all
    output_places: Tensor | None = None
    output_spans: Spans | None = None  # of the output positions; None if padded, or all are output

    def to_rows(self, values: Tensor) -> Tensor:
        """Values of an `EncoderInput` [B, L, ...] as rows [R, L, ...] on the model's device."""
        if self.real is not None:
            values = values.flatten(0, 1)[self.real][None]
        return to_device(values, self.device)

    def for_all_positions(self) -> "Layout":
        """The layout of layers before the last one, which compute every position."""
        return replace(self, output_places=None, output_spans=None)

    @property
    def computed_spans(self) -> Spans | None:
        """The spans of the positions that a layer computes; None if padded."""
        return self.spans if self.output_spans is None else self.output_spans

    def by_sequence(self, hidden: Tensor) -> Tensor:
        """What a layer computed, [R, N, D], as [B, N, D]. Entries after the end of a sequence are
        hidden states of other positions, and mean nothing."""
        spans = self.computed_spans
        return hidden if spans is None else hidden.squeeze(0)[spans.places]

    def at_tokens(self, hidden: Tensor) -> Tensor:
        """Hidden states of all positions [R, L, D] as [B, S, D], of the first copy of every input
        token."""
        if self.spans is None:
            return gather_positions(hidden, self.token_places)
        return hidden.squeeze(0)[self.token_places]


def arrange(
    sequences: EncoderInput,
    device: torch.device,
    without_padding: bool,
    output_positions: Tensor | None = None,
    output_counts: Tensor | None = None,
) -> Layout:
    """The layout of a batch on a device, in one row or with a row for each sequence. The last layer
    computes the `output_positions` [B, N], of which the first `output_counts` [B] are real; without
    both it computes all."""
    if without_padding:
        layout = _unpadded_layout(sequences, device, output_positions, output_counts)
    else:
        mask = sequences.attention_mask
        # Tested on the CPU only: to read the answer from a GPU would wait for all earlier work.
        # A graph that is traced with one batch must fit others.
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        is_whole = mask.device.type == "cpu" and not is_traced and bool(mask.all())
        layout = Layout(
            device=device,
            mask=None if is_whole else mask[:, None, None, :],
            source=None if sequences.unexpanded is None else sequences.source_token,
            token_places=sequences.first_copy,
            output_places=output_positions,
        )
    moved = tensors_to(replace(layout, real=None), device)
    # `real` selects from the sequences, so it stays where they are.
    return replace(moved, real=layout.real)


def _unpadded_layout(
    sequences: EncoderInput,
    device: torch.device,
    output_positions: Tensor | None,
    output_counts: Tensor | None,
) -> Layout:
    """The layout in one row, with its tensors still on the device of the sequences."""
    spans = _spans(sequences.attention_mask)
    # Indices take less time than a mask, which each of the tensors would have to search.
    real = sequences.attention_mask.flatten().nonzero()[:, 0]
    source = None
    if sequences.unexpanded is not None:
        places_before = _spans(sequences.unexpanded.attention_mask).places
        source = places_before.gather(1, sequences.source_token).flatten()[real][None]
    output_spans = None
    output_places = None
    if output_positions is not None:
        assert output_counts is not None
        index = torch.arange(output_positions.shape[1], device=output_positions.device)
        is_output = index < output_counts[:, None]
        output_spans = _spans(is_output)
        output_places = spans.places.gather(1, output_positions)[is_output][None]
    return Layout(
        device=device,
        spans=spans,
        real=real,
        source=source,
        token_places=spans.places.gather(1, sequences.first_copy),
        output_places=output_places,
        output_spans=output_spans,
    )


def _spans(selected: Tensor) -> Spans:
    """The spans in one row of all true entries of `selected` [B, N], where each row of `selected`
    is a sequence."""
    lengths = selected.sum(1)
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    places = (selected.flatten().cumsum(0) - 1).clamp_(min=0).view_as(selected)
    return Spans(starts, int(lengths.max()), places)


def gather_positions(hidden: Tensor, index: Tensor) -> Tensor:
    """Row b of the result [B, N, ...] has the entries of row b of `hidden` [B, L, ...] at the
    positions in row b of `index` [B, N], which may be on any device."""
    row_starts = torch.arange(hidden.shape[0], device=hidden.device)[:, None] * hidden.shape[1]
    places = (row_starts + index.to(hidden.device)).flatten()
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
    """Softmax attention by PyTorch's fused kernel, or by `eager_attention` where that kernel is
    slow (in bfloat16 on a CPU) or missing (with dropout on a CPU).

    The arguments are those of the interface of transformers. The `options` are for implementations
    of other libraries and are ignored; one is the scaling, which is always 1 / sqrt(d) here.

    Args:
        query: [B, H, N, d], of N positions, with d features per head.
        key, value: [B, H, L, d].
        attention_mask: [B, 1, 1, L] bool, true where attended; None: everywhere.
        dropout: of the weights.

    Returns:
        The mixtures of values [B, N, H, d]; and the weights [B, H, N, L], None if the kernel does
        not give them."""
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
    """The same as `sdpa_attention`, by plain products."""
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
        queries.starts,
        keys.starts,
        queries.longest,
        keys.longest,
        rate,
        is_causal=False,
        return_debug_mask=False,
    )
    return mixed.unsqueeze(0)


class ExLMAttention(nn.Module):
    """Multi-head self-attention, whose queries and keys rotate by their positions (2D RoPE; paper,
    section 4.2)."""

    is_causal = False

    def __init__(self, config: ExLMConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden: Tensor, tables: Tables, layout: Layout, **attention_options: Any
    ) -> Tensor:
        """hidden [R, L, D] -> [R, L, D], or [R, N, D] if the layout has N output positions. The
        options are for an implementation of attention that is not the model's own."""
        query, key, value = self._project(hidden, layout.output_places)
        cos, sin = tables
        key = apply_rotary(key, cos, sin)
        if layout.output_places is not None:
            cos = gather_positions(cos, layout.output_places)
            sin = gather_positions(sin, layout.output_places)
        query = apply_rotary(query, cos, sin)
        rate = self.dropout if self.training else 0.0
        if layout.spans is not None and layout.computed_spans is not None:
            mixed = unpadded_attention(query, key, value, layout.computed_spans, layout.spans, rate)
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
                **attention_options,
            )
        return self.output(mixed.reshape(query.shape[0], query.shape[2], -1))

    def _project(
        self, hidden: Tensor, output_places: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [R, H, L, d]; the query only of the `output_places`."""
        if output_places is None:
            query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        elif is_plain(self.qkv):
            width = hidden.shape[-1]
            query_weight, key_value_weight = self.qkv.weight.split([width, 2 * width])
            query_bias, key_value_bias = self.qkv.bias.split([width, 2 * width])
            query_hidden = gather_positions(hidden, output_places)
            query = F.linear(query_hidden, query_weight, query_bias)
            key, value = F.linear(hidden, key_value_weight, key_value_bias).chunk(2, dim=-1)
        else:
            # The three have one layer, which cannot be divided if it is quantised or adapted.
            query, key, value = self.qkv(hidden).chunk(3, dim=-1)
            query = gather_positions(query, output_places)
        return self._heads(query), self._heads(key), self._heads(value)

    def _heads(self, projected: Tensor) -> Tensor:
        """[R, L, D] -> [R, H, L, d]."""
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class ExLMLayer(GradientCheckpointingLayer):
    """One layer of the encoder: attention, then the feed-forward block."""

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

    def forward(
        self, hidden: Tensor, tables: Tables, layout: Layout, **attention_options: Any
    ) -> Tensor:
        """hidden [R, L, D] -> [R, L, D], or [R, N, D] if the layout has N output positions."""
        mixed = self.attention(self.attention_norm(hidden), tables, layout, **attention_options)
        if layout.output_places is not None:
            hidden = gather_positions(hidden, layout.output_places)
        hidden = hidden + self.dropout(mixed)
        inner = self.activation_dropout(self.activation(self.ffn_in(self.ffn_norm(hidden))))
        return hidden + self.dropout(self.ffn_out(inner))
