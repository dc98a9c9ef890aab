"""Emission: the log-probability of every target at every state. It is the logarithm of the paper's
P = softmax(H W_P^T) (section 4.2), with a bias, at the targets alone.

P has a column for each of V tokens, but a sequence needs only those of its T targets, and one
normaliser per state. So the logits are computed for a chunk of states at a time, and computed again
for the gradient: no [B, N, V] tensor is ever held. The hidden states and weights may be bfloat16,
but the logits are float32: in bfloat16 they would be off by 0.03 nats."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from exlm.ops.fused import exp_, fused
from exlm.ops.precision import at_least_float32, exact_on_cpu, matmul_precision

# Logits held at a time, by type of device. Chunks must not be small either: each reads all of W and
# its gradient.
CHUNK = {"cpu": 2**24, "cuda": 2**28}
# On a GPU the vocabulary is padded to a multiple of this: products with rows of logits that do not
# begin at a multiple of 16 bytes take several times as long.
VOCABULARY_MULTIPLE = {"cpu": 1, "cuda": 64}


def emission(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities [B, T, N] of the targets at the states, at least float32.

    Args:
        hidden: [B, N, D] states after the prediction head's transform.
        weight: [V, D] token embeddings (tied).
        bias: [V], -inf for a token that is forbidden.
        targets: [B, T] token ids."""
    columns = targets[:, None].expand(-1, hidden.shape[1], -1)  # [B, N, T]
    logits, normaliser = _target_logits(hidden.flatten(0, 1), weight, bias, columns.flatten(0, 1))
    return (logits - normaliser[:, None]).view(columns.shape).transpose(1, 2)


def cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Negative log-probability of one target per row: hidden [R, D], targets [R] -> [R], at least
    float32."""
    logits, normaliser = _target_logits(hidden, weight, bias, targets[:, None])
    return normaliser - logits.squeeze(1)


def _target_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """What `_TargetLogits` returns, in the precision of its operands, also under autocast."""
    missing = -len(weight) % VOCABULARY_MULTIPLE.get(weight.device.type, 1)
    if missing:
        weight = F.pad(weight, (0, 0, 0, missing))
        bias = F.pad(bias, (0, missing), value=-torch.inf)
    with torch.autocast(hidden.device.type, enabled=False):
        return _TargetLogits.apply(hidden, weight, bias, columns)


class _TargetLogits(torch.autograd.Function):
    """Of the logits hidden @ weight.T + bias, [R, V]: the `columns` of each row, [R, T], and the
    logsumexp of each row, [R], which is its normaliser.

    Both passes compute the exponentials exp(logits - shift), where `shift` is a row's largest
    logit. Divided by their sum, the `total`, they are the softmax of the row."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, columns: Tensor
    ) -> tuple[Tensor, Tensor]:
        # The products have bfloat16 operands if `hidden` is bfloat16; their sums are float32 in any
        # case.
        ctx.dtype = hidden.dtype
        if hidden.dtype != torch.bfloat16:
            ctx.dtype = at_least_float32(torch.promote_types(hidden.dtype, weight.dtype))
        # The exponentials are kept for the gradient only if there is one chunk.
        keep_exponentials = any(ctx.needs_input_grad) and len(hidden) <= _chunk_rows(weight)
        exponentials = None
        target_logits = weight.new_empty(columns.shape, dtype=at_least_float32(ctx.dtype))
        shift, total = target_logits.new_empty(2, len(hidden), 1)
        for rows, logits in _logits(hidden.to(ctx.dtype), weight.to(ctx.dtype)):
            target_logits[rows] = logits.gather(1, columns[rows]) + bias[columns[rows]]
            shift[rows], total[rows], exponentials = _shift_and_total(
                logits, bias, keep_exponentials
            )
        ctx.save_for_backward(hidden, weight, bias, columns, shift, total, exponentials)
        return target_logits, (shift + total.log()).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_target_logits: Tensor, d_normaliser: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, columns, shift, total, exponentials = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, _ = ctx.needs_input_grad
        d_hidden = torch.zeros_like(hidden, dtype=total.dtype) if needs_hidden else None
        d_weight = torch.zeros_like(weight, dtype=total.dtype) if needs_weight else None
        d_bias = torch.zeros_like(bias, dtype=total.dtype) if needs_bias else None
        hidden = hidden.to(ctx.dtype)
        weight = weight.to(ctx.dtype)
        scale = d_normaliser[:, None] / total
        for rows, softmax in _softmax_chunks(hidden, weight, bias, shift, scale, exponentials):
            # Both terms are added before rounding, since they cancel where a target is almost
            # certain.
            d_logits = softmax.scatter_add_(1, columns[rows], d_target_logits[rows]).to(ctx.dtype)
            if d_hidden is not None:
                _add_product(d_hidden[rows], d_logits, weight, beta=0, gradient=True)
            if d_weight is not None:
                _add_product(d_weight, d_logits.T, hidden[rows], gradient=True)
            if d_bias is not None:
                d_bias += d_logits.sum(0, dtype=total.dtype)
        # Autograd rounds each to the type of its input.
        return d_hidden, d_weight, d_bias, None


def _softmax_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: Tensor,
    scale: Tensor,
    exponentials: Tensor | None,
) -> Iterator[tuple[slice, Tensor]]:
    """The exponentials times `scale` [R, 1], chunk by chunk: a slice of the rows, and their
    numbers, which the caller may overwrite. All rows are one chunk if they were kept."""
    if exponentials is not None:
        yield slice(None), exponentials * scale
        return
    for rows, logits in _logits(hidden, weight):
        yield rows, _softmax_(logits, bias, shift[rows], scale[rows])


def _chunk_rows(weight: Tensor) -> int:
    """How many rows of logits are held at a time, for a weight [V, D]."""
    return max(1, CHUNK.get(weight.device.type, CHUNK["cpu"]) // len(weight))


def _logits(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """hidden @ weight.T, chunk by chunk: a slice of the rows, and their logits in a buffer that all
    chunks share."""
    size = min(_chunk_rows(weight), len(hidden))
    buffer = weight.new_empty(size, len(weight), dtype=at_least_float32(weight.dtype))
    for start in range(0, len(hidden), max(size, 1)):
        rows = slice(start, min(start + size, len(hidden)))
        yield rows, _add_product(buffer[: rows.stop - start], hidden[rows], weight.T, beta=0)


def _add_product(
    total: Tensor, left: Tensor, right: Tensor, beta: float = 1, gradient: bool = False
) -> Tensor:
    """`total` [n, m] becomes beta * total + left @ right, in its own precision. On a CPU the
    product of bfloat16 operands of a gradient is rounded to bfloat16, as an encoder layer's
    gradient is."""
    if left.dtype == total.dtype:
        with exact_on_cpu(total.device):
            return torch.addmm(total, left, right, beta=beta, out=total)
    if total.is_cuda:
        return torch.addmm(total, left, right, beta=beta, out=total, out_dtype=total.dtype)
    if gradient:
        return total.copy_(left @ right) if beta == 0 else total.add_(left @ right)
    # "medium" loses nothing: the operands have no more digits than bfloat16.
    with matmul_precision("medium"):
        return torch.addmm(total, left.float(), right.float(), beta=beta, out=total)


@fused
def _shift_and_total(
    logits: Tensor, bias: Tensor, keep_exponentials: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Overwrites the logits, since new memory for a chunk is slow on a CPU; a compiled call works
    on a copy.

    Returns:
        The shift [n, 1], finite even if every logit of a row is -inf; the sum of the exponentials
        [n, 1], at least 1; and these themselves [n, V] if they are to be kept."""
    if torch.compiler.is_compiling():
        logits = logits.clone()
    shift = logits.add_(bias).amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
    exponentials = exp_(logits.sub_(shift))
    total = exponentials.sum(1, keepdim=True).clamp(min=1)
    return shift, total, exponentials if keep_exponentials else None


@fused
def _softmax_(logits: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """The exponentials [n, V], computed again, times the scale [n, 1]; they overwrite the
    logits."""
    return exp_(logits.add_(bias).sub_(shift)).mul_(scale)
