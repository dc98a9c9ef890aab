"""`exlm prepare`: raw rows to a corpus (see `corpus.py`), in constant memory.

Three steps: rows are read in chunks, chunks are encoded in several processes, and examples are written in order.
"""

import csv
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
from .corpus import FORMAT_VERSION, CorpusWriter, new_directory
from .encoding import SPECIALS, Chunk, EncodedChunk, Encoder, InvalidRow, count_smiles, map_chunks, read_chunks
from .packing import Documents, pack
from .readers import find_sources
from .summary import Summary, describe
from .tokenization import TEXT_TOKENIZERS, smiles_tokenizer, train_text_tokenizer

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
        column: of tables; by default the only one called smiles, mol or text.
        max_length: tokens per example, BOS and EOS included; longer rows are never kept, unless they are packed.
        held_out: share of the examples for validation, chosen by content: equal rows are in the same split. Packed
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
        check_molecules = tokenizer not in TEXT_TOKENIZERS and not packed
    options = _options(locals())
    sources, ignored = find_sources(inputs)
    read = partial(read_chunks, sources, column, documents == "row")
    with new_directory(Path(output), overwrite) as (folder, staging):
        molecules_only = check_molecules and on_invalid != "keep"
        vocabulary, rows = _vocabulary(tokenizer, vocabulary_size, read, molecules_only, workers)
        vocabulary.save_pretrained(folder)
        longest = sys.maxsize if packed else max_length
        unknown, keep = vocabulary.unk_token_id, on_invalid == "keep"
        encoder = Encoder(str(folder / "tokenizer.json"), unknown, longest, check_molecules, keep)
        ids = max(vocabulary.get_vocab().values()) + 1  # some tokenizers skip ids
        writer = CorpusWriter(folder, staging, ids, held_out, seed)
        with (
            _progress("tokenising", rows) as bar,
            closing(map_chunks(encoder, _counted(read(), bar), workers)) as encoded,
        ):
            separator = vocabulary.eos_token_id if cross_documents else None
            examples = pack(encoded, max_length - SPECIALS, separator, held_out, seed) if packed else encoded
            summary = _write(writer, examples, folder / "skipped.csv", stop=on_invalid == "error")
        if drop_duplicates:
            writer.drop_duplicates()
        histograms = writer.write_splits(max_length)
        manifest = {
            "format_version": FORMAT_VERSION,
            "options": options,
            "sources": [asdict(source) for source in sources],
            "ignored_files": ignored,
            **summary.statistics(writer.examples, histograms),
            **_identity(folder, writer, vocabulary),
        }
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
    return {k: v for k, v in arguments.items() if k not in ("output", "workers", "overwrite", "packed")}


def _progress(title: str, rows: float | None = None) -> tqdm:
    return tqdm(desc=title, total=rows, unit=" rows", unit_scale=True, disable=None)


def _counted(source: Iterable[Chunk], bar: tqdm) -> Iterator[Chunk]:
    for chunk in source:
        yield chunk
        bar.update(chunk.total)


def _vocabulary(
    name: str, size: int, read: Callable[[], Iterator[Chunk]], molecules_only: bool, workers: int
) -> tuple[PreTrainedTokenizerFast, float | None]:
    """The tokenizer called `name`, and the number of all rows if they had to be read for it."""
    if name != "smiles" and name not in TEXT_TOKENIZERS:
        return load_tokenizer(name), None
    with _progress("vocabulary") as bar:
        chunks = _counted(read(), bar)
        if name in TEXT_TOKENIZERS:
            return train_text_tokenizer(name, (text for chunk in chunks for text in chunk.texts), size), bar.n
        counts: Counter[str] = Counter()
        with closing(map_chunks(partial(count_smiles, molecules_only), chunks, workers)) as counted:
            for found in counted:
                counts.update(found)
        return smiles_tokenizer(counts), bar.n


def _write(writer: CorpusWriter, chunks: Iterable[EncodedChunk], skipped: Path, stop: bool) -> Summary:
    """Writes examples, and a table of the invalid rows. With `stop`, the first of them is an InputError."""
    summary = Summary()
    with open(skipped, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(InvalidRow._fields)
        for chunk in chunks:
            if stop and chunk.invalid:
                row = chunk.invalid[0]
                raise InputError(
                    f"{row.file}, row {row.row}: {row.value!r} is invalid ({row.reason}: {row.detail}); "
                    "correct it or use on_invalid=skip"
                )
            table.writerows(chunk.invalid)
            writer.append(chunk.tokens, chunk.lengths, chunk.digests)
            summary.add(chunk)
    return summary


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
