"""The compiled CPU back end for float32: `_alignment.c` through ctypes. Other inputs go to the PyTorch back end.

The library is built with the package where a compiler is found. Nothing is compiled at import or at first use."""

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
    """The compiled library, or None, with one warning in the log."""
    for path in sorted(Path(__file__).parent.glob("_alignment*.so")):
        try:
            loaded = ctypes.CDLL(str(path))
            loaded.exlm_alignment.restype = ctypes.c_int
            return loaded
        except (OSError, AttributeError) as error:
            logger.debug("%s cannot be loaded: %s", path, error)
    logger.warning("the compiled alignment is not installed; PyTorch takes its place (slower)")
    return None


def forward_backward(
    emission: Tensor, transition: Tensor, target_lengths: Tensor, state_lengths: Tensor, gradients: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log f [B] and, if asked for, the posteriors [B, T, N] and [B, N, N]."""
    usable = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (emission, transition))
    loaded = library() if usable else None
    if loaded is None:
        return alignment_torch.forward_backward(emission, transition, target_lengths, state_lengths, gradients)
    batch, targets, states = emission.shape
    inputs = [x.contiguous() for x in (emission, transition, target_lengths, state_lengths)]
    value = torch.empty(batch, dtype=torch.float64)
    at_state, on_edge = (torch.zeros_like(x) if gradients else None for x in inputs[:2])
    failed = loaded.exlm_alignment(
        *(ctypes.c_void_p(None if x is None else x.data_ptr()) for x in (*inputs, value, at_state, on_edge)),
        *(ctypes.c_long(size) for size in (batch, targets, states)),
        ctypes.c_int(min(torch.get_num_threads(), max(batch, 1))),
    )
    if failed:
        raise MemoryError(f"no memory for the alignment of {targets} targets with {states} states")
    return value.to(emission.dtype), at_state, on_edge
