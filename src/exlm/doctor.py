"""`exlm verify` checks that nothing has changed since it was written; `exlm doctor` describes this installation."""

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch

from .errors import InputError
from .ops import alignment_c
from .ops.fusion import triton_works
from .storage import MANIFEST, machine, problem
from .train.distributed import device
from .train.precision import used_precision

LIBRARIES = ("exlm", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas", "pyarrow", "rdkit")
BLOCK, BLOCKS = 2**20, 64  # bytes that are written to measure the disk


def verify(path: str) -> dict[str, str]:
    """Compares every file of a corpus, checkpoint, model or run with the SHA-256 that was recorded when it was written.

    Args:
        path: a directory; all directories in it that have a manifest are checked.

    Returns what is wrong by directory. InputError, and so exit status 2, if anything is, or if nothing can be checked.
    """
    found = {str(file.parent): problem(file.parent) for file in sorted(Path(path).rglob(MANIFEST))}
    if not found:
        raise InputError(f"{path} has no {MANIFEST}, so nothing in it can be checked; give what an exlm command wrote")
    for directory, reason in found.items():
        print(f"{directory}: {reason or 'as it was written'}")
    if damaged := {directory: reason for directory, reason in found.items() if reason}:
        raise InputError(
            f"{len(damaged)} of {len(found)} directories are damaged; make them again, or copy them from where they "
            "are whole (a run goes on from its newest undamaged checkpoint by itself)"
        )
    return {}


def doctor(directory: str | None = None) -> dict[str, str]:
    """Prints what a report of a bug should have: versions, processor, device, precision, back ends, speed of the disk.

    Args:
        directory: where to write 64 MB, and remove them again, to measure the disk; here where absent."""
    directory = os.path.abspath(directory or ".")
    facts = {name: _version(name) for name in LIBRARIES}
    facts |= {"python": platform.python_version(), "system": platform.platform()}
    facts |= {name: str(value) for name, value in machine().items() if name != "torch"}
    facts["precision auto"] = used_precision(device(), "auto")
    facts["alignment on a CPU"] = "C" if alignment_c.library() else "PyTorch (the compiled one is not installed)"
    if torch.cuda.is_available():
        facts["alignment on a GPU"] = "Triton" if triton_works() else "PyTorch (Triton does not work here)"
    facts["disk"] = f"{_disk_speed(directory):,.0f} MB/s written to {directory}"
    width = max(map(len, facts))
    print("\n".join(f"{name:{width}}  {value}" for name, value in facts.items()))
    return facts


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _disk_speed(directory: str) -> float:
    """Megabytes per second, from the first byte to the end of the sync."""
    block, begin = os.urandom(BLOCK), time.perf_counter()
    with NamedTemporaryFile(dir=directory) as file:
        for _ in range(BLOCKS):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return BLOCK * BLOCKS / 1e6 / (time.perf_counter() - begin)
