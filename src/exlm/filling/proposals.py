"""Fillings as proposals: those of all lengths of a site ranked together, and what is known of
each molecule."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from itertools import islice
from typing import Any

from rdkit import Chem, rdBase
from rdkit.Chem import QED
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem, similarity
from exlm.data.drawing import Segment
from exlm.errors import InputError
from exlm.filling.options import FillOptions
from exlm.filling.reading import MASKS
from exlm.filling.sites import MASK, Template
from exlm.filling.texts import Record, fill_texts
from exlm.model.masked_lm import ExLMForMaskedLM

# what is known of fillings that are molecules
OF_MOLECULES = ("smiles", "unique", "new", "qed", "sa_score", "similarity")
TEMPLATES = 500  # how many are filled before the first of them is yielded


def fill_templates(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    make_template: Callable[[str], Template],
    options: FillOptions,
    tokens_per_batch: int = 4096,
) -> Iterator[tuple[Record, Template | None]]:
    """Yields a record for each text with sites, in order, and its template, None with a problem.

    All choices of lengths are equally probable; with `free`, the model fills the most masks that
    the sites may have with as many tokens as they may have together, and says how probable each
    number is. Fillings are ranked by their probability times that of their length."""
    remaining = iter(texts)
    line = first_masked = 1
    # with `free`, each text has numbers of tokens of its own
    size = 1 if options.free else TEMPLATES
    while batch := list(islice(remaining, size)):
        outcomes = [_template_or_problem(make_template, text) for text in batch]
        masked = list[str]()
        for template in outcomes:
            if isinstance(template, Template):
                masked += template.masked_texts(longest_only=options.free)
        of_batch = options
        if options.free:
            (template,) = outcomes
            of_batch = _with_lengths(options, template)
        records = fill_texts(
            network,
            tokenizer,
            masked,
            of_batch,
            tokens_per_batch=tokens_per_batch,
            first_line=first_masked,
        )
        first_masked += len(masked)
        for text, template in zip(batch, outcomes, strict=True):
            if isinstance(template, str):
                yield _merged([], template, line, text), None
            else:
                choices = len(template.masked_texts(longest_only=options.free))
                yield _merged(list(islice(records, choices)), None, line, text), template
            line += 1


def _template_or_problem(make_template: Callable[[str], Template], text: str) -> Template | str:
    if MASKS.search(text):
        return "it has masks, but site, keep or replace say what is free; leave out either"
    try:
        return make_template(text)
    except InputError as error:
        return str(error)


def _with_lengths(options: FillOptions, template: Template | str) -> FillOptions:
    """The options with the numbers of tokens that all sites of a template may have together."""
    if isinstance(template, str):
        return options
    fewest = sum(lengths[0] for lengths in template.sites)
    most = sum(lengths[-1] for lengths in template.sites)
    return replace(options, tokens=f"{fewest}-{most}")


def _merged(records: list[Record], problem: str | None, line: int, text: str) -> Record:
    """One record from those of all choices of lengths."""
    usable = [record for record in records if record["problem"] is None]
    problems = [record["problem"] for record in records if record["problem"]]
    fillings = []
    for record in usable:
        for entry in record["fillings"]:
            length_probability = entry.get("length_probability", 1 / len(usable))
            fillings.append(
                {**entry, "masked": record["text"], "length_probability": length_probability}
            )
    fillings.sort(key=lambda entry: -entry["probability"] * entry["length_probability"])
    warnings = [record["warning"] for record in usable if record["warning"]]
    if usable and problems:
        warnings.append(f"{len(problems)} of {len(records)} choices of lengths: {problems[0]}")
    exact = [record["exact"] for record in usable]
    shares = [record["kept"] for record in usable]
    return {
        "line": line,
        "text": text,
        "fillings": fillings,
        "exact": None if not exact or None in exact else all(exact),
        "kept": None if not shares or None in shares else min(shares),
        "passes": max((record["passes"] for record in usable), default=None),
        "warning": warnings[0] if warnings else None,
        "problem": None if usable else (problem or problems[0]),
    }


def segments_of(record: Record, entry: Record, tokenizer: PreTrainedTokenizerFast) -> list[Segment]:
    """The filled text of an entry of a record in parts, in order. Masks side by side are one
    site."""
    masked = entry["masked"] if "masked" in entry else record["text"]
    outside, *others = MASKS.split(masked.replace(str(tokenizer.mask_token), MASK))
    segments: list[Segment] = [(outside, None)]
    site = 0
    for tokens, text_behind in zip(entry["tokens"], others, strict=True):
        segments.append((tokenizer.convert_tokens_to_string(tokens), site))
        segments.append((text_behind, None))
        if text_behind.strip():
            site += 1
    return segments


def with_fillings(record: Record, tokenizer: PreTrainedTokenizerFast) -> Record:
    """The record where every filling has `filling`: what fills each site, with a space between two
    of them."""
    fillings = []
    for entry in record["fillings"]:
        sites = defaultdict[int, str](str)
        for text, site in segments_of(record, entry, tokenizer):
            if site is not None:
                sites[site] += text
        filling = " ".join(text.strip() for text in sites.values())
        fillings.append({"filling": filling, **entry})
    return {**record, "fillings": fillings}


def judged(record: Record, template: Template | None, known: Set[str] | None) -> Record:
    """The record where every filling has `valid`, and `smiles` (canonical), `unique`, `new`, `qed`,
    `sa_score` and `similarity`, which are None unless it is a molecule.

    Args:
        template: what the texts were made from, if they were. A filling that breaks what stays, or
            is in more pieces, is not valid.
        known: the canonical SMILES of molecules that are not new; None: nothing is known of it."""
    from rdkit.Contrib.SA_Score import sascorer  # reads a table of fragments first

    original = template.original if template else None
    before = set[str]()
    fillings = []
    for entry in record["fillings"]:
        molecule = _molecule(entry["text"], template)
        properties: dict[str, Any] = {"valid": molecule is not None, **dict.fromkeys(OF_MOLECULES)}
        if molecule is not None:
            smiles = Chem.MolToSmiles(molecule)
            properties["smiles"] = smiles
            properties["unique"] = smiles not in before
            properties["new"] = None if known is None else smiles not in known
            properties["qed"] = round(QED.qed(molecule), 3)
            properties["sa_score"] = round(sascorer.calculateScore(molecule), 2)
            if original is not None:
                properties["similarity"] = round(similarity(smiles, original), 3)
            before.add(smiles)
        fillings.append({**entry, **properties})
    return {**record, "fillings": fillings}


def _molecule(smiles: str, template: Template | None) -> Chem.Mol | None:
    """The molecule, if it is one without radicals that contains what stays of a template, in as
    many pieces."""
    if molecule_problem(smiles) is not None:
        return None
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if any(atom.GetNumRadicalElectrons() for atom in molecule.GetAtoms()):
        return None
    if template is None or template.core is None:
        return molecule
    pieces = 1 + sum(part.count(".") for part in template.parts if isinstance(part, str))
    is_whole = len(Chem.GetMolFrags(molecule)) == pieces
    return molecule if is_whole and molecule.HasSubstructMatch(template.core) else None
