"""Tokenizers of text and proteins, and the corpora that they make."""

import json
from itertools import pairwise
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from exlm.data.corpus import Corpus
from exlm.data.prepare import prepare
from exlm.data.tokenization import (
    ALPHABETS,
    BERT,
    ROBERTA,
    Alphabet,
    alphabet_name,
    evenly_spaced,
    letter_tokenizer,
    train_text_tokenizer,
)
from exlm.errors import InputError
from exlm.storage.tokenizers import load_tokenizer, save_tokenizer, tokenizer_hash

TEXT = "the quick brown fox jumps over lazy dogs while naïve cafés sell crêpes to élégant people"
WORDS = TEXT.split()
DOCUMENTS = [
    [
        " ".join(WORDS[(i + j + k) % len(WORDS)] for k in range(4 + 3 * j)) + f" {i}."
        for j in range(1 + i % 4)
    ]
    for i in range(60)
]
SIZE = 400


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind):
    return train_text_tokenizer(kind, (row for rows in DOCUMENTS for row in rows), SIZE)


@pytest.fixture
def text_file(tmp_path, monkeypatch):
    """Paragraphs of documents, read a few rows at a time."""
    monkeypatch.setattr("exlm.data.inputs.CHUNK_ROWS", 7)
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join("\n".join(rows) for rows in DOCUMENTS), encoding="utf-8")
    return str(path)


def _prepare(file, output, **options):
    defaults = {
        "tokenizer": "bpe",
        "vocabulary_size": SIZE,
        "documents": "blank",
        "max_length": 16,
        "held_out": 0.0,
    }
    return prepare([file], str(output), **defaults | {"workers": 1} | options)


def _examples(path, split="train"):
    corpus = Corpus(path, split)
    return [corpus[i].tolist() for i in range(len(corpus))]


def _documents(path):
    """[document] token ids of all its paragraphs."""
    tokenizer = load_tokenizer(path)
    return [
        [t for row in rows for t in tokenizer(row, add_special_tokens=False)["input_ids"]]
        for rows in DOCUMENTS
    ]


def _joined(documents, separator):
    return sum(([separator] * (i > 0) + tokens for i, tokens in enumerate(documents)), [])


def test_ids_and_templates(trained, kind):
    special = ROBERTA if kind == "bpe" else BERT
    assert trained.convert_ids_to_tokens([0, 1, 2, 3, len(trained) - 1]) == list(special.values())
    a = trained("fox", add_special_tokens=False)["input_ids"]
    b = trained("dogs", add_special_tokens=False)["input_ids"]
    assert trained("fox")["input_ids"] == [0, *a, 2]
    assert trained("fox", "dogs")["input_ids"] == [0, *a, *[2] * (2 if kind == "bpe" else 1), *b, 2]
    assert (trained.bos_token_id, trained.eos_token_id) == (0, 2)
    assert (trained.cls_token_id, trained.sep_token_id) == (0, 2)


def test_mask_of_bpe_takes_the_space_before_it(tmp_path):
    train_text_tokenizer("bpe", ["the fox"] * 9, SIZE).save_pretrained(tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    ids = stock("the <mask> fox", add_special_tokens=False)["input_ids"]
    assert stock.convert_ids_to_tokens(ids) == ["the", "<mask>", "Ġfox"]


def test_stock_auto_tokenizer_loads_the_same(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
    stock = AutoTokenizer.from_pretrained(tmp_path)
    assert (
        tokenizer_hash(stock) == tokenizer_hash(load_tokenizer(tmp_path)) == tokenizer_hash(trained)
    )
    assert stock.mask_token_id == len(stock) - 1 and len(stock) <= SIZE
    assert stock("quick fox", "dogs")["input_ids"] == trained("quick fox", "dogs")["input_ids"]


def test_learning_is_reproducible(trained, kind):
    again = train_text_tokenizer(kind, (row for rows in DOCUMENTS for row in rows), SIZE)
    assert tokenizer_hash(again) == tokenizer_hash(trained)


_bpe = Tokenizer.from_str(
    train_text_tokenizer("bpe", ["the quick brown fox"], 300).backend_tokenizer.to_str()
)
_bpe.encode_special_tokens = True  # as when a corpus is written


@settings(max_examples=200, deadline=None)
@given(st.text() | st.lists(st.sampled_from(["<mask>", "</s>", " ", "é", "\0", "𝔘"])).map("".join))
def test_bpe_round_trips_any_text(text):
    """Accents get one encoding."""
    ids = _bpe.encode(text, add_special_tokens=False).ids
    assert _bpe.decode(ids, skip_special_tokens=False) == normalize("NFC", text)
    assert _bpe.token_to_id("<mask>") not in ids


def test_sample_is_evenly_spaced_and_bounded():
    rows = [f"{i:04d}" for i in range(1000)]
    sample = evenly_spaced(rows, 400)
    assert 200 < sum(map(len, sample)) <= 400
    assert {int(b) - int(a) for a, b in pairwise(sample)} == {16}
    assert evenly_spaced(rows, 4000) == rows
    assert evenly_spaced(["x" * 99], 9) == ["x" * 99]


@pytest.mark.parametrize("documents", ["blank", "row"])
def test_unbroken_stream_loses_no_token(text_file, tmp_path, documents):
    manifest = _prepare(text_file, tmp_path / "out", documents=documents)
    examples = _examples(tmp_path / "out")
    assert {len(e) for e in examples[:-1]} == {14}
    tokenizer = load_tokenizer(tmp_path / "out")
    expected = _documents(tmp_path / "out")
    if documents == "row":
        expected = [
            tokenizer(row, add_special_tokens=False)["input_ids"]
            for rows in DOCUMENTS
            for row in rows
        ]
    assert sum(examples, []) == _joined(expected, tokenizer.eos_token_id)
    assert manifest["counts"]["documents"] == len(expected)


def test_examples_end_with_their_documents(text_file, tmp_path):
    _prepare(text_file, tmp_path / "out", cross_documents=False)
    pieces = [d[i : i + 14] for d in _documents(tmp_path / "out") for i in range(0, len(d), 14)]
    assert _examples(tmp_path / "out") == pieces


@pytest.mark.parametrize("cross", [True, False])
def test_documents_are_held_out_whole(text_file, tmp_path, cross):
    _prepare(text_file, tmp_path / "out", held_out=0.3, cross_documents=cross)
    eos, documents = load_tokenizer(tmp_path / "out").eos_token_id, _documents(tmp_path / "out")
    train, valid = (sum(_examples(tmp_path / "out", split), []) for split in ("train", "valid"))
    sides = [[], []]
    for document in documents:  # each is next on one of the two sides
        side = next(
            s
            for s, stream in enumerate((train, valid))
            if _starts(stream, sides[s], document, eos, cross)
        )
        sides[side].append(document)
    assert [_joined(s, eos) if cross else sum(s, []) for s in sides] == [train, valid]
    assert 0.1 < len(sides[1]) / len(documents) < 0.5


def test_a_share_that_whole_documents_cannot_give_is_said(tmp_path, capsys):
    path = tmp_path / "in.txt"
    sizes = [200, 1, 1, 1]
    path.write_text("\n\n".join("\n".join([f"row {i}"] * n) for i, n in enumerate(sizes)))
    said = set()
    for seed in range(6):
        counts = _prepare(str(path), tmp_path / str(seed), held_out=0.3, seed=seed)["counts"]
        share = counts["valid_tokens"] / (counts["train_tokens"] + counts["valid_tokens"])
        is_said = "instead of 30%, because a document is held out whole" in capsys.readouterr().out
        assert is_said == (0 < share < 0.15 or share > 0.6)
        said.add(is_said)
    assert said == {True, False}


def _starts(stream, before, document, eos, cross):
    expected = _joined([*before, document], eos) if cross else sum(before, []) + document
    return stream[: len(expected)] == expected


def test_result_does_not_depend_on_workers(text_file, tmp_path):
    one = _prepare(text_file, tmp_path / "one", held_out=0.2)
    assert one == _prepare(text_file, tmp_path / "two", held_out=0.2, workers=2)
    Corpus(tmp_path / "two").check_files()


def test_a_skipped_first_row_still_separates_documents(text_file, tmp_path):
    _prepare(text_file, tmp_path / "first", tokenizer="wordpiece")
    other = tmp_path / "other.txt"
    other.write_text("the fox\n\n狐\nthe dogs\n")
    options = {"tokenizer": str(tmp_path / "first"), "cross_documents": False, "on_invalid": "skip"}
    assert _prepare(str(other), tmp_path / "out", **options)["counts"]["documents"] == 2
    tokenizer = load_tokenizer(tmp_path / "out")
    assert [tokenizer.decode(example) for example in _examples(tmp_path / "out")] == [
        "the fox",
        "the dogs",
    ]


def test_wordpiece_counts_unknown_characters_and_keeps_their_rows(text_file, tmp_path):
    _prepare(text_file, tmp_path / "first", tokenizer="wordpiece")
    other = tmp_path / "other.txt"
    other.write_text("the fox 狐 jumps\n")
    manifest = _prepare(str(other), tmp_path / "out", tokenizer=str(tmp_path / "first"))
    assert manifest["counts"]["rows_with_unknown_tokens"] == 1
    assert (
        load_tokenizer(tmp_path / "out").decode(_examples(tmp_path / "out")[0])
        == "the fox [UNK] jumps"
    )


@pytest.mark.parametrize(
    "lines, molecules", [(WORDS, False), (["CCO", "c1ccccc1", "C(", "CN"], True)]
)
def test_the_rows_say_whether_a_saved_text_tokenizer_reads_molecules(
    text_file, tmp_path, capsys, lines, molecules
):
    _prepare(text_file, tmp_path / "first")
    other = tmp_path / "other.txt"
    other.write_text("\n".join(lines))
    options = {"tokenizer": str(tmp_path / "first"), "documents": "none"}
    manifest = _prepare(str(other), tmp_path / "out", **options)
    assert manifest["options"]["molecules"] is molecules
    assert manifest["counts"]["skipped"] == molecules  # the molecule that RDKit cannot read
    assert ("checked as molecules" in capsys.readouterr().out) is molecules
    assert (
        _prepare(str(other), tmp_path / "all", molecules=False, **options)["counts"]["skipped"] == 0
    )
    assert "checked as molecules" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, options, message",
    [
        (
            b"good\n" * 5000 + b"bad \xff\n",
            {},
            "not UTF-8: it has the byte 0xff after 'bad '",
        ),
        (b"a b\n", {"vocabulary_size": 260}, "vocabulary_size is 260 but must be at least 261"),
        (b"\n\n", {}, "no text found to learn a vocabulary from"),
        (
            b"a b\n",
            {"documents": "page"},
            "documents is 'page'; it must be one of none, row, blank",
        ),
        (
            b"a b\n",
            {"on_invalid": "drop"},
            "on_invalid is 'drop'; it must be one of error, skip, keep",
        ),
        (b"a b\n", {"drop_duplicates": True}, "drop_duplicates"),
        (
            b"a b c d e f\n",
            {"documents": "none", "max_length": 3},
            "no row is left for training .*1 too_long",
        ),
    ],
)
def test_unusable_text(tmp_path, content, options, message):
    (tmp_path / "in.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        _prepare(str(tmp_path / "in.txt"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_proteins_are_residues_and_what_is_none_is_reported(tmp_path, capsys):
    records = [
        "mkvlaagw\nLLKK*",
        "MKV-LA",
        "MK.VLA",
        "MK1VLA",
        "XBZUOJ",
        "MKVLAAGWLLKK",
        "",
        "MKVLL",
    ]
    path = tmp_path / "proteins.faa"
    path.write_text("".join(f">p{i} about\n{record}\n" for i, record in enumerate(records)))
    options = {"tokenizer": "protein", "workers": 1, "drop_duplicates": True, "held_out": 0.0}
    manifest = prepare([str(path)], str(tmp_path / "corpus"), **options)
    tokenizer, corpus = load_tokenizer(tmp_path / "corpus"), Corpus(tmp_path / "corpus")
    proteins = [tokenizer.decode(corpus[i]) for i in range(len(corpus))]
    assert proteins == ["MKVLAAGWLLKK", "XBZUOJ", "MKVLL"] and not corpus.molecules
    assert manifest["counts"]["duplicates"] == 1
    assert manifest["counts"]["invalid"] == {"unknown_token": 3}
    skipped = (tmp_path / "corpus" / "skipped.csv").read_text()
    assert "MKV-LA,unknown_token,not in the vocabulary: -,skipped" in skipped
    assert manifest["vocabulary_size"] == len(tokenizer) == 31  # 26 letters and 5 special tokens
    saved = {"tokenizer": str(tmp_path / "corpus")}
    again = prepare([str(path)], str(tmp_path / "again"), **options | saved)
    assert again["tokenizer_hash"] == manifest["tokenizer_hash"]
    assert not again["options"]["molecules"]
    with pytest.raises(InputError, match="row 2: 'MKV-LA' is invalid"):
        prepare([str(path)], str(tmp_path / "third"), **options, on_invalid="error")


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_texts_that_the_tokenizer_reads_alike_are_in_one_split(tmp_path, kind):
    rows = [f"the {word} fox" for word in ("red", "old", "big", "shy", "wet") for _ in range(9)]
    rows = [f"{row} {i % 9} {i % 7}" for i, row in enumerate(rows)]
    (tmp_path / "in.txt").write_text("\n".join([*rows, *(row.capitalize() for row in rows)]))
    options = {"tokenizer": kind, "documents": "none", "held_out": 0.4, "drop_duplicates": True}
    _prepare(str(tmp_path / "in.txt"), tmp_path / "corpus", **options)
    splits = [_examples(tmp_path / "corpus", split) for split in ("train", "valid")]
    assert all(splits) and not any(example in splits[0] for example in splits[1])
    capitals_count = kind == "bpe"
    assert sum(map(len, splits)) == len(set(rows)) * (1 + capitals_count)


def test_the_vocabulary_of_proteins_is_not_learned(tmp_path):
    """Short proteins that are SMILES by accident are proteins, for a saved tokenizer too."""
    (tmp_path / "in.txt").write_text("CCN\nCCC\nNCS\n")
    options = {"documents": "none", "vocabulary_size": 5}
    for kind, output in (("protein", "corpus"), (str(tmp_path / "corpus"), "again")):
        manifest = _prepare(str(tmp_path / "in.txt"), tmp_path / output, tokenizer=kind, **options)
        assert manifest["vocabulary_size"] == 31 and manifest["options"]["molecules"] is False


@pytest.mark.parametrize(("sequence", "is_noted"), [("ACGTNacgt", True), ("ACGTK", False)])
def test_genes_as_proteins_get_a_note(tmp_path, capsys, sequence, is_noted):
    (tmp_path / "in.fasta").write_text(f">a\n{sequence}\n")
    prepare([str(tmp_path / "in.fasta")], str(tmp_path / "out"), "protein", workers=1, held_out=0.0)
    assert ("letters of DNA or RNA alone" in capsys.readouterr().err) is is_noted


def test_other_tools_read_and_write_the_tokens_of_proteins(tmp_path):
    """The capital letters that residues get are none of a mask's or an end's."""
    tokenizer = letter_tokenizer("protein")
    save_tokenizer(tmp_path, tokenizer)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    ids = stock(" mkTA<mask>y ")["input_ids"]
    tokens = ["<s>", "M", "K", "T", "A", "<mask>", "Y", "</s>"]
    assert stock.convert_ids_to_tokens(ids) == tokens and stock.all_special_ids
    assert stock.decode(ids, skip_special_tokens=True) == "MKTAY"
    assert tokenizer_hash(load_tokenizer(tmp_path)) == tokenizer_hash(tokenizer)
    assert load_tokenizer(tmp_path)("mkTA<mask>y")["input_ids"] == ids


def test_proteins_longer_than_an_example_lose_no_residue(tmp_path):
    path = tmp_path / "proteins.fasta"
    path.write_text(">a\n" + "MKVLA" * 10 + "\n>b\nWWW\n>gap\nM-K\n")
    options = {"documents": "row", "cross_documents": False, "on_invalid": "skip", "max_length": 22}
    prepare([str(path)], str(tmp_path / "corpus"), "protein", workers=1, held_out=0.0, **options)
    tokenizer, corpus = load_tokenizer(tmp_path / "corpus"), Corpus(tmp_path / "corpus")
    proteins = [tokenizer.decode(corpus[i]) for i in range(len(corpus))]
    assert proteins == ["MKVLA" * 4, "MKVLA" * 4, "MKVLA" * 2, "WWW"]


def test_the_tokenizer_of_proteins_reads_lower_case_and_masks():
    tokenizer = letter_tokenizer("protein")
    ids = tokenizer("mk<mask>L*")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "M", "K", "<mask>", "L", "</s>"]


def test_a_further_alphabet_is_one_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(ALPHABETS, "dna", Alphabet("ACGTN", "DNA (bases)"))
    path = tmp_path / "genes.fasta"
    path.write_text(">a\nACGTAC\n>the same\nacgtac\n>b\nGGCC\n>a protein\nMKV\n")
    options = {"on_invalid": "skip", "drop_duplicates": True, "held_out": 0.0, "workers": 1}
    manifest = prepare([str(path)], str(tmp_path / "corpus"), "dna", **options)
    tokenizer, corpus = load_tokenizer(tmp_path / "corpus"), Corpus(tmp_path / "corpus")
    assert [tokenizer.decode(corpus[i]) for i in range(len(corpus))] == ["ACGTAC", "GGCC"]
    assert manifest["options"]["molecules"] is False
    assert alphabet_name(tokenizer.backend_tokenizer) == "dna"
