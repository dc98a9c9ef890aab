"""What a training step has to compute, from its shapes alone: the yardstick for measured times.

Counts are those of the matrix products (a multiplication and an addition are two operations) and of
the alignment's recursion; norms, activations, dropout and the optimizer are left out. Every
function gives the forward pass of a whole batch. A backward pass costs twice its forward pass,
since every product has two gradients. Logits that do not fit one chunk (`exlm.ops.emission`) are
made again in the backward pass instead of being kept: the product with the vocabulary then counts
four times instead of three, and so do the scores of the transition's mixture. docs/performance.md
counts this for the small text model, and not for text base, whose ratios it raises by 0.03 to 0.06.
With N states and T targets, links grow as N^2, the alignment as T (N - T)^2.

In the last layer only the rows that are read, those of the lattice states, need a query, a row of
attention, the output projection and the feed-forward block; keys and values are needed of all rows.
`sparse_last=False` counts a last layer that computes every row. Layers below a late expansion
(`Shape.expanded_layers`) are those of an MLM; copying the masks and telling the copies apart is no
product and counts nothing.
"""

from dataclasses import dataclass, replace
from typing import Literal

Objective = Literal["exlm", "mlm"]
FLOAT32 = 4  # bytes; of logits, links and the alignment, and of the heads' products on a CPU


@dataclass(frozen=True)
class Cost:
    """Of one forward pass.

    Attributes:
        flops: floating-point operations.
        traffic: bytes read and written if every operand and result moves once.
        saved: bytes kept for the backward pass by products; what norms, activations and dropout
            keep comes on top.
    """

    flops: float = 0.0
    traffic: float = 0.0
    saved: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops, self.traffic + other.traffic, self.saved + other.saved
        )

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.flops * times, self.traffic * times, self.saved * times)


@dataclass(frozen=True)
class Shape:
    """A batch of equally long sequences and the model that reads it.

    Attributes:
        batch: B, sequences.
        length: S, tokens of a sequence with BOS and EOS.
        mask_ratio: masked tokens per token.
        num_states: k, states per mask.
        hidden, layers, heads, intermediate, vocabulary: sizes of the model.
        boundary_states: states of BOS and of EOS.
        element: bytes of a number in the trunk.
        expanded_layers: how many of the last layers, at least one, read the expanded sequence; the
            others read the plain one. None, or as many as there are: all.
        unequal_masks: every other sequence has half as many masks more than `masks`, the next one
            as many fewer, so that rows have padding, as in training. Costs are those of equal ones.
    """

    batch: int
    length: int
    mask_ratio: float
    num_states: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    boundary_states: int = 1
    element: int = 2
    expanded_layers: int | None = None
    unequal_masks: bool = False

    @property
    def masks(self) -> int:
        """Masked tokens of a sequence."""
        return round(self.mask_ratio * self.length)

    @property
    def targets(self) -> int:
        """T, tokens that the states of a sequence emit: masked ones, BOS and EOS."""
        return self.masks + 2

    @property
    def states(self) -> int:
        """N, lattice states of a sequence."""
        return self.num_states * self.masks + 2 * self.boundary_states

    @property
    def expanded(self) -> int:
        """L, positions of a sequence in the expanded layers."""
        return self.length - self.targets + self.states

    def layer_rows(self, sparse_last: bool = True) -> list[tuple[int, int]]:
        """For every layer, the positions of a sequence that it takes in and those that it
        computes."""
        late = (
            self.layers if self.expanded_layers is None else min(self.expanded_layers, self.layers)
        )
        taken = [self.length] * (self.layers - late) + [self.expanded] * late
        computed = [*taken[:-1], self.states if sparse_last else taken[-1]]
        return list(zip(taken, computed, strict=True))

    def vanilla(self) -> "Shape":
        """The masked language model without expansion on the same batch and encoder."""
        return replace(self, num_states=1, boundary_states=1)


def product(rows: float, inner: int, columns: int, element: int) -> Cost:
    """A matrix product [rows, inner] x [inner, columns] with one weight; it keeps its input."""
    elements = rows * inner + inner * columns + rows * columns
    return Cost(2 * rows * inner * columns, element * elements, element * rows * inner)


def trunk_linear(shape: Shape, sparse_last: bool = True) -> Cost:
    """Query, key, value and output projections and feed-forward blocks of all layers."""
    width, inner, element = shape.hidden, shape.intermediate, shape.element

    def layer(taken: int, computed: int) -> Cost:
        keys_values = product(shape.batch * taken, width, 2 * width, element)
        rows = shape.batch * computed
        query_output = product(rows, width, width, element) * 2
        return (
            keys_values
            + query_output
            + product(rows, width, inner, element)
            + product(rows, inner, width, element)
        )

    return sum((layer(*rows) for rows in shape.layer_rows(sparse_last)), Cost())


def attention(shape: Shape, sparse_last: bool = True) -> Cost:
    """Scores and mixtures of all layers, fused: no matrix of scores is written or kept."""

    def layer(taken: int, computed: int) -> Cost:
        operands = shape.element * shape.batch * shape.hidden * 2 * (taken + computed)
        return Cost(4 * shape.batch * computed * taken * shape.hidden, operands, operands)

    return sum((layer(*rows) for rows in shape.layer_rows(sparse_last)), Cost())


def head_transform(shape: Shape, rows: int) -> Cost:
    """The dense layer of the prediction head on `rows` rows of each sequence."""
    return product(shape.batch * rows, shape.hidden, shape.hidden, FLOAT32)


def vocabulary_product(shape: Shape, rows: int, keep_logits: bool = True) -> Cost:
    """Logits of `rows` rows of each sequence; without `keep_logits` they are never in memory all at
    once."""
    cost = product(shape.batch * rows, shape.hidden, shape.vocabulary, FLOAT32)
    logits = FLOAT32 * shape.batch * rows * shape.vocabulary
    return (
        replace(cost, saved=cost.saved + logits)
        if keep_logits
        else replace(cost, traffic=cost.traffic - logits)
    )


def transition_head(shape: Shape) -> Cost:
    """Queries, keys and gates of states joined with their positions."""
    rows, features = shape.batch * shape.states, 2 * shape.hidden
    return product(rows, features, shape.hidden, FLOAT32) * 2 + product(
        rows, features, shape.heads, FLOAT32
    )


def mixture(shape: Shape) -> Cost:
    """Scores of all heads and their mixture [B, N, N], head by head."""
    elements = shape.batch * shape.states * (shape.states + 2 * shape.hidden)
    return Cost(
        2 * shape.batch * shape.states**2 * shape.hidden, FLOAT32 * elements, FLOAT32 * elements
    )


def alignment_visits(batch: int, targets: int, states: int) -> float:
    """Edges that the alignment's recursion visits inside its band, in one direction."""
    width = states - targets + 1
    return batch * (targets - 1) * width * (width + 1) / 2


def alignment(shape: Shape) -> Cost:
    """The recursion, at four operations per visited edge; keeps both posteriors."""
    visits = alignment_visits(shape.batch, shape.targets, shape.states)
    matrix, rows = shape.batch * shape.states**2, shape.batch * shape.targets * shape.states
    return Cost(4 * visits, FLOAT32 * (2 * matrix + 4 * rows), FLOAT32 * (matrix + rows))


def parts(
    shape: Shape, objective: Objective, sparse_last: bool = True, chunk: int | None = None
) -> dict[str, Cost]:
    """The forward pass, part by part.

    Args:
        shape: of ExLM's batch; `mlm` is the model without expansion, whose head reads the masked
            rows only.
        objective: which model.
        sparse_last: the last layer computes only what is read.
        chunk: logits held at a time; if there are more, none is kept. Without it all are.
    """
    if objective == "mlm":
        shape = shape.vanilla()
    rows = shape.masks if objective == "mlm" else shape.states
    result = {
        "trunk": trunk_linear(shape, sparse_last),
        "attention": attention(shape, sparse_last),
        "transform": head_transform(shape, rows),
        "vocabulary": vocabulary_product(shape, rows, chunk is None or fits(shape, rows, chunk)),
    }
    if objective == "mlm":
        return result
    return result | {
        "transition": transition_head(shape),
        "mixture": mixture(shape),
        "alignment": alignment(shape),
    }


def fits(shape: Shape, rows: int, chunk: int) -> bool:
    """Whether the logits of `rows` rows of each sequence are held at once."""
    return shape.batch * rows <= max(1, chunk // shape.vocabulary)


def step_flops(
    shape: Shape, objective: Objective, sparse_last: bool = True, chunk: int | None = None
) -> float:
    """Operations of a forward and a backward pass.

    Without `chunk`, what any code must do. With it, what this library does to save memory comes on
    top: its backward pass makes the scores of the mixture again, and the logits if they do not fit
    a chunk.
    """
    flops = {name: part.flops for name, part in parts(shape, objective, sparse_last).items()}
    total = 3 * sum(flops.values())
    if chunk is None:
        return total
    rows = shape.masks if objective == "mlm" else shape.states
    return (
        total
        + flops.get("mixture", 0.0)
        + (0.0 if fits(shape, rows, chunk) else flops["vocabulary"])
    )


def ratio_bound(shape: Shape, sparse_last: bool = True, chunk: int | None = None) -> float:
    """Operations of an ExLM step per operation of an MLM step on the same batch.

    A measured ratio of times is lower only where an operation of the MLM step takes longer than one
    of the ExLM step.
    """
    return step_flops(shape, "exlm", sparse_last, chunk) / step_flops(
        shape, "mlm", sparse_last, chunk
    )
