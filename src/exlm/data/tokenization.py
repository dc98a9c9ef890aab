"""Tokenizers: of letters of a fixed alphabet, such as residues of proteins; and learned from rows,
SMILES by atoms, byte-level BPE as RoBERTa's, WordPiece as (uncased) BERT's. All are stock
`PreTrainedTokenizerFast` objects, which `AutoTokenizer` loads without ExLM installed. The same rows
always give the same tokenizer. Ids: BOS 0, PAD 1, EOS 2, UNK 3, then the others, MASK last."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any
from unicodedata import category

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from exlm.errors import InputError

if TYPE_CHECKING:
    # The import takes most of a second, and `exlm info` does not need it.
    from transformers import PreTrainedTokenizerFast

# The pattern of Schwaller et al. (2018), https://doi.org/10.1039/C8SC02339E. EXTENSIONS are what
# RDKit reads besides: ring closures as %(100), and dative bonds.
EXTENSIONS = r"%\([0-9]+\)|->|<-"
SCHWALLER = (
    r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>|\*|\$"
    r"|%[0-9]{2}|[0-9]"
)
SMILES_PATTERN = f"{EXTENSIONS}|{SCHWALLER}"

# A SMILES token outside the vocabulary is spelled: its first character, then the others, each with
# MARK before it. So a charge in brackets is not taken for a bond, nor a mass for a ring. The
# letters are those of element symbols.
MARK = "##"
FIRST_CHARACTERS = r"BCNOSPFIbcnosp().=#-+\/:~@?>*$%[<0123456789"
OTHER_CHARACTERS = "ABCDEFGHIKLMNOPRSTUVWXYZabcdefghiklmnoprstuvy0123456789@+-:*()#>]"
MARKED_CHARACTERS = frozenset(f"{MARK}{character}" for character in OTHER_CHARACTERS)


@dataclass(frozen=True)
class Alphabet:
    """Texts whose tokens are the letters of a fixed alphabet. Lower case is read as upper case.

    Attributes:
        letters: the capital letters, in the order of their ids.
        texts: what the texts are called where a model is described.
        cut: a regular expression of what is cut off a text."""

    letters: str
    texts: str
    cut: str | None = None

    @property
    def normalizer(self) -> normalizers.Normalizer:
        steps = [normalizers.Replace(letter.lower(), letter) for letter in self.letters]
        if self.cut is not None:
            steps.append(normalizers.Replace(Regex(self.cut), ""))
        return normalizers.Sequence(steps)


# By the name that `exlm prepare --tokenizer` takes. Proteins have one-letter codes: the 20 amino
# acids by frequency, then X (any), B (N or D), Z (Q or E), U (selenocysteine), O (pyrrolysine), J
# (I or L). A `*` at the end is a stop codon.
ALPHABETS = {
    "protein": Alphabet("LAGVSERTIDPKQNFYMHWCXBZUOJ", "proteins (residues)", cut=r"\*$"),
}

# Special tokens in the order of their ids: the last one ends the vocabulary, the others begin it.
# SMILES and proteins have those of RoBERTa.
ROBERTA = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
ADD_ENDS = processors.TemplateProcessing(
    "<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 0), ("</s>", 2)]
)
BERT = {"bos": "[CLS]", "pad": "[PAD]", "eos": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}

# Characters of text to learn from. More would change little, and the trainer keeps all words in
# memory.
MOST_CHARACTERS = 2**26
SMALLEST_VOCABULARY = 256 + len(ROBERTA)  # the bytes and the special tokens
# Most characters of a WordPiece vocabulary, as BERT's. Rarer ones become [UNK].
LARGEST_ALPHABET = 1000


def smiles_tokenizer(counts: Mapping[str, int]) -> "PreTrainedTokenizerFast":
    """The SMILES tokenizer whose vocabulary is every counted token, and an alphabet for spelling
    other tokens. Tokens outside the vocabulary are spelled, without loss: `[14C]` then becomes
    `[ ##1 ##4 ##C ##]`. The ids: special tokens, then tokens by falling frequency (ties in
    alphabetical order), then the rest of the alphabet, then `<mask>`. What is not SMILES becomes
    `<unk>`; nothing is dropped."""
    if not counts:
        raise InputError("no valid SMILES found to learn from; check the input and its column")
    tokens = sorted(counts, key=lambda token: (-counts[token], token))
    alphabet = sorted(MARKED_CHARACTERS.union(FIRST_CHARACTERS).difference(tokens))
    *first, mask = ROBERTA.values()
    vocabulary = {token: i for i, token in enumerate([*first, *tokens, *alphabet, mask])}
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token=ROBERTA["unk"], continuing_subword_prefix=MARK)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES_PATTERN), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, ""), decoders.Fuse()])
    tokenizer.post_processor = ADD_ENDS
    return _fast_tokenizer(tokenizer, ROBERTA)


def splits_smiles(tokenizer: Tokenizer) -> bool:
    """Whether this is a `smiles_tokenizer`. It is recognised by its pattern for splitting, which is
    saved with it."""
    if tokenizer.pre_tokenizer is None:
        return False
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    return state.get("pattern") == {"Regex": SMILES_PATTERN}


def alphabet_name(tokenizer: Tokenizer) -> str | None:
    """The name in ALPHABETS of what this tokenizer reads, or None. It is recognised by its
    normalizer, which is saved with it (with a model, inside of another normalizer)."""
    if tokenizer.normalizer is None:
        return None
    saved = tokenizer.normalizer.__getstate__()
    for name, alphabet in ALPHABETS.items():
        if alphabet.normalizer.__getstate__() in saved:
            return name
    return None


def train_text_tokenizer(
    name: str, rows: Iterable[str], vocabulary_size: int
) -> "PreTrainedTokenizerFast":
    """Learns the tokenizer `name` of TEXT_TOKENIZERS from at most MOST_CHARACTERS characters of
    `rows`, evenly spaced. It has at most `vocabulary_size` tokens, special tokens included.
    InputError for no text or a vocabulary below SMALLEST_VOCABULARY."""
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"vocabulary_size is {vocabulary_size} but must be at least {SMALLEST_VOCABULARY}"
        )
    texts = evenly_spaced(rows, MOST_CHARACTERS)
    if not texts:
        raise InputError("no text found to learn a vocabulary from; check the input and its column")
    return TEXT_TOKENIZERS[name](texts, vocabulary_size)


def evenly_spaced(rows: Iterable[str], characters: int) -> list[str]:
    """Every n-th of `rows`; n is the smallest power of two that leaves at most `characters`
    characters, or one row."""
    spaced_rows: list[str] = []
    size = 0
    stride = 1
    for number, row in enumerate(rows):
        if number % stride == 0:
            spaced_rows.append(row)
            size += len(row)
        while size > characters and len(spaced_rows) > 1:
            spaced_rows = spaced_rows[::2]
            stride *= 2
            size = sum(map(len, spaced_rows))
    return spaced_rows


def _bpe(rows: list[str], size: int) -> "PreTrainedTokenizerFast":
    learner = ByteLevelBPETokenizer()
    learner._tokenizer.normalizer = normalizers.NFC()  # accents have one encoding
    special: list[Any] = list(ROBERTA.values())[:-1]  # the mask follows the other tokens
    learner.train_from_iterator(iter(rows), size - 1, special_tokens=special, show_progress=False)
    learner._tokenizer.post_processor = processors.RobertaProcessing(
        (ROBERTA["eos"], 2), (ROBERTA["bos"], 0), add_prefix_space=False
    )
    # As RoBERTa's: the mask stands for a word and the space before it.
    return _fast_tokenizer(learner._tokenizer, ROBERTA, lstrip=True)


def _wordpiece(rows: list[str], size: int) -> "PreTrainedTokenizerFast":
    learner = BertWordPieceTokenizer()
    # The trainer would number inner characters (`##a`) at random, and break ties by number. So it
    # gets them in order.
    counts = Counter(chain.from_iterable(map(learner.normalize, rows)))
    alphabet = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    alphabet = alphabet[: min(LARGEST_ALPHABET, (size - len(BERT)) // 4)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size - 1,  # the mask follows
        min_frequency=2,
        special_tokens=[*list(BERT.values())[:-1], *(f"##{c}" for c in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner._tokenizer.train_from_iterator(rows, trainer)
    # A new tokenizer does not treat the alphabet as special tokens.
    return _fast_tokenizer(BertWordPieceTokenizer(learner.get_vocab())._tokenizer, BERT)


def letter_tokenizer(name: str) -> "PreTrainedTokenizerFast":
    """One token for each letter of an alphabet of ALPHABETS. Gaps and all other characters are
    `<unk>`."""
    alphabet = ALPHABETS[name]
    *first, mask = ROBERTA.values()
    vocabulary = {token: i for i, token in enumerate([*first, *alphabet.letters, mask])}
    # Without merges, every character is a token. Foreign ones are split off, so that messages can
    # show them.
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=ROBERTA["unk"]))
    tokenizer.normalizer = alphabet.normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"[^{alphabet.letters}]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = ADD_ENDS
    return _fast_tokenizer(tokenizer, ROBERTA)


def find_span_ends(text: str, tokenizer: "PreTrainedTokenizerFast") -> np.ndarray:
    """[characters + 1] where a span ends that the tokenizer ends before a character or at the end
    of the text. Letters and marks without a token, which the tokenizer joined to the character
    before or took away, belong to that span: [0, 2, 2] if `e` + U+0301 is one token, 0 to 1."""
    ends = np.arange(len(text) + 1)
    if text.isascii():
        return ends
    has_token = np.zeros(len(text), dtype=bool)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    for start, stop in encoding["offset_mapping"]:
        has_token[start:stop] = True
    for place in reversed(np.flatnonzero(~has_token).tolist()):
        if category(text[place])[0] in "LM":
            ends[place] = ends[place + 1]
    return ends


def _fast_tokenizer(
    tokenizer: Tokenizer, special: dict[str, str], **mask_options: bool
) -> "PreTrainedTokenizerFast":
    """Wraps `tokenizer` in the Hugging Face class, which adds the special tokens that `tokenizer`
    lacks."""
    from transformers import PreTrainedTokenizerFast

    names = {**special, "cls": special["bos"], "sep": special["eos"]}
    tokens: dict[str, Any] = {f"{name}_token": token for name, token in names.items()}
    tokens["mask_token"] = AddedToken(special["mask"], special=True, **mask_options)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **tokens,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


TEXT_TOKENIZERS = {"bpe": _bpe, "wordpiece": _wordpiece}
