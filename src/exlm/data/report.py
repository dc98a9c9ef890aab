"""What `exlm prepare` counts, and how the manifest and the user are told."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError
from .encoding import EncodedChunk
from .workers import Chunk

PERCENTILES = (1, 5, 25, 50, 75, 95, 99, 100)
BINS, BAR = 8, 40  # of the printed histogram: rows, and characters of the longest bar
REPORTED_PIECES = 20
MAX_PIECES = 20_000  # different pieces that are counted at a time


@dataclass
class Pieces:
    """How many pieces there were, and how often each of the most frequent ones: few enough to hold."""

    total: int = 0
    each: Counter[str] = field(default_factory=Counter)

    def add(self, found: Counter[str]) -> None:
        self.total += found.total()
        self.each.update(found)
        if len(self.each) > MAX_PIECES:
            self.each = Counter(dict(self.each.most_common(MAX_PIECES // 2)))

    def most_frequent(self) -> dict[str, int]:
        return dict(self.each.most_common(REPORTED_PIECES))


@dataclass
class Counts:
    """What was read."""

    rows: int = 0
    blank: int = 0
    invalid: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    unknown: Pieces = field(default_factory=Pieces)
    spelled: Pieces = field(default_factory=Pieces)

    def add(self, chunk: Chunk, result: EncodedChunk) -> None:
        self.rows += chunk.read
        self.blank += chunk.read - len(chunk.texts)
        self.invalid.update(problem.reason for problem in result.problems)
        self.skipped += sum(not problem.kept for problem in result.problems)
        self.unknown.add(result.unknown)
        self.spelled.add(result.spelled)


def require_examples(histograms: dict[str, np.ndarray], counts: Counts) -> None:
    """Raises InputError if nothing is left for training."""
    if histograms["train"].any():
        return
    if histograms["valid"].any():
        raise InputError("every example was held out and none is left for training; lower held_out")
    reasons = ", ".join(f"{n} {reason}" for reason, n in counts.invalid.most_common()) or "none invalid"
    raise InputError(
        f"no usable row among {counts.rows} ({counts.blank} blank, {reasons}); check the column and tokenizer"
    )


def statistics(
    counts: Counts, written: int, documents: int | None, histograms: dict[str, np.ndarray]
) -> dict[str, Any]:
    """The manifest's account of the content.

    Args:
        counts: of rows.
        written: examples before duplicates were left out.
        documents: how many were packed, if any were.
        histograms: per split, [longest + 1] the number of examples of each length.
    """
    lengths = histograms["train"] + histograms["valid"]
    examples = {f"{split}_examples": int(h.sum()) for split, h in histograms.items()}
    tokens = {f"{split}_tokens": int(h @ np.arange(len(h))) for split, h in histograms.items()}
    account: dict[str, Any] = {
        "rows": counts.rows,
        "blank": counts.blank,
        "invalid": dict(sorted(counts.invalid.items())),
        "skipped": counts.skipped,
        "kept_invalid": counts.invalid.total() - counts.skipped,
        "unknown_tokens": counts.unknown.total,
        "spelled_pieces": counts.spelled.total,
        "duplicates": written - sum(examples.values()),
        **examples,
        **tokens,
    }
    if documents is not None:
        account["documents"] = documents
    return {
        "counts": account,
        "length_percentiles": _percentiles(lengths),
        "length_histogram": _histogram(lengths),
        "most_frequent_unknown": counts.unknown.most_frequent(),
        "most_frequent_spelled": counts.spelled.most_frequent(),
    }


def describe(manifest: dict[str, Any], output: str) -> str:
    """What a user must know of the result."""
    counts = manifest["counts"]
    documents = f" in {counts['documents']:,} documents" if "documents" in counts else ""
    lines = [
        f"{output}: {counts['rows']:,} rows{documents} gave {counts['train_examples']:,} training and "
        f"{counts['valid_examples']:,} held-out sequences, {counts['train_tokens'] + counts['valid_tokens']:,} tokens, "
        f"vocabulary {manifest['vocabulary_size']}"
    ]
    if counts["invalid"]:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in counts["invalid"].items())
        lines.append(f"{counts['skipped']:,} rows skipped, {counts['kept_invalid']:,} kept ({reasons}): skipped.csv")
    for name, what in (("unknown_tokens", "unknown tokens"), ("spelled_pieces", "pieces spelled by characters")):
        if counts[name]:
            common = ", ".join(list(manifest[f"most_frequent_{name.split('_')[0]}"])[:5])
            lines.append(f"{counts[name]:,} {what}, most often {common}")
    if counts["blank"] or counts["duplicates"]:
        lines.append(f"{counts['blank']:,} blank rows, {counts['duplicates']:,} duplicates dropped")
    if documents and manifest["options"]["held_out"] and not counts["valid_examples"]:
        lines.append("no document was held out: there are few; raise held_out or choose another seed")
    return "\n".join([*lines, "tokens per sequence, special tokens not counted:", *_bars(manifest["length_histogram"])])


def _percentiles(histogram: np.ndarray) -> dict[str, int]:
    """Tokens per example, special tokens not counted."""
    below = np.cumsum(histogram)
    return {str(p): int(np.searchsorted(below, max(1, p / 100 * below[-1]))) for p in PERCENTILES}


def _histogram(histogram: np.ndarray) -> dict[str, int]:
    """Number of examples in at most BINS ranges of lengths of equal width."""
    longest = int(np.flatnonzero(histogram)[-1])
    width = longest // BINS + 1
    return {f"{a}-{a + width - 1}": int(histogram[a : a + width].sum()) for a in range(0, longest + 1, width)}


def _bars(bins: dict[str, int]) -> list[str]:
    most = max(bins.values())
    return [f"{name:>11} {'#' * -(-n * BAR // most):{BAR}} {n:,}" for name, n in bins.items()]
