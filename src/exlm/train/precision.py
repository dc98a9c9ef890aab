"""The precision of a run. Nothing here changes a setting of the process for longer than a `with` block."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import torch

from ..ops.precision import exact_level, products


def used_precision(device: torch.device, precision: str) -> Literal["bf16", "fp32"]:
    """The precision that `precision` means on a device: `auto` is bfloat16 if the processor can compute with it."""
    if device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if precision == "bf16" or (precision == "auto" and native) else "fp32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """bfloat16 autocast if `precision` means bfloat16 on this device, else no autocast."""
    enabled = used_precision(device, precision) == "bf16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def training_products(device: torch.device, precision: str) -> AbstractContextManager:
    """The setting of float32 products in training: true float32. Only in bfloat16 training on a GPU the heads' products
    may be TF32, which is eight times as precise as bfloat16."""
    half_on_gpu = device.type != "cpu" and used_precision(device, precision) == "bf16"
    return products("high" if half_on_gpu else exact_level(device))


@contextmanager
def in_precision(device: torch.device, precision: str) -> Iterator[None]:
    """For evaluation and prediction: sets `precision` whatever the process or a surrounding autocast has set."""
    with training_products(device, precision), autocast(device, precision):
        yield
