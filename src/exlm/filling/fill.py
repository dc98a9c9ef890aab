"""`exlm fill`, from the command to its output (the dataclasses are in `filled_text.py`):

1. `_read_texts` makes a `FilledText`, still without fillings, of each text or row.
2. `add_template` finds its sites, if it has some, and so its texts with masks (`templates.py`; of
   molecules `molecule_sites.py`).
3. `Filler` (`filler.py`) fills these: the network reads them (`graphs.py`), and a search finds the
   tokens (`text_search.py`, in one graph `graph_search.py`).
4. `judge` (`molecule_facts.py`) says of fillings that should be molecules what is known of them.
5. `_select` leaves out fillings that the command did not ask for.
6. One of `WRITERS` (`writers.py`) writes the others, or they are printed."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exlm.data.cell_texts import text_to_write
from exlm.data.chemistry import are_molecules, molecule_problem, standardize
from exlm.data.columns import check_columns, identifier_column
from exlm.data.drawing import drawing_module
from exlm.data.frames import read_file
from exlm.data.tokenization import alphabet_name
from exlm.errors import InputError, note
from exlm.filling.filled_text import FilledText, Filling
from exlm.filling.filler import Filler
from exlm.filling.graphs import MASKS, fills_molecules, load_for_filling
from exlm.filling.molecule_facts import judge
from exlm.filling.options import FillCommandOptions
from exlm.filling.templates import molecule_template, protein_template
from exlm.filling.writers import FOR_MOLECULES, WRITERS
from exlm.storage.files import check_suffix, replacing
from exlm.storage.templates import render
from exlm.tasks.rows.table import unlabelled_table
from exlm.train import devices

# how a filled text is printed
TABLE = Path(__file__).with_name("fillings.txt")


def fill(
    model: str, texts: list[str], output: str | None = None, device: str = "auto", **options: Any
) -> None:
    """Fills the masks of texts or SMILES, or sites of any length, jointly, and prints or writes the
    fillings with their probabilities.

    The output has every text in its place. If one has no mask or is too long, for example,
    `problem` says so.

    Args:
        model: a pre-trained model directory.
        texts: texts in which the tokenizer's mask token, or [MASK], marks every place to fill; with
            site, keep or replace, molecules or proteins without masks.
        output: file to write; without one, a table is printed. .jsonl has a line for each text:
            line, text, fillings (filling, text, masked, tokens of each mask, probability,
            log_probability; ranked by probability times length_probability), exact (whether it is
            proven that no more probable filling was missed), kept, passes (how many the network
            took), left_out (how many of the fillings have special tokens or, with valid_only, are
            not valid), warning, problem, and the name of the row if the file has names or
            identifiers. .csv, .parquet and .xlsx have a row for each filling, with the whole text
            in `filled`, the number of its new tokens, and exact. Of molecules they also have valid
            (whether RDKit reads it, it has no radicals, and it is what was to stay with something
            new at every site and nowhere else), smiles (canonical), unique (no earlier filling of
            this text is the same molecule), new (see known), qed, sa_score (1 is easy to make, 10
            hard) and similarity to the molecule of keep or replace (Tanimoto, Morgan 2). .sdf has
            the fillings that are unique molecules; .html and .png draw these, at most 300, and
            colour what was filled in.
        device: auto, cpu, cuda or one of several (cuda:1).
        options: the options of `FillCommandOptions`."""
    command = FillCommandOptions(**options)
    if output:
        check_suffix(output, WRITERS)
        if output.endswith((".html", ".png")):
            drawing_module()
        if command.states and not output.endswith(".jsonl"):
            raise InputError(
                f"{output} has no place for states; write .jsonl, or leave out output to print them"
            )
    given_texts = _read_texts(texts, command)
    network, tokenizer = load_for_filling(model)
    has_residues = alphabet_name(tokenizer.backend_tokenizer) is not None
    if command.molecules is None:
        usable_texts = [text.text for text in given_texts if text.problem is None]
        molecules = not has_residues and fills_molecules(network, tokenizer, usable_texts)
        command = replace(command, molecules=molecules)
    _refuse_what_is_not_for_the_texts(command, output, has_residues)
    known_molecules = _read_known(command)
    devices.place_model(network, device)
    if command.has_sites:
        given_texts = [add_template(text, command) for text in given_texts]
    filler = Filler(network, tokenizer, command, command.tokens_per_batch, command.states)
    results = filler.fill(given_texts)
    is_quiet = command.file is None
    special_tokens = set(tokenizer.all_special_tokens)
    filled_texts = []
    for filled in tqdm(results, "fill", len(given_texts), unit="line", disable=is_quiet):
        if command.molecules:
            filled = judge(filled, known_molecules)
        filled_texts.append(_select(filled, command, special_tokens))
    summary = _summary(filled_texts)
    if output:
        with replacing(Path(output)) as unfinished:
            WRITERS[Path(output).suffix](filled_texts, unfinished, bool(command.molecules))
        print(f"{summary}: {output}")
        _note_narrow_search(filled_texts, command)
    else:
        for filled in filled_texts:
            print(render(TABLE, **vars(filled)))


def _read_texts(texts: list[str], options: FillCommandOptions) -> list[FilledText]:
    """The texts of the command, or else the texts of the file. A text of a file has its name if the
    file has a column of names, and its problem if it cannot be filled."""
    if bool(texts) == (options.file is not None):
        raise InputError("give either texts after the model or --file")
    if options.file is None:
        of_tables = ["id_column", "sheet"]
        if options.known is None:
            of_tables += ["header", "text_column"]
        for option in of_tables:
            if getattr(options, option) != getattr(FillCommandOptions, option):
                raise InputError(f"{option} is for the table of --file; leave it out")
        return [FilledText(line, text) for line, text in enumerate(texts, 1)]
    table_rows = read_file(options.file, options.header, options.sheet)
    table = unlabelled_table(table_rows, options.file, options.text_column)
    check_columns(table.frame, options.file, options.id_column)
    name_column = options.id_column or identifier_column(table.frame)
    names = [None] * len(table.texts) if name_column is None else table.frame[name_column]
    rows = zip(table.texts, names, table.problems, strict=True)
    return [
        FilledText(line, text, text_to_write(name) or None, problem or None)
        for line, (text, name, problem) in enumerate(rows, 1)
    ]


def _refuse_what_is_not_for_the_texts(
    options: FillCommandOptions, output: str | None, has_residues: bool
) -> None:
    of_molecules = {
        "valid_only": options.valid_only,
        "known": options.known is not None,
        f"output {output}": output is not None and output.endswith(FOR_MOLECULES),
    }
    for name, is_given in of_molecules.items():
        if is_given and not options.molecules:
            raise InputError(
                f"{name} is for molecules; leave it out, or set molecules to true for SMILES"
            )
    if options.has_sites and not (options.molecules or has_residues):
        raise InputError(
            "site, keep and replace are for models of molecules and proteins; "
            "write [MASK] in the texts where something is missing"
        )


def _read_known(options: FillCommandOptions) -> set[str] | None:
    """The canonical SMILES of the file `known`, if there is one, also of ions and salts without
    their charges and counterions; a note counts what is no molecule. InputError if most of its
    first texts are no molecules."""
    file = options.known
    if file is None:
        return None
    rows = read_file(file, options.header, options.known_sheet)
    text_column = options.text_column
    if options.file is not None and text_column not in rows.frame:
        text_column = None  # only `file` has it
    table = unlabelled_table(rows, file, text_column)
    if not are_molecules(table.texts):
        raise InputError(f"known is {file}, which holds no molecules; give a file of SMILES")
    unreadable = sum(molecule_problem(text) is not None for text in table.texts)
    if unreadable:
        note(f"{unreadable} of {len(table.texts)} rows of {file} are no molecules: left out of new")
    # Only these can differ from their parents.
    salts_and_ions = [text for text in table.texts if not {".", "+", "-"}.isdisjoint(text)]
    canonical = {standardize(text, "canonical") for text in table.texts}
    return canonical | {standardize(text, "parent") for text in salts_and_ions}


def add_template(text: FilledText, options: FillCommandOptions) -> FilledText:
    """The text with the template of its sites, or with the problem that it has."""
    if text.problem is not None:
        return text
    if MASKS.search(text.text):
        problem = "it has masks, but site, keep or replace say what is free; leave out either"
        return replace(text, problem=problem)
    make_template = molecule_template if options.molecules else protein_template
    try:
        return replace(text, template=make_template(text.text, options))
    except InputError as error:
        return replace(text, problem=str(error))


def _select(
    filled: FilledText, options: FillCommandOptions, special_tokens: set[str]
) -> FilledText:
    """The text with the fillings to give. A filling with special tokens is left out, and with
    `valid_only` a filling that is not valid. Of the others, the first `top` different ones stay."""
    usable: list[Filling] = []
    for filling in filled.fillings:
        is_plain = special_tokens.isdisjoint(chain(*filling.tokens))
        if is_plain and (filling.is_valid or not options.valid_only):
            usable.append(filling)
    left_out = len(filled.fillings) - len(usable)
    warning = filled.warning
    if left_out and not usable:
        nothing_left = (
            f"all {left_out} fillings that were made have special tokens or are not valid, and "
            "were left out; no others were searched: raise --n_best"
        )
        warning = "; ".join(filter(None, [nothing_left, warning]))
    elif "\ufffd" not in filled.text and any("\ufffd" in filling.text for filling in usable):
        warning = warning or "\ufffd in a filling is a piece of a character, which is no text"
    if options.top is not None:
        different: dict[str, Filling] = {}
        for filling in usable:
            smiles = None if filling.molecule is None else filling.molecule.smiles
            different.setdefault(smiles or filling.text, filling)
        usable = list(different.values())[: options.top]
    return replace(filled, fillings=usable, left_out=left_out, warning=warning)


def _note_narrow_search(filled_texts: list[FilledText], options: FillCommandOptions) -> None:
    """Says of how many texts the search may have missed a better filling."""
    count = sum(filled.exact is False for filled in filled_texts)
    if count:
        enough = f" to {options.n_best} (--n_best) or more" if options.n_best > options.beam else ""
        note(
            f"the search kept {options.beam} at a time (--beam), so more probable fillings may be "
            f"missing in {count} of {len(filled_texts)} lines, where exact is false; raise --beam"
            f"{enough}"
        )


def _summary(filled_texts: list[FilledText]) -> str:
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
    others = f"; {left_out} others, not valid or with special tokens, left out" if left_out else ""
    return (
        f"{len(filled_texts) - len(failed)} lines filled, "
        f"{len(failed)} with a problem{first_problem}, {with_warning} with a warning; "
        f"{len(fillings)} fillings{of_them_valid}{others}"
    )
