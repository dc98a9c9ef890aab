"""A tokenised corpus on disk, written once, in constant memory, and mapped into memory by its readers. Its files:

- `tokens-00000.bin`, ...: token ids without special tokens, little-endian uint16 (uint32 if the vocabulary
  has more than 65,535 entries), one example after another; no example crosses two files;
- `train.npy` and `valid.npy`: per example its offset in the whole token stream and its length (`INDEX`);
- the tokenizer as saved by `save_pretrained`;
- `skipped.csv`: the rows that were not valid, and what was done with each;
- `manifest.json`: counts, options, sources, and the size and SHA-256 of every other file.

Dropped duplicates stay in the token files, but no index points at them."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from ..errors import InputError
from ..storage import MANIFEST, problem

FORMAT_VERSION = 1
INDEX = np.dtype([("offset", "<i8"), ("length", "<u4")])
SHARD_TOKENS = 2**28  # about the most tokens in one file

# An example while a corpus grows. Added are its split's index, its document's number, both halves of its text's hash.
EXAMPLE = np.dtype([*INDEX.descr, ("split", "u1"), ("document", "<i8"), ("high", "<u8"), ("low", "<u8")])
BLOCK = 2**18  # examples in memory at a time

Split = Literal["train", "valid"]
SPLITS = get_args(Split)
DROPPED = len(SPLITS)  # stands in place of the split of a duplicate


class Corpus:
    """One split of a corpus written by `exlm prepare`.

    Attributes:
        lengths: [examples] uint32, memory-mapped; tokens per example without special tokens.
        corpus_hash: identifies tokens, split and tokenizer.
        tokenizer_hash: to compare with `exlm.pretrained.tokenizer_hash` of a model's tokenizer.
        molecules: whether the rows are molecules; None if the manifest does not say.
        standardize: the form of the molecules: none (as written), canonical or parent.

    InputError if `path` is no corpus, or a file is missing or has another size than when it was written."""

    def __init__(self, path: str | Path, split: Split = "train") -> None:
        self.path = Path(path)
        try:
            self.manifest: dict[str, Any] = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            version = self.manifest["format_version"]
        except (OSError, ValueError, KeyError, TypeError):
            version = None
        if version != FORMAT_VERSION:
            what = f"is not a corpus of format {FORMAT_VERSION}" if self.path.exists() else "does not exist"
            raise InputError(f"{path} {what}; make a corpus with exlm prepare, or correct the name")
        self.verify(contents=False)
        self.corpus_hash: str = self.manifest["corpus_hash"]
        self.tokenizer_hash: str = self.manifest["tokenizer_hash"]
        options = self.manifest.get("options", {})
        self.molecules: bool | None = options.get("molecules", options.get("check_molecules"))  # its earlier name
        self.standardize: str = options.get("standardize", "none")
        self._index = np.load(self.path / f"{split}.npy", mmap_mode="r")
        self.lengths: np.ndarray = self._index["length"]
        names, dtype = self.manifest["token_files"], np.dtype(self.manifest["token_dtype"])
        if not set(names) <= set(self.manifest["files"]) or dtype.kind != "u":
            raise InputError(f"the manifest of {path} is damaged: its token files are not those of a corpus")
        self._shards = [np.memmap(self.path / name, dtype, "r") for name in names]
        self._starts = np.cumsum([0] + [len(shard) for shard in self._shards[:-1]])

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> np.ndarray:
        """[length] int64 token ids of example i, without special tokens."""
        return self.gather(np.array([i]))[0][0]

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples `indices` [n]: int64 ids [n, longest], padded, without special tokens; and int64 lengths [n]."""
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

    def verify(self, contents: bool = True) -> None:
        """Compares every file, or its size alone, with the manifest; InputError naming the first that differs."""
        if reason := problem(self.path, contents):
            raise InputError(f"the corpus {self.path} is damaged: {reason}; prepare it again with exlm prepare")


class JoinedCorpus(Corpus):
    """Several corpora of one tokenizer as one: the examples of the first, then those of the second, and so on.

    InputError if one is no corpus, or differs from the first in its tokenizer or in what its rows are."""

    def __init__(self, paths: Sequence[str | Path], split: Split = "train") -> None:
        self.parts = [Corpus(path, split) for path in paths]
        first = self.parts[0]
        for part in self.parts:
            for name in ("tokenizer_hash", "molecules", "standardize"):
                if getattr(part, name) != getattr(first, name):
                    advice = f"prepare it again with --tokenizer {first.path} and the other options of that corpus"
                    raise InputError(f"{part.path} and {first.path} have not the same {name}; {advice}")
        self.path, self.manifest, self.tokenizer_hash = first.path, first.manifest, first.tokenizer_hash
        self.molecules, self.standardize = first.molecules, first.standardize
        self.corpus_hash = hashlib.sha256("".join(part.corpus_hash for part in self.parts).encode()).hexdigest()
        self.lengths = np.concatenate([part.lengths for part in self.parts])
        self._first = np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        indices = np.asarray(indices, dtype=np.int64)
        lengths, part_of = self.lengths[indices].astype(np.int64), np.searchsorted(self._first, indices, "right") - 1
        ids = np.full((len(indices), int(lengths.max(initial=0))), self.manifest["pad_token_id"], dtype=np.int64)
        for number in np.unique(part_of):
            rows = part_of == number
            found, _ = self.parts[number].gather(indices[rows] - self._first[number])
            ids[rows, : found.shape[1]] = found
        return ids, lengths

    def verify(self, contents: bool = True) -> None:
        for part in self.parts:
            part.verify(contents)


def open_corpus(paths: str | Sequence[str], split: Split = "train") -> Corpus:
    """The corpus of one directory, or of several that are read as one."""
    return Corpus(paths, split) if isinstance(paths, str) else JoinedCorpus(paths, split)


def corpus_name(paths: str | Sequence[str]) -> str:
    """The names of the directories, for people."""
    return " + ".join(Path(path).name for path in ([paths] if isinstance(paths, str) else paths))


class CorpusWriter:
    """Appends examples to token files in `folder` and sorts them into splits; the vocabulary decides the type."""

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        self.folder, self.staged, self.vocabulary_size = folder, folder / "staged", vocabulary_size
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
        """Leave out examples with the hash of an earlier one. To save memory, a 64th of all is compared at a time."""
        staged = np.memmap(self.staged, EXAMPLE, "r+")
        for bucket in range(64):
            starts = range(0, len(staged), BLOCK)
            found = [i + np.flatnonzero(staged["high"][i : i + BLOCK] >> np.uint64(58) == bucket) for i in starts]
            inside = np.concatenate(found)
            repeated = pd.DataFrame(staged[["high", "low"]][inside]).duplicated().to_numpy()
            staged["split"][inside[repeated]] = DROPPED
        staged.flush()

    def write_splits(self, max_length: int) -> dict[str, np.ndarray]:
        """Write `train.npy` and `valid.npy`. Returns by split how many examples have each length, [max_length + 1]."""
        histograms = {split: np.zeros(max_length + 1, np.int64) for split in SPLITS}
        for split, histogram in histograms.items():
            for block in self._blocks(split):
                histogram += np.bincount(block["length"], minlength=max_length + 1)
            header = {"descr": INDEX.descr, "fortran_order": False, "shape": (int(histogram.sum()),)}
            with open(self.folder / f"{split}.npy", "wb") as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for block in self._blocks(split):
                    stream.write(block[["offset", "length"]].astype(INDEX).tobytes())
        self.staged.unlink()
        return histograms

    def _blocks(self, split: str) -> Iterator[np.ndarray]:
        """The examples of one split, found by reading BLOCK examples of the file `staged` at a time."""
        with open(self.staged, "rb") as file:
            while len(block := np.fromfile(file, EXAMPLE, BLOCK)):
                yield block[block["split"] == SPLITS.index(split)]
