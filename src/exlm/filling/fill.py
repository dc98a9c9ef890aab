"""`exlm fill`, from the command to its output. Every text is a record (`FilledText`), and each of
these steps returns it with more:

1. `_records` makes it from a row: with its name, or with the problem that it has.
2. `fill_records` (`texts.py`) finds fillings: the network reads the text (`graphs.py`), and a
   search finds the tokens (`search.py`; in several passes `several_passes.py`). If the text has
   sites, `fill_sites` first makes a text with masks for each choice of their lengths (`sites.py`),
   and then merges the fillings of these.
3. `judged` (`molecules.py`) says of fillings that should be molecules what is known of them.
4. `_with_usable` leaves out fillings that the command did not ask for.
5. `_write_or_print` writes the record as it is, or a row for each filling (`records.py`)."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import are_molecules, standardize
from exlm.data.columns import check_columns, choose_column, identifier_column
from exlm.data.formats import check_sheet, format_of
from exlm.data.sources import LISTS, Source, find_sources, read_rows
from exlm.data.tabular import TableOptions
from exlm.data.tokenization import alphabet_name
from exlm.errors import InputError
from exlm.filling.graphs import MASKS, TOKENS_PER_BATCH, fills_molecules, load_for_filling
from exlm.filling.molecules import judged
from exlm.filling.options import FillOptions
from exlm.filling.records import FOR_MOLECULES, WRITERS, FilledText, Filling
from exlm.filling.sites import MOST_CHOICES, Template, template_maker
from exlm.filling.texts import fill_records
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.files import check_suffix, render, replacing
from exlm.train import distributed

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
        file: a file of such texts, in place of texts, in any format that `exlm prepare` reads (with
            another ending: a text on each line), or `-` for standard input.
        output: file to write. .jsonl has a line for each text: line, text, fillings (filling, text,
            masked, tokens of each mask, probability, log_probability), exact (beam: whether it is
            proven that no more probable filling was missed), kept, passes (how many passes of the
            network it took), left_out (how many of the fillings have special tokens or, with
            valid_only, are not valid), warning, problem, and the name of the row if the file has
            names or identifiers. .csv, .parquet and .xlsx have a row for each filling, with the
            whole text in `filled` and the number of its new tokens. Of molecules they also have
            valid (whether RDKit reads it, it has no radicals, and it still contains what was to
            stay), smiles (canonical), unique (no earlier filling of this text is the same
            molecule), new (see known), qed, sa_score (1 is easy to make, 10 hard) and similarity to
            the molecule of keep or replace (Tanimoto, Morgan 2). .sdf has those that are unique
            molecules; .html and .png draw them, at most 300, with what was filled in coloured.
            Without a file, a table is printed.
        site: of molecules, how many tokens each site may have: 3-8 for all, 1=3-8 for the site
            `[*:1]`. Without keep and replace, sites are the attachment points of the SMILES (`*`,
            `[*]` or `[*:1]`); two with the same number, or one in each of two fragments, are the
            ends of a linker. Each number of tokens is filled by itself, and all are taken to be
            equally probable, as length_probability says; fillings are ranked by probability times
            length_probability. Of proteins, the residues that are free: 30-37 are those from the
            30th to the 37th, both included.
        keep: SMARTS of a part of the molecules that stays; everything else becomes sites (numbered
            in the order of the SMILES), with as many tokens as now unless site says otherwise.
        replace: SMARTS of a part of the molecules that becomes a site, with as many tokens as now
            unless site says otherwise.
        states: print the states of every mask in the first pass, or write them to a .jsonl file,
            each with the probability that a path visits it and its top words.
        tokens_per_batch: how many expanded tokens one forward pass may have (in a pre-training,
            that is tokens_per_micro_batch).
        text_column: column of a table to read; found by its name where absent.
        id_column: column of a table that names its rows, `name` in the output; found by its name
            where absent.
        header: whether a table has a header line; without it, its columns are called `column 1`,
            `column 2`, ...
        sheet: sheet of an .xlsx file; the first where absent.
        molecules: whether filled texts are SMILES. Where absent, the model knows (for older models,
            the texts decide).
        valid_only: leave out those of the n_best fillings that are not valid; no others are
            searched for them, so there may be fewer, or none.
        top: how many fillings to give for each text at most, of those of all lengths; only the
            first of several that are the same molecule.
        known: a file of molecules; `new` says whether a filling is none of them. Models do not
            keep the molecules they were trained on, so without a file it is empty. Of a workbook
            its first sheet is read; `header` is for its table, too.
        device: auto, cpu, cuda or one of several (cuda:1).
        options: the settings of `FillOptions`."""
    fill_options = FillOptions(**options)
    _check(output, states, tokens_per_batch, top)
    records = _records(file, texts, text_column, id_column, TableOptions(header, sheet=sheet))
    network, tokenizer = load_for_filling(model)
    if molecules is None:
        molecules = fills_molecules(network, tokenizer, _texts(records))
    _refuse_what_is_for_molecules(molecules, output, valid_only, known)
    known_molecules = None if known is None else _molecules_of(known, TableOptions(header))
    distributed.place_model(network, device)
    start = time.monotonic()
    if site is None and keep is None and replace is None:
        results = fill_records(network, tokenizer, records, fill_options, states, tokens_per_batch)
    else:
        letters = _is_of_letters(tokenizer, molecules)
        _refuse_what_is_for_masks(states, fill_options)
        sampled = fill_options.samples is not None
        make_template = template_maker(site, keep, replace, letters, sampled)
        results = fill_sites(
            network, tokenizer, records, make_template, fill_options, tokens_per_batch
        )
    special_tokens = set(tokenizer.all_special_tokens)
    filled_texts = []
    for filled in tqdm(results, "fill", len(records), unit="line", disable=file is None):
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


def _records(
    file: str | None,
    texts: list[str],
    text_column: str | None,
    id_column: str | None,
    table_options: TableOptions,
) -> list[FilledText]:
    """The texts of the command, or those of the file, without fillings."""
    if bool(texts) == (file is not None):
        raise InputError(
            "give either texts after the model or --file, a file with one text per line"
        )
    if file is not None:
        return _records_of(file, text_column, id_column, table_options)
    for option, value in (("id_column", id_column), ("sheet", table_options.sheet)):
        if value is not None:
            raise InputError(f"{option} is for the table of --file; leave it out")
    return [FilledText(line, text) for line, text in enumerate(texts, 1)]


def _records_of(
    file: str, text_column: str | None, id_column: str | None, table_options: TableOptions
) -> list[FilledText]:
    """A record for each row of a file, with its name if the file has a column of names."""
    if format_of(file):
        sources, _ = find_sources([file], table_options)
        source = sources[0]
    else:  # a file of another kind has a text on each line
        check_sheet(table_options.sheet, [file])
        source = Source(file, "lines", None)
    rows = list(read_rows(source, text_column))
    columns = next((row.cells for _, row in rows if row.cells), {})
    check_columns(columns, file, id_column)
    name_column = id_column or identifier_column(columns)
    # Only in a table a cell such as `NA` stands for a missing text, which `read_rows` leaves out.
    is_table = source.reader not in LISTS
    cell_column = choose_column(columns, text_column, file) if is_table and columns else None
    records: list[FilledText] = []
    for text, row in rows:
        name = row.cells.get(name_column)
        problem = row.problem or None
        cell = str(row.cells.get(cell_column) or "").strip()
        if cell and not text and not row.problem:
            text = cell
            problem = f"{cell} stands for a missing text"
        record = FilledText(
            line=len(records) + 1,
            text=text,
            problem=problem,
            name=None if name is None else str(name),
        )
        records.append(record)
    return records


def _texts(records: list[FilledText]) -> list[str]:
    """The texts that have no problem."""
    return [record.text for record in records if record.problem is None]


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


def _molecules_of(file: str, table_options: TableOptions) -> set[str]:
    """The canonical SMILES of a file. InputError if most of its first texts are no molecules."""
    texts = [text for text in _texts(_records_of(file, None, None, table_options)) if text]
    if not are_molecules(texts):
        raise InputError(f"known is {file}, which holds no molecules; give a file of SMILES")
    return {standardize(text, "canonical") for text in texts}


def _is_of_letters(tokenizer: PreTrainedTokenizerFast, molecules: bool) -> bool:
    """Whether sites are residues of proteins, and not pieces of molecules. InputError if
    neither."""
    letters = alphabet_name(tokenizer.backend_tokenizer) is not None
    if not (letters or molecules):
        raise InputError(
            "site, keep and replace are for models of molecules and proteins; "
            "write [MASK] in the texts where something is missing"
        )
    return letters


def _refuse_what_is_for_masks(states: bool, options: FillOptions) -> None:
    if states or options.all_paths:
        raise InputError(
            "states, tokens and free are for texts with masks; leave them out where site, keep or "
            "replace say what is free"
        )


def fill_sites(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    records: Sequence[FilledText],
    make_template: Callable[[str], Template],
    options: FillOptions,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> Iterator[FilledText]:
    """Yields each text with its template and the fillings of its sites, in order.

    All choices of lengths are equally probable, so fillings are ranked by their probability."""
    with_templates = [_with_template(record, make_template) for record in records]
    masked_texts: list[FilledText] = []  # for all choices of lengths, of one text after the other
    for record in with_templates:
        if record.template is not None:
            # Samples depend on these numbers, which no other text may change.
            first = (record.line - 1) * MOST_CHOICES + 1
            masked_texts += map(FilledText, count(first), record.template.masked_texts)
    filled = fill_records(
        network, tokenizer, masked_texts, options, tokens_per_batch=tokens_per_batch
    )
    for record in with_templates:
        template = record.template
        if template is None:
            yield record
        else:
            choices = list(islice(filled, len(template.masked_texts)))
            yield _merged(record, choices, template.sites_of_masks)


def _with_template(record: FilledText, make_template: Callable[[str], Template]) -> FilledText:
    """The text with its template, or with the problem that it has."""
    if record.problem is not None:
        return record
    if not record.text.strip():
        return dataclasses.replace(record, problem="empty text")
    if MASKS.search(record.text):
        problem = "it has masks, but site, keep or replace say what is free; leave out either"
        return dataclasses.replace(record, problem=problem)
    try:
        return dataclasses.replace(record, template=make_template(record.text))
    except InputError as error:
        return dataclasses.replace(record, problem=str(error))


def _merged(
    record: FilledText, choices: list[FilledText], sites_of_masks: list[list[int]]
) -> FilledText:
    """The text with the fillings of all its choices of lengths, the most probable first."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return dataclasses.replace(record, problem=problems[0])
    fillings = []
    for choice, site_of_mask in zip(choices, sites_of_masks, strict=True):
        for filling in choice.fillings:
            filling_of_site = dataclasses.replace(
                filling,
                masked=choice.text,
                site_of_mask=site_of_mask,
                length_probability=1 / len(usable),
            )
            fillings.append(filling_of_site)
    fillings.sort(key=lambda filling: -filling.log_probability)
    exact = [choice.exact for choice in usable]
    kept = [choice.kept for choice in usable if choice.kept is not None]
    passes = [choice.passes for choice in usable if choice.passes is not None]
    warnings = [choice.warning for choice in usable if choice.warning is not None]
    if problems:
        warnings.append(f"{len(problems)} of {len(choices)} choices of lengths: {problems[0]}")
    return dataclasses.replace(
        record,
        fillings=fillings,
        exact=None if None in exact else all(exact),
        kept=min(kept),
        passes=max(passes),
        warning=warnings[0] if warnings else None,
    )


def _with_usable(
    filled: FilledText, fillings: list[Filling], valid_only: bool, top: int | None
) -> FilledText:
    """The text with those of the fillings that are given: with `valid_only` the valid ones, and of
    these the `top` first different ones, or all."""
    usable = fillings
    warning = filled.warning
    if valid_only:
        usable = [x for x in fillings if x.molecule is not None and x.molecule.valid]
        if fillings and not usable:
            warning = (
                f"none of the {len(fillings)} fillings that were made is a molecule, so all were "
                "left out; no others were searched: raise --n_best"
            )
    given = usable if top is None else _different(usable)[:top]
    return dataclasses.replace(
        filled,
        fillings=given,
        left_out=len(filled.fillings) - len(usable),
        warning=warning,
    )


def _different(fillings: list[Filling]) -> list[Filling]:
    """The first of all fillings that are the same molecule, or have the same text."""
    different: dict[str, Filling] = {}
    for filling in fillings:
        smiles = None if filling.molecule is None else filling.molecule.smiles
        different.setdefault(smiles or filling.text, filling)
    return list(different.values())


def _summary(filled_texts: list[FilledText], seconds: float) -> str:
    """A sentence that counts the texts. InputError if none could be filled."""
    failed = [filled for filled in filled_texts if filled.problem is not None]
    if len(failed) == len(filled_texts):
        raise InputError(f"no text can be filled; line {failed[0].line}: {failed[0].problem}")
    warned = sum(filled.warning is not None for filled in filled_texts)
    fillings = [filling for filled in filled_texts for filling in filled.fillings]
    molecules = sum(x.molecule is not None and x.molecule.valid for x in fillings)
    left_out = sum(filled.left_out for filled in filled_texts)
    of_molecules = f", {molecules} of them valid" if molecules else ""
    first_problem = f" (line {failed[0].line}: {failed[0].problem})" if failed else ""
    others = f"; {left_out} others left out" if left_out else ""
    return (
        f"{len(filled_texts) - len(failed)} lines filled, "
        f"{len(failed)} with a problem{first_problem}, {warned} with a warning, "
        f"{len(filled_texts) / seconds:.3g} lines a second; "
        f"{len(fillings)} fillings{of_molecules}{others}"
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
