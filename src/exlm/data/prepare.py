"""`exlm prepare`: raw records to a corpus (see `corpus.py`), in constant memory."""

import csv
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from ..errors import InputError
from ..pretrained import load_tokenizer, tokenizer_hash
from ..storage import MANIFEST, entries
from .corpus import FORMAT_VERSION
from .corpus_writer import TokenWriter, flag_duplicates, new_directory, temporary_directory, write_split
from .encoding import SPECIALS, Checks, EncodedChunk, count_tokens, encode_chunk
from .packing import Documents, Packer
from .report import Counts, describe, require_examples, statistics
from .sources import Source, find_sources
from .text_tokenizers import TRAINERS, check_vocabulary_size, train_text_tokenizer
from .tokenization import smiles_tokenizer
from .workers import Chunk, Workers, chunks

OnInvalid = Literal["error", "skip", "keep"]


def prepare(
    inputs: list[str],
    output: str,
    tokenizer: str = "smiles",
    column: str | None = None,
    max_length: int = 512,
    held_out: float = 0.01,
    drop_duplicates: bool = False,
    on_invalid: OnInvalid | None = None,
    check_molecules: bool | None = None,
    workers: int = 0,
    seed: int = 0,
    overwrite: bool = False,
    documents: Documents = "none",
    cross_documents: bool = True,
    vocabulary_size: int = 50265,
) -> dict[str, Any]:
    """Tokenise molecules or text once, into a corpus that training maps into memory.

    The result depends on inputs and options but not on `workers`. It appears at `output` only when complete.

    Args:
        inputs: files (.smi, .txt, .csv, .tsv, .jsonl, each also .gz, .xz, .zst; .parquet), directories of
            them, or Hugging Face data sets (`owner/name`, `owner/name/config:split`). Of a .smi line, the first
            word counts.
        output: directory to write.
        tokenizer: `smiles` (atom-level), `bpe` (byte-level, as RoBERTa's) and `wordpiece` (as uncased BERT's) learn
            a vocabulary from the inputs; otherwise a saved tokenizer.
        column: of tables; by default the only one called smiles or text.
        max_length: tokens per example, BOS and EOS included; longer rows are never kept, unless they are packed.
        held_out: share of the examples for validation, chosen by content: equal rows are on the same side. Packed
            documents are held out whole, chosen by their first row.
        drop_duplicates: keep only the first of equal rows.
        on_invalid: stop at the first invalid row, skip invalid rows, or keep them (with `<unk>` tokens). By default
            they are skipped, but kept where rows are packed.
        check_molecules: a row must be SMILES that RDKit reads and that decodes to itself. By default on, but off for
            bpe and wordpiece and where rows are packed.
        workers: processes; 0 is one per core.
        seed: of the held-out choice.
        overwrite: replace the corpus at `output`.
        documents: `none`, every row is an example; or rows are packed into examples of max_length tokens, where `row`
            makes every row a document, and `blank` has blank rows (and ends of files) separate documents.
        cross_documents: pack all documents into one stream with EOS between them; otherwise no example has tokens of
            two documents, and the last one of each document is shorter.
        vocabulary_size: of bpe and wordpiece, special tokens included.

    Returns:
        the manifest.

    Raises:
        InputError: for unusable inputs or options, an invalid row with `on_invalid="error"`, no usable row.
    """
    packed = documents != "none"
    on_invalid = on_invalid or ("keep" if packed else "skip")
    if check_molecules is None:
        check_molecules = tokenizer not in TRAINERS and not packed
    options = _options(locals())
    sources, ignored = find_sources(inputs)
    with new_directory(Path(output), overwrite) as folder, Workers(workers) as pool:
        molecules_only = check_molecules and on_invalid != "keep"
        vocabulary, rows = _vocabulary(tokenizer, vocabulary_size, sources, column, pool, molecules_only)
        vocabulary.save_pretrained(folder)
        checks = Checks(
            str(folder / "tokenizer.json"),
            vocabulary.unk_token_id,
            sys.maxsize if packed else max_length,
            check_molecules,
            on_invalid == "keep",
        )
        encoded = pool.map(partial(encode_chunk, checks), _progress(chunks(sources, column), "tokenising", rows))
        separator = vocabulary.eos_token_id if cross_documents else None
        packer = Packer(max_length - SPECIALS, documents, separator, held_out, seed) if packed else None
        with temporary_directory(folder / "staging") as staging:
            writer = TokenWriter(folder, staging, _token_dtype(vocabulary), held_out, seed)
            examples = packer(encoded) if packer else encoded
            counts = _write(writer, examples, folder / "skipped.csv", stop=on_invalid == "error")
            if drop_duplicates and writer.examples:
                flag_duplicates(staging, writer.examples)
            histograms = write_split(folder, staging, max_length)
        require_examples(histograms, counts)
        about = {
            "options": options,
            "sources": [asdict(source) for source in sources],
            "ignored_files": ignored,
            **statistics(counts, writer.examples, packer.packed if packer else None, histograms),
        }
        manifest = {"format_version": FORMAT_VERSION} | about | _identity(folder, writer, vocabulary)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")
    print(describe(manifest, output))
    return manifest


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options that shape the result, checked."""
    if not 0 <= arguments["held_out"] < 1:
        raise InputError(f"held_out is {arguments['held_out']} but must be at least 0 and less than 1")
    if arguments["max_length"] <= SPECIALS:
        raise InputError(f"max_length is {arguments['max_length']} but must be at least {SPECIALS + 1}")
    for name, kind in (("on_invalid", OnInvalid), ("documents", Documents)):
        if arguments[name] not in get_args(kind):
            raise InputError(f"{name} is {arguments[name]} but must be one of {', '.join(get_args(kind))}")
    if arguments["workers"] < 0:
        raise InputError(f"workers is {arguments['workers']} but must be 0 (one per core) or more")
    if arguments["packed"] and arguments["drop_duplicates"]:
        raise InputError("drop_duplicates compares rows, but these are packed; leave it out or use documents=none")
    if arguments["tokenizer"] in TRAINERS:
        check_vocabulary_size(arguments["vocabulary_size"])
    return {k: v for k, v in arguments.items() if k not in ("output", "workers", "overwrite", "packed")}


def _vocabulary(
    name: str, size: int, sources: list[Source], column: str | None, pool: Workers, molecules_only: bool
) -> tuple[PreTrainedTokenizerFast, int | None]:
    """The tokenizer called `name`, and the sources' number of rows if they had to be read for it."""
    if name != "smiles" and name not in TRAINERS:
        return load_tokenizer(name), None
    rows = 0

    def counted() -> Iterator[Chunk]:
        nonlocal rows
        for chunk in _progress(chunks(sources, column), "vocabulary"):
            yield chunk
            rows += chunk.read

    if name in TRAINERS:
        return train_text_tokenizer(name, (text for chunk in counted() for text in chunk.texts), size), rows
    counts: Counter[str] = Counter()
    for _, found in pool.map(partial(count_tokens, molecules_only), counted()):
        counts.update(found)
    return smiles_tokenizer(counts), rows


def _progress(source: Iterable[Chunk], title: str, total: int | None = None) -> Iterator[Chunk]:
    with tqdm(desc=title, total=total, unit=" rows", unit_scale=True, disable=None) as bar:
        for chunk in source:
            yield chunk
            bar.update(chunk.read)


def _write(writer: TokenWriter, encoded: Iterable[tuple[Chunk, EncodedChunk]], skipped: Path, stop: bool) -> Counts:
    counts = Counts()
    with open(skipped, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", "row", "value", "reason", "detail", "action"])
        for chunk, result in encoded:
            table.writerows(_report(chunk, result, stop))
            writer.append(result.tokens, result.lengths, result.digests)
            counts.add(chunk, result)
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
