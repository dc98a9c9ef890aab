"""What `exlm prepare` counts, and how the manifest and the user are told."""

from collections import Counter
from typing import Any

import numpy as np

from ..errors import InputError
from .encoding import EncodedChunk

PERCENTILES = (1, 5, 25, 50, 75, 95, 99, 100)
BINS, BAR = 8, 40  # of the printed histogram: rows, and characters of the longest bar
REPORTED_STRINGS = 20
MAX_STRINGS = 20_000  # different strings that are counted at a time


class Summary:
    """Counts of rows, of reasons why rows are invalid, and of the most frequent strings that are `unknown` to the
    vocabulary or `spelled` by characters: as many as memory should hold.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.invalid: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.spelled: Counter[str] = Counter()

    def add(self, chunk: EncodedChunk) -> None:
        self.counts.update(chunk.counts)
        self.counts.update("kept_invalid" if row.action == "kept" else "skipped" for row in chunk.invalid)
        self.counts.update(unknown_tokens=chunk.unknown.total(), spelled_pieces=chunk.spelled.total())
        self.invalid.update(row.reason for row in chunk.invalid)
        self.unknown = _most_frequent(self.unknown + chunk.unknown)
        self.spelled = _most_frequent(self.spelled + chunk.spelled)

    def statistics(self, written: int, histograms: dict[str, np.ndarray]) -> dict[str, Any]:
        """The manifest's account of the content.

        Args:
            written: examples before duplicates were left out.
            histograms: per split, [longest + 1] the number of examples of each length.

        Raises:
            InputError: if nothing is left for training.
        """
        if not histograms["train"].any():
            if histograms["valid"].any():
                raise InputError("every example was held out and none is left for training; lower held_out")
            rows, blank = self.counts["rows"], self.counts["blank"]
            reasons = ", ".join(f"{n} {reason}" for reason, n in self.invalid.most_common()) or "none invalid"
            raise InputError(f"no usable row among {rows} ({blank} blank, {reasons}); check the column and tokenizer")
        lengths = histograms["train"] + histograms["valid"]
        below = np.cumsum(lengths)
        longest = int(np.flatnonzero(lengths)[-1])
        width = longest // BINS + 1
        ranges = range(0, longest + 1, width)
        return {
            "counts": {
                "rows": self.counts["rows"],
                "blank": self.counts["blank"],
                "invalid": dict(sorted(self.invalid.items())),
                "skipped": self.counts["skipped"],
                "kept_invalid": self.counts["kept_invalid"],
                "unknown_tokens": self.counts["unknown_tokens"],
                "spelled_pieces": self.counts["spelled_pieces"],
                "duplicates": written - int(lengths.sum()),
                **{f"{split}_examples": int(h.sum()) for split, h in histograms.items()},
                **{f"{split}_tokens": int(h @ np.arange(len(h))) for split, h in histograms.items()},
                **({"documents": self.counts["documents"]} if "documents" in self.counts else {}),
            },
            "length_percentiles": {
                str(p): int(np.searchsorted(below, max(1, p / 100 * below[-1]))) for p in PERCENTILES
            },
            "length_histogram": {f"{a}-{a + width - 1}": int(lengths[a : a + width].sum()) for a in ranges},
            "most_frequent_unknown": dict(self.unknown.most_common(REPORTED_STRINGS)),
            "most_frequent_spelled": dict(self.spelled.most_common(REPORTED_STRINGS)),
        }


def _most_frequent(strings: Counter[str]) -> Counter[str]:
    return strings if len(strings) <= MAX_STRINGS else Counter(dict(strings.most_common(MAX_STRINGS // 2)))


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
    lines.append("tokens per sequence, special tokens not counted:")
    bins = manifest["length_histogram"]
    most = max(bins.values())
    lines += [f"{name:>11} {'#' * -(-n * BAR // most):{BAR}} {n:,}" for name, n in bins.items()]
    return "\n".join(lines)
