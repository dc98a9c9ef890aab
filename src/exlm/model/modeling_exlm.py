"""The encoder as a Hugging Face model. Shapes follow the legend of `exlm.ops`."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.encoder import ExLMLayer, Layout, Tables, arrange, gather_positions
from exlm.model.expander import expand_batch
from exlm.ops.dropout import Dropout
from exlm.ops.expansion import EncoderInput, Lattice, unexpanded_input, without_copies
from exlm.ops.rotary import rotary_tables

# How the vectors of several tokens, or of the repeats of one token, become one vector.
Pooling = Literal["mean", "first"]


class Encoded(NamedTuple):
    """Hidden states after the last layer, and of every layer if a caller asks for them."""

    hidden: Tensor
    # [B, S, D] each, of the input tokens, after the embedding and after every layer; else empty
    hidden_states: tuple[Tensor, ...]


class Stage(NamedTuple):
    """Consecutive layers that read the same positions. There are two in a late expansion: the
    layers before it read the tokens, those after it the copies."""

    layers: range
    sequences: EncoderInput  # what stands at the positions
    layout: Layout  # in which rows the layers read them
    position_ids: Tensor  # [R, L, 2] those of the sequences, as rows on the model's device
    tables: Tables  # the rotation of each position


class CopyEmbedding(nn.Embedding):
    """Embedding of the copy index 1..k; the index of ordinary tokens, 0, adds nothing."""

    def __init__(self, config: ExLMConfig) -> None:
        rows, width = config.num_states + 1, config.hidden_size
        # Zeros: `ExLMPreTrainedModel` samples the rows of the copies.
        super().__init__(rows, width, padding_idx=0, _weight=torch.zeros(rows, width))


class ExLMPreTrainedModel(PreTrainedModel):
    config: ExLMConfig
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
        if isinstance(module, CopyEmbedding):
            # transformers marks the weights that it has read from a file.
            is_loaded = getattr(module.weight, "_is_hf_initialized", False)
            if not is_loaded:
                with torch.no_grad():
                    module.weight[1:].normal_(0.0, self.config.copy_embedding)

    def wants_every_layer(
        self, output_hidden_states: bool | None, output_attentions: bool | None
    ) -> bool:
        """Whether hidden states of every layer are asked for, in a call or else in the
        configuration; InputError if attentions are."""
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_attentions:
            raise InputError(
                "output_attentions cannot be used: the weights of the attention are not kept, and "
                "they lie between copies that are not in the input; use output_hidden_states"
            )
        return bool(output_hidden_states)


class ExLMModel(ExLMPreTrainedModel):
    """The encoder, which reads a batch in one of two ways.

    For masked language models `expand` copies the masks, and `encode` runs the layers on the
    result.

    For tasks a [MASK] is a token like any other. `task_input` takes the place of `expand`; then
    `encode_tokens` gives a vector for each token, or `pool` one for each sequence. Both steps
    together are `forward`, or `embedding`."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        # One vector for each token of the vocabulary.
        self.embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(ExLMLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # The embedding of the copy index has this name in files of weights. It is made last: with
        # one seed all other weights then start as those of an MLM do.
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
        """The lattice of a batch, each tensor [B, S]: `expand_batch` for this model."""
        self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        return expand_batch(self.config, input_ids, attention_mask, masked, labels)

    def removes_padding(self, autocast: bool) -> bool:
        """Whether a batch becomes one row without padding (`unpadded_attention`): on a recent GPU
        with `autocast`, unless another implementation of attention is asked for."""
        config, device = self.config, self.embeddings.weight.device
        if device.type != "cuda" or not autocast:
            return False
        if config._attn_implementation != "sdpa" or config.head_dim % 8 or config.head_dim > 256:
            return False
        is_recent = torch.cuda.get_device_capability(device) >= (8, 0)
        return is_recent and torch.backends.cuda.is_flash_attention_available()

    def encode(
        self,
        sequences: EncoderInput,
        output_positions: Tensor | None = None,
        output_counts: Tensor | None = None,
        read_layers: int | None = None,
        every_layer: bool = False,
    ) -> Encoded:
        """Hidden states of the sequences, on the model's device: [B, L, D], or [B, N, D] at
        `output_positions`. InputError if the model has fewer layers.

        Args:
            sequences: on any device; if they are on the CPU, nothing has to wait for the GPU.
            output_positions: [B, N] positions to return; the last layer computes no others, unless
                `every_layer`.
            output_counts: [B] how many of these are real, the first ones of each sequence.
            read_layers: number of layers to run, by default all. Before a late expansion,
                positions count in the unexpanded sequence.
            every_layer: whether to return the hidden states of every layer, too; the last ones are
                normalised."""
        layer_count = self.config.num_hidden_layers if read_layers is None else read_layers
        if not 1 <= layer_count <= self.config.num_hidden_layers:
            raise InputError(
                f"{layer_count} layers are to be read; the model has "
                f"{self.config.num_hidden_layers}"
            )
        computed_positions = None if every_layer else output_positions
        stages = self._stages(sequences, layer_count, computed_positions, output_counts)
        hidden = self._embed(stages[0])
        hidden_states = [stages[0].layout.at_tokens(hidden)] if every_layer else []
        for stage in stages:
            if stage.layers.start > 0:
                hidden = self._copy_masks(hidden, stage)
            layout_before_last = stage.layout.for_all_positions()
            for index in stage.layers:
                is_last = index == layer_count - 1
                layout = stage.layout if is_last else layout_before_last
                hidden = self.layers[index](
                    hidden, stage.tables, layout, **sequences.attention_options
                )
                if is_last:
                    hidden = self.norm(hidden)
                if every_layer:
                    hidden_states.append(layout.at_tokens(hidden))
        hidden = stages[-1].layout.by_sequence(hidden)
        if every_layer and output_positions is not None:
            hidden = gather_positions(hidden, output_positions)
        return Encoded(hidden, tuple(hidden_states))

    def _stages(
        self,
        sequences: EncoderInput,
        layer_count: int,
        output_positions: Tensor | None,
        output_counts: Tensor | None,
    ) -> list[Stage]:
        """The first `layer_count` layers in one stage, or in the two stages of a late expansion.
        The output positions are of the last stage."""
        device = self.embeddings.weight.device
        without_padding = self.removes_padding(torch.is_autocast_enabled(device.type))
        first_expanded = min(self.config.unexpanded_layers, layer_count)
        stages = []
        for layers in (range(first_expanded), range(first_expanded, layer_count)):
            if not layers:
                continue
            is_last = layers.stop == layer_count
            reads_copies = self.config.expands and layers.start >= self.config.unexpanded_layers
            stage_sequences = sequences
            if not reads_copies and sequences.unexpanded is not None:
                stage_sequences = sequences.unexpanded
            layout = arrange(
                stage_sequences,
                device,
                without_padding,
                output_positions if is_last else None,
                output_counts if is_last else None,
            )
            position_ids = layout.to_rows(stage_sequences.position_ids)
            tables = self._rotary_tables(position_ids, reads_copies)
            stages.append(Stage(layers, stage_sequences, layout, position_ids, tables))
        return stages

    def _embed(self, stage: Stage) -> Tensor:
        """What the first layer reads [R, L, D]: embeddings of tokens and of their copy index."""
        sequences = stage.sequences
        if sequences.inputs_embeds is None:
            hidden = self.embeddings(stage.layout.to_rows(sequences.input_ids))
        else:
            hidden = stage.layout.to_rows(sequences.inputs_embeds)
        return self.dropout(self._add_copy_embedding(hidden, stage))

    def _copy_masks(self, hidden: Tensor, stage: Stage) -> Tensor:
        """Late expansion: the tokens' hidden states [R, L of the stage before, D], copied to the
        positions [R, L, D] of this stage."""
        if stage.layout.source is not None:  # else nothing is masked, as in tasks
            hidden = gather_positions(hidden, stage.layout.source)
        return self._add_copy_embedding(hidden, stage)

    def _add_copy_embedding(self, hidden: Tensor, stage: Stage) -> Tensor:
        """Hidden states [R, L, D] plus the embedding of every position's copy index."""
        return hidden if self.copies is None else hidden + self.copies(stage.position_ids[..., 1])

    def _rotary_tables(self, position_ids: Tensor, reads_copies: bool) -> Tables:
        """Cosines and sines for positions [R, L, 2], in the precision of the layers' products."""
        config, weight = self.config, self.embeddings.weight
        dtype = weight.dtype
        if torch.is_autocast_enabled(weight.device.type):
            dtype = torch.get_autocast_dtype(weight.device.type)
        positions = position_ids[..., : config.rotary_axes(reads_copies)]
        cos, sin = rotary_tables(positions, config.head_dim, config.rotary_base, config.state_share)
        return cos.to(dtype), sin.to(dtype)

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
        """Vectors [B, S, D] of the tokens, in every tool the same: the hidden states after
        `config.task_layers` layers, and the mean over the repeats if the model repeats its input.
        Their mean is the vector of a text.

        Args:
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds: as for
                `task_input`.
            output_attentions: InputError unless false.
            output_hidden_states: adds the hidden states of the embedding and of every layer that is
                read.
            attention_options: for an implementation of attention that is not the model's own."""
        every_layer = self.wants_every_layer(output_hidden_states, output_attentions)
        sequences = self.task_input(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds
        )
        sequences = replace(sequences, attention_options=attention_options)
        vectors, hidden_states = self.encode_tokens(sequences, every_layer, repeat_pooling="mean")
        return BaseModelOutput(last_hidden_state=vectors, hidden_states=hidden_states or None)

    # A name that sentence-transformers may find in a model's directory (exlm/upgrades.py).
    task_states = forward

    def task_input(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> EncoderInput:
        """What the encoder reads for a task: no token counts as masked, not even [MASK], each is
        repeated `config.repeat` times, and BOS and EOS are copied where
        `config.tasks_copy_boundaries`. InputError names an argument that this model cannot use.

        Args:
            input_ids: [B, S] token ids.
            attention_mask: [B, S] 1 on real tokens, 0 on padding; by default all are real.
            position_ids: [B, S] or [1, S] positions of the tokens, by default from 0.
            token_type_ids: [B, S] zeros, which mean nothing to the model.
            inputs_embeds: [B, S, D] vectors in place of `input_ids`."""
        config = self.config
        check_token_types(token_type_ids)
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give either input_ids or inputs_embeds")
        if config.tasks_copy_boundaries:
            reason = "a model with boundary_states k copies tokens by their ids"
            refuse(reason, position_ids=position_ids, inputs_embeds=inputs_embeds)
        if input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        if inputs_embeds is not None:
            # Zeros of the right shape, whose embeddings are not read.
            input_ids = inputs_embeds.new_zeros(inputs_embeds.shape[:2], dtype=torch.long)
            inputs_embeds = inputs_embeds.repeat_interleave(config.repeat, 1)
        assert input_ids is not None
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        input_ids = input_ids.repeat_interleave(config.repeat, 1)
        attention_mask = attention_mask.repeat_interleave(config.repeat, 1)
        if config.tasks_copy_boundaries:
            nothing = torch.zeros_like(input_ids, dtype=torch.bool)
            return expand_batch(config, input_ids, attention_mask, masked=nothing)
        sequences = unexpanded_input(input_ids, attention_mask, config.padding_id)
        if position_ids is not None:
            repeats = torch.arange(config.repeat, device=position_ids.device)
            token_position = (position_ids[..., None] * config.repeat + repeats).flatten(-2)
            token_position = token_position.to(input_ids.device).expand_as(input_ids)
            sequences = replace(sequences, position_ids=without_copies(token_position))
        return replace(sequences, inputs_embeds=inputs_embeds)

    def encode_tokens(
        self, sequences: EncoderInput, every_layer: bool, repeat_pooling: Pooling
    ) -> Encoded:
        """A vector [B, S, D] for each token of a `task_input`: its hidden state after
        `config.task_layers` layers. If the model repeats its input, `repeat_pooling` says whether
        the vector is that of the first repeat or the mean over all."""
        hidden, hidden_states = self.encode(
            sequences, read_layers=self.config.task_layers, every_layer=every_layer
        )
        vectors = self._pool_repeats(gather_positions(hidden, sequences.first_copy), repeat_pooling)
        return Encoded(vectors, tuple(self._pool_repeats(x, repeat_pooling) for x in hidden_states))

    def embedding(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        pooling: Pooling = "mean",
    ) -> Tensor:
        """One vector [B, D] per sequence: the mean over the vectors of its real tokens (`forward`),
        or the vector of its first token (of the first repeat, if the model repeats its input)."""
        sequences = self.task_input(input_ids, attention_mask)
        return self.pool(sequences, attention_mask, pooling).hidden

    def pool(
        self,
        sequences: EncoderInput,
        attention_mask: Tensor | None,
        pooling: Pooling,
        every_layer: bool = False,
    ) -> Encoded:
        """The `embedding` [B, D] of sequences that `task_input` made with the same
        `attention_mask`; and the tokens' hidden states of every layer, if these are asked for."""
        if pooling not in ("mean", "first"):
            raise InputError(f"pooling is {pooling!r}; it must be mean or first")
        if pooling == "first":
            real = sequences.attention_mask.int()
            first = real.argmax(1, keepdim=True)
            hidden, hidden_states = self.encode(
                sequences,
                output_positions=first,
                output_counts=real.amax(1),  # 1, or 0 if nothing is real
                read_layers=self.config.task_layers,
                every_layer=every_layer,
            )
            hidden_states = tuple(self._pool_repeats(x, pooling) for x in hidden_states)
            return Encoded(hidden[:, 0], hidden_states)
        # The repeats of a token are pooled as the tokens are.
        vectors, hidden_states = self.encode_tokens(sequences, every_layer, repeat_pooling="mean")
        if attention_mask is None:
            attention_mask = torch.ones(vectors.shape[:2])
        weight = attention_mask[..., None].to(vectors)
        mean = (vectors * weight).sum(1) / weight.sum(1).clamp(min=1)
        return Encoded(mean, hidden_states)

    def _pool_repeats(self, hidden: Tensor, pooling: Pooling) -> Tensor:
        """[B, repeat S, D] -> [B, S, D]: each token's first repeat, or the mean of its repeats."""
        by_token = hidden.unflatten(1, (-1, self.config.repeat))
        return by_token[:, :, 0] if pooling == "first" else by_token.mean(2)


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
