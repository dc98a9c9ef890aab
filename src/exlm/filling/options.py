"""How to fill masks: the options that `exlm fill` and `exlm explore` share, the options of
`exlm fill` alone, and which tokens they allow."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import element_of
from exlm.data.tokenization import MARKED_CHARACTERS, splits_smiles
from exlm.errors import InputError, check_at_least
from exlm.model.passes import Passes

MOST_SAMPLES = 100_000  # for each text; more would not fit in memory
DEFAULT_PASSES = 4  # on molecules, 58% of fillings of 6 to 8 tokens were valid, in one pass 25%
TOKENS_PER_BATCH = 4096  # how many positions a batch may have after expansion


@dataclass(frozen=True)
class FillOptions:
    """How to fill masks.

    Attributes:
        n_best: how many fillings to search for each text (for each length, if there are several
            lengths); `samples` does not use it. `exlm fill` leaves out fillings with special
            tokens.
        samples: sample so many fillings for each text (or length), by their probability, instead
            of searching for the most probable ones.
        tokens: how many tokens to fill in altogether, such as 3 or 2-4, on all paths as with
            `free`. By default one for each mask.
        free: use all paths of the model, which may put no token or several in the place of a mask.
            By default only paths with one state in every mask are used, and each mask gets one
            token. `kept` is their share of the probability of all paths with as many tokens (1 for
            models without links); if it is below a half, `warning` says that these probabilities
            tell little about the model.
        beam: how many beginnings of fillings to keep after each token, and after each pass.
        seed: the seed of the samples.
        passes: in how many passes of the network to fill the masks (`exlm explore`: one); where
            absent in 4, or with `free` or `tokens` in one, since they exclude several. Each pass
            reveals the masks that the model is most certain of, as even a number as possible
            (`all`: one), and later ones read their tokens, so that the best filling may be another
            one than in one pass. Four passes make many more fillings usable than one, which fills
            all masks jointly and takes a fifteenth of the time: a pass reads every beginning that
            is kept.
        allow: the only tokens to fill in, such as A,V,L, by their names in the vocabulary. In
            molecules an element, such as N or Cl, stands for all its atoms ([nH], n, [NH3+]); if
            an atom is named, no other atom is filled in, and if another token (a bond, branch or
            ring digit) is named, no other such token. The probabilities of each pass are then
            exact among the fillings that are left.
        forbid: tokens or elements never to fill in.
        temperature: the distribution of each state over tokens is raised to 1 / temperature, and
            normalised: below 1 the usual becomes more probable, above 1 the unusual."""

    n_best: int = 5
    samples: int | None = None
    tokens: str | None = None
    free: bool = False
    beam: int = 64
    seed: int = 0
    passes: Passes | None = None
    allow: str | None = None
    forbid: str | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, n_best=1, beam=1)
        if self.samples is not None and not 1 <= self.samples <= MOST_SAMPLES:
            raise InputError(f"samples is {self.samples}; give a number from 1 to {MOST_SAMPLES:,}")
        if not 0.01 <= self.temperature <= 100:
            raise InputError(f"temperature is {self.temperature}; give a number from 0.01 to 100")
        if self.tokens is not None:
            parse_numbers(self.tokens, "tokens")
        if self.passes != "all":
            check_at_least(self, passes=1)
        if self.passes not in (None, 1) and self.all_paths:
            raise InputError(
                f"passes is {self.passes}, but free and tokens fill all masks in one pass; "
                "leave out passes, or these"
            )

    @property
    def lengths(self) -> range | None:
        """The numbers of tokens that `tokens` names; None without `tokens`."""
        return None if self.tokens is None else parse_numbers(self.tokens, "tokens")

    @property
    def all_paths(self) -> bool:
        """Whether masks may get no token, which no pass could reveal, or several."""
        return self.free or self.tokens is not None

    @property
    def most_passes(self) -> Passes:
        """In how many passes of the network to fill a text; fewer where it has fewer masks."""
        if self.passes is not None:
            return self.passes
        return 1 if self.all_paths else DEFAULT_PASSES


@dataclass(frozen=True)
class FillCommandOptions(FillOptions):
    """What `exlm fill` fills, and which fillings it gives.

    Attributes:
        file: a file of texts, in place of texts after the model, in any format that `exlm prepare`
            reads; `-` is standard input with a text in each line, and `-.csv`, ... with a table.
        text_column: column of a table to read; found by its name where absent.
        id_column: column of a table that names its rows; found by its name where absent.
        header: whether a table has a header line; else its columns are `column 1`, `column 2`, ...
        sheet: sheet of an .xlsx file; the first where absent.
        molecules: whether filled texts are SMILES. Where absent, the model says it, or else the
            texts decide.
        site: of molecules, how many tokens each site may have: 3-8 for all, 1=3-8 for the site
            `[*:1]`. Without keep and replace, sites are the attachment points of the SMILES (`*`,
            `[*]` or `[*:1]`); two with the same number, or one in each of two fragments, are the
            ends of a linker. Each number of tokens is filled by itself, and all are taken to be
            equally probable, as length_probability says. Of proteins, the residues that are free:
            30-37 54 are the residues from the 30th to the 37th, both included, and the 54th.
        keep: SMARTS of a piece of the molecules that stays; everything else becomes sites (numbered
            in the order of the SMILES), with as many tokens as now unless site says otherwise.
        replace: SMARTS of a piece of the molecules that becomes such a site.
        states: print the states of every mask in the first pass, or write them to a .jsonl file,
            each with the probability that a path visits it and its top tokens (`words`).
        tokens_per_batch: how many expanded tokens one forward pass may have (in a pre-training,
            that is tokens_per_micro_batch).
        valid_only: leave out fillings that are not valid; no others are searched in their place,
            so there may be fewer than n_best, or none.
        top: how many fillings to give for each text at most: the most probable of all lengths,
            and only the first of several that are the same molecule.
        known: a file of molecules, read as `header` says, from its column `text_column` if it has
            one; `new` says whether a filling is none of them, whatever the charges and
            counterions. Without it `new` is empty: models do not keep their training molecules.
        known_sheet: sheet of known, an .xlsx file; the first where absent."""

    file: str | None = None
    text_column: str | None = None
    id_column: str | None = None
    header: bool = True
    sheet: str | None = None
    molecules: bool | None = None
    site: list[str] | None = None
    keep: str | None = None
    replace: str | None = None
    states: bool = False
    tokens_per_batch: int = TOKENS_PER_BATCH
    valid_only: bool = False
    top: int | None = None
    known: str | None = None
    known_sheet: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, tokens_per_batch=1, top=1)
        if self.known_sheet is not None and self.known is None:
            raise InputError("known_sheet is for a workbook; give it as known, or leave it out")
        if self.keep is not None and self.replace is not None:
            raise InputError("give keep or replace, not both")
        for entry in self.site or []:
            parse_numbers(entry.rpartition("=")[2], "site")
        if self.has_sites and (self.states or self.all_paths):
            raise InputError(
                "states, tokens and free are for texts with masks; leave out site, keep and replace"
            )

    @property
    def has_sites(self) -> bool:
        """Whether the texts have sites, and no masks."""
        return any(option is not None for option in (self.site, self.keep, self.replace))


def parse_numbers(text: str, option: str) -> range:
    """The numbers in `3` or `2-4`, the value of an option. InputError if it cannot be read, or
    names 0 or no number."""
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", str(text).strip())
    if match is not None:
        first, last = match.groups()
        numbers = range(int(first), int(last or first) + 1)
        if numbers and 0 not in numbers:
            return numbers
    raise InputError(f"{option} is {text}; give a number from 1, or a range as 2-4")


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
        usable -= {"[", *MARKED_CHARACTERS}
        elements = {token: element_of(token) for token in vocabulary}
        atoms = {token: element for token, element in elements.items() if element is not None}
    allow = _find_named_tokens(options.allow, "allow", tokenizer, usable, atoms)
    forbid = _find_named_tokens(options.forbid, "forbid", tokenizer, usable, atoms)
    # atoms and other tokens are limited apart, each if any of them is named
    for kind in (set(atoms), set(vocabulary) - set(atoms)):
        if allow & kind:
            usable -= kind - allow
    usable -= forbid
    fillable = usable & set(atoms) if atoms else usable
    if not fillable:
        raise InputError("allow and forbid leave no token; allow more, or forbid less")
    allowed = torch.zeros(size, dtype=torch.bool)
    allowed[[vocabulary[token] for token in usable]] = True
    return allowed


def _find_named_tokens(
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
                f"{option} names {name!r}, which is neither a token of the model nor an element"
            )
        tokens |= named
    return tokens
