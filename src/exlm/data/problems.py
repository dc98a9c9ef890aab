"""What may be wrong with the texts of a row, for `prepare` and for all that reads tables."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem

# Problems of rows, as they are called in manifests and in the column `reason` of skipped.csv
TOO_LONG = "too_long"
UNKNOWN = "unknown_token"
NOT_REVERSIBLE = "not_reversible"
UNPARSABLE = "unparsable"
UNREADABLE = "unreadable"  # there is no text
# How the warning of `describe_special_tokens` begins
HAS_SPECIAL_TOKENS = "it has special tokens of the model"
# How a warning of residues or words begins that have labels, and no tokens
HAS_UNREAD_UNITS = "the tokenizer reads as nothing"

OnInvalid = Literal["error", "skip", "keep"]


class Problem(NamedTuple):
    """What is wrong with a row."""

    name: str  # such as TOO_LONG
    detail: str


def row_problems(
    texts: Sequence[str], token_count: int, max_length: float, molecules: bool, unknown: str
) -> Iterator[Problem]:
    """All problems of a row with these texts, in the order in which they are reported; `unknown` is
    what `describe_unknown_words` says of them."""
    if token_count > max_length:
        yield Problem(TOO_LONG, f"{token_count} tokens, at most {max_length}")
    if molecules:
        for text in texts:
            no_molecule = molecule_problem(text)
            if no_molecule:
                yield Problem(UNPARSABLE, no_molecule)
    if unknown:
        yield Problem(UNKNOWN, unknown)


def describe_unknown_words(text: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """Says which words of a text have tokens outside the vocabulary; "" if none has."""
    encoding = tokenizer([text], add_special_tokens=False).encodings[0]
    return describe_unknown_tokens(encoding, text, tokenizer.unk_token_id)


def describe_special_tokens(text: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """Says which special tokens, such as `</s>`, are written in a text; "" if none is. A tokenizer
    takes them for its own, but not in `prepare`."""
    special_tokens = [token for token in tokenizer.all_special_tokens if token in text]
    return f"{HAS_SPECIAL_TOKENS}: {' '.join(special_tokens)}" if special_tokens else ""


def describe_unknown_tokens(encoding: Encoding, text: str, unknown_id: int | None) -> str:
    """As `describe_unknown_words`, of an encoded text. The tokenizer splits off words first."""
    pairs = zip(encoding.ids, encoding.word_ids, strict=True)
    numbers = dict.fromkeys(number for token_id, number in pairs if token_id == unknown_id)
    spans = [encoding.word_to_chars(number) for number in numbers if number is not None]
    words = dict.fromkeys(text[slice(*span)] for span in spans if span)
    visible = [word if word.isprintable() and word.strip() else repr(word) for word in words]
    return f"not in the vocabulary: {' '.join(visible)}" if words else ""
