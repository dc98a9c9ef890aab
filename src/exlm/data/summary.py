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
    if not histograms["train"].any():
        found = ", ".join(f"{n} {what}" for what, n in (counts["rows"] + counts["invalid"]).items())
        raise InputError(f"no row is left for training ({found}); check the column, the tokenizer and held_out")
    lengths = histograms["train"] + histograms["valid"]
    below = np.cumsum(lengths)
    longest = int(np.flatnonzero(lengths)[-1])
    width = longest // BINS + 1
    bins = range(0, longest + 1, width)
    rows = counts["rows"]
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
    """What a user must know of the result: what was written, every count, and how long the sequences are."""
    counts = dict(manifest["counts"])
    counts |= counts.pop("invalid")
    bins, checked = manifest["length_histogram"], manifest["options"]["check_molecules"]
    lines = [f"{output}: " + ", ".join(f"{n:,} {what.replace('_', ' ')}" for what, n in counts.items() if n)]
    lines.append(f"vocabulary {manifest['vocabulary_size']}, rows {'' if checked else 'not '}checked as molecules")
    for kind in ("unknown", "spelled"):
        if common := list(manifest[f"most_frequent_{kind}"])[:5]:
            lines.append(f"most often {kind}: {', '.join(common)}")
    lines.append("tokens per sequence, special tokens not counted:")
    most = max(bins.values())
    lines += [f"{name:>11} {'#' * -(-n * BAR // most):{BAR}} {n:,}" for name, n in bins.items()]
    return "\n".join(lines)
