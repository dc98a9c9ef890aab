"""The encoder as a Hugging Face model. Shapes follow the legend of `exlm.ops`."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.encoder import ExLMLayer, Layout, arrange, at_tokens, can_pack, gather_positions
from exlm.model.expander import Expander
from exlm.ops.dropout import Dropout
from exlm.ops.expansion import EncoderInput, Lattice
from exlm.ops.rotary import rotary_tables


class ExLMPreTrainedModel(PreTrainedModel):
    config_class = ExLMConfig
    base_model_prefix = "exlm"
    _input_embed_layer = "embeddings"
    _no_split_modules = ["ExLMLayer"]
    _supports_sdpa = True
    _supports_attention_backend = True
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
        if not isinstance(module, CopyEmbedding):
            return
        if not getattr(module.weight, "_is_hf_initialized", False):
            with torch.no_grad():
                module.weight[1:].normal_(0.0, self.config.copy_embedding)

    def new_trace(
        self, output_hidden_states: bool | None, output_attentions: bool | None
    ) -> list[Tensor] | None:
        """An empty list for `ExLMModel.encode` to fill, if hidden states are wanted (default: the
        configuration's). InputError if attentions are wanted."""
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_attentions:
            raise InputError(
                "output_attentions cannot be used: the weights of the attention are not kept, and "
                "they lie between copies that are not in the input; use output_hidden_states"
            )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return [] if output_hidden_states else None


class CopyEmbedding(nn.Embedding):
    """Embedding of the copy index 1..k; index 0, that of ordinary tokens, adds nothing."""

    def __init__(self, config: ExLMConfig) -> None:
        rows, width = config.num_states + 1, config.hidden_size
        # no random draw
        super().__init__(rows, width, padding_idx=0, _weight=torch.zeros(rows, width))


class ExLMModel(ExLMPreTrainedModel):
    """The encoder. Inputs are ordinary token ids. Called as it is, it reads them as tasks do, a
    [MASK] like any other token; for `ExLMForMaskedLM`, `expand` and `encode` expand the masks.

    `embeddings` is the table of tokens; the method `embedding` gives a vector for a sequence."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.expander = Expander(config)
        self.embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(ExLMLayer(config, i) for i in range(config.num_hidden_layers))
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
        """The lattice of a batch: `Expander.expand`."""
        self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        return self.expander.expand(input_ids, attention_mask, masked, labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **attention_options: Any,
    ) -> BaseModelOutput:
        """The states [B, S, D] behind the layers that tasks read, `config.read_layers`: the vectors
        of tokens in every tool, and their mean is the vector of a text. If the model repeats its
        input, a state is the mean over the repeats.

        Args:
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds: as for
                `task_input`.
            output_attentions: InputError unless false.
            output_hidden_states: adds the states of the embedding and of every layer that is read.
            attention_options: for an implementation of attention that is not the model's own."""
        trace = self.new_trace(output_hidden_states, output_attentions)
        sequences = self.task_input(
            input_ids,
            attention_mask,
            position_ids,
            token_type_ids,
            inputs_embeds,
            attention_options,
        )
        states = self.mean_repeats(self.hidden_for_task(sequences, trace))
        hidden_states = None if trace is None else tuple(map(self.mean_repeats, trace))
        return BaseModelOutput(last_hidden_state=states, hidden_states=hidden_states)

    def task_states(
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> BaseModelOutput:
        """`forward`, under the name that sentence-transformers finds in directories of earlier
        versions."""
        return self(input_ids, attention_mask)

    def task_input(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_options: dict[str, Any] | None = None,
    ) -> EncoderInput:
        """`Expander.for_task` of the arguments that transformers' encoders take. InputError names
        one that this model cannot use.

        Args:
            input_ids: [B, S] token ids.
            attention_mask: [B, S] 1 on real tokens, 0 on padding; by default all are real.
            position_ids: [B, S] or [1, S] positions of the tokens, by default from 0.
            token_type_ids: [B, S] zeros, which mean nothing to the model.
            inputs_embeds: [B, S, D] vectors in place of `input_ids`.
            attention_options: as for `EncoderInput`."""
        check_token_types(token_type_ids)
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give either input_ids or inputs_embeds")
        if self.config.tasks_copy_boundaries:
            reason = "a model with boundary_states k copies tokens by their ids"
            refuse(reason, position_ids=position_ids, inputs_embeds=inputs_embeds)
        vectors = None
        if input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        if inputs_embeds is not None:
            vectors = inputs_embeds.flatten(0, 1)
            rows = torch.arange(len(vectors), device=vectors.device)
            input_ids = rows.view(inputs_embeds.shape[:2])
        assert input_ids is not None
        return self.expander.for_task(
            input_ids, attention_mask, position_ids, vectors, attention_options
        )

    def hidden_for_task(self, sequences: EncoderInput, trace: list[Tensor] | None = None) -> Tensor:
        """The states [B, repeat S, D] that tasks read of a `task_input`: no token is masked, and
        only the first `config.read_layers` layers are run. `trace` as for `encode`."""
        hidden = self.encode(sequences, read_layers=self.config.read_layers, trace=trace)
        return at_tokens(hidden, sequences)

    def first_repeats(self, hidden: Tensor) -> Tensor:
        """States [B, repeat S, D] that tasks read -> [B, S, D], those of each input token's first
        repeat."""
        return hidden[:, :: self.config.repeat]

    def mean_repeats(self, hidden: Tensor) -> Tensor:
        """States [B, repeat S, D] that tasks read -> [B, S, D], the mean over the repeats."""
        return hidden.unflatten(1, (-1, self.config.repeat)).mean(2)

    def trace_of_input(self, trace: list[Tensor] | None) -> tuple[Tensor, ...] | None:
        """The `first_repeats` of every layer's states in a trace, if there is one."""
        return None if trace is None else tuple(map(self.first_repeats, trace))

    def embedding(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        pooling: Literal["mean", "first"] = "mean",
    ) -> Tensor:
        """One vector [B, D] per sequence: the mean of the states of its real tokens (`forward`), or
        the state of the first one."""
        return self.pool(self.task_input(input_ids, attention_mask), attention_mask, pooling)

    def pool(
        self,
        sequences: EncoderInput,
        attention_mask: Tensor | None,
        pooling: Literal["mean", "first"],
        trace: list[Tensor] | None = None,
    ) -> Tensor:
        """The `embedding` [B, D] of a `task_input`, which was made with the same `attention_mask`;
        `trace` as for `encode`."""
        if pooling not in ("mean", "first"):
            raise InputError(f"pooling is {pooling!r}; it must be mean or first")
        if pooling == "first":
            real = sequences.attention_mask.int()
            first, count = real.argmax(1, keepdim=True), real.amax(1)
            return self.encode(sequences, first, count, self.config.read_layers, trace)[:, 0]
        states = self.mean_repeats(self.hidden_for_task(sequences, trace))
        if attention_mask is None:
            return states.mean(1)
        weight = attention_mask[..., None].to(states)
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1)

    @property
    def packs(self) -> bool:
        """Whether a batch becomes one row without padding, in the precision of the moment."""
        config = self.config
        head_dim = config.hidden_size // config.num_attention_heads
        device = self.embeddings.weight.device
        return can_pack(config._attn_implementation, head_dim, device)

    def encode(
        self,
        sequences: EncoderInput,
        output_positions: Tensor | None = None,
        count: Tensor | None = None,
        read_layers: int | None = None,
        trace: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states of the expanded sequences, on the model's device: [B, N, D], or [B, L, D]
        without `output_positions`.

        Args:
            sequences: on any device; if they are on the CPU, nothing has to wait for the GPU.
            output_positions, count: [B, N] positions to return, and [B] how many of them are real;
                others need not be computed.
            read_layers: number of layers to run. Before a late expansion, positions are those of
                the unexpanded sequence.
            trace: a list to which the states of the input tokens [B, S, D] are added, after the
                embedding and after every layer (normalised after the last). For this, every layer
                computes all positions."""
        config, device = self.config, self.embeddings.weight.device
        pack = self.packs
        read_layers = read_layers or config.num_hidden_layers
        if read_layers <= config.unexpanded_layers and sequences.unexpanded is not None:
            sequences = sequences.unexpanded
        positions_to_compute = output_positions if trace is None else None
        layout = arrange(sequences, device, pack, positions_to_compute, count)
        if sequences.unexpanded is None:
            layers = self.layers[:read_layers]
            hidden = self.dropout(self._add_copies(self._vectors(layout, sequences), layout))
            add_to_trace(trace, hidden, layout, sequences)
        else:
            layers = self.layers[config.unexpanded_layers : read_layers]
            hidden = self._before_expansion(sequences.unexpanded, pack, trace)
            assert layout.origin is not None
            hidden = self._add_copies(gather_positions(hidden, layout.origin), layout)
        read_copies = config.expands and read_layers > config.unexpanded_layers
        tables = self._rotary_tables(layout, read_copies)
        hidden = self._run(layers, hidden, tables, layout, sequences, trace)
        hidden = layout.unpack(self.norm(hidden))
        if trace is None:
            return hidden
        trace[-1] = at_tokens(hidden, sequences)
        if output_positions is None:
            return hidden
        return gather_positions(hidden, output_positions.to(device))

    def _before_expansion(
        self, sequences: EncoderInput, pack: bool, trace: list[Tensor] | None
    ) -> Tensor:
        """Hidden states [R, L, D] after the layers before a late expansion, in their layout."""
        layout = arrange(sequences, self.embeddings.weight.device, pack)
        hidden = self.dropout(self._vectors(layout, sequences))
        add_to_trace(trace, hidden, layout, sequences)
        layers = self.layers[: self.config.unexpanded_layers]
        tables = self._rotary_tables(layout, read_copies=False)
        return self._run(layers, hidden, tables, layout, sequences, trace)

    def _rotary_tables(self, layout: Layout, read_copies: bool) -> tuple[Tensor, Tensor]:
        """Cosines and sines for layers that read copies of masks, or none yet, in the precision of
        their products."""
        config, weight = self.config, self.embeddings.weight
        dtype = weight.dtype
        if torch.is_autocast_enabled(weight.device.type):
            dtype = torch.get_autocast_dtype(weight.device.type)
        positions = layout.position_ids[..., : config.rotary_axes(read_copies)]
        head_dim = config.hidden_size // config.num_attention_heads
        cos, sin = rotary_tables(positions, head_dim, config.rotary_base, config.state_share)
        return cos.to(dtype), sin.to(dtype)

    def _run(
        self,
        layers: nn.ModuleList,
        hidden: Tensor,
        tables: tuple[Tensor, Tensor],
        layout: Layout,
        sequences: EncoderInput,
        trace: list[Tensor] | None,
    ) -> Tensor:
        """Hidden states [R, N, D] after some layers. The last one computes only the layout's
        output positions."""
        for layer in layers[:-1]:
            hidden = layer(hidden, tables, layout)
            add_to_trace(trace, hidden, layout, sequences)
        hidden = layers[-1](hidden, tables, layout, layout.output_positions)
        add_to_trace(trace, hidden, layout, sequences)
        return hidden

    def _vectors(self, layout: Layout, sequences: EncoderInput) -> Tensor:
        """The embeddings [R, L, D] of the tokens, or the vectors that stand in their place."""
        if sequences.vectors is None:
            return self.embeddings(layout.input_ids)
        vectors = sequences.vectors.to(layout.input_ids.device)
        # The id of padding may be larger than any row.
        return vectors[layout.input_ids.clamp(max=len(vectors) - 1)]

    def _add_copies(self, hidden: Tensor, layout: Layout) -> Tensor:
        """Hidden states plus the embedding of every position's copy index."""
        return hidden if self.copies is None else hidden + self.copies(layout.copy_index)


def check_token_types(token_type_ids: Tensor | None) -> None:
    """Raises InputError for types that are not all 0."""
    if token_type_ids is not None and token_type_ids.any():
        raise InputError(
            "token_type_ids are not all 0, but the model tells two texts apart by the token "
            "between them; leave them out"
        )


def refuse(reason: str, **arguments: Tensor | None) -> None:
    """Raises InputError with the reason if one of the arguments was given."""
    for name, value in arguments.items():
        if value is not None:
            raise InputError(f"{name} cannot be used: {reason}; leave it out")


def add_to_trace(
    trace: list[Tensor] | None, hidden: Tensor, layout: Layout, sequences: EncoderInput
) -> None:
    """Adds hidden [R, L, D] to a trace as the states of the input tokens, [B, S, D]."""
    if trace is not None:
        trace.append(at_tokens(layout.unpack(hidden), sequences))
