"""A tokenised corpus on disk, memory-mapped.

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
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import InputError
from ..storage import MANIFEST, problem

FORMAT_VERSION = 1
INDEX = np.dtype([("offset", "<i8"), ("length", "<u4")])

Split = Literal["train", "valid"]


class Corpus:
    """One split of a corpus written by `exlm prepare`.

    Args:
        path: the directory.
        split: `train` or `valid`.

    Attributes:
        lengths: [examples] uint32, memory-mapped; tokens per example without special tokens.
        manifest: the parsed manifest.
        corpus_hash: identifies tokens, split and tokenizer.
        tokenizer_hash: to compare with `exlm.data.tokenization.tokenizer_hash` of a model's tokenizer.

    Raises:
        InputError: if `path` is no corpus, or a file is missing or has another size than when it was written.
    """

    def __init__(self, path: str | Path, split: Split = "train") -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self._check_sizes()
        self.corpus_hash: str = self.manifest["corpus_hash"]
        self.tokenizer_hash: str = self.manifest["tokenizer_hash"]
        self._index = np.load(self.path / f"{split}.npy", mmap_mode="r")
        self.lengths: np.ndarray = self._index["length"]
        names = self.manifest["token_files"]
        self._shards = [np.memmap(self.path / name, self.manifest["token_dtype"], "r") for name in names]
        self._starts = np.cumsum([0] + [len(shard) for shard in self._shards[:-1]])
        self._pad: int = self.manifest["pad_token_id"]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> np.ndarray:
        """[length] int64 token ids of example i, without special tokens."""
        offset, length = (int(x) for x in self._index[i])
        shard = int(np.searchsorted(self._starts, offset, side="right")) - 1
        start = offset - int(self._starts[shard])
        return self._shards[shard][start : start + length].astype(np.int64)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Several examples at once.

        Args:
            indices: [n] example numbers, in any order.

        Returns:
            [n, longest] int64 ids without special tokens, padded with the pad id; [n] int64 lengths.
        """
        entries = self._index[np.asarray(indices, dtype=np.int64)]
        offsets, lengths = entries["offset"], entries["length"].astype(np.int64)
        ids = np.full((len(entries), int(lengths.max(initial=0))), self._pad, dtype=np.int64)
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        shard_of = np.searchsorted(self._starts, offsets, side="right") - 1
        for shard in np.unique(shard_of):
            rows = shard_of == shard
            first = offsets[rows] - self._starts[shard]
            position = (first[:, None] + np.arange(ids.shape[1]))[inside[rows]]
            ids[inside & rows[:, None]] = self._shards[shard][position]
        return ids, lengths

    def verify(self) -> None:
        """Reads every file and compares it with the manifest.

        Raises:
            InputError: naming the first file that differs.
        """
        if reason := problem(self.path):
            raise InputError(f"the corpus {self.path} is damaged: {reason}; {_REDO}")

    def _check_sizes(self) -> None:
        for name, entry in self.manifest["files"].items():
            file = self.path / name
            if not file.is_file():
                raise InputError(f"the corpus {self.path} has lost its file {name}; {_REDO}")
            if file.stat().st_size != entry["bytes"]:
                size = file.stat().st_size
                raise InputError(f"{file} has {size} bytes instead of {entry['bytes']}; {_REDO}")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the corpus in directory `path`.

    Raises:
        InputError: if there is none, or this version cannot read it.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a corpus: it has no readable {MANIFEST}; make one with exlm prepare"
        ) from error
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if version != FORMAT_VERSION:
        raise InputError(f"{path} has corpus format {version}, this is {FORMAT_VERSION}; {_REDO}")
    return manifest


_REDO = "prepare the corpus again with exlm prepare"
