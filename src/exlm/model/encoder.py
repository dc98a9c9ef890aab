"""The encoder, a pre-LayerNorm Transformer: x + Attn(LN(x)), x + FFN(LN(x)), and the layout of a
batch: padded rows, or one packed row without any padding. The last layer computes only the
positions that a head reads, and exactly."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import varlen
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from exlm.model.configuration_exlm import ExLMConfig
from exlm.ops.elementwise import Dropout, dropout
from exlm.ops.expansion import Lattice, to_device
from exlm.ops.rotary import apply_rotary


class Spans(NamedTuple):
    """The sequences of a packed row: cumulative lengths [B + 1] int32, and the largest length."""

    cu_seqlens: Tensor
    longest: int


@dataclass(frozen=True)
class Layout:
    """R rows of L positions. Padded: a sequence per row. Packed: one row with the real tokens of
    all sequences."""

    input_ids: Tensor  # [R, L]
    position_ids: Tensor  # [R, L, A]
    copy: Tensor  # [R, L] state index
    read: Tensor | None  # [R, N] the only positions that the last layer computes; None for all
    # [R, L] late expansion: where in the plain layout each was copied from
    origin: Tensor | None = None
    # [R, 1, 1, L] bool, true where attended; None if everything is attended
    mask: Tensor | None = None
    keys: Spans | None = None  # of all positions; packed only
    queries: Spans | None = None  # of the positions read; packed only
    # [B, N] index of each sequence's states among those read; packed only
    unpacked: Tensor | None = None

    def unpack(self, hidden: Tensor) -> Tensor:
        """The hidden states read, [R, N, D], as [B, N, D]; sequences with fewer states are padded
        with other states."""
        return hidden if self.unpacked is None else hidden[0][self.unpacked]


def arrange(
    lattice: Lattice,
    device: torch.device,
    pack: bool,
    read: Tensor | None = None,
    count: Tensor | None = None,
) -> Layout:
    """The layout of a batch on a device: packed, or with one sequence per row. `read [B, N]` are
    the positions to read, of which the first `count [B]` are real; without them all are read."""
    mask = lattice.attention_mask
    tokens: dict[str, Any] = {
        name: getattr(lattice, name) for name in ("input_ids", "position_ids", "copy")
    }
    if lattice.plain is not None:  # its rows start at the first real token of each sequence
        plain = lattice.plain.attention_mask
        source = lattice.plain.first.gather(1, lattice.source).clamp(max=plain.shape[1] - 1)
        tokens["origin"] = _positions_among(plain if pack else torch.ones_like(plain)).gather(
            1, source
        )
    if not pack:
        # Tested on the CPU only: to read the answer from a GPU would wait for all earlier work.
        whole = mask.device.type == "cpu" and not torch.compiler.is_exporting() and bool(mask.all())
        return to_device(
            Layout(**tokens, read=read, mask=None if whole else mask[:, None, None, :]), device
        )
    real = mask.flatten().nonzero()[:, 0]
    chosen, keys = mask, _spans(mask.sum(1))
    queries = keys
    if read is not None and count is not None:
        chosen, queries = (
            torch.arange(read.shape[1], device=read.device) < count[:, None],
            _spans(count),
        )
        read = (read + keys.cu_seqlens[:-1, None])[chosen][None]
    tokens = {name: x.flatten(0, 1)[real][None] for name, x in tokens.items()}
    layout = Layout(
        **tokens, read=read, keys=keys, queries=queries, unpacked=_positions_among(chosen)
    )
    return to_device(layout, device)


def _positions_among(chosen: Tensor) -> Tensor:
    """[B, S] the index of each true entry among all true entries."""
    return (chosen.flatten().cumsum(0) - 1).clamp_(min=0).view_as(chosen)


def _spans(lengths: Tensor) -> Spans:
    return Spans(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int(), int(lengths.max()))


def at_tokens(hidden: Tensor, lattice: Lattice) -> Tensor:
    """hidden [B, L, D] of a lattice's positions -> [B, S, D]: the first state of every input
    token."""
    return gather_rows(hidden, lattice.first.clamp(max=hidden.shape[1] - 1).to(hidden.device))


def gather_rows(hidden: Tensor, index: Tensor) -> Tensor:
    """hidden [B, L, ...] at index [B, N] -> [B, N, ...]."""
    first = torch.arange(hidden.shape[0], device=hidden.device)[:, None] * hidden.shape[1]
    return hidden.flatten(0, 1).index_select(0, (first + index).flatten()).unflatten(0, index.shape)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rate: float
) -> Tensor:
    """Softmax attention; query [B, H, N, d], key, value [B, H, L, d], mask [B, 1, 1, L] bool, true
    where attended. Plain products where PyTorch's fused kernel is slow (in bfloat16 on a CPU) or
    missing (with dropout on a CPU)."""
    if query.device.type != "cpu" or (query.dtype != torch.bfloat16 and rate == 0):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores + torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(
            ~mask, torch.finfo(query.dtype).min
        )
    return dropout(scores.softmax(-1), rate) @ value


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, queries: Spans, keys: Spans
) -> Tensor:
    """Attention within each sequence of a packed row; query [1, H, N, d], key, value [1, H, L,
    d]."""
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    mixed = varlen.varlen_attn(
        query, key, value, queries.cu_seqlens, keys.cu_seqlens, queries.longest, keys.longest
    )
    assert isinstance(mixed, Tensor)
    return mixed.transpose(0, 1)[None]


def can_pack(device: torch.device, head_dim: int, rate: float) -> bool:
    """Whether `packed_attention` can be used: on a recent GPU under autocast, without dropout of
    attention weights."""
    if (
        device.type != "cuda"
        or not torch.is_autocast_enabled("cuda")
        or rate > 0
        or head_dim % 8
        or head_dim > 256
    ):
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(
        device
    ) >= (8, 0)


class ExLMAttention(nn.Module):
    def __init__(self, config: ExLMConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        hidden: Tensor,
        tables: tuple[Tensor, Tensor],
        layout: Layout,
        read: Tensor | None = None,
    ) -> Tensor:
        """hidden [R, L, D] -> [R, L, D], or [R, N, D] at the positions `read [R, N]`."""
        if read is None:
            query, key, value = self._split(self.qkv(hidden))
            query = apply_rotary(query, *tables)
        else:
            sizes = [hidden.shape[-1], 2 * hidden.shape[-1]]
            of_query, of_both = zip(
                self.qkv.weight.split(sizes), self.qkv.bias.split(sizes), strict=True
            )
            (query,) = self._split(F.linear(gather_rows(hidden, read), *of_query))
            key, value = self._split(F.linear(hidden, *of_both))
            query = apply_rotary(query, *(gather_rows(table, read) for table in tables))
        key = apply_rotary(key, *tables)
        if layout.keys is not None and layout.queries is not None:
            queries = layout.keys if read is None else layout.queries
            mixed = packed_attention(query, key, value, queries, layout.keys)
        else:
            mixed = attention(
                query, key, value, layout.mask, self.dropout if self.training else 0.0
            )
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _split(self, projected: Tensor) -> tuple[Tensor, ...]:
        """[R, L, n D] -> n tensors [R, H, L, d]."""
        width = self.output.in_features
        heads = projected.unflatten(-1, (-1, self.heads, width // self.heads))
        return heads.permute(2, 0, 3, 1, 4).unbind(0)


class ExLMLayer(GradientCheckpointingLayer):
    def __init__(self, config: ExLMConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = ExLMAttention(config)
        self.ffn_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ffn_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.activation_dropout = Dropout(config.activation_dropout)

    def forward(
        self,
        hidden: Tensor,
        tables: tuple[Tensor, Tensor],
        layout: Layout,
        read: Tensor | None = None,
    ) -> Tensor:
        """hidden [R, L, D] -> [R, L, D], or [R, N, D] at the positions `read [R, N]`."""
        mixed = self.attention(self.attention_norm(hidden), tables, layout, read)
        hidden = (hidden if read is None else gather_rows(hidden, read)) + self.dropout(mixed)
        inner = self.activation_dropout(self.activation(self.ffn_in(self.ffn_norm(hidden))))
        return hidden + self.dropout(self.ffn_out(inner))
