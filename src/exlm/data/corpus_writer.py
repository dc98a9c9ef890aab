"""Writing a corpus (see `corpus.py`) in constant memory: token files, then the split without duplicates."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..storage import MANIFEST
from .corpus import INDEX
from .masking import mix, uniform

SHARD_TOKENS = 2**28
BUCKETS = 64
BLOCK = 2**18  # examples per piece when the split is written
STAGED = np.dtype([("offset", "<i8"), ("length", "<u4"), ("valid", "?")])
DIGEST = np.dtype([("high", "<u8"), ("low", "<u8"), ("example", "<i8")])


class TokenWriter:
    """Appends examples to `folder/tokens-*.bin` and notes them in `staging` until the split is written.

    Args:
        folder: where the corpus grows.
        staging: directory for intermediate files, removed by the caller.
        dtype: of the token files.
        held_out, seed: share of examples, and the choice of them, that become `valid`.
    """

    def __init__(self, folder: Path, staging: Path, dtype: np.dtype, held_out: float, seed: int) -> None:
        self.folder, self.staging, self.dtype = folder, staging, dtype
        self.held_out, self.seed = held_out, seed
        self.examples = self.tokens = self._in_shard = 0
        self.shards = [_shard(0)]

    def append(self, tokens: np.ndarray, lengths: np.ndarray, digests: np.ndarray) -> None:
        """Add a chunk: tokens [sum of lengths], lengths [n], digests [n, 2] uint64 of the texts."""
        if self._in_shard and self._in_shard + len(tokens) > SHARD_TOKENS:
            self.shards.append(_shard(len(self.shards)))
            self._in_shard = 0
        _append(self.folder / self.shards[-1], tokens.astype(self.dtype))
        _append(self.staging / "examples", self._staged(lengths, digests))
        self._append_digests(digests)
        self.examples += len(lengths)
        self.tokens += len(tokens)
        self._in_shard += len(tokens)

    def _staged(self, lengths: np.ndarray, digests: np.ndarray) -> np.ndarray:
        staged = np.empty(len(lengths), STAGED)
        staged["offset"] = self.tokens + np.cumsum(lengths) - lengths
        staged["length"] = lengths
        staged["valid"] = is_held_out(digests, self.held_out, self.seed)
        return staged

    def _append_digests(self, digests: np.ndarray) -> None:
        records = np.empty(len(digests), DIGEST)
        records["high"], records["low"] = digests[:, 0], digests[:, 1]
        records["example"] = self.examples + np.arange(len(digests))
        bucket = digests[:, 0] % BUCKETS
        for b in np.unique(bucket):
            _append(self.staging / f"digests-{b:02d}", records[bucket == b])


def is_held_out(digests: np.ndarray, share: float, seed: int) -> np.ndarray:
    """[n] bool for digests [n, 2]: equal texts have equal digests, so they never end up on both sides."""
    return uniform(mix(seed, digests[:, 0])) < share


def flag_duplicates(staging: Path, examples: int) -> None:
    """Write one byte per example into `staging/duplicate`: 1 if an earlier example has the same text.

    Equal texts share a bucket, so one bucket at a time is sorted in memory: 24 bytes for every 64th example.
    """
    flags = np.memmap(staging / "duplicate", np.uint8, "w+", shape=(examples,))
    for bucket in staging.glob("digests-*"):
        records = np.fromfile(bucket, DIGEST)
        records = records[np.lexsort((records["low"], records["high"]))]  # stable: the first stays first
        repeated = (records["high"][1:] == records["high"][:-1]) & (records["low"][1:] == records["low"][:-1])
        flags[records["example"][1:][repeated]] = 1
    flags.flush()


def write_split(folder: Path, staging: Path, max_length: int) -> dict[str, np.ndarray]:
    """Write `train.npy` and `valid.npy`.

    Returns:
        per split, [max_length + 1] the number of examples of each length.
    """
    return {
        split: _write_index(folder / f"{split}.npy", staging, split == "valid", max_length)
        for split in ("train", "valid")
    }


@contextmanager
def new_directory(output: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary sibling that takes the place of `output` if all goes well, and disappears otherwise.

    Raises:
        InputError: if `output` exists, unless it is a corpus and may be overwritten.
    """
    _check_output(output, overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(output.with_name(f".{output.name}.{os.getpid()}")) as folder:
        yield folder
        if output.exists():
            output.rename(folder.with_suffix(".old"))
        folder.rename(output)
        shutil.rmtree(folder.with_suffix(".old"), ignore_errors=True)


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """A directory that is gone afterwards, whatever happens."""
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _write_index(file: Path, staging: Path, valid: bool, max_length: int) -> np.ndarray:
    histogram = np.zeros(max_length + 1, np.int64)
    for block in _kept(staging, valid):
        histogram += np.bincount(block["length"], minlength=max_length + 1)
    header = {"descr": INDEX.descr, "fortran_order": False, "shape": (int(histogram.sum()),)}
    with open(file, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for block in _kept(staging, valid):
            stream.write(_index_of(block).tobytes())
    return histogram


def _index_of(staged: np.ndarray) -> np.ndarray:
    index = np.empty(len(staged), INDEX)
    index["offset"], index["length"] = staged["offset"], staged["length"]
    return index


def _kept(staging: Path, valid: bool) -> Iterator[np.ndarray]:
    """The examples of one side in blocks, without duplicates."""
    duplicates = staging / "duplicate"
    flags = np.memmap(duplicates, np.uint8, "r") if duplicates.exists() else None
    start = 0
    with open(staging / "examples", "rb") as file:
        while len(block := np.fromfile(file, STAGED, BLOCK)):
            keep = block["valid"] == valid
            if flags is not None:
                keep &= flags[start : start + len(block)] == 0
            yield block[keep]
            start += len(block)


def _append(file: Path, array: np.ndarray) -> None:
    with open(file, "ab") as stream:
        stream.write(array.tobytes())


def _shard(number: int) -> str:
    return f"tokens-{number:05d}.bin"


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if not overwrite:
        raise InputError(f"the output {output} exists; choose another or pass overwrite")
    if not (output / MANIFEST).is_file():
        raise InputError(f"the output {output} is not a corpus and is not overwritten; remove it yourself")
