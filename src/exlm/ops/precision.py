"""The precision of a run, and how float32 matrix products are computed: settings that are restored
afterwards.

In a run with `bf16` autocast gives the encoder's products bfloat16 operands. Products of float32
numbers, those of the heads and all of a run with `fp32`, depend on the level of
`torch.set_float32_matmul_precision`, which holds for a whole process:

processor                       level        what happens
CPU without AMX (AMD, Intel     medium       true float32 by oneDNN: a step is up to 1.77 times as
before Sapphire Rapids)                      fast as at the level highest
CPU with AMX                    highest      true float32 by MKL; medium would round operands to
                                             bfloat16, and a link would be off by up to 0.2 nats
GPU                             highest      true float32
GPU in a run with `bf16`        high         TF32, which is eight times as precise as bfloat16

`exact_level` finds out which CPU it is: it tries "medium" once."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["auto", "bf16", "fp32"]  # that a user chooses


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Float32 for bfloat16 and float16, the type itself for float32 and float64."""
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def matmul_precision(level: str) -> Iterator[None]:
    """Inside the `with` block, float32 products use a level of
    `torch.set_float32_matmul_precision`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(level)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def _medium_is_exact() -> bool:
    """Whether "medium" products are true float32 here, as they are on processors without AMX."""
    left = 1 + torch.arange(256 * 256).view(256, 256) % 251 * 2.0**-20  # equal to 1 in bfloat16
    with matmul_precision("medium"):
        result = left @ left
    return bool((result.double() - left.double() @ left.double()).abs().max() < 1e-3)


def exact_level(device: torch.device) -> str:
    """The fastest level at which products are true float32."""
    return "medium" if device.type == "cpu" and _medium_is_exact() else "highest"


def exact_on_cpu(device: torch.device) -> AbstractContextManager:
    """True float32 products on a CPU, whatever the process's setting. A GPU keeps the setting: runs
    in bfloat16 allow TF32. So does code of torch.compile, which cannot change it inside a graph."""
    if device.type != "cpu" or torch.compiler.is_compiling():
        return nullcontext()
    return matmul_precision(exact_level(device))


def linear(x: Tensor, layer: torch.nn.Linear) -> Tensor:
    """`layer(x)` for x [..., in features] in the precision of the layer's weights, with
    `exact_on_cpu`."""
    with torch.autocast(x.device.type, enabled=False), exact_on_cpu(x.device):
        # `quantize_dynamic` makes `weight` a method; such a layer reads float32.
        dtype = getattr(layer.weight, "dtype", torch.float32)
        rows = layer(x.to(dtype).flatten(0, -2))
    return rows.unflatten(0, x.shape[:-1])


def is_plain(layer: torch.nn.Module) -> bool:
    """Whether a layer is a weight and a bias and nothing else: it is not quantised, and has no
    adapter."""
    return type(layer) is torch.nn.Linear


def used_precision(device: torch.device, precision: str) -> Literal["bf16", "fp32"]:
    """The precision that `precision` means on a device: `auto` is bfloat16 if the processor can
    compute with it."""
    if device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if precision == "bf16" or (precision == "auto" and native) else "fp32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """bfloat16 autocast if `precision` means bfloat16 on this device, else no autocast."""
    is_bf16 = used_precision(device, precision) == "bf16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_bf16)


def float32_products(device: torch.device, precision: str) -> AbstractContextManager:
    """The level of float32 products in a run with this precision, as the table above says."""
    half_on_gpu = device.type != "cpu" and used_precision(device, precision) == "bf16"
    return matmul_precision("high" if half_on_gpu else exact_level(device))


@contextmanager
def in_precision(device: torch.device, precision: str) -> Iterator[None]:
    """For evaluation and prediction: sets `precision` whatever the process or a surrounding
    autocast has set."""
    with float32_products(device, precision), autocast(device, precision):
        yield
