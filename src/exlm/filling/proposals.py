"""Fillings as proposals: those of all lengths of a site ranked together, and what is known of
each molecule."""

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from itertools import islice

from rdkit import Chem, rdBase
from rdkit.Chem import QED
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem, similarity
from exlm.errors import InputError
from exlm.filling.graphs import MASKS, TOKENS_PER_BATCH
from exlm.filling.options import FillOptions
from exlm.filling.records import FilledText, Filling, Molecule
from exlm.filling.sites import Template
from exlm.filling.texts import fill_texts
from exlm.model.masked_lm import ExLMForMaskedLM


def fill_templates(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    make_template: Callable[[str], Template],
    options: FillOptions,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> Iterator[FilledText]:
    """Yields each text with sites, with its template and its fillings, in order.

    All choices of lengths are equally probable, so fillings are ranked by their probability."""
    empty_texts = []
    masked_texts: list[str] = []  # for all choices of lengths, of one text after the other
    for line, text in enumerate(texts, 1):
        empty = _with_template(make_template, line, text)
        empty_texts.append(empty)
        masked_texts += empty.template.masked_texts if empty.template else []
    filled = fill_texts(
        network, tokenizer, masked_texts, options, tokens_per_batch=tokens_per_batch
    )
    for empty in empty_texts:
        if empty.template is None:
            yield empty
        else:
            yield _merged(empty, list(islice(filled, len(empty.template.masked_texts))))


def _with_template(make_template: Callable[[str], Template], line: int, text: str) -> FilledText:
    """The text with its template, or with the problem that it has."""
    if not text.strip():
        return FilledText(line, text, problem="empty text")
    if MASKS.search(text):
        problem = "it has masks, but site, keep or replace say what is free; leave out either"
        return FilledText(line, text, problem=problem)
    try:
        return FilledText(line, text, template=make_template(text))
    except InputError as error:
        return FilledText(line, text, problem=str(error))


def _merged(empty: FilledText, choices: list[FilledText]) -> FilledText:
    """The text with the fillings of all its choices of lengths, the most probable first."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return replace(empty, problem=problems[0])
    fillings = []
    for choice in usable:
        for filling in choice.fillings:
            fillings.append(
                replace(filling, masked=choice.text, length_probability=1 / len(usable))
            )
    fillings.sort(key=lambda filling: -filling.log_probability)
    exact = [choice.exact for choice in usable]
    kept = [choice.kept for choice in usable if choice.kept is not None]
    passes = [choice.passes for choice in usable if choice.passes is not None]
    warnings = [choice.warning for choice in usable if choice.warning is not None]
    if problems:
        warnings.append(f"{len(problems)} of {len(choices)} choices of lengths: {problems[0]}")
    return replace(
        empty,
        fillings=fillings,
        exact=None if None in exact else all(exact),
        kept=min(kept),
        passes=max(passes),
        warning=warnings[0] if warnings else None,
    )


def judged(
    fillings: list[Filling], template: Template | None, known: Set[str] | None
) -> list[Filling]:
    """The fillings of a text with what is known of their molecules.

    Args:
        template: what the texts were made from, if they were. A filling that breaks what stays, or
            is in more pieces, is not valid.
        known: the canonical SMILES of molecules that are not new; None: nothing is known of it."""
    from rdkit.Contrib.SA_Score import sascorer  # reads a table of fragments first

    original = template.original if template else None
    before = set[str]()
    judged_fillings = []
    for filling in fillings:
        molecule = _molecule(filling.text, template)
        facts = Molecule(valid=False)
        if molecule is not None:
            smiles = Chem.MolToSmiles(molecule)
            facts = Molecule(
                valid=True,
                smiles=smiles,
                unique=smiles not in before,
                new=None if known is None else smiles not in known,
                qed=round(QED.qed(molecule), 3),
                sa_score=round(sascorer.calculateScore(molecule), 2),
                similarity=None if original is None else round(similarity(smiles, original), 3),
            )
            before.add(smiles)
        judged_fillings.append(replace(filling, molecule=facts))
    return judged_fillings


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
    pieces = 1 + template.masked_texts[0].count(".")
    is_whole = len(Chem.GetMolFrags(molecule)) == pieces
    return molecule if is_whole and molecule.HasSubstructMatch(template.core) else None
