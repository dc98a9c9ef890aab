"""Float32 stays float32 where the process allows products of bfloat16 operands, and nothing is left
changed."""

import pytest
import torch
from torch import nn

from exlm import ExLMForMaskedLM
from exlm.model.evaluation import evaluate_batch
from exlm.ops import precision
from exlm.ops.emission import emission
from exlm.ops.precision import float32_products, in_precision, used_precision
from exlm.ops.transition import edge_mask, gated_links

CPU = torch.device("cpu")


def test_the_stand_in_rounds_as_such_a_processor_does(rounding_processor):
    left, right = torch.randn(64, 256), torch.randn(256, 64)
    assert ((left @ right).double() - left.double() @ right.double()).abs().max() > 0.01
    assert rounding_processor.rounded and precision.exact_level(CPU) == "highest"


def test_the_setting_is_put_back_after_an_error_too():
    with pytest.raises(RuntimeError), precision.matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError
    assert torch.get_float32_matmul_precision() == "highest"


def close(ours, exact):
    """To float32: products of 256 bfloat16 numbers would be off by 0.1."""
    torch.testing.assert_close(ours.double(), exact, atol=2e-5, rtol=2e-5)


def test_dense_heads_and_their_gradients(rounding_processor):
    """Their values always; their gradients wherever a run asks for it, as `fit` does."""
    layer, x = nn.Linear(256, 32), torch.randn(3, 50, 256, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = precision.linear(x, layer)
    up = torch.randn_like(result)
    with float32_products(CPU, "bf16"):
        grads = torch.autograd.grad(result, (x, layer.weight, layer.bias), up)
    exact = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    expected = nn.functional.linear(*exact)
    close(result, expected)
    for ours, theirs in zip(grads, torch.autograd.grad(expected, exact, up.double()), strict=True):
        close(ours, theirs)


def test_transitions_and_their_gradients(rounding_processor):
    inputs = [torch.randn(2, 12, 2, 64) for _ in range(2)] + [torch.randn(2, 12, 2).log_softmax(-1)]
    edges = edge_mask(torch.tensor([12, 9]), 12)
    up = torch.randn(2, 12, 12)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        matrix = gated_links(*leaves, edges)
        grads = torch.autograd.grad(
            matrix, leaves, up.to(dtype).masked_fill(~(matrix > -torch.inf), 0)
        )
        results.append([torch.where(edges, matrix, 0.0), *grads])
    for ours, exact in zip(*results, strict=True):
        close(ours, exact)


def test_emissions_of_a_float32_run(rounding_processor):
    inputs = [torch.randn(2, 7, 128), torch.randn(40, 128), torch.randn(40)]
    targets = torch.randint(0, 40, (2, 5))
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        value = emission(*leaves, targets)
        results.append([value, *torch.autograd.grad(value.square().sum() / 1e3, leaves)])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, atol=1e-4, rtol=1e-4)


def test_bfloat16_operands_of_the_vocabulary_have_float32_sums():
    """The same numbers as exact products of the rounded operands, on every processor."""
    hidden, weight, bias = torch.randn(2, 7, 256), torch.randn(300, 256) / 8, torch.randn(300)
    targets = torch.randint(0, 300, (2, 5))
    ours = emission(hidden.bfloat16(), weight, bias, targets)
    rounded = [x.bfloat16().double() for x in (hidden, weight)]
    close(ours, emission(*rounded, bias.double(), targets))
    assert ours.dtype == torch.float32
    rows = weight.clone().requires_grad_()
    grad = torch.autograd.grad(emission(hidden.bfloat16(), rows, bias, targets).sum(), rows)[0]
    leaf = rounded[1].clone().requires_grad_()
    exact = torch.autograd.grad(emission(rounded[0], leaf, bias.double(), targets).sum(), leaf)[0]
    assert (grad - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("switches", [{}, {"transition": "single"}], ids=str)
def test_the_heads_of_a_model(tiny_config, tiny_batch, rounding_processor, switches):
    """Queries, keys, gates and the prediction head, as they are called in training."""
    config = tiny_config(hidden_size=256, initializer_range=0.2, **switches)
    model = ExLMForMaskedLM(config).eval()
    lattice = model.exlm.expand(**tiny_batch)
    states = torch.randn(*lattice.state_index.shape, 256)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = model.transition(states, lattice), model.head(states)
    exact = model.double()
    real = ours[0] > -torch.inf
    torch.testing.assert_close(
        ours[0].double()[real], exact.transition(states, lattice)[real], atol=1e-3, rtol=1e-4
    )
    torch.testing.assert_close(ours[1].double(), exact.head(states), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("objective", ["exlm", "mlm", "ctc"])
def test_evaluation_is_float32(tiny_config, tiny_batch, rounding_processor, objective):
    model = ExLMForMaskedLM(tiny_config(objective=objective, initializer_range=0.3)).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16), in_precision(CPU, "fp32"):
        ours = evaluate_batch(model, tiny_batch)
    exact = evaluate_batch(model.double(), tiny_batch)
    assert ours["nll"] == pytest.approx(exact["nll"], rel=1e-5)
    assert ours["joint_nll"] == pytest.approx(exact["joint_nll"], rel=1e-5)


def test_a_float32_run_is_one(rounding_processor):
    left, right = torch.randn(64, 256), torch.randn(256, 64)
    with float32_products(CPU, "fp32"):
        close(left @ right, left.double() @ right.double())


def test_what_auto_comes_to_is_said():
    assert used_precision(CPU, "fp32") == "fp32" and used_precision(CPU, "bf16") == "bf16"
    assert used_precision(CPU, "auto") in ("fp32", "bf16")
