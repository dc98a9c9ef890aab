"""What `exlm prepare` found, for the manifest and for the user."""

from collections import Counter
from typing import Any

import numpy as np

from ..errors import InputError

PERCENTILES = (1, 5, 25, 50, 75, 95, 99, 100)
BINS, BAR = 8, 40  # of the printed histogram: rows, and characters of the longest bar
REPORTED_STRINGS = 20


def statistics(counts: dict[str, Counter[str]], written: int, histograms: dict[str, np.ndarray]) -> dict[str, Any]:
    """The manifest's account of the content; InputError if nothing is left for training.

    Args:
        counts: as in `EncodedChunk`, of all chunks.
        written: examples before duplicates were left out.
        histograms: per split, [longest + 1] the number of examples of each length.
    """
    rows = counts["rows"]
    if not written:
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts["invalid"].most_common()) or "none invalid"
        found = f"{rows['rows']} ({rows['blank']} blank, {reasons})"
        raise InputError(f"no usable row among {found}; check the column and tokenizer")
    if not histograms["train"].any():
        raise InputError("every example was held out and none is left for training; lower held_out")
    lengths = histograms["train"] + histograms["valid"]
    below = np.cumsum(lengths)
    longest = int(np.flatnonzero(lengths)[-1])
    width = longest // BINS + 1
    bins = range(0, longest + 1, width)
    return {
        "counts": {
            "rows": rows["rows"],
            "blank": rows["blank"],
            "invalid": dict(sorted(counts["invalid"].items())),
            **{kind: rows[kind] for kind in ("skipped", "kept_invalid", "unknown_tokens", "spelled_pieces")},
            "duplicates": written - int(lengths.sum()),
            **{f"{split}_examples": int(h.sum()) for split, h in histograms.items()},
            **{f"{split}_tokens": int(h @ np.arange(len(h))) for split, h in histograms.items()},
            **({"documents": rows["documents"]} if "documents" in rows else {}),
        },
        "length_percentiles": {str(p): int(np.searchsorted(below, max(1, p / 100 * below[-1]))) for p in PERCENTILES},
        "length_histogram": {f"{a}-{a + width - 1}": int(lengths[a : a + width].sum()) for a in bins},
        "most_frequent_unknown": dict(counts["unknown"].most_common(REPORTED_STRINGS)),
        "most_frequent_spelled": dict(counts["spelled"].most_common(REPORTED_STRINGS)),
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
    for kind, what in (("unknown_tokens", "unknown tokens"), ("spelled_pieces", "pieces spelled by characters")):
        if counts[kind]:
            common = ", ".join(list(manifest[f"most_frequent_{kind.split('_')[0]}"])[:5])
            lines.append(f"{counts[kind]:,} {what}, most often {common}")
    if counts["blank"] or counts["duplicates"]:
        lines.append(f"{counts['blank']:,} blank rows, {counts['duplicates']:,} duplicates dropped")
    if documents and manifest["options"]["held_out"] and not counts["valid_examples"]:
        lines.append("no document was held out: there are few; raise held_out or choose another seed")
    lines.append("tokens per sequence, special tokens not counted:")
    bins = manifest["length_histogram"]
    most = max(bins.values())
    lines += [f"{name:>11} {'#' * -(-n * BAR // most):{BAR}} {n:,}" for name, n in bins.items()]
    return "\n".join(lines)
