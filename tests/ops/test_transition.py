"""Transitions against float64 sums written out, and head by head against all heads at once."""

import pytest
import torch

from exlm.ops import transition
from exlm.ops.transition import LinkPrior, PriorStrength, edge_mask, gated_links, single_links
from tests.ops.recorder import LargestTensor

STATES = torch.tensor([6, 4])
INF = float("inf")


def features(heads=2, dtype=torch.float64):
    query, key = torch.randn(2, 6, heads, 4, dtype=dtype), torch.randn(2, 6, heads, 4, dtype=dtype)
    return query, key, torch.randn(2, 6, heads, dtype=dtype).log_softmax(-1)


def test_gated_mixture_is_the_sum_over_heads_of_gate_times_softmax():
    query, key, gate = features()
    result = gated_links(query, key, gate, edge_mask(STATES, 6)).double()
    for b, n in enumerate(STATES.tolist()):
        for u in range(n - 1):
            scores = torch.stack([key[b, u + 1 : n, h] @ query[b, u, h] / 2 for h in range(2)])
            expected = (gate[b, u].exp()[:, None] * scores.softmax(-1)).sum(0).log()
            torch.testing.assert_close(result[b, u, u + 1 : n], expected, atol=1e-5, rtol=1e-5)
        assert (result[b].exp().sum(-1)[: n - 1] - 1).abs().max() < 1e-6


def test_edges_go_forward_between_real_states_only():
    query, key, gate = features()
    result = gated_links(query, key, gate, edge_mask(STATES, 6))
    for b, n in enumerate(STATES.tolist()):
        allowed = torch.zeros(6, 6, dtype=torch.bool)
        allowed[:n, :n] = torch.ones(n, n).triu(1).bool()
        assert torch.equal(result[b] > -torch.inf, allowed)


def test_sparse_edges_join_different_masks_only():
    group = torch.tensor([[0, 2, 2, 3, 3, 4]])
    edges = edge_mask(torch.tensor([6]), 6, group)[0]
    expected = torch.ones(6, 6).triu(1).bool() & (group[0][:, None] != group[0][None])
    assert torch.equal(edges, expected) and not edges[1, 2] and edges[2, 3]


def test_single_is_one_softmax():
    query, key, _ = features(heads=1)
    result = single_links(query[:, :, 0], key[:, :, 0], edge_mask(STATES, 6)).double()
    scores = (query[0, :, 0] @ key[0, :, 0].T / 2).masked_fill(~edge_mask(STATES, 6)[0], -torch.inf)
    torch.testing.assert_close(result[0, :5], scores[:5].log_softmax(-1), atol=1e-5, rtol=1e-5)


def dense(query, key, log_gate, edges):
    """All heads at once, differentiated by autograd."""
    scores = torch.einsum("bnhd,bmhd->bhnm", query, key) * query.shape[-1] ** -0.5
    heads = (
        scores.masked_fill(~edges[:, None], torch.finfo(scores.dtype).min).log_softmax(-1)
        + log_gate.transpose(1, 2)[..., None]
    )
    return heads.logsumexp(1).masked_fill(~edges, -INF)


def gradients(function, inputs, edges):
    """The result, and the gradients of its edges weighted by fixed random numbers."""
    result = function(*inputs, edges)
    up = torch.randn(result.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    up = torch.where(result == -INF, 0.0, up)
    return result, torch.autograd.grad(result, inputs, up.to(result.dtype))


def assert_equal_to_dense(inputs, edges, tolerance):
    exact = [x.detach().double().requires_grad_() for x in inputs]
    result, grads = gradients(gated_links, inputs, edges)
    expected, expected_grads = gradients(dense, exact, edges)
    for ours, theirs in zip((result, *grads), (expected, *expected_grads), strict=True):
        size = max(1.0, float(theirs.detach()[theirs > -INF].abs().max()))
        torch.testing.assert_close(
            ours.double() / size, theirs / size, atol=tolerance, rtol=tolerance
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["ordinary", "large", "closed head", "identical", "sparse"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("together", [False, True])
def test_the_mixture_equals_all_heads_written_at_once(together, heads, kind, dtype, monkeypatch):
    if together:  # as a GPU does it where lattices are small
        monkeypatch.setitem(transition.MOST_LINKS_AT_ONCE, "cpu", 2**24)
    query, key, gate = features(heads)
    edges = edge_mask(STATES, 6)
    if kind == "large":
        query, gate = query * 1e4, gate * 1e2
    elif kind == "closed head":
        gate[:, 1::2, 0] = -INF if heads > 1 else 0.0
    elif kind == "identical":
        query[:], key[:] = query[:1, :1, :1], key[:1, :1, :1]
    elif kind == "sparse":
        edges = edge_mask(STATES, 6, torch.tensor([[0, 2, 2, 3, 3, 4]] * 2))
    inputs = [x.to(dtype).requires_grad_() for x in (query, key, gate)]
    # In float32 a score of 1e4 is off by 1e-3, and so are the probabilities.
    float32 = 2e-3 if kind == "large" else 1e-5
    assert_equal_to_dense(inputs, edges, 1e-11 if dtype == torch.float64 else float32)


def test_gradients_are_those_of_finite_differences():
    inputs = tuple(x.requires_grad_() for x in features())
    edges = edge_mask(STATES, 6)
    assert torch.autograd.gradcheck(
        lambda *x: torch.where(edges, gated_links(*x, edges), 0.0), inputs
    )


@pytest.mark.parametrize("up", [INF, -INF, float("nan")])
def test_an_incoming_gradient_where_there_is_no_probability_is_ignored(up):
    """States without successors, and a state all of whose heads are closed."""
    query, key, gate = features()
    gate[0, 2] = -INF
    inputs = [x.requires_grad_() for x in (query, key, gate)]
    result = gated_links(*inputs, edge_mask(STATES, 6))
    impossible = result == -INF
    assert impossible[0, 2].all() and impossible[1, 3:].all() and not result.isnan().any()
    wild, calm = (
        torch.autograd.grad(
            result, inputs, torch.where(impossible, x, 1.0).double(), retain_graph=True
        )
        for x in (up, 0.0)
    )
    torch.testing.assert_close(wild, calm, atol=0, rtol=0)
    assert all(x.isfinite().all() for x in wild)
    assert wild[0].abs().max() > 0 and not wild[0][0, 2].any() and not wild[2][1, 3:].any()


def test_bfloat16_inputs_give_float32_results():
    inputs = [x.bfloat16().requires_grad_() for x in features()]
    result, grads = gradients(gated_links, inputs, edge_mask(STATES, 6))
    expected, expected_grads = gradients(
        dense, [x.detach().double().requires_grad_() for x in inputs], edge_mask(STATES, 6)
    )
    assert result.dtype == torch.float32 and {x.dtype for x in grads} == {torch.bfloat16}
    torch.testing.assert_close(result, expected.float())
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=0.01, rtol=0.01)


def test_no_tensor_holds_every_head():
    batch, states, heads, width = 2, 40, 6, 4
    shapes = (batch, states, heads, width), (batch, states, heads, width), (batch, states, heads)
    inputs = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    largest = {}
    for function in (dense, gated_links):
        with LargestTensor() as recorder:
            gradients(function, inputs, edge_mask(torch.tensor([40, 30]), states))
        largest[function] = recorder.numel
    assert largest[dense] == batch * states * states * heads
    assert largest[gated_links] == batch * states * states


@pytest.mark.parametrize("width", [0, 1])
def test_no_edges_at_all(width):
    inputs = [torch.randn(2, width, 2, 4, requires_grad=True) for _ in range(2)]
    gate = torch.zeros(2, width, 2, requires_grad=True)
    result = gated_links(*inputs, gate, edge_mask(torch.full((2,), width), width))
    assert result.shape == (2, width, width) and (result == -INF).all()
    result.sum().backward()
    assert not any(x.grad.any() for x in (*inputs, gate))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_are_finite_even_for_rows_without_successors(scale):
    query, key, gate = (x.float().mul(scale).requires_grad_() for x in features())
    result = gated_links(query, key, gate.log_softmax(-1), edge_mask(STATES, 6))
    torch.where(result == -torch.inf, 0.0, result).sum().backward()
    assert all(x.grad.isfinite().all() for x in (query, key, gate))
    assert query.grad[1, 3:].abs().max() == 0


ORDINAL = torch.tensor([[0, 1, 1, 2, 2, 3], [0, 1, 1, 2, 0, 0]])
COPY = torch.tensor([[0, 1, 2, 1, 2, 0], [0, 1, 2, 0, 0, 0]])


def written_out(order, sticky):
    """The prior of every link, from its definition."""
    result = torch.zeros(2, 6, 6, dtype=torch.float64)
    for b in range(2):
        for u in range(6):
            for v in range(6):
                distance = int(ORDINAL[b, v] - ORDINAL[b, u])
                result[b, u, v] = -order * abs(distance - 1)
                result[b, u, v] += sticky * (distance == 1 and COPY[b, u] == COPY[b, v] > 0)
    return result


def dense_with_prior(order, sticky):
    def function(query, key, log_gate, edges):
        scores = torch.einsum("bnhd,bmhd->bhnm", query, key) * query.shape[-1] ** -0.5
        scores = scores + written_out(order, sticky)[:, None].to(scores.dtype)
        heads = scores.masked_fill(~edges[:, None], torch.finfo(scores.dtype).min).log_softmax(-1)
        return (heads + log_gate.transpose(1, 2)[..., None]).logsumexp(1).masked_fill(~edges, -INF)

    return function


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("order,sticky", [(1.0, 0.0), (10.0, 3.0), (0.0, 2.0), (1e4, 1e4)])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("together", [False, True])
def test_a_prior_is_added_to_the_scores_of_every_head(
    together, heads, order, sticky, dtype, monkeypatch
):
    if together:
        monkeypatch.setitem(transition.MOST_LINKS_AT_ONCE, "cpu", 2**24)
    inputs = [x.to(dtype).requires_grad_() for x in features(heads)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    edges, prior = edge_mask(STATES, 6), LinkPrior(PriorStrength(order, sticky), ORDINAL, COPY)
    ours = gradients(lambda *x: gated_links(*x, prior), inputs, edges)
    theirs = gradients(dense_with_prior(order, sticky), exact, edges)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-5 if order < 100 else 2e-3
    for left, right in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        torch.testing.assert_close(left.double(), right, atol=tolerance, rtol=tolerance)


def test_gradients_with_a_prior_are_those_of_finite_differences():
    inputs = tuple(x.requires_grad_() for x in features())
    edges, prior = edge_mask(STATES, 6), LinkPrior(PriorStrength(2.0, 3.0), ORDINAL, COPY)
    assert torch.autograd.gradcheck(
        lambda *x: torch.where(edges, gated_links(*x, edges, prior), 0.0), inputs
    )


def test_a_prior_reaches_a_single_softmax_too_and_without_strength_changes_no_bit():
    query, key, _ = features(heads=1)
    edges = edge_mask(STATES, 6)
    flat = torch.zeros_like(query[:, :, 0])
    result = single_links(
        flat, flat, edges, LinkPrior(PriorStrength(10.0, 3.0), ORDINAL, COPY)
    ).double()
    expected = written_out(10.0, 3.0).masked_fill(~edges, -INF)[0, :5].log_softmax(-1)
    torch.testing.assert_close(result[0, :5], expected)
    without = single_links(query[:, :, 0], key[:, :, 0], edges)
    assert torch.equal(
        without,
        single_links(
            query[:, :, 0], key[:, :, 0], edges, LinkPrior(PriorStrength(0.0, 0.0), ORDINAL, COPY)
        ),
    )


def test_a_prior_keeps_no_further_matrix_for_the_gradient():
    def kept(prior):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.append(x.numel()) or x, lambda x: x
        ):
            result = gated_links(
                *(x.requires_grad_() for x in features()), edge_mask(STATES, 6), prior
            )
        beside = [x for x in vars(result.grad_fn).values() if isinstance(x, torch.Tensor)]
        return sorted(sizes + [x.numel() for x in beside])

    assert kept(LinkPrior(PriorStrength(10.0, 3.0), ORDINAL, COPY)) == kept(None)
