"""A tokenised corpus on disk, mapped into memory by its readers. While it is written, a few numbers
of each example are in memory. Its files:

- `tokens-00000.bin`, ...: token ids without special tokens, little-endian uint16 (uint32 if the
  vocabulary has more than 65,535 entries), one example after another; no example crosses two files;
- `train.npy` and `valid.npy`: per example its offset in the whole token stream and its length,
  as INDEX;
- the tokenizer as saved by `save_pretrained`;
- `skipped.csv`: the rows that were not valid, and what was done with each;
- `manifest.json`: counts, options, sources, and the size and SHA-256 of every other file.

Dropped duplicates stay in the token files, but no index points at them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from exlm.data.chemistry import Standardize
from exlm.errors import InputError
from exlm.randomness import random_bits
from exlm.storage.files import read_or_empty
from exlm.storage.manifest import MANIFEST, damage
from exlm.storage.templates import render
from exlm.upgrades import upgrade_corpus

FORMAT_VERSION = 1
# What every manifest has.
KEYS = {"tokenizer_hash", "corpus_hash", "files", "token_files", "token_dtype", "pad_token_id"}
TOKEN_DTYPES = ("<u2", "<u4")  # uint16 and uint32
INDEX = np.dtype([("offset", "<i8"), ("length", "<u4")])
SPECIALS = 2  # BOS and EOS, which batches add around every example
SHARD_TOKENS = 2**28  # about the most tokens in one file
HASHED_AT_A_TIME = 4096  # sequences

# An example while its corpus is written: also the index of its part in CORPUS_PARTS, the number of
# its document, and both halves of its text's hash.
EXAMPLE = np.dtype(
    [*INDEX.descr, ("part", "u1"), ("document", "<i8"), ("high", "<u8"), ("low", "<u8")]
)

Part = Literal["train", "valid"]
CORPUS_PARTS = get_args(Part)


class Corpus:
    """One part of a corpus written by `exlm prepare`, or of several corpora of one tokenizer, read
    as one: the examples of the first, then those of the second, and so on.

    Attributes:
        token_counts: [examples] uint32, memory-mapped if it is one corpus; tokens of every example
            without special tokens.
        corpus_hash: identifies tokens, parts and tokenizer.
        tokenizer_hash: to compare with that of a model's tokenizer
            (`exlm.storage.tokenizers.tokenizer_hash`).
        molecules: whether the rows are molecules; None if the manifest does not say.
        standardize: the form of the molecules: none (as written), canonical or parent.

    InputError if a path is no corpus, if a file is missing or has another size than when it was
    written, if a corpus differs from the first in its tokenizer or in what its rows are, or if one
    is named twice."""

    def __init__(self, paths: str | Path | Sequence[str | Path], part: Part = "train") -> None:
        self.paths = _as_paths(paths)
        self.path = self.paths[0]
        manifests = [_manifest(path) for path in self.paths]
        self.manifest = manifests[0]
        self.check_files(contents=False)
        self._check_alike(manifests)
        self.tokenizer_hash: str = self.manifest["tokenizer_hash"]
        self.molecules: bool | None = self.manifest["options"]["molecules"]
        self.standardize: Standardize = self.manifest["options"]["standardize"]
        self.corpus_hash: str = hash_of_corpora(manifests)
        indexes: list[np.ndarray] = []
        self._shards: list[np.ndarray] = []
        self._starts: list[int] = []  # where each shard begins in the whole token stream
        tokens = 0
        for path, manifest in zip(self.paths, manifests, strict=True):
            index = _open_index(path / f"{part}.npy")
            if indexes:
                index = index.copy()
                index["offset"] += tokens
            indexes.append(index)
            for name in manifest["token_files"]:
                shard = np.memmap(path / name, manifest["token_dtype"], "r")
                self._shards.append(shard.view(np.ndarray))  # whose slices take less time
                self._starts.append(tokens)
                tokens += len(shard)
        self._index = indexes[0] if len(indexes) == 1 else np.concatenate(indexes)
        self.token_counts: np.ndarray = self._index["length"]

    def _check_alike(self, manifests: list[dict[str, Any]]) -> None:
        """InputError if a corpus differs from the first in what all must have in common, or is the
        same as one before it."""
        first_paths: dict[str, Path] = {}
        for path, manifest in zip(self.paths, manifests, strict=True):
            first_path = first_paths.setdefault(manifest["corpus_hash"], path)
            if first_path is not path:
                raise InputError(f"{path} and {first_path} are the same corpus; name it once")
        facts = [manifest | manifest["options"] for manifest in manifests]
        for path, facts_of_corpus in zip(self.paths, facts, strict=True):
            for name in ("tokenizer_hash", "molecules", "standardize"):
                if facts_of_corpus[name] != facts[0][name]:
                    raise InputError(
                        f"{path} and {self.path} differ in {name}; prepare it again with "
                        f"--tokenizer {self.path} and the other options of that corpus"
                    )

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> np.ndarray:
        """[length] int64 token ids of example i, without special tokens."""
        return self.gather(np.array([i]))[0][0]

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples `indices` [n]: int64 ids [n, longest], padded, without special tokens; and
        int64 lengths [n]."""
        entries = self._index[np.asarray(indices, dtype=np.int64)]
        lengths = entries["length"].astype(np.int64)
        shape = (len(entries), lengths.max(initial=0))
        token_ids = np.full(shape, self.manifest["pad_token_id"], dtype=np.int64)
        shards = np.searchsorted(self._starts, entries["offset"], side="right") - 1
        first = entries["offset"] - np.array(self._starts)[shards]
        for row, (shard, start, length) in enumerate(zip(shards, first, lengths, strict=True)):
            token_ids[row, :length] = self._shards[shard][start : start + length]
        return token_ids, lengths

    def sequence_hashes(self) -> np.ndarray:
        """[examples] uint64: equal for equal sequences, and almost surely for no others."""
        hashes = [np.empty(0, np.uint64)]
        for start in range(0, len(self), HASHED_AT_A_TIME):
            stop = min(start + HASHED_AT_A_TIME, len(self))
            token_ids, _ = self.gather(np.arange(start, stop))
            # Padding adds 0, so that a hash does not depend on the sequences beside it.
            numbers = (token_ids - self.manifest["pad_token_id"]).astype(np.uint64)
            hashes.append((numbers * random_bits(np.arange(token_ids.shape[1]))).sum(axis=1))
        return np.concatenate(hashes)

    def check_files(self, contents: bool = True) -> None:
        """Compares every file, or its size alone, with the manifest; InputError naming the first
        that differs."""
        for path in self.paths:
            if reason := damage(path, contents):
                raise InputError(
                    f"the corpus {path} is damaged: {reason}; prepare it again with exlm prepare"
                )


def _as_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of a corpus; InputError if there is none of this format."""
    if not path.exists():
        raise InputError(
            f"{path} does not exist; make a corpus with exlm prepare, or correct the name"
        )
    manifest = read_or_empty(path / MANIFEST, "files", "options", "counts")
    if (
        not manifest.keys() >= KEYS
        or manifest.get("format_version") != FORMAT_VERSION
        # A manifest from elsewhere must not make us read other files.
        or not set(manifest["token_files"]) <= set(manifest["files"])
        or manifest["token_dtype"] not in TOKEN_DTYPES
    ):
        raise InputError(
            f"{path} is not a whole corpus of format {FORMAT_VERSION}; "
            "make a corpus with exlm prepare, or correct the name"
        )
    return upgrade_corpus(manifest)


def _open_index(path: Path) -> np.ndarray:
    """[examples] INDEX of a part of a corpus, memory-mapped; InputError if it is damaged."""
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); prepare again") from error


def hash_of_corpora(manifests: Sequence[dict[str, Any]]) -> str:
    """What identifies tokens, parts and tokenizer of the corpora with these manifests."""
    hashes = [manifest["corpus_hash"] for manifest in manifests]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def count_leaked(paths: Sequence[str | Path]) -> tuple[int, int]:
    """How many held-out sequences of several corpora are, token by token, training sequences of
    another of them; and how many held-out sequences there are."""
    hashes_by_corpus = [Corpus(path, "valid").sequence_hashes() for path in paths]
    hashes = np.concatenate(hashes_by_corpus)
    corpus_numbers = np.repeat(np.arange(len(paths)), [len(part) for part in hashes_by_corpus])
    is_leaked = np.zeros(len(hashes), dtype=bool)
    for number, path in enumerate(paths):
        is_trained_on = np.isin(hashes, Corpus(path, "train").sequence_hashes())
        is_leaked |= is_trained_on & (corpus_numbers != number)
    return int(is_leaked.sum()), len(hashes)


def count_trained_on(held_out: Corpus, trained_on: Corpus) -> int:
    """How many sequences of one part of a corpus are, token by token, sequences of another."""
    is_trained_on = np.isin(held_out.sequence_hashes(), trained_on.sequence_hashes())
    return int(is_trained_on.sum())


def corpus_name(paths: str | Sequence[str | Path]) -> str:
    """The names of the directories, for people."""
    return " + ".join(path.name for path in _as_paths(paths))


def describe_corpus(manifest: dict[str, Any], output: str) -> str:
    """What a user must know about the result: what was written, what else was found, and how long
    the sequences are."""
    template = Path(__file__).with_name("describe.txt")
    return render(template, **manifest, output=output, count_name=count_name)


def count_name(kind: str) -> str:
    """What messages call a count of the manifest; the count `blank` has the texts NA, too."""
    return "blank or NA" if kind == "blank" else kind


class CorpusWriter:
    """Appends examples to token files in `folder` and sorts them into parts; the vocabulary decides
    the type."""

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        self.folder = folder
        self.vocabulary_size = vocabulary_size
        self.dtype = np.dtype("<u2" if vocabulary_size <= 65535 else "<u4")
        self.shards = ["tokens-00000.bin"]
        self._examples = [np.empty(0, EXAMPLE)]
        self._tokens = 0
        self._in_shard = 0

    def append(self, token_ids: np.ndarray, examples: np.ndarray) -> None:
        """Appends examples [n] EXAMPLE without offsets, and their token ids [sum of lengths]."""
        if self._in_shard and self._in_shard + len(token_ids) > SHARD_TOKENS:
            self.shards.append(f"tokens-{len(self.shards):05d}.bin")
            self._in_shard = 0
        examples = examples.copy()
        examples["offset"] = self._tokens + np.cumsum(examples["length"]) - examples["length"]
        with open(self.folder / self.shards[-1], "ab") as file:
            file.write(token_ids.astype(self.dtype).tobytes())
        self._examples.append(examples)
        self._tokens += len(token_ids)
        self._in_shard += len(token_ids)

    def write_parts(self, drop_duplicates: bool = False) -> tuple[dict[str, np.ndarray], int]:
        """Writes `train.npy` and `valid.npy`, on request without examples that have the hash of an
        earlier one. Returns the lengths of the examples by part, and the number of duplicates."""
        examples = np.concatenate(self._examples)
        self._examples.clear()
        appended = len(examples)
        if drop_duplicates:
            hashes = pd.DataFrame({half: examples[half] for half in ("high", "low")})
            examples = examples[~hashes.duplicated().to_numpy()]
        lengths = {}
        for number, part in enumerate(CORPUS_PARTS):
            index = examples[["offset", "length"]][examples["part"] == number].astype(INDEX)
            np.save(self.folder / f"{part}.npy", index)
            lengths[part] = index["length"]
        return lengths, appended - len(examples)
