"""Fills all masks of a text together, or those of every line of a file. `exlm.filling.search` does
the search."""

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from jinja2 import Template
from tqdm import tqdm

from exlm.data.chemistry import molecule_problem
from exlm.data.formats import format_of
from exlm.data.sources import Source, find_sources, read_rows
from exlm.errors import InputError
from exlm.filling.options import FillOptions
from exlm.filling.reading import fills_molecules, load_for_filling
from exlm.filling.texts import Record, fill_texts
from exlm.storage.files import replacing
from exlm.train import distributed

# how a record is printed
TABLE = Template(Path(__file__).with_name("fillings.txt").read_text(encoding="utf-8"))


def fill(
    model: str,
    texts: list[str],
    file: str | None = None,
    output: str | None = None,
    states: bool = False,
    tokens_per_batch: int = 4096,
    text_column: str | None = None,
    header: bool = True,
    molecules: bool | None = None,
    valid_only: bool = False,
    device: str = "auto",
    **options: Any,
) -> None:
    """Fills the masks of texts or SMILES jointly and prints or writes the fillings with their
    probabilities.

    The output has every text in its place. If one has no mask or is too long, for example,
    `problem` says so.

    Args:
        model: a pre-trained model directory.
        texts: texts in which the tokenizer's mask token, or [MASK], marks every place to fill.
        file: a file of such texts, in place of texts, in any format that `exlm prepare` reads (with
            another ending: a text on each line), or `-` for standard input.
        output: JSONL file to write: line, text, fillings (text, tokens of each mask, probability,
            log_probability), exact (beam: whether it is proven that no more probable filling was
            missed), kept, passes (how many passes of the network it took), warning and problem.
            Fillings of molecules also have valid: whether RDKit reads them. Without a file, a table
            is printed.
        states: add the states of every mask in the first pass, each with the probability that a
            path visits it and its top words.
        tokens_per_batch: how many expanded tokens one forward pass may have.
        text_column: column of a table to read; found by its name where absent.
        header: whether a table has a header line; without it, its columns are called `column 1`,
            `column 2`, ...
        molecules: whether filled texts are SMILES. Where absent, the model knows (for older models,
            the texts decide).
        valid_only: leave out those of the n_best fillings that are no molecule; no others are
            searched for them, so there may be fewer, or none.
        device: auto, cpu, cuda or one of several (cuda:1).
        options: the settings of `FillOptions`."""
    fill_options = FillOptions(**options)
    if bool(texts) == (file is not None):
        raise InputError(
            "give either texts after the model or --file, a file with one text per line"
        )
    if output and Path(output).suffix != ".jsonl":
        raise InputError(f"cannot write {output}; the name must end in .jsonl")
    if tokens_per_batch < 1:
        raise InputError(f"tokens_per_batch is {tokens_per_batch}; it must be at least 1")
    if file is not None:
        texts = _texts_of(file, text_column, header)
    network, tokenizer = load_for_filling(model)
    if molecules is None:
        molecules = fills_molecules(network, tokenizer, texts)
    if valid_only and not molecules:
        raise InputError(
            "valid_only is for molecules; set molecules to true if the texts are SMILES"
        )
    distributed.place_model(network, device)
    filled = fill_texts(network, tokenizer, texts, fill_options, states, tokens_per_batch)
    if molecules:
        filled = map(_mark_molecules, filled)
    if valid_only:
        filled = map(_drop_invalid, filled)
    records = tqdm(filled, "fill", len(texts), unit="line", disable=file is None)
    if not output:
        _write(records, sys.stdout, TABLE.render)
        return
    with replacing(Path(output)) as unfinished, unfinished.open("w", encoding="utf-8") as stream:
        summary = _write(records, stream, partial(json.dumps, ensure_ascii=False))
    print(f"{summary}: {output}")


def _texts_of(file: str, text_column: str | None, header: bool) -> list[str]:
    # a file of another kind has a text on each line
    source = Source(file, "lines", None)
    if format_of(file):
        sources, _ = find_sources([file], header)
        source = sources[0]
    return [text for text, _ in read_rows(source, text_column)]


def _write(records: Iterable[Record], stream: TextIO, render: Callable[[Record], str]) -> str:
    """Writes records as they come, each in the form that `render` gives it. Returns a sentence that
    counts them. InputError if none can be filled."""
    problems: list[str | None] = []
    warnings = 0
    for record in records:
        print(render(record), file=stream)
        problems.append(record["problem"])
        warnings += record["warning"] is not None
    filled = problems.count(None)
    if not filled:
        raise InputError(
            "no text can be filled (write [MASK] where something is missing); "
            f"line 1: {problems[0]}"
        )
    failed = len(problems) - filled
    return f"{filled} lines filled, {failed} with a problem, {warnings} with a warning"


def _mark_molecules(record: Record) -> Record:
    """The record where `valid` says of every filling whether it is a molecule."""
    fillings = []
    for entry in record["fillings"]:
        fillings.append({**entry, "valid": molecule_problem(entry["text"]) is None})
    return {**record, "fillings": fillings}


def _drop_invalid(record: Record) -> Record:
    """The record without fillings that are no molecule, with a warning if none is left."""
    valid = [entry for entry in record["fillings"] if entry["valid"]]
    if valid or not record["fillings"]:
        return {**record, "fillings": valid}
    warning = (
        f"none of the {len(record['fillings'])} fillings that were made is a molecule, so all were "
        "left out; no others were searched: raise --n_best"
    )
    return {**record, "fillings": [], "warning": warning}
