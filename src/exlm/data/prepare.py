"""`exlm prepare` turns raw rows into a corpus (see `corpus.py`), a chunk at a time."""

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm import __version__
from exlm.data.chemistry import SAMPLE_SIZE, are_molecules
from exlm.data.corpus import (
    CORPUS_PARTS,
    FORMAT_VERSION,
    SPECIALS,
    CorpusWriter,
    count_name,
    describe_corpus,
)
from exlm.data.examples import (
    InvalidRow,
    PrepareOptions,
    RowTokenizer,
    TokenizedChunk,
    count_tokens,
)
from exlm.data.formats import DataFile
from exlm.data.inputs import Chunk, chunks_of_rows, find_files
from exlm.data.packing import pack
from exlm.data.problems import OnInvalid
from exlm.data.processes import map_chunks
from exlm.data.spelling import check_form
from exlm.data.tokenization import (
    ALPHABETS,
    SMILES_PATTERN,
    TEXT_TOKENIZERS,
    alphabet_name,
    letter_tokenizer,
    smiles_tokenizer,
    splits_smiles,
    train_text_tokenizer,
)
from exlm.errors import InputError, note
from exlm.storage.files import read_or_empty, write_json
from exlm.storage.manifest import MANIFEST, file_entries, new_directory
from exlm.storage.tokenizers import load_tokenizer, tokenizer_hash

DNA = frozenset("ACGTUN")  # letters of DNA and RNA, all of which are residues, too
LEARNED = ("smiles", *TEXT_TOKENIZERS)
OVERWRITE_ADVICE = ", or add --overwrite true (it replaces a corpus only)"
REPORTED_FILES = 5


def prepare(
    inputs: list[str],
    output: str,
    tokenizer: str = "smiles",
    workers: int = 0,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Tokenise molecules or text once, into a corpus that training maps into memory; returns the
    manifest.

    The result depends on inputs and options but not on `workers`. It appears at `output` only when
    complete.

    Args:
        inputs: files (.smi, .txt, .csv, .tsv, .jsonl, .fasta, .fa, .faa, .sdf, each also .gz, .xz,
            .zst; .parquet, .xlsx), directories of them (with their subfolders, but not hidden ones
            or what `exlm` wrote), Hugging Face data sets (`owner/name`,
            `owner/name/config:split`), or `-` for standard input, which is read as a .txt file
            (`-.csv`, `-.jsonl`, ... as others). Of a .smi line the first word is read, of a .txt
            file every line, unless its first line has a tab: then it is a table.
        output: directory to write.
        tokenizer: `smiles` (atom-level), `bpe` (byte-level, as RoBERTa's) and `wordpiece` (as
            uncased BERT's) learn a vocabulary from the inputs. `protein` has a token for each
            residue; rows with gaps or other characters that are no residue are invalid. Any other
            value names a saved tokenizer.
        workers: processes; 0 is one per core.
        overwrite: replace the corpus at `output`.
        options: the other settings of `PrepareOptions`."""
    if workers < 0:
        raise InputError(f"workers is {workers}; it must be 0 (one per core) or more")
    prepare_options = PrepareOptions(inputs=inputs, tokenizer=tokenizer, **options)
    if prepare_options.on_invalid is None:
        by_default: OnInvalid = "keep" if prepare_options.packed else "skip"
        prepare_options = replace(prepare_options, on_invalid=by_default)
    sources, ignored_files = find_files(inputs, prepare_options.header, prepare_options.sheet)
    is_corpus = "format_version" in read_or_empty(Path(output) / MANIFEST)
    with new_directory(Path(output), overwrite and is_corpus, OVERWRITE_ADVICE) as folder:
        manifest = _write_corpus(folder, prepare_options, sources, ignored_files, workers)
        write_json(folder / MANIFEST, manifest)
    print(describe_corpus(manifest, output))
    return manifest


def _write_corpus(
    folder: Path,
    options: PrepareOptions,
    sources: list[DataFile],
    ignored_files: list[str],
    workers: int,
) -> dict[str, Any]:
    """Writes all files of a corpus but its manifest, which it returns."""
    options, tokenizer = _find_tokenizer(options, sources, workers)
    tokenizer.save_pretrained(folder)
    # Some tokenizers skip ids.
    writer = CorpusWriter(folder, max(tokenizer.get_vocab().values()) + 1)
    counts, invalid = _write_examples(writer, options, tokenizer, sources, workers)
    lengths, duplicates = writer.write_parts(options.drop_duplicates)
    if not len(lengths["train"]):
        numbers = ", ".join(f"{n} {count_name(what)}" for what, n in (counts + invalid).items())
        raise InputError(
            f"no row is left for training ({numbers}); "
            "check text_column, the tokenizer and held_out"
        )
    files = file_entries(folder, folder.iterdir())
    hash_of_tokenizer = tokenizer_hash(tokenizer)
    names = (*writer.shards, "train.npy", "valid.npy")
    content = "\n".join([hash_of_tokenizer, *(files[name]["sha256"] for name in names)])
    libraries = {name: version(name) for name in ("rdkit", "tokenizers")}
    return {
        "format_version": FORMAT_VERSION,
        "options": asdict(options),
        "sources": [_source_entry(source) for source in sources],
        "ignored_files": len(ignored_files),
        "ignored_for_example": ignored_files[:REPORTED_FILES],
        "counts": {
            **counts,
            "invalid": dict(sorted(invalid.items())),
            "duplicates": duplicates,
            **{f"{part}_examples": len(lengths[part]) for part in CORPUS_PARTS},
            **{f"{part}_tokens": int(lengths[part].sum()) for part in CORPUS_PARTS},
        },
        "tokenizer_hash": hash_of_tokenizer,
        "corpus_hash": hashlib.sha256(content.encode()).hexdigest(),
        "vocabulary_size": writer.vocabulary_size,
        "pad_token_id": tokenizer.pad_token_id,
        "token_dtype": writer.dtype.str,
        "token_files": writer.shards,
        "versions": {"exlm": __version__, **libraries},
        "files": files,
    }


def _find_tokenizer(
    options: PrepareOptions, sources: list[DataFile], workers: int
) -> tuple[PrepareOptions, PreTrainedTokenizerFast]:
    """The tokenizer that the options name, or one that learned from the rows; and the options,
    which then say whether the rows are molecules."""
    first_texts = list(islice(_texts(chunks_of_rows(sources, options.text_column)), SAMPLE_SIZE))
    if options.tokenizer == "protein":
        _note_genes(first_texts)
    fixed_tokenizer = None
    if options.tokenizer in ALPHABETS:
        fixed_tokenizer = letter_tokenizer(options.tokenizer)
    elif options.tokenizer not in LEARNED:
        fixed_tokenizer = load_tokenizer(options.tokenizer)
    options = _decide_molecules(options, fixed_tokenizer, first_texts)
    return options, fixed_tokenizer or _learn(options, sources, workers)


def _source_entry(file: DataFile) -> dict[str, Any]:
    """What a manifest says of a file; its size is None for the hub and for standard input."""
    path = Path(file.name)
    return {
        "name": file.name,
        "reader": file.format,
        "bytes": path.stat().st_size if path.is_file() else None,
        "header": file.header,
        "sheet": file.sheet,
    }


def _decide_molecules(
    options: PrepareOptions, fixed_tokenizer: PreTrainedTokenizerFast | None, first_texts: list[str]
) -> PrepareOptions:
    """The options, which then say whether the rows are molecules. InputError if most of the first
    texts are none and the tokenizer is of SMILES, or if others shall be standardized."""
    reads_smiles = options.tokenizer == "smiles"
    reads_anything = False
    if fixed_tokenizer is not None:
        backend = fixed_tokenizer.backend_tokenizer
        reads_smiles = splits_smiles(backend)
        reads_anything = not reads_smiles and alphabet_name(backend) is None
    if reads_smiles:
        _check_smiles(first_texts)
    if options.molecules is None:
        # The first rows decide for a saved tokenizer that may read anything.
        molecules = reads_smiles or (reads_anything and are_molecules(first_texts))
        options = replace(options, molecules=molecules and not options.packed)
    check_form(options.standardize, options.molecules)
    return options


def _texts(chunks: Iterable[Chunk]) -> Iterator[str]:
    """The texts of all rows that have one."""
    return (row.text for chunk in chunks for row in chunk if row.text)


def _check_smiles(texts: list[str]) -> None:
    """Raises InputError if most texts have characters that are no part of a SMILES."""
    others = [text for text in texts if re.sub(SMILES_PATTERN, "", text)]
    if 2 * len(others) > len(texts):
        raise InputError(
            f"{len(others)} of the first {len(texts)} rows are no SMILES, such as "
            f"{others[0][:40]!r}; for text add --tokenizer bpe, for proteins --tokenizer protein, "
            "or name the column of the SMILES with --text_column"
        )


def _note_genes(texts: list[str]) -> None:
    """Says if texts that are read as proteins seem to be genes."""
    letters = "".join(texts).upper()
    if letters and DNA.issuperset(letters):
        note(
            "the first rows have letters of DNA or RNA alone, and the tokenizer protein reads each "
            "as a residue; if they are genes, translate them to proteins first"
        )


def _with_progress(chunks: Iterable[Chunk], title: str) -> Iterator[Chunk]:
    with tqdm(desc=title, unit=" rows", unit_scale=True, disable=None) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(len(chunk))


def _learn(
    options: PrepareOptions, sources: list[DataFile], workers: int
) -> PreTrainedTokenizerFast:
    """A tokenizer that learned from the rows."""
    chunks = _with_progress(chunks_of_rows(sources, options.text_column), "vocabulary")
    if options.tokenizer != "smiles":
        return train_text_tokenizer(options.tokenizer, _texts(chunks), options.vocabulary_size)
    total = Counter[str]()
    with closing(map_chunks(partial(count_tokens, options), chunks, workers)) as counted:
        for tokens in counted:
            total.update(tokens)
    return smiles_tokenizer(total)


def _write_examples(
    writer: CorpusWriter,
    options: PrepareOptions,
    tokenizer: PreTrainedTokenizerFast,
    sources: list[DataFile],
    workers: int,
) -> tuple[Counter[str], Counter[str]]:
    """Writes examples and invalid rows; returns how many rows there are, by what was done with
    them, and how many are invalid, by the reason."""
    row_tokenizer = RowTokenizer(
        str(writer.folder / "tokenizer.json"), tokenizer.unk_token_id, options
    )
    chunks = chunks_of_rows(sources, options.text_column, options.documents == "row")
    chunks = _with_progress(chunks, "tokenizing")
    counts = Counter[str]()
    invalid = Counter[str]()
    with (
        open(writer.folder / "skipped.csv", "w", newline="", encoding="utf-8") as file,
        closing(map_chunks(row_tokenizer, chunks, workers)) as tokenized,
    ):
        table = csv.writer(file)
        table.writerow(InvalidRow._fields)
        finished_chunks: Iterable[TokenizedChunk] = tokenized
        if options.packed:
            separator = tokenizer.eos_token_id if options.cross_documents else None
            finished_chunks = pack(tokenized, options.max_length - SPECIALS, separator)
        for chunk in finished_chunks:
            if chunk.invalid and options.on_invalid == "error":
                row = chunk.invalid[0]
                raise InputError(
                    f"{row.file}, row {row.row}: {row.value!r} is invalid "
                    f"({row.reason}: {row.detail}); correct it or use on_invalid=skip"
                )
            table.writerows(chunk.invalid)
            writer.append(chunk.token_ids, chunk.examples)
            counts.update(chunk.counts)
            invalid.update(row.reason for row in chunk.invalid)
    return counts, invalid
