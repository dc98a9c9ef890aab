"""The compiled CPU back end: `_alignment.c` through ctypes. Float32; anything else goes to the PyTorch back end.

The library is built with the package where a compiler is found. Nothing is compiled at import or at first use.
"""

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from . import alignment_torch

logger = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled library, or None (said once in the log)."""
    for path in sorted(Path(__file__).parent.glob("_alignment*.so")):
        try:
            loaded = ctypes.CDLL(str(path))
            loaded.exlm_alignment.restype = ctypes.c_int
            return loaded
        except (OSError, AttributeError) as error:
            logger.debug("%s cannot be loaded: %s", path, error)
    logger.warning("the compiled alignment is not installed; PyTorch takes its place (slower)")
    return None


def usable(emission: Tensor, transition: Tensor) -> bool:
    """Whether this back end can take these tensors."""
    tensors = (emission, transition)
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors) and library() is not None


def forward_backward(
    emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor, gradients: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Value [B] and, if asked for, the posteriors [B, T, N] and [B, N, N]."""
    loaded = library()
    if loaded is None or not usable(emission, transition):
        return alignment_torch.forward_backward(emission, transition, num_targets, num_states, gradients)
    batch, targets, states = emission.shape
    emission, transition = emission.contiguous(), transition.contiguous()
    lengths = [x.to("cpu", torch.int64).contiguous() for x in (num_targets, num_states)]
    value = torch.empty(batch, dtype=torch.float64)
    at_state = torch.zeros_like(emission) if gradients else None
    on_edge = torch.zeros_like(transition) if gradients else None
    tensors = (emission, transition, *lengths, value, at_state, on_edge)
    failed = loaded.exlm_alignment(
        *(ctypes.c_void_p(None if x is None else x.data_ptr()) for x in tensors),
        *(ctypes.c_long(size) for size in (batch, targets, states)),
        ctypes.c_int(min(torch.get_num_threads(), max(batch, 1))),
    )
    if failed:
        raise MemoryError(f"no memory for the alignment of {targets} targets with {states} states")
    return value.to(emission.dtype), at_state, on_edge
