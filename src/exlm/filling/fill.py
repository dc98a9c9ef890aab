"""`exlm fill`, from the command to its output (the dataclasses are in `results.py`):

1. `texts_to_fill` (`reading.py`) makes a `FilledText` of a row, with its name and its problem.
2. `Filler` (`filler.py`) adds the fillings: the network reads the text (`graphs.py`), and a search
   finds the tokens (`search.py`; in several passes `several_passes.py`). If the text has sites,
   `fill_sites` (`sites.py`) does this for each choice of their lengths.
3. `judged` (`molecules.py`) says of fillings that should be molecules what is known of them.
4. `_with_usable` leaves out fillings that the command did not ask for.
5. `_write_or_print` writes it (`writers.py`)."""

import dataclasses
import time
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exlm.data.tabular import TableOptions
from exlm.data.tokenization import alphabet_name
from exlm.errors import InputError
from exlm.filling.filler import Filler
from exlm.filling.graphs import TOKENS_PER_BATCH, fills_molecules, load_for_filling
from exlm.filling.molecules import judged
from exlm.filling.options import FillOptions
from exlm.filling.reading import read_known, texts_to_fill
from exlm.filling.results import FilledText, Filling
from exlm.filling.sites import fill_sites, template_maker
from exlm.filling.writers import FOR_MOLECULES, WRITERS
from exlm.storage.files import check_suffix, render, replacing
from exlm.train import devices

# how a filled text is printed
TABLE = Path(__file__).with_name("fillings.txt")


def fill(
    model: str,
    texts: list[str],
    file: str | None = None,
    output: str | None = None,
    site: list[str] | None = None,
    keep: str | None = None,
    replace: str | None = None,
    states: bool = False,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    text_column: str | None = None,
    id_column: str | None = None,
    header: bool = True,
    sheet: str | None = None,
    molecules: bool | None = None,
    valid_only: bool = False,
    top: int | None = None,
    known: str | None = None,
    known_sheet: str | None = None,
    device: str = "auto",
    **options: Any,
) -> None:
    """Fills the masks of texts or SMILES, or sites of any length, jointly, and prints or writes the
    fillings with their probabilities.

    The output has every text in its place. If one has no mask or is too long, for example,
    `problem` says so.

    Args:
        model: a pre-trained model directory.
        texts: texts in which the tokenizer's mask token, or [MASK], marks every place to fill; with
            site, keep or replace, molecules or proteins without masks.
        file: a file of such texts, in place of texts, in any format that `exlm prepare` reads, or
            `-` for standard input.
        output: file to write; without one, a table is printed. .jsonl has a line for each text:
            line, text, fillings (filling, text, masked, tokens of each mask, probability,
            log_probability; ranked by probability times length_probability), exact (whether it is
            proven that no more probable filling was missed), kept, passes (how many the network
            took), left_out (how many of the fillings have special tokens or, with valid_only, are
            not valid), warning, problem, and the name of the row if the file has names or
            identifiers. .csv, .parquet and .xlsx have a row for each filling, with the whole text
            in `filled` and the number of its new tokens. Of molecules they also have valid (whether
            RDKit reads it, it has no radicals, and it is what was to stay with something new at
            every site and nowhere else), smiles (canonical), unique (no earlier filling of this
            text is the same molecule), new (see known), qed, sa_score (1 is easy to make, 10 hard)
            and similarity to the molecule of keep or replace (Tanimoto, Morgan 2). .sdf has those
            that are unique molecules; .html and .png draw them, at most 300, with what was filled
            in coloured.
        site: of molecules, how many tokens each site may have: 3-8 for all, 1=3-8 for the site
            `[*:1]`. Without keep and replace, sites are the attachment points of the SMILES (`*`,
            `[*]` or `[*:1]`); two with the same number, or one in each of two fragments, are the
            ends of a linker. Each number of tokens is filled by itself, and all are taken to be
            equally probable, as length_probability says. Of proteins, the residues that are free:
            30-37 are those from the 30th to the 37th, both included.
        keep: SMARTS of a piece of the molecules that stays; everything else becomes sites (numbered
            in the order of the SMILES), with as many tokens as now unless site says otherwise.
        replace: SMARTS of a piece of the molecules that becomes such a site.
        states: print the states of every mask in the first pass, or write them to a .jsonl file,
            each with the probability that a path visits it and its top tokens (`words`).
        tokens_per_batch: how many expanded tokens one forward pass may have (in a pre-training,
            that is tokens_per_micro_batch).
        text_column: column of a table to read; found by its name where absent.
        id_column: column of a table that names its rows; found by its name where absent.
        header: whether a table has a header line; else its columns are `column 1`, `column 2`, ...
        sheet: sheet of an .xlsx file; the first where absent.
        molecules: whether filled texts are SMILES. Where absent, the model knows (for older models,
            the texts decide).
        valid_only: leave out those of the n_best fillings that are not valid; no others are
            searched for them, so there may be fewer, or none.
        top: how many fillings to give for each text at most: the most probable of all lengths,
            and only the first of several that are the same molecule.
        known: a file of molecules, read as `header` says; `new` says whether a filling is none of
            them. Without it `new` is empty: models do not keep the molecules of their training.
        known_sheet: sheet of known, an .xlsx file; the first where absent.
        device: auto, cpu, cuda or one of several (cuda:1).
        options: the settings of `FillOptions`."""
    fill_options = FillOptions(**options)
    _check(output, states, tokens_per_batch, top)
    rows = texts_to_fill(file, texts, text_column, id_column, TableOptions(header, sheet=sheet))
    network, tokenizer = load_for_filling(model)
    if molecules is None:
        usable_texts = [row.text for row in rows if row.problem is None]
        molecules = fills_molecules(network, tokenizer, usable_texts)
    _refuse_what_is_for_molecules(molecules, output, valid_only, known)
    known_molecules = read_known(known, TableOptions(header, sheet=known_sheet))
    devices.place_model(network, device)
    start = time.monotonic()
    filler = Filler(network, tokenizer, fill_options, tokens_per_batch)
    if site is None and keep is None and replace is None:
        results = filler.fill(rows, states)
    else:
        proteins = alphabet_name(tokenizer.backend_tokenizer) is not None
        _check_for_sites(proteins or molecules, states, fill_options)
        sampled = fill_options.samples is not None
        make_template = template_maker(site, keep, replace, proteins, sampled)
        results = fill_sites(filler, rows, make_template)
    special_tokens = set(tokenizer.all_special_tokens)
    filled_texts = []
    for filled in tqdm(results, "fill", len(rows), unit="line", disable=file is None):
        fillings = [x for x in filled.fillings if special_tokens.isdisjoint(chain(*x.tokens))]
        if molecules:
            fillings = judged(fillings, filled.template, known_molecules)
        filled_texts.append(_with_usable(filled, fillings, valid_only, top))
    _write_or_print(filled_texts, output, molecules, time.monotonic() - start)


def _check(output: str | None, states: bool, tokens_per_batch: int, top: int | None) -> None:
    if output:
        check_suffix(output, WRITERS)
        if states and not output.endswith(".jsonl"):
            raise InputError(
                f"{output} has no place for states; write .jsonl, or leave out output to print them"
            )
    for name, value in (("tokens_per_batch", tokens_per_batch), ("top", top)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")


def _refuse_what_is_for_molecules(
    molecules: bool, output: str | None, valid_only: bool, known: str | None
) -> None:
    of_molecules = {
        "valid_only": valid_only,
        "known": known is not None,
        f"output {output}": output is not None and output.endswith(FOR_MOLECULES),
    }
    for name, is_given in of_molecules.items():
        if is_given and not molecules:
            raise InputError(
                f"{name} is for molecules; set molecules to true if the texts are SMILES"
            )


def _check_for_sites(has_sites: bool, states: bool, options: FillOptions) -> None:
    """Raises InputError for options that are for masks alone, and if the texts of the model cannot
    have sites."""
    if states or options.all_paths:
        raise InputError(
            "states, tokens and free are for texts with masks; leave them out where site, keep or "
            "replace say what is free"
        )
    if not has_sites:
        raise InputError(
            "site, keep and replace are for models of molecules and proteins; "
            "write [MASK] in the texts where something is missing"
        )


def _with_usable(
    filled: FilledText, fillings: list[Filling], valid_only: bool, top: int | None
) -> FilledText:
    """The text with those of the fillings that are given: with `valid_only` the valid ones, and of
    these the `top` first different molecules or texts, or all."""
    usable = [filling for filling in fillings if filling.is_valid or not valid_only]
    left_out = len(filled.fillings) - len(usable)
    warning = filled.warning
    if filled.fillings and not usable:
        made = len(fillings or filled.fillings)
        is_none = "is a molecule" if fillings else "is without special tokens"
        warning = (
            f"none of the {made} fillings that were made {is_none}, so all were "
            "left out; no others were searched: raise --n_best"
        )
    if top is not None:
        different: dict[str, Filling] = {}
        for filling in usable:
            smiles = None if filling.molecule is None else filling.molecule.smiles
            different.setdefault(smiles or filling.text, filling)
        usable = list(different.values())[:top]
    return dataclasses.replace(filled, fillings=usable, left_out=left_out, warning=warning)


def _summary(filled_texts: list[FilledText], seconds: float) -> str:
    """A sentence that counts the texts. InputError if none could be filled."""
    failed = [filled for filled in filled_texts if filled.problem is not None]
    if len(failed) == len(filled_texts):
        raise InputError(f"no text can be filled; line {failed[0].line}: {failed[0].problem}")
    with_warning = sum(filled.warning is not None for filled in filled_texts)
    fillings = [filling for filled in filled_texts for filling in filled.fillings]
    valid = sum(filling.is_valid for filling in fillings)
    left_out = sum(filled.left_out for filled in filled_texts)
    of_them_valid = f", {valid} of them valid" if valid else ""
    first_problem = f" (line {failed[0].line}: {failed[0].problem})" if failed else ""
    others = ""
    if left_out:
        others = f"; {left_out} others, not valid or with special tokens, left out"
    return (
        f"{len(filled_texts) - len(failed)} lines filled, "
        f"{len(failed)} with a problem{first_problem}, {with_warning} with a warning, "
        f"{len(filled_texts) / seconds:.3g} lines a second; "
        f"{len(fillings)} fillings{of_them_valid}{others}"
    )


def _write_or_print(
    filled_texts: list[FilledText], output: str | None, molecules: bool, seconds: float
) -> None:
    summary = _summary(filled_texts, seconds)
    if output:
        with replacing(Path(output)) as unfinished:
            WRITERS[Path(output).suffix](filled_texts, unfinished, molecules)
        print(f"{summary}: {output}")
    else:
        for filled in filled_texts:
            print(render(TABLE, **vars(filled)))
