"""What happens to one chunk of rows: tokens, checks and content hashes. Runs in worker processes."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from rdkit import Chem, rdBase
from tokenizers import Tokenizer

from .tokenization import count_smiles_tokens, spelling_ids

TOO_LONG, UNKNOWN, NOT_REVERSIBLE, UNPARSABLE = "too_long", "unknown_token", "not_reversible", "unparsable"
SPECIALS = 2  # BOS and EOS, added around every sequence


@dataclass(frozen=True)
class Checks:
    """What makes a row valid. `tokenizer_file` is a tokenizer.json; `max_length` counts BOS and EOS."""

    tokenizer_file: str
    unknown_id: int | None
    max_length: int
    molecules: bool
    keep_invalid: bool


@dataclass(frozen=True)
class Problem:
    """Why row number `position` of a chunk is not valid, and whether it was kept all the same."""

    position: int
    reason: str
    detail: str
    kept: bool


@dataclass(frozen=True)
class EncodedChunk:
    """The kept rows of a chunk, concatenated, and what was wrong with rows."""

    tokens: np.ndarray  # [sum of lengths] uint32, no special tokens
    lengths: np.ndarray  # [kept] int64
    digests: np.ndarray  # [kept, 2] uint64, blake2b-128 of the text
    problems: list[Problem]
    unknown: Counter[str]  # the pieces of kept and skipped rows that became <unk>
    spelled: Counter[str] = field(default_factory=Counter)  # the SMILES pieces of kept rows outside the vocabulary


def count_tokens(molecules_only: bool, texts: list[str]) -> Counter[str]:
    """SMILES tokens of `texts`; with `molecules_only`, of those that RDKit reads."""
    with rdBase.BlockLogs():
        return count_smiles_tokens(t for t in texts if not molecules_only or rdkit_problem(t) is None)


def encode_chunk(checks: Checks, texts: list[str]) -> EncodedChunk:
    """Tokenise `texts`, find invalid rows and leave out those that are not to be kept."""
    tokenizer = _tokenizer(checks.tokenizer_file)
    ids = [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    unknown: Counter[str] = Counter()
    problems = list(_problems(checks, tokenizer, texts, ids, unknown))
    dropped = {p.position for p in problems if not p.kept}
    kept = [i for i in range(len(texts)) if i not in dropped]
    return EncodedChunk(
        tokens=np.fromiter((t for i in kept for t in ids[i]), np.uint32),
        lengths=np.array([len(ids[i]) for i in kept], np.int64),
        digests=_digests([texts[i] for i in kept]),
        problems=problems,
        unknown=unknown,
        spelled=_spelled_pieces(tokenizer, [texts[i] for i in kept], [ids[i] for i in kept]),
    )


def rdkit_problem(smiles: str) -> str | None:
    """Why RDKit cannot read `smiles`, or None if it can.

    Accepts what `Chem.MolFromSmiles` accepts, but leaves out its perception of stereochemistry and its
    removal of hydrogens, which reject nothing and take half of its time.
    """
    molecule = Chem.MolFromSmiles(smiles, _PARSER)
    if molecule is None:
        return "not a SMILES string"
    try:
        Chem.SanitizeMol(molecule)
    except ValueError as error:
        return str(error).strip()
    return None


def _problems(
    checks: Checks, tokenizer: Tokenizer, texts: list[str], ids: list[list[int]], unknown: Counter[str]
) -> Iterator[Problem]:
    decoded = tokenizer.decode_batch(ids, skip_special_tokens=False) if checks.molecules else texts
    with rdBase.BlockLogs():
        for i, text in enumerate(texts):
            pieces = _unknown_pieces(tokenizer, text, ids[i], checks.unknown_id)
            problem = (
                _length_problem(checks, ids[i])
                or (checks.molecules and _molecule_problem(text))
                or _unknown_problem(pieces)
                or (checks.molecules and _round_trip_problem(text, decoded[i]))
            )
            if problem:
                reason, detail = problem
                kept = checks.keep_invalid and reason != TOO_LONG
                if kept or reason == UNKNOWN:
                    unknown.update(pieces)
                yield Problem(i, reason, detail, kept)


def _length_problem(checks: Checks, ids: list[int]) -> tuple[str, str] | None:
    length = len(ids) + SPECIALS
    return (TOO_LONG, f"{length} tokens, at most {checks.max_length}") if length > checks.max_length else None


def _unknown_pieces(tokenizer: Tokenizer, text: str, ids: list[int], unknown_id: int | None) -> list[str]:
    """The parts of `text` that became `<unk>`."""
    if unknown_id not in ids:
        return []
    encoding = tokenizer.encode(text, add_special_tokens=False)
    spans = zip(encoding.ids, encoding.offsets, strict=True)
    return [text[start:end] for i, (start, end) in spans if i == unknown_id]


def _spelled_pieces(tokenizer: Tokenizer, texts: list[str], ids: list[list[int]]) -> Counter[str]:
    """The parts of `texts` that the vocabulary has only character by character."""
    marked = spelling_ids(tokenizer)
    found: Counter[str] = Counter()
    for text in (text for text, row in zip(texts, ids, strict=True) if not marked.isdisjoint(row)):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        spans = zip(encoding.word_ids, encoding.offsets, strict=True)
        words = [[span for _, span in word] for _, word in groupby(spans, itemgetter(0))]
        found.update(text[word[0][0] : word[-1][1]] for word in words if len(word) > 1)
    return found


def _unknown_problem(pieces: list[str]) -> tuple[str, str] | None:
    return (UNKNOWN, f"not in the vocabulary: {' '.join(dict.fromkeys(pieces))}") if pieces else None


def _molecule_problem(text: str) -> tuple[str, str] | None:
    problem = rdkit_problem(text)
    return (UNPARSABLE, problem) if problem else None


def _round_trip_problem(text: str, decoded: str) -> tuple[str, str] | None:
    same = decoded.strip() == text  # some tokenizers put a space before the first word
    return None if same else (NOT_REVERSIBLE, f"decodes to {decoded.strip()}")


def _digests(texts: list[str]) -> np.ndarray:
    hashes = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)


@lru_cache(maxsize=1)
def _tokenizer(file: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # a "<mask>" in the text is text
    return tokenizer


def _plain_parser() -> Any:
    parser: Any = Chem.SmilesParserParams()
    parser.sanitize = False
    parser.removeHs = False
    parser.allowCXSMILES = False
    parser.parseName = False
    return parser


_PARSER = _plain_parser()
