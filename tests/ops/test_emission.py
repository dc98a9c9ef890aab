"""Emissions and cross entropy by chunks against the whole matrix of logits in float64."""

import pytest
import torch
from torch.nn import functional as F

from exlm.ops import emission as module
from exlm.ops.emission import cross_entropy, emission
from tests.ops.recorder import LargestTensor

CHUNKS = [1, 50, 2**24]  # with 11 tokens: row by row, four rows and a rest, all at once
INF = float("inf")


def dense(hidden, weight, bias, targets):
    """log softmax over the vocabulary, then the columns of the targets: [B, T, N]."""
    log_probs = (hidden @ weight.T + bias).log_softmax(-1)
    return log_probs.gather(2, targets[:, None].expand(-1, hidden.shape[1], -1)).transpose(1, 2)


def case(kind="ordinary", dtype=torch.float64, width=8, vocabulary=11):
    """hidden [2, 5, D], weight [V, D], bias [V] and targets [2, 3]."""
    hidden, weight, bias = (
        torch.randn(2, 5, width),
        torch.randn(vocabulary, width),
        torch.randn(vocabulary),
    )
    targets = torch.randint(0, vocabulary, (2, 3))
    if kind == "large":
        hidden *= 1e4
    elif kind == "identical":
        hidden[:] = hidden[0, 0]
        weight[:] = weight[0]
    elif kind == "forbidden":
        bias[[0, 4]] = -INF
        targets[0, 0] = 4
    return [x.to(dtype).requires_grad_() for x in (hidden, weight, bias)], targets


def gradients(function, inputs, *rest):
    """The result, and the gradients of its sum weighted by fixed random numbers."""
    result = function(*inputs, *rest)
    up = torch.randn(result.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return result, torch.autograd.grad(result, inputs, up.to(result))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("kind", ["ordinary", "large", "identical", "forbidden"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_emission_is_the_log_softmax_at_the_targets(kind, dtype, chunk, monkeypatch):
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    inputs, targets = case(kind, dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    result, grads = gradients(emission, inputs, targets)
    expected, expected_grads = gradients(dense, exact, targets)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert result.dtype == dtype
    for ours, theirs in zip((result, *grads), (expected, *expected_grads), strict=True):
        size = max(1.0, float(theirs.detach()[theirs.isfinite()].abs().max()))
        torch.testing.assert_close(
            ours.double() / size, theirs / size, atol=tolerance, rtol=tolerance
        )


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("kind", ["ordinary", "large", "forbidden"])
def test_a_padded_vocabulary_changes_nothing(kind, chunk, monkeypatch):
    """As on a GPU, where 11 tokens become 64."""
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    inputs, targets = case(kind)
    expected = gradients(emission, inputs, targets)
    monkeypatch.setitem(module.VOCABULARY_MULTIPLE, "cpu", 64)
    torch.testing.assert_close(gradients(emission, inputs, targets), expected)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_cross_entropy(chunk, monkeypatch):
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    (hidden, weight, bias), _ = case()
    rows, targets = hidden.detach().flatten(0, 1).requires_grad_(), torch.randint(0, 11, (10,))

    def expected(hidden, weight, bias, targets):
        return F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="none")

    ours = gradients(cross_entropy, (rows, weight, bias), targets)
    torch.testing.assert_close(ours, gradients(expected, (rows, weight, bias), targets))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_gradients_are_those_of_finite_differences(chunk, monkeypatch):
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    (hidden, weight, bias), targets = case(width=3, vocabulary=11)
    assert torch.autograd.gradcheck(lambda *x: emission(*x, targets), (hidden, weight, bias))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_second_backward_and_partial_gradients_are_the_same(chunk, monkeypatch):
    """What is kept of a single chunk must survive its use."""
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    inputs, targets = case()
    total = emission(*inputs, targets).sum()
    first, second = (torch.autograd.grad(total, inputs, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, atol=0, rtol=0)
    for i in range(3):
        alone = [x if j == i else x.detach() for j, x in enumerate(inputs)]
        torch.testing.assert_close(
            torch.autograd.grad(emission(*alone, targets).sum(), inputs[i])[0], first[i]
        )


@pytest.mark.parametrize("chunk", CHUNKS)
def test_bfloat16_inputs_give_float32_results(chunk, monkeypatch):
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    inputs, targets = case(dtype=torch.bfloat16)
    result, grads = gradients(emission, inputs, targets)
    expected, expected_grads = gradients(
        emission, [x.detach().float().requires_grad_() for x in inputs], targets
    )
    assert result.dtype == torch.float32 and {x.dtype for x in grads} == {torch.bfloat16}
    torch.testing.assert_close(result, expected)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours.float(), theirs, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_half_precision_products_keep_the_gradient_of_certain_targets(chunk, monkeypatch):
    """There softmax and target all but cancel; either one rounded alone would leave an error of
    20%."""
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    hidden, weight = (
        torch.eye(8).bfloat16().requires_grad_(),
        (6 * torch.eye(11, 8)).bfloat16().requires_grad_(),
    )
    inputs, targets = (hidden, weight, torch.zeros(11, requires_grad=True)), torch.arange(8)
    losses, grads = gradients(cross_entropy, inputs, targets)
    assert losses.max() < 0.03
    exact = [x.detach().double().requires_grad_() for x in inputs]
    for ours, theirs in zip(
        grads,
        gradients(
            lambda *x: F.cross_entropy(x[0] @ x[1].T + x[2], x[3], reduction="none"), exact, targets
        )[1],
        strict=True,
    ):
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0.01, atol=1e-3 * theirs.abs().max().item()
        )


@pytest.mark.parametrize("chunk", CHUNKS)
def test_nothing_is_nan_where_every_token_is_forbidden(chunk, monkeypatch):
    monkeypatch.setitem(module.CHUNK, "cpu", chunk)
    (hidden, weight, bias), targets = case()
    inputs = (hidden, weight, torch.full_like(bias, -INF).requires_grad_())
    result, grads = gradients(emission, inputs, targets)
    assert (result == -INF).all() and all(x.isfinite().all() for x in grads)


def test_a_vocabulary_of_one_token_is_certain():
    inputs, targets = case(vocabulary=1)
    result, grads = gradients(emission, inputs, targets)
    assert result.abs().max() < 1e-12 and all(x.abs().max() < 1e-12 for x in grads)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)], ids=["B=0", "N=0", "T=0"])
def test_empty_tensors(shape):
    batch, states, targets = shape
    hidden = torch.randn(batch, states, 8, requires_grad=True)
    weight, bias = torch.randn(11, 8, requires_grad=True), torch.randn(11, requires_grad=True)
    result = emission(hidden, weight, bias, torch.zeros(batch, targets, dtype=torch.int64))
    assert result.shape == (batch, targets, states)
    result.sum().backward()
    assert hidden.grad.shape == hidden.shape and not weight.grad.any() and not bias.grad.any()


def test_no_tensor_is_larger_than_a_chunk_or_the_weight(monkeypatch):
    monkeypatch.setitem(module.CHUNK, "cpu", 5_000)
    batch, states, vocabulary, width = 4, 32, 500, 8
    inputs = [
        torch.randn(*s, requires_grad=True)
        for s in ((batch, states, width), (vocabulary, width), (vocabulary,))
    ]
    targets = torch.randint(0, vocabulary, (batch, 3))
    largest = {}
    for function in (dense, emission):
        with LargestTensor() as recorder:
            gradients(function, inputs, targets)
        largest[function] = recorder.numel
    assert largest[dense] == batch * states * vocabulary
    assert largest[emission] <= 5_000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("chunk", [50, 2**26])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_cuda(dtype, chunk, monkeypatch):
    """Compiled chunks, and bfloat16 operands multiplied into float32 sums."""
    monkeypatch.setitem(module.CHUNK, "cuda", chunk)
    inputs, targets = case("forbidden", dtype)
    result, grads = gradients(
        emission, [x.detach().cuda().requires_grad_() for x in inputs], targets.cuda()
    )
    expected, expected_grads = gradients(
        dense, [x.detach().double().requires_grad_() for x in inputs], targets
    )
    assert result.dtype == torch.float32 and {x.dtype for x in grads} == {dtype}
    torch.testing.assert_close(result.cpu().double(), expected, atol=1e-4, rtol=1e-4)
    tolerance = 1e-4 if dtype == torch.float32 else 0.03
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, atol=tolerance, rtol=tolerance)
