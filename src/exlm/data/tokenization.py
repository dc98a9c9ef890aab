"""Tokenizers: the atom-level SMILES tokenizer, and loading of any fast Hugging Face tokenizer.

The SMILES tokenizer is a stock `PreTrainedTokenizerFast`: `AutoTokenizer` loads it without ExLM installed.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

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


def load_tokenizer(path_or_name: str | Path) -> PreTrainedTokenizerFast:
    """A fast tokenizer from a directory or the Hugging Face hub, with `bos`, `eos`, `pad` and `mask` tokens.

    Where `bos` or `eos` is missing, `cls` and `sep` take its place (as for BERT).

    Raises:
        InputError: if there is no such tokenizer, it is not a fast one, or a special token is missing.
    """
    tokenizer = _from_pretrained(str(path_or_name))
    tokenizer.bos_token = tokenizer.bos_token or tokenizer.cls_token
    tokenizer.eos_token = tokenizer.eos_token or tokenizer.sep_token
    missing = [name for name in ("bos", "eos", "pad", "mask") if getattr(tokenizer, f"{name}_token_id") is None]
    if missing:
        raise InputError(
            f"the tokenizer {path_or_name} has no {' and no '.join(missing)} token; add it with "
            "tokenizer.add_special_tokens and save the tokenizer again"
        )
    return tokenizer


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 of what the tokenizer does to text, in hexadecimal; padding and truncation do not count."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition["padding"] = definition["truncation"] = None
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


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


def _from_pretrained(name: str) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # damaged tokenizers raise anything, even a bare Exception
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"no tokenizer could be loaded from {name} ({reason.rstrip('.')}); give a directory saved with "
            "save_pretrained, or a hub name"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"the tokenizer {name} has no fast version (tokenizer.json); convert it to a fast one first")
    return tokenizer
