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
from jinja2 import Template

from exlm.errors import InputError
from exlm.storage.files import read_or_empty
from exlm.storage.manifest import MANIFEST, damage

FORMAT_VERSION = 1
# What every manifest has.
KEYS = {"tokenizer_hash", "corpus_hash", "files", "token_files", "token_dtype", "pad_token_id"}
INDEX = np.dtype([("offset", "<i8"), ("length", "<u4")])
SPECIALS = 2  # BOS and EOS, which batches add around every example
SHARD_TOKENS = 2**28  # about the most tokens in one file

# An example while a corpus grows: also the index of its split, the number of its document, and
# both halves of its text's hash.
_GROWING = [("split", "u1"), ("document", "<i8"), ("high", "<u8"), ("low", "<u8")]
EXAMPLE = np.dtype([*INDEX.descr, *_GROWING])
BLOCK = 2**18  # examples in memory at a time

Split = Literal["train", "valid"]
SPLITS = get_args(Split)


class Corpus:
    """One split of a corpus written by `exlm prepare`, or of several corpora of one tokenizer, read
    as one: the examples of the first, then those of the second, and so on.

    Attributes:
        token_counts: [examples] uint32, memory-mapped if it is one corpus; tokens of every example
            without special tokens.
        corpus_hash: identifies tokens, split and tokenizer.
        tokenizer_hash: to compare with `exlm.storage.models.tokenizer_hash` of a model's tokenizer.
        molecules: whether the rows are molecules; None if the manifest does not say.
        standardize: the form of the molecules: none (as written), canonical or parent.

    InputError if a path is no corpus, if a file is missing or has another size than when it was
    written, or if a corpus differs from the first in its tokenizer or in what its rows are."""

    def __init__(self, paths: str | Path | Sequence[str | Path], split: Split = "train") -> None:
        self.paths = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
        self.path = self.paths[0]
        manifests = [_manifest(path) for path in self.paths]
        self.manifest = manifests[0]
        self.verify(contents=False)
        kind = _common_kind(self.paths, manifests)
        self.tokenizer_hash: str = kind["tokenizer_hash"]
        self.molecules: bool | None = kind["molecules"]
        self.standardize: str = kind["standardize"]
        self.corpus_hash: str = self.manifest["corpus_hash"]
        if len(manifests) > 1:
            hashes = "".join(manifest["corpus_hash"] for manifest in manifests)
            self.corpus_hash = hashlib.sha256(hashes.encode()).hexdigest()
        indexes: list[np.ndarray] = []
        self._shards: list[np.ndarray] = []
        self._starts = [0]  # of each shard in the whole token stream, and the stream's end
        for path, manifest in zip(self.paths, manifests, strict=True):
            index, dtype = _open_index(path, manifest, split)
            if indexes:
                index = index.copy()
                index["offset"] += self._starts[-1]
            indexes.append(index)
            for name in manifest["token_files"]:
                shard = np.memmap(path / name, dtype, "r")
                self._shards.append(shard)
                self._starts.append(self._starts[-1] + len(shard))
        self._index = indexes[0] if len(indexes) == 1 else np.concatenate(indexes)
        self.token_counts: np.ndarray = self._index["length"]

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
        shape = (len(entries), int(lengths.max(initial=0)))
        ids = np.full(shape, self.manifest["pad_token_id"], dtype=np.int64)
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
            if reason := damage(path, contents):
                raise InputError(
                    f"the corpus {path} is damaged: {reason}; prepare it again with exlm prepare"
                )


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of a corpus; InputError if there is none of this format."""
    if not path.exists():
        raise InputError(
            f"{path} does not exist; make a corpus with exlm prepare, or correct the name"
        )
    manifest = read_or_empty(path / MANIFEST)
    whole = isinstance(manifest, dict) and manifest.keys() >= KEYS
    if not whole or manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} is not a whole corpus of format {FORMAT_VERSION}; "
            "make a corpus with exlm prepare, or correct the name"
        )
    return manifest


def _common_kind(paths: list[Path], manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """What corpora that are read as one must have in common; InputError if they do not."""
    kinds = [_kind(manifest) for manifest in manifests]
    for path, kind in zip(paths, kinds, strict=True):
        for name, value in kind.items():
            if value != kinds[0][name]:
                raise InputError(
                    f"{path} and {paths[0]} differ in {name}; prepare it again with "
                    f"--tokenizer {paths[0]} and the other options of that corpus"
                )
    return kinds[0]


def _kind(manifest: dict[str, Any]) -> dict[str, Any]:
    options = manifest.get("options", {})
    return {
        "tokenizer_hash": manifest["tokenizer_hash"],
        # An earlier version called it check_molecules.
        "molecules": options.get("molecules", options.get("check_molecules")),
        "standardize": options.get("standardize", "none"),
    }


def _open_index(path: Path, manifest: dict[str, Any], split: str) -> tuple[np.ndarray, np.dtype]:
    """[examples] INDEX of one corpus, memory-mapped, and the type of its tokens; InputError if it
    or the manifest is damaged."""
    try:
        index = np.load(path / f"{split}.npy", mmap_mode="r")
        dtype = np.dtype(manifest["token_dtype"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: {split}.npy or the manifest is damaged ({error}); prepare again"
        ) from error
    # A manifest from elsewhere must not make us read other files.
    if not set(manifest["token_files"]) <= set(manifest["files"]) or dtype.kind != "u":
        raise InputError(
            f"the manifest of {path} is damaged: its token files are not those of a corpus; "
            "prepare again"
        )
    return index, dtype


def corpus_name(paths: str | Sequence[str]) -> str:
    """The names of the directories, for people."""
    return " + ".join(Path(path).name for path in ([paths] if isinstance(paths, str) else paths))


def describe(manifest: dict[str, Any], output: str) -> str:
    """What a user must know about the result: what was written, what else was found, and how long
    the sequences are."""
    template = Path(__file__).with_name("describe.txt").read_text(encoding="utf-8")
    return Template(template).render(manifest, output=output)


class CorpusWriter:
    """Appends examples to token files in `folder` and sorts them into splits; the vocabulary
    decides the type."""

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        self.folder = folder
        self.staged = folder / "staged"  # all examples, until they are sorted into splits
        self.vocabulary_size = vocabulary_size
        self.dtype = np.dtype("<u2" if vocabulary_size <= 65535 else "<u4")
        self.examples = 0
        self.tokens = 0
        self._in_shard = 0
        self.shards = ["tokens-00000.bin"]

    def append(self, tokens: np.ndarray, examples: np.ndarray) -> None:
        """Add examples [n] EXAMPLE, whose offsets are set here, and their tokens [sum of
        lengths]."""
        if self._in_shard and self._in_shard + len(tokens) > SHARD_TOKENS:
            self.shards.append(f"tokens-{len(self.shards):05d}.bin")
            self._in_shard = 0
        examples["offset"] = self.tokens + np.cumsum(examples["length"]) - examples["length"]
        with open(self.folder / self.shards[-1], "ab") as file:
            file.write(tokens.astype(self.dtype).tobytes())
        with open(self.staged, "ab") as file:
            file.write(examples.tobytes())
        self.examples += len(examples)
        self.tokens += len(tokens)
        self._in_shard += len(tokens)

    def write_splits(self, max_length: int, drop_duplicates: bool = False) -> dict[str, np.ndarray]:
        """Write `train.npy` and `valid.npy`, on request without examples that have the hash of an
        earlier one. Returns by split how many examples have each length, [max_length + 1]."""
        unique = np.ones(self.examples, bool)
        if drop_duplicates and self.examples:
            unique = self._first_of_equals()
        histograms = {}
        for split in SPLITS:
            histogram = np.zeros(max_length + 1, np.int64)
            for block in self._blocks(split, unique):
                histogram += np.bincount(block["length"], minlength=max_length + 1)
            shape = (int(histogram.sum()),)
            header = {"descr": INDEX.descr, "fortran_order": False, "shape": shape}
            with open(self.folder / f"{split}.npy", "wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                for block in self._blocks(split, unique):
                    file.write(block[["offset", "length"]].astype(INDEX).tobytes())
            histograms[split] = histogram
        self.staged.unlink()
        return histograms

    def _first_of_equals(self) -> np.ndarray:
        """[examples] bool: whether no earlier one has the same hash. To save memory, a 64th is
        compared at a time."""
        first = np.ones(self.examples, bool)
        for bucket in range(64):
            hashes = []
            for start, block in self._staged():
                inside = np.flatnonzero(block["high"] >> np.uint64(58) == bucket)
                hashes.append(pd.DataFrame(block[["high", "low"]][inside], start + inside))
            table = pd.concat(hashes)
            first[table.index[table.duplicated()]] = False
        return first

    def _blocks(self, split: str, unique: np.ndarray) -> Iterator[np.ndarray]:
        """The examples of one split that are True in `unique` [examples], in blocks."""
        for start, block in self._staged():
            of_split = block["split"] == SPLITS.index(split)
            yield block[of_split & unique[start : start + len(block)]]

    def _staged(self) -> Iterator[tuple[int, np.ndarray]]:
        """BLOCK examples at a time, behind the number of the first; read and not mapped, they take
        constant memory."""
        with open(self.staged, "rb") as file:
            for start in range(0, self.examples, BLOCK):
                yield start, np.fromfile(file, EXAMPLE, BLOCK)
