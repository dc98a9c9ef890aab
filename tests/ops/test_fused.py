"""Functions marked `fused` run compiled on a GPU. Here the compiler traces them and runs what it
traced, without kernels of its own (`test_cuda.py` has these): the results are those of the plain
functions, and none is compiled so often that PyTorch gives up."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch

from exlm import ExLMForMaskedLM
from exlm.ops import fused, transition


@pytest.fixture
def compiled(monkeypatch):
    """Compiles on the CPU too; an error if a function exceeds the limit of recompilations."""
    # The compiler sets it for good.
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")
    with ExitStack() as stack:

        def switch_on():
            stack.enter_context(torch._dynamo.config.patch(fail_on_recompile_limit_hit=True))
            monkeypatch.setattr(fused, "compiles_on", lambda device: True)
            traced = partial(torch.compile, backend="aot_eager")
            monkeypatch.setattr(torch, "compile", traced)

        yield switch_on


def step(model, batch, half):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        total = model(**batch).total
    total.backward()
    return total.detach(), [p.grad.clone() for p in model.parameters()]


def test_steps_of_a_run_are_the_same(tiny_config, tiny_batch, compiled, monkeypatch):
    """Micro-batches of two shapes in two precisions, through layers that read copies of masks and
    layers that do not; heads of the transition one by one, and together."""
    switches = {"rotary": "full", "expanded_layers": 1, "order_prior": 10.0, "sticky_prior": 3.0}
    model = ExLMForMaskedLM(tiny_config(**switches)).eval()
    one_row = {name: tensor[:1] for name, tensor in tiny_batch.items()}
    # small_lattices: the heads of the transition are computed together below so many numbers
    cases = [(tiny_batch, False, 0), (one_row, True, 2**24)]
    expected = [step(model, batch, half) for batch, half, _ in cases]
    compiled()
    for (batch, half, small_lattices), (total, gradients) in zip(cases, expected, strict=True):
        monkeypatch.setitem(transition.MOST_LINKS_AT_ONCE, "cpu", small_lattices)
        tolerance = 2e-2 if half else 1e-5
        compiled_total, compiled_gradients = step(model, batch, half)
        torch.testing.assert_close(compiled_total, total, rtol=tolerance, atol=0)
        largest = max(x.abs().max().item() for x in gradients)
        torch.testing.assert_close(compiled_gradients, gradients, rtol=0, atol=tolerance * largest)
