"""Fillings as proposals: those of all lengths of a site ranked together, and what is known of
each molecule."""

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from itertools import chain, islice

from rdkit import Chem, rdBase
from rdkit.Chem import QED
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem, similarity
from exlm.data.drawing import Segment
from exlm.errors import InputError
from exlm.filling.graphs import MASKS
from exlm.filling.options import FillOptions
from exlm.filling.records import FilledText, Filling, Molecule
from exlm.filling.sites import MASK, Template
from exlm.filling.texts import fill_texts
from exlm.model.masked_lm import ExLMForMaskedLM

TEMPLATES = 500  # how many are filled before the first of them is yielded


def fill_templates(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    make_template: Callable[[str], Template],
    options: FillOptions,
    tokens_per_batch: int = 4096,
) -> Iterator[FilledText]:
    """Yields each text with sites, with its template and its fillings, in order.

    All choices of lengths are equally probable; with `free`, the model fills the most masks that
    the sites may have with as many tokens as they may have together, and says how probable each
    number is. Fillings are ranked by their probability times that of their length."""
    lines = enumerate(texts, 1)
    first_masked = 1
    # with `free`, each text has numbers of tokens of its own
    size = 1 if options.free else TEMPLATES
    while batch := list(islice(lines, size)):
        empty_texts = [_with_template(make_template, line, text) for line, text in batch]
        of_batch = options
        masked: list[list[str]] = []  # of each text
        for empty in empty_texts:
            masked.append([])
            if empty.template is not None:
                masked[-1] = empty.template.masked_texts(longest_only=options.free)
                if options.free:
                    of_batch = _with_lengths(options, empty.template)
        all_masked = list(chain.from_iterable(masked))
        filled_choices = fill_texts(
            network,
            tokenizer,
            all_masked,
            of_batch,
            tokens_per_batch=tokens_per_batch,
            first_line=first_masked,
        )
        first_masked += len(all_masked)
        for empty, masked_texts in zip(empty_texts, masked, strict=True):
            yield _merged(empty, list(islice(filled_choices, len(masked_texts))))


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


def _with_lengths(options: FillOptions, template: Template) -> FillOptions:
    """The options with the numbers of tokens that all sites of a template may have together."""
    fewest = sum(lengths[0] for lengths in template.sites)
    most = sum(lengths[-1] for lengths in template.sites)
    return replace(options, tokens=f"{fewest}-{most}")


def _merged(empty: FilledText, choices: list[FilledText]) -> FilledText:
    """The text with the fillings of all its choices of lengths, the most probable first."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return replace(empty, problem=empty.problem or problems[0])
    fillings = []
    for choice in usable:
        for filling in choice.fillings:
            length_probability = filling.length_probability
            if length_probability is None:
                length_probability = 1 / len(usable)
            fillings.append(
                replace(filling, masked=choice.text, length_probability=length_probability)
            )
    fillings.sort(key=lambda filling: -filling.probability * (filling.length_probability or 0.0))
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
        kept=min(kept, default=None),
        passes=max(passes, default=None),
        warning=warnings[0] if warnings else None,
    )


def segments_of(
    masked: str, tokens: list[list[str]], tokenizer: PreTrainedTokenizerFast
) -> list[Segment]:
    """A text with masks and the tokens that fill each of them, in parts, in order. Masks side by
    side are one site."""
    outside, *others = MASKS.split(masked.replace(str(tokenizer.mask_token), MASK))
    segments: list[Segment] = [(outside, None)]
    site = 0
    for tokens_of_mask, text_behind in zip(tokens, others, strict=True):
        segments.append((tokenizer.convert_tokens_to_string(tokens_of_mask), site))
        segments.append((text_behind, None))
        if text_behind.strip():
            site += 1
    return segments


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
    pieces = 1 + sum(part.count(".") for part in template.parts if isinstance(part, str))
    is_whole = len(Chem.GetMolFrags(molecule)) == pieces
    return molecule if is_whole and molecule.HasSubstructMatch(template.core) else None
