"""The atom-level SMILES tokenizer.

It is a stock `PreTrainedTokenizerFast`: `AutoTokenizer` loads it without ExLM installed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..errors import InputError

# Schwaller et al. (2018), https://doi.org/10.1039/C8SC02339E, preceded by what RDKit reads and they left out.
EXTENSIONS = r"%\([0-9]+\)|->|<-"
SCHWALLER = r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>|\*|\$|%[0-9]{2}|[0-9]"
SMILES_PATTERN = f"{EXTENSIONS}|{SCHWALLER}"

_pieces = re.compile(SMILES_PATTERN).findall

# The spelling of a piece that the vocabulary lacks: its first character, then the others, marked, so that a charge in
# brackets is not a bond and a mass is not a ring. Letters are those of element symbols.
MARK = "##"
FIRST = r"BCNOSPFIbcnosp().=#-+\/:~@?>*$%[<0123456789"
OTHERS = "ABCDEFGHIKLMNOPRSTUVWXYZabcdefghiklmnoprstuvy0123456789@+-:*()#>]"
MARKED = frozenset(f"{MARK}{character}" for character in OTHERS)


class Specials(NamedTuple):
    """Special tokens in the order of their ids: the last one ends the vocabulary, the others begin it."""

    bos: str = "<s>"
    pad: str = "<pad>"
    eos: str = "</s>"
    unk: str = "<unk>"
    mask: str = "<mask>"


SPECIAL = Specials()


def count_smiles_tokens(lines: Iterable[str]) -> Counter[str]:
    """How often each token occurs. Pieces that are not SMILES are left out, so they become `<unk>` later."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_pieces(line))
    return counts


def smiles_tokenizer(counts: Mapping[str, int], min_frequency: int = 1) -> PreTrainedTokenizerFast:
    """The SMILES tokenizer whose vocabulary is every token counted at least `min_frequency` times, and an alphabet.

    Pieces are those of Schwaller et al. (2018), extended by the ring closures `%(100)` and the dative bonds
    `->` and `<-` of RDKit. Pieces outside the vocabulary are spelled, without loss: `[14C]` is then the tokens
    `[ ##1 ##4 ##C ##]`. Ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, then tokens by falling frequency (ties in
    alphabetical order), the rest of the alphabet of spelling, `<mask>` last. What is not SMILES becomes `<unk>`;
    nothing is dropped.

    Raises:
        InputError: if no token is left.
    """
    tokens = sorted((t for t, n in counts.items() if n >= min_frequency), key=lambda t: (-counts[t], t))
    if not tokens:
        raise InputError("no valid SMILES found to learn a vocabulary from; check the input and its column")
    alphabet = sorted(MARKED.union(FIRST).difference(tokens))
    vocabulary = {token: i for i, token in enumerate([*SPECIAL[:-1], *tokens, *alphabet, SPECIAL.mask])}
    return fast_tokenizer(_word_or_spelling(vocabulary), SPECIAL)


def spelling_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the tokens found only where a SMILES piece is spelled; none if `tokenizer` is of another kind."""
    if not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Split):
        return frozenset()
    return frozenset(i for i in map(tokenizer.token_to_id, MARKED) if i is not None)


def fast_tokenizer(tokenizer: Tokenizer, special: Specials, mask_takes_space: bool = False) -> PreTrainedTokenizerFast:
    """The Hugging Face class around `tokenizer`. Tokens it lacks are added; the mask may take the space before it."""
    mask = AddedToken(special.mask, lstrip=mask_takes_space, special=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special[:-1]] + [mask])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special.bos,
        eos_token=special.eos,
        cls_token=special.bos,
        sep_token=special.eos,
        pad_token=special.pad,
        unk_token=special.unk,
        mask_token=mask,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def train_smiles_tokenizer(lines: Iterable[str], min_frequency: int = 1) -> PreTrainedTokenizerFast:
    """Learn a SMILES tokenizer (see `smiles_tokenizer`) from lines, keeping only the counts in memory."""
    return smiles_tokenizer(count_smiles_tokens(lines), min_frequency)


def _word_or_spelling(vocabulary: dict[str, int]) -> Tokenizer:
    bos, eos = SPECIAL.bos, SPECIAL.eos
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL.unk, continuing_subword_prefix=MARK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES_PATTERN), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, ""), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} $B {eos}",
        special_tokens=[(bos, vocabulary[bos]), (eos, vocabulary[eos])],
    )
    return tokenizer
