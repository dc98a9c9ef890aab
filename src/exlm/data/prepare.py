"""`exlm prepare`: raw records to a corpus (see `corpus.py`), in constant memory."""

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from ..errors import InputError
from ..files import MANIFEST, entries
from .corpus import FORMAT_VERSION
from .corpus_writer import TokenWriter, flag_duplicates, new_directory, temporary_directory, write_split
from .encoding import SPECIALS, Checks, EncodedChunk, count_tokens, encode_chunk
from .sources import Source, find_sources
from .tokenization import load_tokenizer, smiles_tokenizer, tokenizer_hash
from .workers import Chunk, Workers, chunks

OnInvalid = Literal["error", "skip", "keep"]
PERCENTILES = (1, 5, 25, 50, 75, 95, 99, 100)
REPORTED_UNKNOWN = 20
MAX_UNKNOWN = 20_000  # different unknown pieces that are counted at a time


@dataclass
class _Counts:
    rows: int = 0
    blank: int = 0
    invalid: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    unknown_total: int = 0


def prepare(
    inputs: list[str],
    output: str,
    tokenizer: str = "smiles",
    column: str | None = None,
    max_length: int = 512,
    held_out: float = 0.01,
    drop_duplicates: bool = False,
    on_invalid: OnInvalid = "skip",
    check_molecules: bool = True,
    workers: int = 0,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Tokenise molecules or text once, into a corpus that training maps into memory.

    The result depends on inputs and options but not on `workers`. It appears at `output` only when complete.

    Args:
        inputs: files (.smi, .txt, .csv, .tsv, .jsonl, each also .gz, .xz, .zst; .parquet), directories of
            them, or Hugging Face data sets (`owner/name`, `owner/name:split`). Of a .smi line, the first
            word counts.
        output: directory to write.
        tokenizer: `smiles` learns an atom-level vocabulary from the inputs; otherwise a saved tokenizer.
        column: of tables; by default the only one called smiles or text.
        max_length: tokens per example, BOS and EOS included; longer rows are never kept.
        held_out: share of the examples for validation, chosen by content: equal rows are on the same side.
        drop_duplicates: keep only the first of equal rows.
        on_invalid: stop at the first invalid row, skip invalid rows, or keep them (with `<unk>` tokens).
        check_molecules: a row must be SMILES that RDKit reads and that decodes to itself. Turn off for text.
        workers: processes; 0 is one per core.
        seed: of the held-out choice.
        overwrite: replace the corpus at `output`.

    Returns:
        the manifest.

    Raises:
        InputError: for unusable inputs or options, an invalid row with `on_invalid="error"`, no usable row.
    """
    options = _options(locals())
    sources, ignored = find_sources(inputs)
    given = None if tokenizer == "smiles" else load_tokenizer(tokenizer)
    with new_directory(Path(output), overwrite) as folder, Workers(workers) as pool:
        vocabulary, rows = (
            (given, None) if given else _learn(sources, column, pool, check_molecules and on_invalid != "keep")
        )
        vocabulary.save_pretrained(folder)
        checks = Checks(
            str(folder / "tokenizer.json"),
            vocabulary.unk_token_id,
            max_length,
            check_molecules,
            on_invalid == "keep",
        )
        progress = _progress(chunks(sources, column), "tokenising", rows)
        encoded = pool.map(partial(encode_chunk, checks), progress)
        with temporary_directory(folder / "staging") as staging:
            writer = TokenWriter(folder, staging, _token_dtype(vocabulary), held_out, seed)
            counts = _write(writer, encoded, folder / "skipped.csv", stop=on_invalid == "error")
            if drop_duplicates and writer.examples:
                flag_duplicates(staging, writer.examples)
            histograms = write_split(folder, staging, max_length)
        _require_examples(histograms, counts)
        about = {
            "options": options,
            "sources": [asdict(source) for source in sources],
            "ignored_files": ignored,
            "counts": _summary(counts, writer, histograms),
            "length_percentiles": _percentiles(histograms["train"] + histograms["valid"]),
            "most_frequent_unknown": dict(counts.unknown.most_common(REPORTED_UNKNOWN)),
        }
        manifest = {"format_version": FORMAT_VERSION} | about | _identity(folder, writer, vocabulary)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")
    print(_describe(manifest, output))
    return manifest


def _describe(manifest: dict[str, Any], output: str) -> str:
    """What a user must know of the result."""
    counts = manifest["counts"]
    lines = [
        f"{output}: {counts['rows']:,} rows gave {counts['train_examples']:,} training and "
        f"{counts['valid_examples']:,} held-out sequences, {counts['train_tokens'] + counts['valid_tokens']:,} tokens, "
        f"vocabulary {manifest['vocabulary_size']}"
    ]
    if counts["invalid"]:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in counts["invalid"].items())
        lines.append(f"{counts['skipped']:,} rows skipped, {counts['kept_invalid']:,} kept ({reasons}): skipped.csv")
    if counts["unknown_tokens"]:
        common = ", ".join(list(manifest["most_frequent_unknown"])[:5])
        lines.append(f"{counts['unknown_tokens']:,} unknown tokens, most often {common}")
    if counts["blank"] or counts["duplicates"]:
        lines.append(f"{counts['blank']:,} blank rows, {counts['duplicates']:,} duplicates dropped")
    return "\n".join(lines)


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options that shape the result, checked."""
    if not 0 <= arguments["held_out"] < 1:
        raise InputError(f"held_out is {arguments['held_out']} but must be at least 0 and less than 1")
    if arguments["max_length"] <= SPECIALS:
        raise InputError(f"max_length is {arguments['max_length']} but must be at least {SPECIALS + 1}")
    if arguments["on_invalid"] not in get_args(OnInvalid):
        raise InputError(f"on_invalid is {arguments['on_invalid']} but must be error, skip or keep")
    if arguments["workers"] < 0:
        raise InputError(f"workers is {arguments['workers']} but must be 0 (one per core) or more")
    return {k: v for k, v in arguments.items() if k not in ("output", "workers", "overwrite")}


def _learn(
    sources: list[Source], column: str | None, pool: Workers, molecules_only: bool
) -> tuple[PreTrainedTokenizerFast, int]:
    """A SMILES tokenizer for the sources, and their number of rows."""
    counts: Counter[str] = Counter()
    rows = 0
    for chunk, found in pool.map(
        partial(count_tokens, molecules_only), _progress(chunks(sources, column), "vocabulary")
    ):
        counts.update(found)
        rows += chunk.read
    return smiles_tokenizer(counts), rows


def _progress(source: Iterable[Chunk], title: str, total: int | None = None) -> Iterator[Chunk]:
    with tqdm(desc=title, total=total, unit=" rows", unit_scale=True, disable=None) as bar:
        for chunk in source:
            yield chunk
            bar.update(chunk.read)


def _write(writer: TokenWriter, encoded: Iterable[tuple[Chunk, EncodedChunk]], skipped: Path, stop: bool) -> _Counts:
    counts = _Counts()
    with open(skipped, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", "row", "value", "reason", "detail", "action"])
        for chunk, result in encoded:
            table.writerows(_report(chunk, result, stop))
            writer.append(result.tokens, result.lengths, result.digests)
            _count(counts, chunk, result)
    return counts


def _report(chunk: Chunk, result: EncodedChunk, stop: bool) -> Iterator[tuple[str, int, str, str, str, str]]:
    for problem in result.problems:
        row, value = chunk.rows[problem.position], chunk.texts[problem.position]
        if stop:
            raise InputError(
                f"{chunk.source}, row {row}: {value!r} is invalid ({problem.reason}: {problem.detail}); "
                "correct it or use on_invalid=skip"
            )
        yield chunk.source, row, value, problem.reason, problem.detail, "kept" if problem.kept else "skipped"


def _count(counts: _Counts, chunk: Chunk, result: EncodedChunk) -> None:
    counts.rows += chunk.read
    counts.blank += chunk.read - len(chunk.texts)
    counts.invalid.update(problem.reason for problem in result.problems)
    counts.skipped += sum(not problem.kept for problem in result.problems)
    counts.unknown.update(result.unknown)
    counts.unknown_total += result.unknown.total()
    if len(counts.unknown) > MAX_UNKNOWN:
        counts.unknown = Counter(dict(counts.unknown.most_common(MAX_UNKNOWN // 2)))


def _require_examples(histograms: dict[str, np.ndarray], counts: _Counts) -> None:
    if histograms["train"].any():
        return
    if histograms["valid"].any():
        raise InputError("every example was held out and none is left for training; lower held_out")
    reasons = ", ".join(f"{n} {reason}" for reason, n in counts.invalid.most_common()) or "none invalid"
    raise InputError(
        f"no usable row among {counts.rows} ({counts.blank} blank, {reasons}); check the column and tokenizer"
    )


def _summary(
    counts: _Counts, writer: TokenWriter, histograms: dict[str, np.ndarray]
) -> dict[str, int | dict[str, int]]:
    examples = {f"{split}_examples": int(h.sum()) for split, h in histograms.items()}
    tokens = {f"{split}_tokens": int(h @ np.arange(len(h))) for split, h in histograms.items()}
    return {
        "rows": counts.rows,
        "blank": counts.blank,
        "invalid": dict(sorted(counts.invalid.items())),
        "skipped": counts.skipped,
        "kept_invalid": counts.invalid.total() - counts.skipped,
        "unknown_tokens": counts.unknown_total,
        "duplicates": writer.examples - sum(examples.values()),
        **examples,
        **tokens,
    }


def _percentiles(histogram: np.ndarray) -> dict[str, int]:
    """Tokens per example, special tokens not counted."""
    below = np.cumsum(histogram)
    return {str(p): int(np.searchsorted(below, max(1, p / 100 * below[-1]))) for p in PERCENTILES}


def _identity(folder: Path, writer: TokenWriter, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    files = entries(folder.iterdir())
    fingerprint = tokenizer_hash(tokenizer)
    content = [files[name]["sha256"] for name in (*writer.shards, "train.npy", "valid.npy")]
    return {
        "tokenizer_hash": fingerprint,
        "corpus_hash": hashlib.sha256("\n".join([fingerprint, *content]).encode()).hexdigest(),
        "vocabulary_size": _vocabulary_size(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "token_dtype": writer.dtype.str,
        "token_files": writer.shards,
        "versions": {package: version(package) for package in ("exlm", "rdkit", "tokenizers")},
        "files": files,
    }


def _token_dtype(tokenizer: PreTrainedTokenizerFast) -> np.dtype:
    return np.dtype("<u2" if _vocabulary_size(tokenizer) <= 65535 else "<u4")


def _vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """One more than the largest id: some tokenizers skip ids."""
    return max(tokenizer.get_vocab().values()) + 1
