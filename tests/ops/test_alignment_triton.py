"""The kernels of the GPU back end: on a GPU where there is one, else in Triton's interpreter; and
their compilation."""

import json
import math
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exlm.ops import alignment, alignment_torch, fused
from exlm.ops.alignment_torch import Inputs
from tests.ops.test_alignment import CASES, random_case

triton = pytest.importorskip("triton")
from exlm.ops import alignment_triton  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
MANY_TILES = dict(seed=30, batch=2, targets=5, states=25, missing=0.1)


def run(case, one_program=True):
    """Value and posteriors on the CPU, from tiles so small that a lattice of a few dozen states
    needs many."""
    emission, transition, *lengths = (x.to(DEVICE) for x in case)
    emission, transition = emission.float(), transition.float()
    with pytest.MonkeyPatch.context() as patch:
        for name, size in dict(
            LANES=16, ROWS=2, UNROLL=2, TILE=4, PERSISTENT=768 * one_program
        ).items():
            patch.setattr(alignment_triton, name, size)
        inputs = Inputs(emission, transition, *lengths)
        return [x.cpu() for x in alignment_triton.forward_backward(inputs)]


def assert_close(results, case):
    """The results are those of the reference in float64, and zero where these are zero."""
    inputs = Inputs(case[0].double(), case[1].double(), *case[2:])
    value, *posteriors = alignment.BACKENDS["reference"](inputs)
    torch.testing.assert_close(results[0].double(), value, rtol=1e-6, atol=1e-5)
    for got, want in zip(results[1:], posteriors, strict=True):
        assert (got.double() - want).abs().max() < 2e-4
        assert (got[want == 0] == 0).all()


@pytest.mark.parametrize("settings", [*CASES.values(), MANY_TILES], ids=str)
def test_both_ways_to_share_out_the_rows_are_equal_and_close_to_the_reference(settings):
    case = random_case(**settings)
    if settings is MANY_TILES:
        case[0][:, 0, 0] = -1.0
        case[2][:], case[3][:] = torch.tensor([5, 4]), torch.tensor([25, 18])
    results = run(case)
    assert_close(results, case)
    assert all(map(torch.equal, results, run(case, one_program=False)))


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    targets=st.integers(1, 7),
    states=st.integers(1, 40),
    spread=st.sampled_from([1.0, 100.0]),
    missing=st.sampled_from([0.0, 0.3]),
    one_program=st.booleans(),
)
def test_random_lattices_are_close_to_the_reference(
    seed, targets, states, spread, missing, one_program
):
    case = random_case(seed, 2, targets, states, spread, missing, torch.float32)
    assert_close(run(case, one_program), case)


@pytest.mark.filterwarnings("ignore:All-NaN")
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), targets=st.integers(1, 4), more=st.integers(0, 4))
@example(seed=17, targets=3, more=6)  # an edge that is too long for any path
def test_nan_is_in_the_value_or_has_no_effect(seed, targets, more):
    """NaN in one input of the first sequence: its value is NaN, or nothing changes; the second one
    never changes."""
    case = random_case(seed, 2, targets, targets + more, dtype=torch.float32)
    clean = run(case)
    inputs = case[seed % 2]
    inputs[0].view(-1)[seed // 2 % inputs[0].numel()] = float("nan")
    spoilt = run(case)
    for before, after in zip(clean, spoilt, strict=True):
        assert torch.equal(before[1], after[1])
        assert torch.equal(before[0], after[0]) or spoilt[0][0].isnan()


@pytest.mark.parametrize("length", [-(2**40), -1, 0, 7, 2**40])
def test_absurd_lengths_are_infeasible(length):
    emission, transition, *_ = random_case(31, batch=2, targets=4, states=6)
    for lengths in ([length, 4], [6, 6]), ([4, 4], [length, 6]):
        value, *posteriors = run((emission, transition, *map(torch.tensor, lengths)))
        assert value.isinf().tolist() == [True, False]
        assert all((x[0] == 0).all() and (x[1] != 0).any() for x in posteriors)


def test_the_value_alone_and_views_as_inputs():
    emission, transition, *lengths = (x.to(DEVICE) for x in random_case(32, dtype=torch.float32))
    inputs = Inputs(emission, transition, *lengths)
    value, *nothing = alignment_triton.forward_backward(inputs, gradients=False)
    assert nothing == [None, None]
    views = Inputs(
        emission.transpose(1, 2).contiguous().transpose(1, 2),
        transition.mT.contiguous().mT,
        *lengths,
    )
    assert torch.equal(alignment_triton.forward_backward(views)[0], value)


def test_other_inputs_go_to_pytorch(monkeypatch):
    def chosen(dtype, device="cuda", shape=(6, 5, 9)):
        tensor = SimpleNamespace(dtype=dtype, device=torch.device(device), shape=shape)
        tensor.numel = lambda: math.prod(shape)
        return alignment.usable_backend("triton", tensor, tensor)

    monkeypatch.setattr(alignment, "triton_works", lambda: True)
    assert chosen(torch.float32) == "triton"
    assert chosen(torch.float64) == chosen(torch.float32, "cpu") == "torch"
    assert chosen(torch.float32, shape=(0, 5, 9)) == "torch"
    assert chosen(torch.float32, shape=(1, 2, 23_001)) == "torch"


def test_without_triton_pytorch_takes_over(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "triton", None)
    fused.triton_works.cache_clear()
    try:
        assert not fused.triton_works() and not fused.triton_works()
    finally:
        fused.triton_works.cache_clear()
    assert len(caplog.records) == 1
    case = random_case(34, dtype=torch.float32)
    values = [alignment.log_likelihood(*case, backend=name) for name in ("triton", "torch")]
    assert torch.equal(*values)


def test_a_device_that_cannot_compile_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(triton.runtime, "driver", None)
    fused.triton_works.cache_clear()
    try:
        assert not fused.triton_works() and not fused.triton_works()
    finally:
        fused.triton_works.cache_clear()
    assert len(caplog.records) == 1


COMPILE = """
import json, subprocess, sys, torch, triton
from triton.backends.compiler import GPUTarget
from exlm.ops import alignment_triton
from exlm.ops.alignment_torch import Inputs

class Utils:
    load_binary = staticmethod(lambda *_: (1, 1, 0, 0, 1024))
    get_device_properties = staticmethod(lambda _: {"max_shared_mem": 100_000})

class Device:  # compiles for real, launches nothing
    utils = Utils
    launcher_cls = staticmethod(lambda *_: lambda *_: None)
    get_current_device = get_current_stream = staticmethod(lambda *_: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", int(sys.argv[1]), 32))

triton.runtime.driver.set_active(Device)
for batch, targets, states in [(1, 1, 1), (64, 79, 316), (2, 3, 2048)]:
    lengths = torch.tensor([targets] * batch), torch.tensor([states] * batch)
    emission, transition = torch.zeros(batch, targets, states), torch.zeros(batch, states, states)
    alignment_triton.forward_backward(Inputs(emission, transition, *lengths))
for kernel in alignment_triton._sweep, alignment_triton._link_posterior:
    for compiled in kernel.device_caches[0][0].values():
        with open("kernel.cubin", "wb") as file:
            file.write(compiled.kernel)
        command = triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        print(json.dumps([compiled.name, compiled.metadata.shared, usage]))
"""


@pytest.mark.parametrize("architecture", [90])
def test_all_kernels_compile_for_a_gpu_without_spilling(tmp_path, architecture):
    """For an A100 and an H100."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COMPILE, str(architecture)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert (
        sorted({name for name, *_ in kernels}) == ["_link_posterior", "_sweep"]
        and len(kernels) == 4
    )
    for _, shared_bytes, usage in kernels:
        assert "STACK:0 " in usage and "LOCAL:0 " in usage, usage
        # So a multiprocessor, which has 65,536 registers, runs at least 512 threads at once.
        assert int(re.search(r"REG:(\d+)", usage)[1]) <= 128, usage
        assert shared_bytes <= 4096


@pytest.mark.skipif(not GPU, reason="no GPU")
@pytest.mark.parametrize("shape", [(8, 79, 316), (2, 40, 1500), (64, 8, 16)])
def test_on_a_gpu_at_full_size_without_waiting_for_it(shape):
    case = random_case(35, *shape, missing=0.1, dtype=torch.float32)
    case[0][:, 0, 0] = -1.0
    inputs = Inputs(*(x.cuda() for x in case))
    alignment_triton.forward_backward(inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = alignment_triton.forward_backward(inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    exact = Inputs(*(x.double() for x in inputs[:2]), *inputs[2:])
    expected = alignment_torch.forward_backward(exact)
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)
