"""Configuration of the encoder, of its pre-training objective and of every ablation."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from exlm.errors import InputError, check_at_least, check_choices
from exlm.identity import IDENTITY_IF_CHANGED
from exlm.model.objectives import OBJECTIVES


@dataclass
class ArchitectureConfig:
    """Encoder sizes and the switches of the method; they also select the baselines and ablations.

    Attributes:
        objective: `exlm` aligns targets with states through the transition matrix; `mlm` is the
            vanilla masked language model on the same encoder (one state per mask, no links:
            the paper's RoBERTa* and SMILES-BERT*); `ctc` is ExLM without links, each mask
            aligned alone with `<unk>` as blank.
        num_states: k, hidden states per [MASK]. Ignored by `mlm`.
        rotary: `2d` (paper) rotates a share of each head's features by the copy index and the
            others by the token position, in every layer; ordinary tokens have index 0, so in an MLM
            half of the features carry no position. `full` does so only in layers that read copies;
            in the others (all of an MLM, those before a late expansion) every feature rotates by
            the token position. `1d` rotates all features by the position in the expanded sequence
            (ExLM without 2D RoPE; the paper does not define it).
        state_share: share of each head's features that rotate by the copy index: 0, or 1/n with a
            whole n; the paper: 1/2. With 0, copies of a mask are told apart by their embedding
            alone (`copy_embedding`).
        dag: `full` links every state to all later ones; `sparse` only to states of other masks.
        transition: `gated` mixes one distribution per head (the authors' release); `single` is the
            paper's equation.
        boundary_states: states of BOS and of EOS, 1 (paper) or `k` (release).
        hidden_size: width of the encoder.
        num_hidden_layers: number of encoder layers.
        num_attention_heads: heads of every layer, and of the gated transition.
        intermediate_size: width inside the feed-forward blocks.
        hidden_dropout_prob: dropout on embeddings and on the output of every block.
        attention_probs_dropout_prob: dropout on attention weights.
        activation_dropout: dropout inside the feed-forward blocks.
        max_position_embeddings: rows of the position table that the gated transition adds to its
            features, and so the longest expanded sequence that can be pre-trained with it. The
            encoder itself has no such limit.
        initializer_range: standard deviation of initial weights. Narrow models begin to learn
            sooner if it is larger.
        rotary_base: longest wavelength of the rotary positions, divided by 2 pi. Short sequences
            need less than 10,000.
        expanded_layers: how many of the last layers read the expanded sequence. `all` is the paper.
            With fewer (late expansion), earlier layers read each [MASK] as one token, as in an MLM;
            masks are copied after these layers.
        copy_embedding: standard deviation of the initial embedding of the copy index, which is
            added to the copies of a mask (and of BOS and EOS if they have k); 0 for none (paper).
            Copies then predict different tokens."""

    objective: str = "exlm"
    num_states: int = 4
    rotary: Literal["2d", "full", "1d"] = "2d"
    state_share: float = field(default=0.5, metadata=IDENTITY_IF_CHANGED)
    dag: Literal["full", "sparse"] = "full"
    transition: Literal["gated", "single"] = "gated"
    boundary_states: Literal[1, "k"] = 1
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    activation_dropout: float = 0.0
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rotary_base: float = 10000.0
    expanded_layers: int | Literal["all"] = "all"
    copy_embedding: float = 0.0

    def __post_init__(self) -> None:
        """Raises InputError if a setting, or a combination of two, is impossible."""
        if self.objective not in OBJECTIVES:
            names = ", ".join(OBJECTIVES)
            raise InputError(f"objective is {self.objective!r}; it must be one of {names}")
        check_choices(self)
        check_at_least(
            self,
            hidden_size=1,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=1,
            max_position_embeddings=1,
        )
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout")
        self._check_range(rates, 1, "lie in [0, 1)")
        deviations = ("copy_embedding", "initializer_range")
        self._check_range(deviations, math.inf, "be 0 or a positive number")
        if not 1 <= self.num_states <= 64:
            raise InputError(f"num_states is {self.num_states}; it must lie between 1 and 64")
        if not 0 < self.rotary_base < math.inf:
            raise InputError(f"rotary_base is {self.rotary_base}; it must be a positive number")
        layers = self.num_hidden_layers
        allowed = ("all", *range(1, layers + 1))
        # `true` in a recipe is a mistake, which Python would take for 1.
        if self.expanded_layers is True or self.expanded_layers not in allowed:
            raise InputError(
                f"expanded_layers is {self.expanded_layers}; it must be all, or from 1 to {layers}"
            )
        self._check_rotary()

    def _check_rotary(self) -> None:
        """Features rotate in pairs. With two axes a head has 1 / state_share blocks of features,
        one of which rotates by the copy index."""
        share = self.state_share
        is_one_nth = 0 < share <= 0.5 and 1 / share < math.inf and share == 1 / round(1 / share)
        if share != 0 and not is_one_nth:
            raise InputError(f"state_share is {share}; it must be 0, 0.5, 0.25, 0.125 or other 1/n")
        blocks = round(1 / share) if self.rotary_axes(reads_copies=True) == 2 else 1
        if self.hidden_size % (2 * blocks * self.num_attention_heads):
            raise InputError(
                f"hidden_size {self.hidden_size} must be a multiple of {2 * blocks} x "
                f"{self.num_attention_heads} heads for {self.rotary} rotary positions"
            )

    def _check_range(self, names: Sequence[str], end: float, requirement: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not 0 <= value < end:
                raise InputError(f"{name} is {value}; it must {requirement}")

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def has_links(self) -> bool:
        """Whether states are linked."""
        return OBJECTIVES[self.objective].has_links

    @property
    def limits_positions(self) -> bool:
        """Whether a sequence can expand to max_position_embeddings positions at most: the
        gated transition has a weight for each of them."""
        return self.has_links and self.transition == "gated"

    @property
    def expands(self) -> bool:
        """Whether a [MASK] becomes states with an index of their own. In an MLM it is a token like
        any other."""
        return OBJECTIVES[self.objective].expands

    @property
    def states_per_mask(self) -> int:
        """States each [MASK] becomes in the encoder."""
        return self.num_states if self.expands else 1

    @property
    def states_per_boundary(self) -> int:
        """States BOS and EOS become in the encoder."""
        return self.states_per_mask if self.boundary_states == "k" else 1

    def expanded_length(self, length: int, mask_count: int) -> int:
        """Positions that an input of `length` tokens expands to, `mask_count` of them masked and
        two of them BOS and EOS."""
        more_of_masks = mask_count * (self.states_per_mask - 1)
        more_of_ends = 2 * (self.states_per_boundary - 1)
        return length + more_of_masks + more_of_ends

    @property
    def unexpanded_layers(self) -> int:
        """Layers that read the sequence before any expansion: 0 without late expansion."""
        if not self.expands or self.expanded_layers == "all":
            return 0
        return self.num_hidden_layers - int(self.expanded_layers)

    def rotary_axes(self, reads_copies: bool) -> int:
        """How many axes the rotary positions have in a layer that reads copies of masks or none: 1
        (token position) or 2 (token position, copy index)."""
        if self.rotary == "1d" or self.state_share == 0:
            return 1
        return 2 if reads_copies or self.rotary == "2d" else 1

    def build(self, tokenizer: PreTrainedTokenizerBase, repeat: int = 1) -> "ExLMConfig":
        """The model's configuration for a tokenizer, without an order prior."""
        return ExLMConfig(
            **asdict(self),
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            unk_token_id=tokenizer.unk_token_id,
            mask_token_id=tokenizer.mask_token_id,
            vocab_size=len(tokenizer),
            repeat=repeat,
        )


# transformers makes every subclass of PreTrainedConfig a dataclass.
class ExLMConfig(PreTrainedConfig, ArchitectureConfig):
    """A model's architecture, and settings of its tokenizer, training and tasks; InputError if one
    is impossible."""

    model_type = "exlm"
    # The function compute_metrics of a Trainer then sees logits alone.
    keys_to_ignore_at_inference = ["total", "count", "infeasible"]

    vocab_size: int = 50265
    hidden_act: Literal["gelu", "relu"] = "gelu"
    layer_norm_eps: float = 1e-5
    # The prior at the end of training (`exlm.ops.transition.PriorStrength`).
    order_prior: float = 0.0
    sticky_prior: float = 0.0
    # How often each token stands in the input (Repeated MLM, paper, section 3.1). Batches for
    # pre-training repeat them already; for tasks the model does.
    repeat: int = 1

    classifier_dropout: float = 0.1  # before and inside the classification head
    # What the classification head reads: the vector of the first token (paper), or the mean of all.
    classifier_pooling: Literal["first", "mean"] = "first"
    # How many layers run for embeddings and for tasks: the hidden states after them are the model's
    # embeddings, in every tool. None becomes all layers, or those before a late expansion.
    task_layers: int | None = None
    type_vocab_size = 1  # no setting: two texts are told apart by the token between them

    # What the texts of the training corpus are, so that later commands treat new texts alike.
    # Whether they are SMILES. None: not known.
    molecules: bool | None = None
    # How SMILES are spelled: as they are written, canonical, or as the parent molecule.
    standardize: Literal["none", "canonical", "parent"] = "none"

    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | None = 2
    unk_token_id: int | None = 3
    mask_token_id: int | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        ArchitectureConfig.__post_init__(self)
        if self.task_layers is None:
            self.task_layers = self.unexpanded_layers or self.num_hidden_layers
        check_at_least(self, vocab_size=1, repeat=1)
        if not 1 <= self.task_layers <= self.num_hidden_layers:
            raise InputError(
                f"task_layers is {self.task_layers}; it must lie between 1 and num_hidden_layers, "
                f"{self.num_hidden_layers}"
            )
        self._check_range(["classifier_dropout"], 1, "lie in [0, 1)")
        self._check_range(["order_prior", "sticky_prior"], math.inf, "be 0 or a positive number")
        if self.objective == "ctc" and self.unk_token_id is None:
            raise InputError(
                "the objective ctc has <unk> as its blank, but the tokenizer has no unk token; add "
                "it with tokenizer.add_special_tokens and save the tokenizer again, or use another "
                "objective"
            )

    @property
    def padding_id(self) -> int:
        """The token that fills up sequences: any will do, since nothing reads it."""
        return self.pad_token_id or 0

    @property
    def tasks_copy_boundaries(self) -> bool:
        """Whether BOS and EOS have copies in the layers that tasks read."""
        assert self.task_layers is not None  # after __post_init__
        return self.states_per_boundary > 1 and self.task_layers > self.unexpanded_layers
