"""A tokenised corpus on disk, written once, in constant memory, and mapped into memory by its
readers. Its files:

- `tokens-00000.bin`, ...: token ids without special tokens, little-endian uint16 (uint32 if the
  vocabulary has more than 65,535 entries), one example after another; no example crosses two files;
- `train.npy` and `valid.npy`: per example its offset in the whole token stream and its length
(`INDEX`);
- the tokenizer as saved by `save_pretrained`;
- `skipped.csv`: the rows that were not valid, and what was done with each;
- `manifest.json`: counts, options, sources, and the size and SHA-256 of every other file.

Dropped duplicates stay in the token files, but no index points at them."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from exlm.errors import InputError
from exlm.storage.files import MANIFEST, problem, read

FORMAT_VERSION = 1
# of every manifest
KEYS = {"tokenizer_hash", "corpus_hash", "files", "token_files", "token_dtype", "pad_token_id"}
INDEX = np.dtype([("offset", "<i8"), ("length", "<u4")])
SHARD_TOKENS = 2**28  # about the most tokens in one file

# An example while a corpus grows. Added are its split's index, its document's number, both halves
# of its text's hash.
EXAMPLE = np.dtype(
    [*INDEX.descr, ("split", "u1"), ("document", "<i8"), ("high", "<u8"), ("low", "<u8")]
)
BLOCK = 2**18  # examples in memory at a time

Split = Literal["train", "valid"]
SPLITS = get_args(Split)


class Corpus:
    """One split of a corpus written by `exlm prepare`, or of several corpora of one tokenizer, read
    as one: the examples of the first, then those of the second, and so on.

    Attributes:
        lengths: [examples] uint32, memory-mapped if it is one corpus; tokens per example without
            special tokens.
        corpus_hash: identifies tokens, split and tokenizer.
        tokenizer_hash: to compare with `exlm.storage.models.tokenizer_hash` of a model's tokenizer.
        molecules: whether the rows are molecules; None if the manifest does not say.
        standardize: the form of the molecules: none (as written), canonical or parent.

    InputError if a path is no corpus, if a file is missing or has another size than when it was
    written, or if a corpus differs from the first in its tokenizer or in what its rows are."""

    def __init__(self, paths: str | Path | Sequence[str | Path], split: Split = "train") -> None:
        self.paths = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
        manifests = [_manifest(path) for path in self.paths]
        self.path, self.manifest = self.paths[0], manifests[0]
        self.verify(contents=False)
        kinds = [_kind(manifest) for manifest in manifests]
        for path, kind in zip(self.paths, kinds, strict=True):
            for name, value in kind.items():
                if value != kinds[0][name]:
                    advice = f"prepare it again with --tokenizer {self.path} and the other options of that corpus"
                    raise InputError(f"{path} and {self.path} have not the same {name}; {advice}")
        self.tokenizer_hash: str = kinds[0]["tokenizer_hash"]
        self.molecules: bool | None = kinds[0]["molecules"]
        self.standardize: str = kinds[0]["standardize"]
        hashes = "".join(manifest["corpus_hash"] for manifest in manifests)
        self.corpus_hash = (
            hashlib.sha256(hashes.encode()).hexdigest() if len(manifests) > 1 else hashes
        )
        indexes, self._shards, self._starts = list[np.ndarray](), list[np.ndarray](), [0]
        for path, manifest in zip(self.paths, manifests, strict=True):
            try:
                index, names = (
                    np.load(path / f"{split}.npy", mmap_mode="r"),
                    manifest["token_files"],
                )
                dtype = np.dtype(manifest["token_dtype"])
            except (OSError, KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{path}: {split}.npy or the manifest is damaged ({error}); prepare again"
                ) from error
            if not set(names) <= set(manifest["files"]) or dtype.kind != "u":
                raise InputError(
                    f"the manifest of {path} is damaged: its token files are not those of a corpus"
                )
            if self._shards:
                index = index.copy()
                index["offset"] += self._starts[-1]
            indexes.append(index)
            for name in names:
                self._shards.append(np.memmap(path / name, dtype, "r"))
                self._starts.append(self._starts[-1] + len(self._shards[-1]))
        self._index = indexes[0] if len(indexes) == 1 else np.concatenate(indexes)
        self.lengths: np.ndarray = self._index["length"]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> np.ndarray:
        """[length] int64 token ids of example i, without special tokens."""
        return self.gather(np.array([i]))[0][0]

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples `indices` [n]: int64 ids [n, longest], padded, without special tokens; and
        int64 lengths [n]."""
        entries = self._index[np.asarray(indices, dtype=np.int64)]
        offsets, lengths = entries["offset"], entries["length"].astype(np.int64)
        ids = np.full(
            (len(entries), int(lengths.max(initial=0))),
            self.manifest["pad_token_id"],
            dtype=np.int64,
        )
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        shard_of = np.searchsorted(self._starts, offsets, side="right") - 1
        for shard in np.unique(shard_of[lengths > 0]):
            rows = shard_of == shard
            first = offsets[rows] - self._starts[shard]
            position = (first[:, None] + np.arange(ids.shape[1]))[inside[rows]]
            ids[inside & rows[:, None]] = self._shards[shard][position]
        return ids, lengths

    def verify(self, contents: bool = True) -> None:
        """Compares every file, or its size alone, with the manifest; InputError naming the first
        that differs."""
        for path in self.paths:
            if reason := problem(path, contents):
                raise InputError(
                    f"the corpus {path} is damaged: {reason}; prepare it again with exlm prepare"
                )


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of a corpus; InputError if there is none of this format."""
    manifest = read(path / MANIFEST)
    if (
        not isinstance(manifest, dict)
        or manifest.get("format_version") != FORMAT_VERSION
        or KEYS - {*manifest}
    ):
        what = (
            f"is not a whole corpus of format {FORMAT_VERSION}"
            if path.exists()
            else "does not exist"
        )
        raise InputError(f"{path} {what}; make a corpus with exlm prepare, or correct the name")
    return manifest


def _kind(manifest: dict[str, Any]) -> dict[str, Any]:
    """What corpora that are read as one must have in common."""
    options = manifest.get("options", {})
    return {
        "tokenizer_hash": manifest["tokenizer_hash"],
        "molecules": options.get("molecules", options.get("check_molecules")),  # its earlier name
        "standardize": options.get("standardize", "none"),
    }


def corpus_name(paths: str | Sequence[str]) -> str:
    """The names of the directories, for people."""
    return " + ".join(Path(path).name for path in ([paths] if isinstance(paths, str) else paths))


class CorpusWriter:
    """Appends examples to token files in `folder` and sorts them into splits; the vocabulary
    decides the type."""

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        self.folder, self.staged, self.vocabulary_size = folder, folder / "staged", vocabulary_size
        self.dtype = np.dtype("<u2" if vocabulary_size <= 65535 else "<u4")
        self.examples = self.tokens = self._in_shard = 0
        self.shards = ["tokens-00000.bin"]

    def append(self, tokens: np.ndarray, examples: np.ndarray) -> None:
        """Add examples [n] EXAMPLE, whose offsets are set here, and their tokens [sum of
        lengths]."""
        if self._in_shard and self._in_shard + len(tokens) > SHARD_TOKENS:
            self.shards.append(f"tokens-{len(self.shards):05d}.bin")
            self._in_shard = 0
        examples["offset"] = self.tokens + np.cumsum(examples["length"]) - examples["length"]
        for file, array in (
            (self.folder / self.shards[-1], tokens.astype(self.dtype)),
            (self.staged, examples),
        ):
            with open(file, "ab") as stream:
                stream.write(array.tobytes())
        self.examples += len(examples)
        self.tokens += len(tokens)
        self._in_shard += len(tokens)

    def write_splits(self, max_length: int, drop_duplicates: bool = False) -> dict[str, np.ndarray]:
        """Write `train.npy` and `valid.npy`, on request without examples that have the hash of an
        earlier one. Returns by split how many examples have each length, [max_length + 1]."""
        kept = (
            self._first_of_equals()
            if drop_duplicates and self.examples
            else np.broadcast_to(True, self.examples)
        )
        histograms = {split: np.zeros(max_length + 1, np.int64) for split in SPLITS}
        for split, histogram in histograms.items():
            for block in self._blocks(split, kept):
                histogram += np.bincount(block["length"], minlength=max_length + 1)
            header = {
                "descr": INDEX.descr,
                "fortran_order": False,
                "shape": (int(histogram.sum()),),
            }
            with open(self.folder / f"{split}.npy", "wb") as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for block in self._blocks(split, kept):
                    stream.write(block[["offset", "length"]].astype(INDEX).tobytes())
        self.staged.unlink()
        return histograms

    def _first_of_equals(self) -> np.ndarray:
        """[examples] bool: whether no earlier one has the same hash. To save memory, a 64th is
        compared at a time."""
        first = np.ones(self.examples, bool)
        for bucket in range(64):
            found = []
            for start, block in self._staged():
                inside = np.flatnonzero(block["high"] >> np.uint64(58) == bucket)
                found.append(pd.DataFrame(block[["high", "low"]][inside], start + inside))
            hashes = pd.concat(found)
            first[hashes.index[hashes.duplicated()]] = False
        return first

    def _blocks(self, split: str, kept: np.ndarray) -> Iterator[np.ndarray]:
        """The kept examples of one split, in blocks."""
        for start, block in self._staged():
            yield block[kept[start : start + len(block)] & (block["split"] == SPLITS.index(split))]

    def _staged(self) -> Iterator[tuple[int, np.ndarray]]:
        """BLOCK examples at a time, behind the number of the first; read and not mapped, they take
        constant memory."""
        with open(self.staged, "rb") as file:
            for start in range(0, self.examples, BLOCK):
                yield start, np.fromfile(file, EXAMPLE, BLOCK)
