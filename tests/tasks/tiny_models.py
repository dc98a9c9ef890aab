"""Tiny random models of the Hugging Face families, each with its own kind of tokenizer, saved as a
hub model is."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AlbertConfig,
    AlbertTokenizer,
    AutoModelForMaskedLM,
    BertConfig,
    BertTokenizer,
    DebertaConfig,
    DebertaTokenizer,
    DebertaV2Config,
    DebertaV2Tokenizer,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaTokenizer,
    XLNetConfig,
    XLNetLMHeadModel,
    XLNetTokenizer,
)

from exlm.data.tokenization import train_text_tokenizer
from exlm.tasks.predict import predict

VOCABULARY = 320
NAMES = ["Ada", "Bela", "Cleo", "Dora", "Emil", "Finn"]
TOWNS = ["Rome", "Oslo", "Lima", "Bonn", "Cairo", "Delhi"]
LINES = [f"{name} lives in the old town of {town}." for name in NAMES for town in TOWNS]
LINES += [f"Where does {name} live? Not in {town}!" for name in NAMES for town in TOWNS]
SIZES = dict(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.2,
)
FAMILIES = ["bert", "roberta", "albert", "xlnet", "deberta", "deberta-v2", "modernbert"]


def predicted(*arguments: str, **options: Any) -> pd.DataFrame:
    """The table that `exlm predict` writes; a missing text is ""."""
    frame = pd.read_csv(
        predict(*arguments, **options), float_precision="round_trip", lineterminator="\n"
    )
    texts = [
        name
        for name in frame
        if name in ("problem", "answer") or frame[name].dtype.kind not in "fib"
    ]
    return frame.assign(**{name: frame[name].astype(object).fillna("") for name in texts})


def save_family(path: Path, family: str, **changes: int) -> Path:
    """A model directory with a masked (or permuted) language model and its tokenizer."""
    tokenizer = _tokenizer(family)
    config = _config(family, tokenizer)
    config.update(changes)
    torch.manual_seed(7)
    model = (
        XLNetLMHeadModel(config) if family == "xlnet" else AutoModelForMaskedLM.from_config(config)
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def pairs(shift: int, rows: int) -> pd.DataFrame:
    """Whether the second text asks where the one of the first lives; one pair is very long."""
    both = [(NAMES[(i + shift) % 6], NAMES[(i + shift + i // 2 % 2) % 6], i) for i in range(rows)]
    frame = pd.DataFrame(
        {
            "text": [
                " ".join([f"{a} lives in the old town of {TOWNS[i % 6]}."] * (1 + i % 3))
                for a, _, i in both
            ],
            "second": [f"Where does {b} live?" for _, b, _ in both],
            "label": [int(a == b) for a, b, _ in both],
        }
    )
    frame.loc[1, "text"] = " ".join([frame.loc[1, "text"]] * 4)
    return frame


def questions(shift: int) -> dict:
    """SQuAD JSON of six questions, of which three have an answer."""
    text = " ".join(f"{NAMES[i]} lives in the old town of {TOWNS[i - shift]}." for i in range(3))
    towns = [TOWNS[i - shift] for i in range(3)]
    answers = [[{"text": town, "answer_start": text.index(town)}] for town in towns] + [[], [], []]
    asked = [
        {"id": f"q{i}", "question": f"Where does {NAMES[i]} live?", "answers": answers[i]}
        for i in range(6)
    ]
    return {
        "version": "v2.0",
        "data": [{"title": "towns", "paragraphs": [{"context": text, "qas": asked}]}],
    }


def _config(family: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    common = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    if family == "xlnet":
        return XLNetConfig(
            **common, d_model=16, n_layer=1, n_head=2, d_inner=32, initializer_range=0.2
        )
    special = dict(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    relative = dict(
        relative_attention=True, pos_att_type=["p2c", "c2p"], max_position_embeddings=64
    )
    build = {
        "bert": lambda: BertConfig(**SIZES, **common, max_position_embeddings=64),
        "roberta": lambda: RobertaConfig(
            **SIZES, **common, max_position_embeddings=66, type_vocab_size=1
        ),
        "albert": lambda: AlbertConfig(
            **SIZES, **common, embedding_size=8, max_position_embeddings=64
        ),
        "deberta": lambda: DebertaConfig(**SIZES, **common, **relative),
        "deberta-v2": lambda: DebertaV2Config(
            **SIZES,
            **common,
            **relative,
            type_vocab_size=0,
            position_biased_input=False,
            share_att_key=True,
        ),
        "modernbert": lambda: ModernBertConfig(**SIZES, **common, **special, local_attention=16),
    }
    return build[family]()


def _tokenizer(family: str) -> PreTrainedTokenizerFast:
    if family == "bert":
        return BertTokenizer(vocab=train_text_tokenizer("wordpiece", LINES, VOCABULARY).get_vocab())
    if family == "roberta":
        return RobertaTokenizer(**_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    if family == "deberta":
        return DebertaTokenizer(**_bpe(["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]))
    if family == "modernbert":
        return train_text_tokenizer("bpe", LINES, VOCABULARY)
    if family == "albert":
        return AlbertTokenizer(
            vocab=_unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], "<unk>"),
            do_lower_case=False,
        )
    if family == "deberta-v2":
        return DebertaV2Tokenizer(
            vocab=_unigram(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "[UNK]")
        )
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    return XLNetTokenizer(vocab=_unigram(special, "<unk>"))


def _bpe(special: list[str]) -> dict:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    return {"vocab": learned["vocab"], "merges": [tuple(pair) for pair in learned["merges"]]}


def _unigram(special: list[str], unknown: str) -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=special, unk_token=unknown, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]
