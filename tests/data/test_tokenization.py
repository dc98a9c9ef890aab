"""The tokenizer of SMILES loses nothing, and stock transformers load it."""

import csv
import gzip
import json
import lzma
from itertools import islice

import pytest
from rdkit import Chem
from transformers import AutoTokenizer

from exlm.data.tokenization import (
    FIRST_CHARACTERS,
    MARKED_CHARACTERS,
    alphabet_name,
    letter_tokenizer,
    train_text_tokenizer,
)
from exlm.errors import InputError
from exlm.storage.tokenizers import load_tokenizer, save_tokenizer, tokenizer_hash
from tests.conftest import train_smiles_tokenizer

MOLECULES = [
    "CCO",
    "C[C@@H](Br)N%12CC%12",
    "[2H]C%(100)CCC%(100)",
    "[NH3]->[Cu]",
    "[Cu]<-[NH3]",
    "Clc1ccccc1/C=C\\C#N",
    "[Na+].[O-]S(=O)(=O)c1c[nH]c2c1ccs2",
    "*C$C~C:CC",
]


@pytest.fixture
def tokenizer():
    return train_smiles_tokenizer(MOLECULES)


@pytest.mark.parametrize("smiles", MOLECULES)
def test_round_trip_is_exact(tokenizer, smiles):
    assert Chem.MolFromSmiles(smiles, sanitize=False), "the test is about what RDKit reads"
    ids = tokenizer(smiles)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == smiles
    assert ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id
    assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize(
    "atom", ["%(100)", "->", "<-", "[2H]", "[C@@H]", "Br", "Cl", "%12", "[nH]"]
)
def test_one_token_each(tokenizer, atom):
    assert tokenizer.tokenize(atom) == [atom]


def test_vocabulary_order():
    tokenizer = train_smiles_tokenizer(["CCO", "CN", "N"])
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert tokens[:7] == ["<s>", "<pad>", "</s>", "<unk>", "C", "N", "O"] and tokens[-1] == "<mask>"
    assert tokens[7:-1] == sorted({*FIRST_CHARACTERS, *MARKED_CHARACTERS} - {"C", "N", "O"})


@pytest.mark.parametrize(
    "piece",
    [
        "[14CH2-]",
        "[Fe@TH2+3]",
        "[*:12]",
        "[#6]",
        "[se]",
        "%42",
        "%(100)",
        "->",
        "<-",
        "Br",
        "Cl",
        "[nH]",
        "#",
    ],
)
def test_a_piece_that_was_never_seen_is_spelled_without_loss(piece):
    tokenizer = train_smiles_tokenizer(["CC"])
    text = f"C{piece}C##C<mask>"
    tokens = tokenizer.tokenize(text)
    assert tokens[1] == piece[0] and all(
        token in MARKED_CHARACTERS for token in tokens[2 : 1 + len(piece)]
    )
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_every_element_can_be_spelled():
    tokenizer = train_smiles_tokenizer(["CC"])
    table = Chem.GetPeriodicTable()
    atoms = "".join(f"[{table.GetElementSymbol(number)}]" for number in range(1, 119))
    assert tokenizer.decode(tokenizer(atoms, add_special_tokens=False)["input_ids"]) == atoms


def test_no_molecule_of_the_real_data_is_lost(data_dir):
    folder = data_dir / "molecules"
    learnt = train_smiles_tokenizer(islice(_molecules(folder / "chembl.smi.xz"), 10_000))
    for file in (
        f for f in sorted(folder.iterdir()) if f.suffixes[-2:] in ([".csv", ".gz"], [".smi", ".xz"])
    ):
        texts = list(islice(_molecules(file), 10_000))
        ids = learnt(texts, add_special_tokens=False)["input_ids"]
        decoded = learnt.backend_tokenizer.decode_batch(ids, skip_special_tokens=False)
        assert texts and decoded == texts, file.name


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("C%x", ["C", "<unk>"]),
        ("C C", ["C", "<unk>", "C"]),
        ("[Xx]C", ["<unk>", "C"]),
        ("hey", ["<unk>"]),
    ],
)
def test_what_is_not_smiles_stays_visible(tokenizer, text, tokens):
    assert tokenizer.tokenize(text) == tokens


def test_stock_auto_tokenizer_loads_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
    stock = AutoTokenizer.from_pretrained(tmp_path)
    assert (
        tokenizer_hash(stock)
        == tokenizer_hash(load_tokenizer(tmp_path))
        == tokenizer_hash(tokenizer)
    )
    assert stock("CCO", "CN")["input_ids"] == tokenizer("CCO", "CN")["input_ids"]
    assert stock.mask_token_id == len(stock) - 1
    batch = stock(["CCO", "C"], padding=True)
    assert batch["input_ids"][1][-2:] == [stock.pad_token_id] * 2
    assert batch["attention_mask"] == [[1] * 5, [1, 1, 1, 0, 0]]


def test_hash_tells_tokenizers_apart_but_not_their_use(tokenizer):
    before = tokenizer_hash(tokenizer)
    tokenizer(["CCO", "C"], padding=True, truncation=True, max_length=4)
    assert tokenizer_hash(tokenizer) == before
    assert tokenizer_hash(train_smiles_tokenizer(MOLECULES[:-1])) != before


@pytest.mark.parametrize(
    "kind, text, pair",
    [
        ("bpe", "The <mask> is  blue <mask>", "<mask> sky"),
        ("wordpiece", "The [MASK] is  blue [MASK]", "[mask] sky"),
        ("protein", "mkt<mask>LL*", "MK"),
        ("smiles", "CC<mask>O", "C C"),
    ],
)
def test_a_saved_tokenizer_leaves_out_the_spaces_around_a_text_alone(kind, text, pair, tmp_path):
    if kind == "smiles":
        tokenizer = train_smiles_tokenizer(MOLECULES)
    elif kind == "protein":
        tokenizer = letter_tokenizer("protein")
    else:
        tokenizer = train_text_tokenizer(kind, ["The sky is blue. The sea is blue."] * 9, 300)
    expected = tokenizer(text, pair, return_offsets_mapping=True)
    tokenizer([text, pair], padding=True, truncation=True, max_length=4)
    before = tokenizer.backend_tokenizer.to_str()
    save_tokenizer(tmp_path, tokenizer, max_length=7)
    assert tokenizer.backend_tokenizer.to_str() == before and tokenizer.model_max_length > 7
    written = (tmp_path / "tokenizer.json").read_text()
    definition = json.loads(written)
    assert definition["truncation"] is None and definition["padding"] is None

    stock = AutoTokenizer.from_pretrained(tmp_path)
    assert stock.model_max_length == 7
    spaced = stock(f" \n{text}\t ", f"  {pair} ", return_offsets_mapping=True)
    assert spaced["input_ids"] == expected["input_ids"]
    for (start, stop), (begin, end) in zip(
        spaced["offset_mapping"], expected["offset_mapping"], strict=True
    ):
        assert (start, stop) == ((begin + 2, end + 2) if end else (0, 0))
    assert alphabet_name(stock.backend_tokenizer) == ("protein" if kind == "protein" else None)

    ours = load_tokenizer(tmp_path)
    assert tokenizer_hash(ours) == tokenizer_hash(tokenizer)
    assert ours(f" {text}")["input_ids"] == tokenizer(f" {text}")["input_ids"]
    save_tokenizer(tmp_path, ours)
    assert (tmp_path / "tokenizer.json").read_text() == written


def test_nothing_to_learn_from():
    with pytest.raises(InputError, match="no valid SMILES found"):
        train_smiles_tokenizer(["", "yyy"])


def test_missing_tokenizer(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["mask", "pad"])
def test_needed_special_tokens(tokenizer, tmp_path, name):
    tokenizer.save_pretrained(tmp_path)
    _drop(tmp_path, f"{name}_token")
    with pytest.raises(InputError, match=f"no {name} token"):
        load_tokenizer(tmp_path)


def test_cls_and_sep_stand_in_for_bos_and_eos(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    _drop(tmp_path, "bos_token", "eos_token")
    assert AutoTokenizer.from_pretrained(tmp_path).bos_token is None
    loaded = load_tokenizer(tmp_path)
    assert (loaded.bos_token_id, loaded.eos_token_id) == (0, 2)


def _molecules(file):
    if file.suffix == ".xz":
        with lzma.open(file, "rt") as stream:
            yield from (line.split()[0] for line in stream)
    else:
        with gzip.open(file, "rt", newline="") as stream:
            yield from (row.get("smiles") or row["mol"] for row in csv.DictReader(stream))


def _drop(folder, *names):
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in config.items() if k not in names}))
