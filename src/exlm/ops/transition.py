"""Links: the logarithm of the transition matrix over the DAG of states, which the paper calls
E = softmax(Q K^T / sqrt(d) + M) (section 4.2). Row u is the distribution of the next state after u.

The mask M, here `edges`, leaves only links to later states, so E is upper triangular. Of four
states, with the sparse DAG and states 1 and 2 of the same mask:

    full    - x x x        sparse    - x x x        x  a link
            - - x x                  - - - x
            - - - x                  - - - x
            - - - -                  - - - -        the last state has no successor

`single_links` is the paper's equation. `gated_links` is what the authors' release trains: one such
distribution per head, mixed by a learned gate. Both are at least float32 in any model, since a
bfloat16 log-probability is off by up to 3% per link.

The mixture adds one head after the other, and the gradient computes every head again. So no
[B, N, N, H] tensor is ever held. On a GPU the heads of small lattices are computed together, which
launches fewer kernels.

An order prior (not in the paper) favours paths that give each masked token a state of its own mask.
It is added to the scores of the links before each head's softmax, as in ALiBi (Press et al., 2022)
and for speech (Badlani et al., 2021)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from exlm.ops.fused import exp_, fused
from exlm.ops.precision import at_least_float32, exact_on_cpu

# All heads are computed at once if their links are at most so many, which take 64 MiB in float32.
# On a CPU it is always one head after the other.
MOST_LINKS_AT_ONCE = {"cpu": 0, "cuda": 2**24}


class PriorStrength(NamedTuple):
    """Strength of the order prior: beta for order, gamma for sticky copies.

    From the score of a link from a state of mask i to one of mask j (BOS is 0, EOS the last),
    `order * |j - i - 1|` is subtracted: a penalty for each skipped mask, or for staying within one.
    If j is i + 1 and both states are the same copy of their masks, `sticky` is added. Copies then
    come to stand for different fillings."""

    order: float = 0.0
    sticky: float = 0.0


class LinkPrior(NamedTuple):
    """The order prior for the states of a lattice."""

    strength: PriorStrength
    target_of_state: Tensor  # [B, N] which mask each state belongs to
    state_copy: Tensor  # [B, N] which copy of its mask it is, from 1; 0 for BOS and EOS

    def add_to(self, scores: Tensor) -> Tensor:
        """Adds the prior to scores [B, N, N], in place."""
        order, sticky = self.strength
        target = self.target_of_state.to(scores.dtype)
        skipped = target[:, None, :] - (target + 1)[:, :, None]
        if sticky:
            same_copy = self.state_copy[:, None, :] == self.state_copy[:, :, None]
            same_copy &= (self.state_copy > 0)[:, :, None]
            scores.add_((skipped == 0) & same_copy, alpha=sticky)
        if order:
            scores.sub_(skipped.abs_(), alpha=order)
        return scores


def edge_mask(state_lengths: Tensor, states: int, target_of_state: Tensor | None = None) -> Tensor:
    """[B, N, N] bool, which states are linked: u to v if u < v < the number of states of the
    sequence; N is `states`. With `target_of_state` [B, N], states of one mask are not (Sparse
    DAG)."""
    index = torch.arange(states, device=state_lengths.device)
    edges = (index[:, None] < index) & (index < state_lengths[:, None])[:, None, :]
    if target_of_state is None:
        return edges
    return edges & (target_of_state[:, :, None] != target_of_state[:, None, :])


def single_links(
    query: Tensor, key: Tensor, edges: Tensor, prior: LinkPrior | None = None
) -> Tensor:
    """The logarithm of the paper's E = softmax(Q K^T / sqrt(d) + M) (section 4.2), [B, N, N]; query
    and key are [B, N, d], `edges` and `prior` those of `gated_links`."""
    log_gate = query.new_zeros(*query.shape[:2], 1)
    return gated_links(query[:, :, None], key[:, :, None], log_gate, edges, prior)


def gated_links(
    query: Tensor, key: Tensor, log_gate: Tensor, edges: Tensor, prior: LinkPrior | None = None
) -> Tensor:
    """The logarithm of a mixture over heads of softmax(q k^T / sqrt(d / H)). A gate says how much
    each head counts in the row of a state.

    Args:
        query, key: [B, N, H, d / H].
        log_gate: [B, N, H] log-probabilities of the heads.
        edges: [B, N, N] bool, which states are linked (`edge_mask`).
        prior: of the links, the same for all heads.

    Returns:
        [B, N, N] at least float32; -inf where there is no link. States without successors have rows
        of -inf."""
    with torch.autocast(query.device.type, enabled=False):
        return _Mixture.apply(query, key, log_gate, edges, prior)


class _Mixture(torch.autograd.Function):
    """The logarithm of the sum over heads of exp(log_gate + log softmax of the head's scores)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        log_gate: Tensor,
        edges: Tensor,
        prior: LinkPrior | None,
    ) -> Tensor:
        dtype = at_least_float32(query.dtype)
        offset = _score_offset(~edges, dtype, prior)
        mixture = torch.full(edges.shape, -torch.inf, dtype=dtype, device=edges.device)
        queries = query.to(dtype)
        keys = key.to(dtype)
        log_gates = log_gate.to(dtype)[..., None]
        with exact_on_cpu(query.device):
            for heads in _head_groups(query):
                mixture = _add_heads(
                    mixture, queries[:, :, heads], keys[:, :, heads], log_gates[:, :, heads], offset
                )
        mixture.masked_fill_(~edges, -torch.inf)
        ctx.save_for_backward(query, key, log_gate, mixture)
        # `backward` adds the prior again. What is kept for that, two numbers for each state, takes
        # less memory than what was added, a number for each link.
        ctx.prior = prior
        return mixture

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, log_gate, mixture = ctx.saved_tensors
        # Where the mixture is -inf, the gradient is 0 whatever comes in: states are not linked, or
        # the gates of a row are all -inf. Relative to +inf the share of every head is 0 there.
        no_link = mixture == -torch.inf
        offset = _score_offset(no_link, mixture.dtype, ctx.prior)
        grad = torch.where(no_link, 0.0, grad)
        mixture = torch.where(no_link, torch.inf, mixture)
        dtype = mixture.dtype
        queries = query.to(dtype)
        keys = key.to(dtype)
        log_gates = log_gate.to(dtype)[..., None]
        d_query = torch.empty_like(query)
        d_key = torch.empty_like(key)
        d_log_gate = torch.empty_like(log_gate)
        with exact_on_cpu(query.device):
            for heads in _head_groups(query):
                d_query[:, :, heads], d_key[:, :, heads], d_log_gate[:, :, heads] = _head_gradients(
                    queries[:, :, heads],
                    keys[:, :, heads],
                    log_gates[:, :, heads],
                    offset,
                    mixture,
                    grad,
                )
        return d_query, d_key, d_log_gate, None, None


def _score_offset(no_link: Tensor, dtype: torch.dtype, prior: LinkPrior | None) -> Tensor:
    """What is added to the scores [B, N, N] of every head: a large negative number where there is
    no link, finite because a softmax over -inf alone is NaN; plus the prior."""
    offset = no_link.to(dtype) * (torch.finfo(dtype).min / 2)
    return offset if prior is None else prior.add_to(offset)


def _head_groups(query: Tensor) -> list[slice]:
    """The heads of query [B, N, H, d] in groups that are computed at once: all of them if lattices
    are small, else each alone."""
    batch, states, heads, _ = query.shape
    at_once = batch * heads * states**2 <= MOST_LINKS_AT_ONCE.get(query.device.type, 0)
    size = heads if at_once else 1
    return [slice(h, h + size) for h in range(0, heads, size)]


@fused
def _add_heads(
    mixture: Tensor, query: Tensor, key: Tensor, log_gate: Tensor, offset: Tensor
) -> Tensor:
    """The mixture [B, N, N], a logarithm, with G further heads added: query, key [B, N, G, d],
    log_gate [B, N, G, 1]."""
    heads = _log_softmax(_rows(query), _rows(key), _per_head(offset, query)).add_(_rows(log_gate))
    for head in heads.unflatten(0, (-1, query.shape[2])).unbind(1):
        mixture = torch.logaddexp(mixture, head)
    return mixture


def _rows(features: Tensor) -> Tensor:
    """Features [B, N, G, d] of G heads as a batch of B * G rows with one head, [B * G, N, d]."""
    return features.transpose(1, 2).flatten(0, 1)


def _per_head(links: Tensor, query: Tensor) -> Tensor:
    """Numbers of links [B, N, N], for each of the G heads of query [B, N, G, d]: [B * G, N, N]."""
    return links[:, None].expand(-1, query.shape[2], -1, -1).flatten(0, 1)


def _log_softmax(query: Tensor, key: Tensor, offset: Tensor) -> Tensor:
    """The log transition matrices [R, N, N] of R rows; query, key [R, N, d]."""
    scale = query.shape[-1] ** -0.5
    return torch.baddbmm(offset, query, key.transpose(1, 2), alpha=scale).log_softmax(-1)


@fused
def _head_gradients(
    query: Tensor, key: Tensor, log_gate: Tensor, offset: Tensor, mixture: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Each head gets its share of a link's gradient, and passes it through its softmax to its
    scores.

    Returns:
        The gradients of the query and key, [B, N, G, d], and log_gate [B, N, G] of G heads."""
    query_rows, key_rows = _rows(query), _rows(key)
    head = _log_softmax(query_rows, key_rows, _per_head(offset, query))
    share = exp_((head + _rows(log_gate)).sub_(_per_head(mixture, query)))
    d_head = share.mul_(_per_head(grad, query))
    d_log_gate = d_head.sum(-1, keepdim=True)
    d_scores = d_head.addcmul_(exp_(head), d_log_gate, value=-1).mul_(query.shape[-1] ** -0.5)
    d_query = _by_head(d_scores @ key_rows, query)
    d_key = _by_head(d_scores.transpose(1, 2) @ query_rows, query)
    return d_query, d_key, _by_head(d_log_gate, query).squeeze(-1)


def _by_head(rows: Tensor, query: Tensor) -> Tensor:
    """The inverse of `_rows`: [B * G, N, ...] as [B, N, G, ...]."""
    return rows.unflatten(0, (-1, query.shape[2])).transpose(1, 2)
