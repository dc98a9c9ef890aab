"""`exlm prepare`: raw rows to a corpus (see `corpus.py`), in constant memory.

Three steps: rows are read in chunks, chunks are encoded in several processes, and examples are written in order.
"""

import csv
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from ..errors import InputError
from ..pretrained import load_tokenizer, tokenizer_hash
from ..storage import MANIFEST, entries
from .chemistry import are_molecules
from .corpus import FORMAT_VERSION, CorpusWriter, new_directory
from .encoding import SKIPPED_COLUMNS, SPECIALS, Chunk, EncodedChunk, Encoder, count_smiles, map_chunks, read_chunks
from .packing import Documents, pack
from .readers import find_sources
from .summary import describe, statistics
from .tokenization import TEXT_TOKENIZERS, smiles_tokenizer, splits_smiles, train_text_tokenizer

OnInvalid = Literal["error", "skip", "keep"]
MAX_STRINGS = 20_000  # different unknown or spelled strings that are counted at a time


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
        column: of tables; by default the only one called smiles, mol or text.
        max_length: tokens per example, BOS and EOS included; longer rows are never kept, unless they are packed.
        held_out: share of the examples for validation, chosen by content: equal rows are in the same split. Packed
            documents are held out whole, chosen by their first row.
        drop_duplicates: keep only the first of equal rows.
        on_invalid: stop at the first invalid row, skip invalid rows, or keep them (with `<unk>` tokens). By default
            they are skipped, but kept where rows are packed.
        check_molecules: a row must be SMILES that RDKit reads and that decodes to itself. By default on for SMILES
            tokenizers, off for bpe and wordpiece and where rows are packed; for other saved tokenizers the first rows
            decide.
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
    """
    on_invalid = on_invalid or ("skip" if documents == "none" else "keep")
    options = {name: value for name, value in locals().items() if name not in ("output", "workers", "overwrite")}
    _check_options(options, workers)
    sources, ignored = find_sources(inputs)
    packed, keep = documents != "none", on_invalid == "keep"
    passes: list[int] = []  # rows of every pass over the inputs so far

    def read(title: str) -> Iterator[Chunk]:
        total = passes[0] if passes else None
        with tqdm(desc=title, total=total, unit=" rows", unit_scale=True, disable=None) as bar:
            for chunk in read_chunks(sources, column, documents == "row"):
                yield chunk
                bar.update(len(chunk))
            passes.append(int(bar.n))

    with new_directory(Path(output), overwrite) as (folder, scratch):
        vocabulary = None if tokenizer in ("smiles", *TEXT_TOKENIZERS) else load_tokenizer(tokenizer)
        if check_molecules is None:
            sample = (row.text for chunk in read_chunks(sources, column) for row in chunk)
            molecules = _are_molecules(vocabulary, sample) if vocabulary and not packed else tokenizer == "smiles"
            check_molecules = molecules and not packed
        options["check_molecules"] = check_molecules
        if tokenizer in TEXT_TOKENIZERS:
            texts = (row.text for chunk in read("vocabulary") for row in chunk if row.text)
            vocabulary = train_text_tokenizer(tokenizer, texts, vocabulary_size)
        elif not vocabulary:
            count = partial(count_smiles, check_molecules and not keep)
            with closing(map_chunks(count, read("vocabulary"), workers)) as counted:
                vocabulary = smiles_tokenizer(sum(counted, Counter()))
        vocabulary.save_pretrained(folder)
        file, longest = str(folder / "tokenizer.json"), sys.maxsize if packed else max_length
        encoder = Encoder(file, vocabulary.unk_token_id, longest, check_molecules, keep, held_out, seed)
        writer = CorpusWriter(folder, scratch / "staged", max(vocabulary.get_vocab().values()) + 1)  # some skip ids
        with closing(map_chunks(encoder, read("tokenising"), workers)) as encoded:
            separator = vocabulary.eos_token_id if cross_documents else None
            examples = pack(encoded, max_length - SPECIALS, separator) if packed else encoded
            counts = _write(writer, examples, folder / "skipped.csv", stop=on_invalid == "error")
        if drop_duplicates and writer.examples:
            writer.drop_duplicates()
        histograms = writer.write_splits(max_length)
        manifest = {
            "format_version": FORMAT_VERSION,
            "options": options,
            "sources": [asdict(source) for source in sources],
            "ignored_files": ignored,
            **statistics(counts, writer.examples, histograms),
            **_identity(folder, writer, vocabulary),
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")
    print(describe(manifest, output))
    return manifest


def _check_options(options: dict[str, Any], workers: int) -> None:
    if not 0 <= options["held_out"] < 1:
        raise InputError(f"held_out is {options['held_out']} but must be at least 0 and less than 1")
    if options["max_length"] <= SPECIALS:
        raise InputError(f"max_length is {options['max_length']} but must be at least {SPECIALS + 1}")
    for name, kind in (("on_invalid", OnInvalid), ("documents", Documents)):
        if options[name] not in get_args(kind):
            raise InputError(f"{name} is {options[name]} but must be one of {', '.join(get_args(kind))}")
    if workers < 0:
        raise InputError(f"workers is {workers} but must be 0 (one per core) or more")
    if options["documents"] != "none" and options["drop_duplicates"]:
        raise InputError("drop_duplicates compares rows, but these are packed; leave it out or use documents=none")


def _are_molecules(tokenizer: PreTrainedTokenizerFast, rows: Iterable[str]) -> bool:
    """Whether rows are to be checked as molecules: a SMILES tokenizer says so, or else the first rows."""
    if splits_smiles(tokenizer.backend_tokenizer):
        return True
    found = are_molecules(rows)
    print(f"the first rows {'are' if found else 'are not'} molecules, so check_molecules is {str(found).lower()}")
    return found


def _write(writer: CorpusWriter, chunks: Iterable[EncodedChunk], skipped: Path, stop: bool) -> dict[str, Counter[str]]:
    """Writes examples, and a table of the invalid rows. With `stop`, the first of them is an InputError.

    Returns the counts of all chunks; of very many different strings, the most frequent ones.
    """
    counts: dict[str, Counter[str]] = {}
    with open(skipped, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(SKIPPED_COLUMNS)
        for chunk in chunks:
            if stop and chunk.invalid:
                name, row, value, reason, detail, _ = chunk.invalid[0]
                raise InputError(
                    f"{name}, row {row}: {value!r} is invalid ({reason}: {detail}); correct it or use on_invalid=skip"
                )
            table.writerows(chunk.invalid)
            writer.append(chunk.tokens, chunk.examples)
            for kind, found in chunk.counts.items():
                total = counts.get(kind, Counter()) + found
                most = total.most_common(MAX_STRINGS // 2) if len(total) > MAX_STRINGS else total
                counts[kind] = Counter(dict(most))
    return counts


def _identity(folder: Path, writer: CorpusWriter, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What tells this corpus from others, and what a reader needs to open its files."""
    files = entries(folder.iterdir())
    fingerprint = tokenizer_hash(tokenizer)
    content = [files[name]["sha256"] for name in (*writer.shards, "train.npy", "valid.npy")]
    return {
        "tokenizer_hash": fingerprint,
        "corpus_hash": hashlib.sha256("\n".join([fingerprint, *content]).encode()).hexdigest(),
        "vocabulary_size": writer.vocabulary_size,
        "pad_token_id": tokenizer.pad_token_id,
        "token_dtype": writer.dtype.str,
        "token_files": writer.shards,
        "versions": {package: version(package) for package in ("exlm", "rdkit", "tokenizers")},
        "files": files,
    }
