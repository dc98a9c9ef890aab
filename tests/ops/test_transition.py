"""Transitions and emissions against float64 sums written out."""

import pytest
import torch

from exlm.ops.emission import emission
from exlm.ops.transition import edge_mask, gated, single

STATES = torch.tensor([6, 4])


def features(heads=2, dtype=torch.float64):
    query, key = torch.randn(2, 6, heads, 4, dtype=dtype), torch.randn(2, 6, heads, 4, dtype=dtype)
    return query, key, torch.randn(2, 6, heads, dtype=dtype).log_softmax(-1)


def test_gated_mixture_is_the_sum_over_heads_of_gate_times_softmax():
    query, key, gate = features()
    result = gated(query, key, gate, edge_mask(STATES, 6)).double()
    for b, n in enumerate(STATES.tolist()):
        for u in range(n - 1):
            scores = torch.stack([key[b, u + 1 : n, h] @ query[b, u, h] / 2 for h in range(2)])
            expected = (gate[b, u].exp()[:, None] * scores.softmax(-1)).sum(0).log()
            torch.testing.assert_close(result[b, u, u + 1 : n], expected, atol=1e-5, rtol=1e-5)
        assert (result[b].exp().sum(-1)[: n - 1] - 1).abs().max() < 1e-6


def test_edges_go_forward_between_real_states_only():
    query, key, gate = features()
    result = gated(query, key, gate, edge_mask(STATES, 6))
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
    result = single(query[:, :, 0], key[:, :, 0], edge_mask(STATES, 6)).double()
    scores = (query[0, :, 0] @ key[0, :, 0].T / 2).masked_fill(~edge_mask(STATES, 6)[0], -torch.inf)
    torch.testing.assert_close(result[0, :5], scores[:5].log_softmax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_are_finite_even_for_rows_without_successors(scale):
    query, key, gate = (x.float().mul(scale).requires_grad_() for x in features())
    result = gated(query, key, gate.log_softmax(-1), edge_mask(STATES, 6))
    torch.where(result == -torch.inf, 0.0, result).sum().backward()
    assert all(x.grad.isfinite().all() for x in (query, key, gate))
    assert query.grad[1, 3:].abs().max() == 0


def test_emission_is_the_log_softmax_at_the_targets():
    hidden, weight, bias = torch.randn(2, 5, 8), torch.randn(11, 8), torch.randn(11)
    targets = torch.randint(0, 11, (2, 3))
    result = emission(hidden, weight, bias, targets)
    full = (hidden.double() @ weight.double().T + bias.double()).log_softmax(-1)
    for b in range(2):
        torch.testing.assert_close(result[b].double(), full[b][:, targets[b]].T, atol=1e-5, rtol=1e-5)
