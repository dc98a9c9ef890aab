"""Which tokens the options `allow` and `forbid` let a text be filled with."""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import element_of
from exlm.data.tokenization import MARKED, splits_smiles
from exlm.errors import InputError
from exlm.filling.options import FillOptions


def allowed_tokens(
    tokenizer: PreTrainedTokenizerFast, options: FillOptions, size: int
) -> Tensor | None:
    """Which of `size` tokens, [size] bool, the options allow; None if they allow all. InputError
    for what is no token, and if none is left.

    Where anything is named, special tokens and letters that spell rare atoms are left out."""
    if options.allow is None and options.forbid is None:
        return None
    vocabulary = tokenizer.get_vocab()
    usable = set(vocabulary) - set(tokenizer.all_special_tokens)
    atoms = dict[str, str]()  # the element of each token that is an atom
    if splits_smiles(tokenizer.backend_tokenizer):
        usable -= {"[", *MARKED}
        elements = {token: element_of(token) for token in vocabulary}
        atoms = {token: element for token, element in elements.items() if element is not None}
    allow = _tokens_named(options.allow, "allow", tokenizer, usable, atoms)
    forbid = _tokens_named(options.forbid, "forbid", tokenizer, usable, atoms)
    # atoms and other tokens are limited apart, each if any of them is named
    for group in (set(atoms), set(vocabulary) - set(atoms)):
        if allow & group:
            usable -= group - allow
    usable -= forbid
    fillable = usable & set(atoms) if atoms else usable
    if not fillable:
        raise InputError(
            "allow and forbid leave no token that could be filled in; allow more, or forbid less"
        )
    allowed = torch.zeros(size, dtype=torch.bool)
    allowed[[vocabulary[token] for token in usable]] = True
    return allowed


def _tokens_named(
    entries: str | None,
    option: str,
    tokenizer: PreTrainedTokenizerFast,
    usable: set[str],
    atoms: dict[str, str],
) -> set[str]:
    """The tokens that the entries of an option name: all atoms of an element, or one token."""
    tokens = set[str]()
    if entries is None:
        return tokens
    for entry in entries.split(","):
        name = entry.strip()
        named = {token for token, element in atoms.items() if element == name}
        if not named:
            # a word of text may have the space before it in its token
            spellings = [[name], tokenizer.tokenize(name), tokenizer.tokenize(f" {name}")]
            named = usable & {pieces[0] for pieces in spellings if len(pieces) == 1}
        if not named:
            raise InputError(
                f"{option} names {name!r}, which is neither a token of the model nor an element "
                "that it has tokens of"
            )
        tokens |= named
    return tokens
