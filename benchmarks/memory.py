"""What a pre-training holds in memory, from its shapes alone: the yardstick for
`tokens_per_micro_batch` in recipes.

Counted are weights, gradients and both moments of Adam, in float32; what autograd keeps of a
micro-batch from the forward to the backward pass, tensor by tensor; what the heads hold for a
moment on top of it; and what an evaluation holds, which is in float32 and keeps nothing. Not
counted are indices, the libraries of a GPU (about 1 GB) and, with several GPUs, the buckets in
which they add up gradients (4 bytes per parameter).

Every count is in bytes. In the trunk a number takes `Shape.element` bytes: 2 under bfloat16
autocast, where residuals and the inputs of norms stay float32, or 4.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from cost import FLOAT32, Objective, Shape, fits
from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.data.masking import share_bounds
from exlm.ops.emission import CHUNK
from exlm.pretrain.settings import ArchitectureConfig, DataConfig

INDEX = 8
STATE = 4 * FLOAT32  # a weight, its gradient, its two moments
STATISTICS = 2  # mean and deviation, which a norm keeps of every row


@dataclass(frozen=True)
class Machine:
    """How a type of device computes.

    Attributes:
        dropped: bytes in which dropout keeps whether a number was dropped.
        chunk: logits held at a time.
        attention: what attention keeps: its weights (`plain`), or its result alone (`fused`), which
            PyTorch copies on a CPU to bring the heads of a position together (`copied`).
    """

    dropped: int
    chunk: int
    attention: Literal["plain", "fused", "copied"]


GPU = Machine(dropped=1, chunk=CHUNK["cuda"], attention="fused")
CPU = Machine(dropped=2, chunk=CHUNK["cpu"], attention="plain")


def used(machine: Machine, element: int, rate: float) -> Machine:
    """The machine as attention uses it with dropout at this rate: see
    `exlm.model.encoder.attention`."""
    fused_on_cpu = machine is CPU and element == FLOAT32 and rate == 0
    return replace(machine, attention="copied") if fused_on_cpu else machine


class Memory(NamedTuple):
    """Bytes of a pre-training."""

    state: int  # weights, gradients, moments
    kept: int  # for the backward pass of a micro-batch
    working: int  # of the heads' backward pass, on top
    evaluation: int  # logits of an evaluation, beside weights and moments

    @property
    def peak(self) -> int:
        """The most that is held at a time."""
        return self.state + max(self.kept + self.working, self.evaluation)


def kept_by_attention(
    shape: Shape, taken: int, computed: int, machine: Machine, rate: float
) -> int:
    """Of attention itself: queries [computed], keys and values [taken]; its result is the input of
    a product."""
    rows, read, width, element = (
        shape.batch * taken,
        shape.batch * computed,
        shape.hidden,
        shape.element,
    )
    turned = element * width * (rows + read)  # queries and keys
    if machine.attention == "plain":
        weights = (
            shape.heads * read * taken * (element + (machine.dropped + element if rate else 0))
        )
        return turned + element * width * rows + weights
    # a view: the whole projection stays
    values = element * width * rows * (3 if computed == taken else 2)
    copied = element * width * read if machine.attention == "copied" else 0
    return turned + values + copied + FLOAT32 * shape.heads * read


def kept_by_layer(shape: Shape, taken: int, computed: int, machine: Machine, rate: float) -> int:
    """Of one layer, which takes in `taken` positions of a sequence and computes `computed` of
    them."""
    rows, read, width = shape.batch * taken, shape.batch * computed, shape.hidden
    norms = FLOAT32 * (width + STATISTICS) * (rows + read)
    # of products and of the activation
    inputs = rows * width + 2 * read * width + 2 * read * shape.intermediate
    if computed < taken:
        inputs += read * width  # the rows that need a query, gathered
    dropout = 2 * machine.dropped * read * width if rate else 0
    return (
        norms
        + shape.element * inputs
        + dropout
        + kept_by_attention(shape, taken, computed, machine, rate)
    )


def kept_by_trunk(shape: Shape, machine: Machine, rate: float) -> int:
    """Of embedding, layers and last norm, with the weights of the layers in bfloat16 and the rotary
    tables."""
    layers, width = shape.layer_rows(), shape.hidden
    embedding = machine.dropped * shape.batch * layers[0][0] * width if rate else 0
    last_norm = FLOAT32 * (width + STATISTICS) * shape.batch * layers[-1][1]
    weights = shape.layers * width * (4 * width + 2 * shape.intermediate)
    rounded = shape.element * weights if shape.element < FLOAT32 else 0
    turned = sum({taken for taken, _ in layers}) + layers[-1][1]
    tables = 2 * shape.element * shape.batch * turned * width // shape.heads
    each = sum(kept_by_layer(shape, *rows, machine, rate) for rows in layers)
    return embedding + each + last_norm + rounded + tables


def kept_by_heads(shape: Shape, objective: Objective, machine: Machine) -> int:
    """Of prediction, transition and alignment; `shape` is that of the model itself."""
    width, targets = shape.hidden, shape.targets
    rows = shape.batch * (shape.masks if objective == "mlm" else shape.states)
    logits = shape.vocabulary if fits(shape, rows // shape.batch, machine.chunk) else 0
    transform = FLOAT32 * (3 * width + STATISTICS) + shape.element * width
    # with the shift and the sum of each row's logits
    prediction = rows * (transform + FLOAT32 * (logits + 2))
    if objective == "mlm":
        return prediction + rows * (INDEX + FLOAT32)
    # the targets of every state, and the posterior of the states
    emission = rows * targets * (INDEX + FLOAT32)
    transition = rows * FLOAT32 * (4 * width + shape.heads)  # features of 2 D, queries, keys, gates
    links = rows * FLOAT32 * 2 * shape.states  # the mixture, and the expected use of every edge
    return prediction + emission + transition + links


def kept(shape: Shape, objective: Objective, machine: Machine = GPU, rate: float = 0.1) -> int:
    """What autograd keeps of a micro-batch; `rate` is that of dropout, everywhere or nowhere."""
    shape = shape.vanilla() if objective == "mlm" else shape
    return kept_by_trunk(shape, machine, rate) + kept_by_heads(shape, objective, machine)


def working(shape: Shape, objective: Objective, machine: Machine = GPU) -> int:
    """What the backward pass of the heads holds for a moment: a chunk of logits with the gradients
    of it and of its operands, or some seven matrices of the links."""
    states = shape.masks if objective == "mlm" else shape.states
    chunk = min(machine.chunk, shape.batch * states * shape.vocabulary)
    operands = shape.vocabulary * shape.hidden * (shape.element + FLOAT32)
    logits = (
        chunk * (FLOAT32 + shape.element) + operands + FLOAT32 * shape.batch * states * shape.hidden
    )
    return (
        logits if objective == "mlm" else max(logits, 7 * FLOAT32 * shape.batch * shape.states**2)
    )


def evaluation(shape: Shape, objective: Objective) -> int:
    """The logits of all states, their softmax, and the marginals of the targets."""
    if objective == "mlm":
        return 3 * FLOAT32 * shape.batch * shape.targets * shape.vocabulary
    return FLOAT32 * shape.batch * (2 * shape.states + shape.targets) * shape.vocabulary


def shape_of(
    data: DataConfig,
    model: ArchitectureConfig,
    length: int,
    vocabulary: int,
    tokens: int,
    element: int = 2,
) -> Shape:
    """A batch of so many tokens in sequences of `length` tokens. Of a range of shares of masks the
    end counts."""
    return Shape(
        batch=max(1, tokens // (length * data.repeat)),
        length=length * data.repeat,
        mask_ratio=share_bounds(data.mask_ratio)[1],
        num_states=model.states_per_mask,
        hidden=model.hidden_size,
        layers=model.num_hidden_layers,
        heads=model.num_attention_heads,
        intermediate=model.intermediate_size,
        vocabulary=vocabulary,
        boundary_states=model.states_per_boundary,
        element=element,
        expanded_layers=model.num_hidden_layers - model.unexpanded_layers,
    )


def parameters(model: ArchitectureConfig, vocabulary: int) -> int:
    """Weights of the model, counted without making them."""
    config = ExLMConfig(**vars(model), vocab_size=vocabulary, mask_token_id=vocabulary - 1)
    with torch.device("meta"):
        return ExLMForMaskedLM(config).num_parameters()


def memory_of(
    data: DataConfig,
    model: ArchitectureConfig,
    length: int,
    vocabulary: int,
    machine: Machine,
    element: int,
) -> Memory:
    """The memory of a pre-training on sequences of `length` tokens. ExLM without transitions counts
    as ExLM."""
    objective: Objective = "exlm" if model.expands else "mlm"
    shape = shape_of(data, model, length, vocabulary, data.tokens_per_micro_batch, element)
    rate = max(model.hidden_dropout_prob, model.attention_probs_dropout_prob)
    return Memory(
        state=STATE * parameters(model, vocabulary),
        kept=kept(shape, objective, used(machine, element, rate), rate),
        working=working(shape, objective, machine),
        evaluation=evaluation(shape, objective),
    )
