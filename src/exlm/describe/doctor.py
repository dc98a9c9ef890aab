"""The installation and the machine, as a report of a bug should have them: `exlm doctor`."""

import os
import platform
import time
from importlib.metadata import distributions
from tempfile import NamedTemporaryFile

import torch

from exlm.ops import alignment
from exlm.ops.fused import triton_works
from exlm.ops.precision import used_precision
from exlm.storage.runs import machine
from exlm.train.devices import device

LIBRARIES = (
    "exlm",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pandas",
    "pyarrow",
    "rdkit",
)
# bytes written to time the disk
TEST_BYTES = 2**26


def doctor(directory: str | None = None) -> dict[str, str]:
    """Prints what a report of a bug should have: versions, processor, device, precision, back ends,
    speed of the disk.

    Args:
        directory: where to write 64 MB, and remove them again, to time the disk; by default the
            current directory."""
    directory = os.path.abspath(directory or ".")
    installed = {distribution.name: distribution.version for distribution in distributions()}
    hardware = machine()
    facts = {
        **{name: installed.get(name, "not installed") for name in LIBRARIES},
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": hardware["processor"],
        "device": hardware["device"],
        "threads": str(hardware["threads"]),
        "precision auto": used_precision(device(), "auto"),
    }
    if alignment.compiled_library():
        facts["alignment on a CPU"] = "C"
    else:
        facts["alignment on a CPU"] = "PyTorch (the compiled one is not installed)"
    if torch.cuda.is_available():
        works = triton_works()
        facts["alignment on a GPU"] = "Triton" if works else "PyTorch (Triton does not work here)"
    facts["disk"] = f"{_disk_speed(directory):,.0f} MB/s written to {directory}"
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {value}")
    return facts


def _disk_speed(directory: str) -> float:
    """Megabytes per second, from the first byte to the end of the sync."""
    content = os.urandom(TEST_BYTES)
    begin = time.perf_counter()
    with NamedTemporaryFile(dir=directory) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return TEST_BYTES / 1e6 / (time.perf_counter() - begin)
