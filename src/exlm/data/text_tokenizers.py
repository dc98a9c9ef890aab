"""Subword tokenizers for text, learned from rows: byte-level BPE as RoBERTa's, WordPiece as (uncased) BERT's.

Both are stock `PreTrainedTokenizerFast` objects, and the same rows always give the same tokenizer.
"""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..errors import InputError
from .tokenization import Specials, fast_tokenizer

BERT = Specials(bos="[CLS]", pad="[PAD]", eos="[SEP]", unk="[UNK]", mask="[MASK]")
ROBERTA = Specials()
SAMPLE = 2**26  # characters to learn from: more change the vocabulary little, and the trainer holds all its words
ALPHABET = 1000  # characters of a WordPiece vocabulary at most, as for BERT; rarer ones become [UNK]
SMALLEST = 256 + len(ROBERTA)


def check_vocabulary_size(size: int) -> None:
    """Raises InputError if `size` leaves no room for an alphabet and the special tokens."""
    if size < SMALLEST:
        raise InputError(
            f"vocabulary_size is {size} but must be at least {SMALLEST}: 256 bytes and {len(ROBERTA)} special tokens"
        )


def train_text_tokenizer(kind: str, rows: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Learns a tokenizer from at most SAMPLE characters of `rows`, evenly spaced.

    Ids: BOS 0, PAD 1, EOS 2, UNK 3, then subwords, MASK last. Fewer rows may give fewer tokens than asked for.

    Args:
        kind: `bpe` or `wordpiece`, the keys of TRAINERS.
        rows: text; read once.
        vocabulary_size: with special tokens.

    Raises:
        InputError: if there is no text, or the vocabulary is too small for an alphabet.
    """
    check_vocabulary_size(vocabulary_size)
    sample = evenly_spaced(rows, SAMPLE)
    if not sample:
        raise InputError("no text found to learn a vocabulary from; check the input and its column")
    return TRAINERS[kind](sample, vocabulary_size)


def evenly_spaced(rows: Iterable[str], characters: int) -> list[str]:
    """Every n-th of `rows`, n the smallest power of two with which they have at most `characters` (or are one row)."""
    kept: list[str] = []
    size, stride = 0, 1
    for number, row in enumerate(rows):
        if number % stride == 0:
            kept.append(row)
            size += len(row)
        while size > characters and len(kept) > 1:
            kept, stride = kept[::2], stride * 2
            size = sum(map(len, kept))
    return kept


def _bpe(rows: list[str], size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,  # the mask follows
        min_frequency=2,
        special_tokens=[*ROBERTA[:-1]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(rows, trainer)
    ids = tokenizer.get_vocab()
    eos, bos = (ROBERTA.eos, ids[ROBERTA.eos]), (ROBERTA.bos, ids[ROBERTA.bos])
    tokenizer.post_processor = processors.RobertaProcessing(eos, bos, add_prefix_space=False)
    # as RoBERTa's: the mask stands for a word and the space before it
    return fast_tokenizer(tokenizer, ROBERTA, mask_takes_space=True)


def _wordpiece(rows: list[str], size: int) -> PreTrainedTokenizerFast:
    vocabulary = _wordpiece_vocabulary(rows, size)
    tokenizer = _bert(models.WordPiece(vocabulary, unk_token=BERT.unk))
    eos, bos = (BERT.eos, vocabulary[BERT.eos]), (BERT.bos, vocabulary[BERT.bos])
    tokenizer.post_processor = processors.BertProcessing(eos, bos)
    tokenizer.decoder = decoders.WordPiece()
    return fast_tokenizer(tokenizer, BERT)


def _wordpiece_vocabulary(rows: list[str], size: int) -> dict[str, int]:
    """The trainer numbers inner characters (`##a`) in random order, and breaks ties by number: they are given first."""
    tokenizer = _bert(models.WordPiece(unk_token=BERT.unk))
    alphabet = _alphabet(tokenizer.normalizer, rows, min(ALPHABET, (size - len(BERT)) // 4))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size - 1,
        min_frequency=2,
        special_tokens=[*BERT[:-1], *(f"##{c}" for c in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(rows, trainer)
    return tokenizer.get_vocab()


def _bert(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _alphabet(normalizer: normalizers.Normalizer, rows: list[str], limit: int) -> list[str]:
    """The most frequent characters; ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(normalizer.normalize_str(row))
    characters = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    return characters[:limit]


TRAINERS = {"bpe": _bpe, "wordpiece": _wordpiece}
