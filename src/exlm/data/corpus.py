"""A tokenised corpus on disk: written once in constant memory, memory-mapped by whoever reads it.

A corpus is a directory of

- `tokens-00000.bin`, ...: token ids without special tokens, little-endian uint16 (uint32 if the vocabulary
  has more than 65,535 entries), one example after another; no example crosses two files;
- `train.npy` and `valid.npy`: per example its offset in the whole token stream and its length (`INDEX`);
- the tokenizer as saved by `save_pretrained`;
- `skipped.csv`: the rows that were not valid, and what was done with each;
- `manifest.json`: counts, options, sources, and the size and SHA-256 of every other file.

Dropped duplicates stay in the token files, but no index points at them.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from ..errors import InputError
from ..storage import MANIFEST, problem

FORMAT_VERSION = 1
INDEX = np.dtype([("offset", "<i8"), ("length", "<u4")])
SHARD_TOKENS = 2**28  # of a token file
REDO = "prepare the corpus again with exlm prepare"

# While a corpus grows: index of an example's split, number of its document, and the two halves of its text's digest.
EXAMPLE = np.dtype([*INDEX.descr, ("split", "u1"), ("document", "<i8"), ("high", "<u8"), ("low", "<u8")])
BUCKET_SHIFT = np.uint64(58)  # leaves the first 6 bits of a digest: the number of its bucket, 0 to 63
BLOCK = 2**18  # examples in memory at a time

Split = Literal["train", "valid"]
SPLITS = get_args(Split)
DROPPED = len(SPLITS)  # the "split" of staged duplicates


class Corpus:
    """One split of a corpus written by `exlm prepare`.

    Attributes:
        lengths: [examples] uint32, memory-mapped; tokens per example without special tokens.
        manifest: the parsed manifest.
        corpus_hash: identifies tokens, split and tokenizer.
        tokenizer_hash: to compare with `exlm.pretrained.tokenizer_hash` of a model's tokenizer.

    InputError if `path` is no corpus, or a file is missing or has another size than when it was written.
    """

    def __init__(self, path: str | Path, split: Split = "train") -> None:
        self.path = Path(path)
        self.manifest = self._read_manifest()
        for name, entry in self.manifest["files"].items():
            file = self.path / name
            if not file.is_file() or file.stat().st_size != entry["bytes"]:
                self.verify()  # says what is wrong
        self.corpus_hash: str = self.manifest["corpus_hash"]
        self.tokenizer_hash: str = self.manifest["tokenizer_hash"]
        self._index = np.load(self.path / f"{split}.npy", mmap_mode="r")
        self.lengths: np.ndarray = self._index["length"]
        names = self.manifest["token_files"]
        self._shards = [np.memmap(self.path / name, self.manifest["token_dtype"], "r") for name in names]
        self._starts = np.cumsum([0] + [len(shard) for shard in self._shards[:-1]])

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = f"it has no readable {MANIFEST}; make one with exlm prepare"
            raise InputError(f"{self.path} is not a corpus: {reason}") from error
        version = manifest.get("format_version") if isinstance(manifest, dict) else None
        if version != FORMAT_VERSION:
            raise InputError(f"{self.path} has corpus format {version}, this is {FORMAT_VERSION}; {REDO}")
        return manifest

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> np.ndarray:
        """[length] int64 token ids of example i, without special tokens."""
        return self.gather(np.array([i]))[0][0]

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Examples `indices` [n]: [n, longest] int64 ids without special tokens, padded, and [n] int64 lengths."""
        entries = self._index[np.asarray(indices, dtype=np.int64)]
        offsets, lengths = entries["offset"], entries["length"].astype(np.int64)
        ids = np.full((len(entries), int(lengths.max(initial=0))), self.manifest["pad_token_id"], dtype=np.int64)
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        shard_of = np.searchsorted(self._starts, offsets, side="right") - 1
        for shard in np.unique(shard_of):
            rows = shard_of == shard
            first = offsets[rows] - self._starts[shard]
            position = (first[:, None] + np.arange(ids.shape[1]))[inside[rows]]
            ids[inside & rows[:, None]] = self._shards[shard][position]
        return ids, lengths

    def verify(self) -> None:
        """Reads every file and compares it with the manifest; InputError naming the first file that differs."""
        if reason := problem(self.path):
            raise InputError(f"the corpus {self.path} is damaged: {reason}; {REDO}")


class CorpusWriter:
    """Appends examples to token files, and writes the two splits at the end.

    Args:
        folder: where the corpus grows.
        staged: an intermediate file, removed by the caller.
        vocabulary_size: one more than the largest token id; tells the type of the token files.
    """

    def __init__(self, folder: Path, staged: Path, vocabulary_size: int) -> None:
        self.folder, self.staged, self.vocabulary_size = folder, staged, vocabulary_size
        self.dtype = np.dtype("<u2" if vocabulary_size <= 65535 else "<u4")
        self.examples = self.tokens = self._in_shard = 0
        self.shards = ["tokens-00000.bin"]

    def append(self, tokens: np.ndarray, examples: np.ndarray) -> None:
        """Add examples [n] EXAMPLE, whose offsets are set here, and their tokens [sum of lengths]."""
        if self._in_shard and self._in_shard + len(tokens) > SHARD_TOKENS:
            self.shards.append(f"tokens-{len(self.shards):05d}.bin")
            self._in_shard = 0
        examples["offset"] = self.tokens + np.cumsum(examples["length"]) - examples["length"]
        for file, array in (self.folder / self.shards[-1], tokens.astype(self.dtype)), (self.staged, examples):
            with open(file, "ab") as stream:
                stream.write(array.tobytes())
        self.examples += len(examples)
        self.tokens += len(tokens)
        self._in_shard += len(tokens)

    def drop_duplicates(self) -> None:
        """Leave examples out of the splits if an earlier one has the same text.

        Equal texts have equal digests and share a bucket, so one bucket at a time is compared in memory.
        """
        staged = np.memmap(self.staged, EXAMPLE, "r+")
        for bucket in range(64):
            starts = range(0, len(staged), BLOCK)
            found = [i + np.flatnonzero(staged["high"][i : i + BLOCK] >> BUCKET_SHIFT == bucket) for i in starts]
            inside = np.concatenate(found)
            repeated = pd.DataFrame(staged[["high", "low"]][inside]).duplicated().to_numpy()
            staged["split"][inside[repeated]] = DROPPED
        staged.flush()

    def write_splits(self, max_length: int) -> dict[str, np.ndarray]:
        """Write `train.npy` and `valid.npy`; per split, [max_length + 1] the number of examples of each length."""
        histograms = {split: np.zeros(max_length + 1, np.int64) for split in SPLITS}
        for split, histogram in histograms.items():
            for block in self._blocks(split):
                histogram += np.bincount(block["length"], minlength=max_length + 1)
            header = {"descr": INDEX.descr, "fortran_order": False, "shape": (int(histogram.sum()),)}
            with open(self.folder / f"{split}.npy", "wb") as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for block in self._blocks(split):
                    stream.write(block[["offset", "length"]].astype(INDEX).tobytes())
        return histograms

    def _blocks(self, split: str) -> Iterator[np.ndarray]:
        """The staged examples of one split, as many at a time as memory should hold."""
        with open(self.staged, "rb") as file:
            while len(block := np.fromfile(file, EXAMPLE, BLOCK)):
                yield block[block["split"] == SPLITS.index(split)]


@contextmanager
def new_directory(output: Path, overwrite: bool) -> Iterator[tuple[Path, Path]]:
    """(folder, scratch): `folder` takes the place of `output` if all goes well; `scratch` is always removed.

    InputError if `output` exists, unless it is a corpus and may be overwritten.
    """
    if output.exists() and not overwrite:
        raise InputError(f"the output {output} exists; choose another or pass overwrite")
    if output.exists() and not (output / MANIFEST).is_file():
        raise InputError(f"the output {output} is not a corpus and is not overwritten; remove it yourself")
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        folder = scratch / "corpus"
        folder.mkdir()
        yield folder, scratch
        if output.exists():
            output.rename(scratch / "replaced")
        folder.rename(output)
