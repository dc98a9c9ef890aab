"""The encoder as a Hugging Face model. Shapes follow the legend of `exlm.ops`."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.encoder import ExLMLayer, Layout, arrange, at_tokens, can_pack, gather_rows
from exlm.ops.elementwise import Dropout
from exlm.ops.expansion import IGNORED, Lattice, expand
from exlm.ops.rotary import rotary_tables


class ExLMPreTrainedModel(PreTrainedModel):
    config_class = ExLMConfig
    base_model_prefix = "exlm"
    _input_embed_layer = "embeddings"
    _no_split_modules = ["ExLMLayer"]
    _supports_sdpa = True
    supports_gradient_checkpointing = True
    # An encoder may be loaded with another head than it was trained with.
    _keys_to_ignore_on_load_unexpected = [
        r"^head\.",
        r"^transition\.",
        r"^classifier\.",
        r"^qa_outputs\.",
    ]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CopyEmbedding) and not getattr(
            module.weight, "_is_hf_initialized", False
        ):
            with torch.no_grad():
                module.weight[1:].normal_(0.0, self.config.copy_embedding)

    def new_trace(self, output_hidden_states: bool | None) -> list[Tensor] | None:
        """An empty list for `ExLMModel.encode` to fill, if hidden states are wanted (default: the
        configuration's)."""
        wanted = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        return [] if wanted else None


class CopyEmbedding(nn.Embedding):
    """Embedding of the copy index 1..k; index 0, that of ordinary tokens, adds nothing."""

    def __init__(self, config: ExLMConfig) -> None:
        rows, width = config.num_states + 1, config.hidden_size
        # no random draw
        super().__init__(rows, width, padding_idx=0, _weight=torch.zeros(rows, width))


def on_axes(lattice: Lattice, axes: int) -> Lattice:
    """The lattice with positions on so many rotary axes, of which the second is the copy's
    index."""
    word = lattice.position_ids[..., 0]
    positions = word[..., None] if axes == 1 else torch.stack([word, lattice.copy], dim=-1)
    return replace(lattice, position_ids=positions)


class ExLMModel(ExLMPreTrainedModel):
    """The encoder. Inputs are ordinary token ids; the model expands the [MASK] tokens."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(ExLMLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # made last, so that with one seed all other encoder weights start as an MLM's do
        self.copies = None
        if config.copy_embedding and config.expands:
            self.copies = CopyEmbedding(config)
        self.post_init()

    def expand(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        masked: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Lattice:
        """The lattice of a batch, on its device. It expands `masked` tokens, or else labelled ones,
        or else [MASK]."""
        if masked is None:
            masked = input_ids == self.config.mask_token_id if labels is None else labels != IGNORED
        config = self.config
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        inner = (config.bos_token_id, config.eos_token_id) if config.states_per_boundary > 1 else ()
        layout = partial(
            expand, input_ids, mask, pad_token_id=config.pad_token_id or 0, rotary=config.rotary
        )
        lattice = layout(
            masked, config.states_per_mask, config.states_per_boundary, labels, boundary_ids=inner
        )
        if not config.expands:  # its [MASK] has no state index, like any other token
            lattice = replace(lattice, copy=torch.zeros_like(lattice.copy))
        if config.plain_layers:
            plain = layout(torch.zeros_like(masked), 1, 1)
            lattice = replace(lattice, plain=on_axes(plain, config.rotary_axes(copies=False)))
        return on_axes(lattice, config.rotary_axes(copies=config.expands))

    def expand_unmasked(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Lattice:
        """The input of a task: no token is expanded, not even [MASK]; each is repeated
        `config.repeat` times."""
        repeat = self.config.repeat
        if repeat > 1:
            input_ids = input_ids.repeat_interleave(repeat, 1)
            attention_mask = (
                None if attention_mask is None else attention_mask.repeat_interleave(repeat, 1)
            )
        lattice = self.expand(
            input_ids, attention_mask, masked=torch.zeros_like(input_ids, dtype=torch.bool)
        )
        if lattice.plain is not None and self.config.read_layers <= self.config.plain_layers:
            return lattice.plain
        return lattice

    def read_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        trace: list[Tensor] | None = None,
    ) -> Tensor:
        """The states that tasks read, [B, repeat S, D] of inputs [B, S]: no token is expanded, and
        only the first `config.read_layers` layers are run. `trace` as for `encode`."""
        lattice = self.expand_unmasked(input_ids, attention_mask)
        return at_tokens(self.encode(lattice, depth=self.config.read_layers, trace=trace), lattice)

    def of_inputs(self, trace: list[Tensor] | None) -> tuple[Tensor, ...] | None:
        """The traced states [B, repeat S, D] of tasks as those of the input [B, S, D]."""
        return (
            None if trace is None else tuple(hidden[:, :: self.config.repeat] for hidden in trace)
        )

    def task_states(
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> BaseModelOutput:
        """The states [B, S, D] of `read_states`. If the model repeats its input, each is the mean
        over the copies."""
        states = self.read_states(input_ids, attention_mask)
        return BaseModelOutput(
            last_hidden_state=states.unflatten(1, (-1, self.config.repeat)).mean(2)
        )

    def embedding(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        pooling: Literal["mean", "first"] = "mean",
    ) -> Tensor:
        """One vector [B, D] per sequence: the mean of `task_states` over the real tokens, or the
        first state."""
        if pooling == "first":
            return self.read_states(input_ids, attention_mask)[:, 0]
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states: Any = self.task_states(input_ids, mask).last_hidden_state
        weight = mask[..., None].to(states)
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1)

    def encode(
        self,
        lattice: Lattice,
        read: Tensor | None = None,
        count: Tensor | None = None,
        depth: int | None = None,
        trace: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states of the expanded sequence, on the model's device: [B, N, D], or [B, L, D]
        without `read`.

        Args:
            lattice: on any device; if it is on the CPU, nothing has to wait for the GPU.
            read, count: [B, N] positions to return, and [B] how many of them are real; others need
                not be computed.
            depth: number of layers to run. Before a late expansion, positions are those of the
                plain sequence.
            trace: a list to which the states of the input tokens [B, S, D] are added, after the
                embedding and after every layer (normalised after the last). For this, every layer
                computes all positions."""
        config, device = self.config, self.embeddings.weight.device
        if trace is not None and read is not None:
            return gather_rows(self.encode(lattice, depth=depth, trace=trace), read.to(device))
        depth, split = depth or config.num_hidden_layers, config.plain_layers
        rate = config.attention_probs_dropout_prob if self.training else 0.0
        pack = can_pack(device, config.hidden_size // config.num_attention_heads, rate)
        if lattice.plain is None or depth <= split:
            lattice = lattice.plain or lattice
            layout = arrange(lattice, device, pack, read, count)
            hidden = self.dropout(self._copied(self.embeddings(layout.input_ids), layout))
            hidden = self._layers(hidden, self.layers[:depth], layout, lattice, trace)
        else:
            plain, layout = (
                arrange(lattice.plain, device, pack),
                arrange(lattice, device, pack, read, count),
            )
            hidden = self.dropout(self.embeddings(plain.input_ids))
            hidden = self._layers(hidden, self.layers[:split], plain, lattice.plain, trace)
            assert layout.origin is not None
            hidden = (
                hidden.flatten(0, 1)
                .index_select(0, layout.origin.flatten())
                .unflatten(0, layout.origin.shape)
            )
            hidden = self._layers(
                self._copied(hidden, layout), self.layers[split:depth], layout, lattice, trace
            )
        hidden = layout.unpack(self.norm(hidden))
        if trace:
            trace[-1] = at_tokens(hidden, lattice)
        return hidden

    def _copied(self, hidden: Tensor, layout: Layout) -> Tensor:
        """Hidden states plus the embedding of every position's copy index."""
        return hidden if self.copies is None else hidden + self.copies(layout.copy)

    def _layers(
        self,
        hidden: Tensor,
        layers: nn.ModuleList,
        layout: Layout,
        lattice: Lattice,
        trace: list[Tensor] | None,
    ) -> Tensor:
        """hidden [R, L, D] through the layers; the last one computes only what is read. `trace` as
        for `encode`."""
        device, config = hidden.device.type, self.config
        own = self.embeddings.weight.dtype
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else own
        head_dim = config.hidden_size // config.num_attention_heads
        cos, sin = rotary_tables(
            layout.position_ids, head_dim, config.rotary_base, config.state_share
        )
        tables = cos.to(dtype), sin.to(dtype)
        if trace == []:  # the embedding
            trace.append(at_tokens(layout.unpack(hidden), lattice))
        for layer in layers:
            hidden = layer(hidden, tables, layout, layout.read if layer is layers[-1] else None)
            if trace is not None:
                trace.append(at_tokens(layout.unpack(hidden), lattice))
        return hidden

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        masked: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Hidden states [B, S, D] of the input tokens, of a masked one its first state. `masked`
        [B, S] are the tokens to expand, by default all [MASK]. `output_hidden_states` adds those of
        the embedding and of every layer."""
        trace = self.new_trace(output_hidden_states)
        lattice = self.expand(input_ids, attention_mask, masked)
        last = at_tokens(self.encode(lattice, trace=trace), lattice)
        return BaseModelOutput(
            last_hidden_state=last, hidden_states=None if trace is None else tuple(trace)
        )
