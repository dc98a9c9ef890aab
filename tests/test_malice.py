"""Files from a stranger: nothing in them is run, and what claims to be huge is refused before
memory is taken."""

import gzip
import json
import os
import shutil
import struct
import tracemalloc
import zipfile

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from exlm import ExLMForMaskedLM, ExLMModel
from exlm.data.chemistry import LONGEST_SMILES, molecule_problem, standardize
from exlm.data.corpus import Corpus
from exlm.data.open_files import LONGEST_LINE, read_json
from exlm.data.prepare import prepare
from exlm.errors import InputError
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.files import read_or_empty
from exlm.storage.models import load_model, save_model
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.encoders.loading import EncoderSource, load_encoder_tokenizer
from exlm.tasks.encoders.saved_task import SavedTask
from exlm_command import parser
from tests.conftest import read_frame, train_smiles_tokenizer


class Payload:
    """An object whose pickle runs a command."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path):
    """A file that exists as soon as any code of the stranger was run."""
    path = tmp_path / "was-run"
    yield path
    assert not path.exists()


@pytest.fixture
def model(tmp_path):
    """A model directory without its manifest, which a stranger would have written to fit."""
    tokenizer = train_smiles_tokenizer(["CCO"])
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    save_model(
        tmp_path / "model", ExLMForMaskedLM(ArchitectureConfig(**sizes).build(tokenizer)), tokenizer
    )
    (tmp_path / "model" / "manifest.json").unlink()
    return tmp_path / "model"


def _change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_pickled_weights_are_not_read(model, marker, tmp_path):
    (model / "model.safetensors").unlink()
    torch.save({"weight": Payload(marker)}, model / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(str(model), ExLMModel)
    bert = tmp_path / "bert"
    BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2
    ).save_pretrained(bert)
    torch.save({"weight": Payload(marker)}, bert / "pytorch_model.bin")
    # plain tensors would do: old models have no others
    with pytest.raises(InputError, match="cannot be loaded"):
        EncoderSource(str(bert)).load(SavedTask(), FinetuneConfig(), {})


def test_tensors_of_an_old_model_are_read(tmp_path):
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    config.save_pretrained(tmp_path)
    weights = BertForSequenceClassification(config).state_dict()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    network = EncoderSource(str(tmp_path)).load(SavedTask(), FinetuneConfig(), {})
    name = "bert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(network.state_dict()[name], weights[name])


@pytest.mark.parametrize("family", ["exlm", "unheard-of"])
def test_code_beside_a_model_is_neither_run_nor_offered(model, marker, family, monkeypatch):
    """transformers would ask on the terminal whether to run it."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    (model / "stranger.py").write_text(f"open({str(marker)!r}, 'w')\n")
    _change(
        model / "config.json",
        model_type=family,
        auto_map={"AutoConfig": "stranger.C", "AutoModel": "stranger.M"},
    )
    if family == "exlm":
        load_model(str(model), ExLMModel)
    else:
        with pytest.raises(InputError, match="cannot be loaded"):
            load_model(str(model), ExLMModel)
        with pytest.raises(InputError, match="no model could be loaded"):
            EncoderSource(str(model)).load(SavedTask(), FinetuneConfig(), {})
    tokenizer = {
        "auto_map": {"AutoTokenizer": ["stranger.T", "stranger.T"]},
        "tokenizer_class": "StrangerTokenizer",
    }
    _change(model / "tokenizer_config.json", **tokenizer)
    _change(model / "config.json", model_type="exlm")
    for load in (
        lambda path: load_model(path, ExLMModel),
        load_encoder_tokenizer,
    ):
        with pytest.raises(InputError, match="no tokenizer could be loaded"):
            load(str(model))


def test_tags_of_yaml_are_not_obeyed(marker, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"output: !!python/object/apply:os.system ['touch {marker}']\n")
    status, sentence = parser.run("pretrain", ["--config", str(path)])
    assert status == 2 and "python/object" in sentence
    assert read_or_empty(path) == {}


def test_a_list_where_a_record_belongs_is_empty(tmp_path):
    (tmp_path / "result.json").write_text("[1, 2]")
    assert read_or_empty(tmp_path / "result.json") == {}


def _header(length, content=b"{}"):
    return struct.pack("<Q", length) + content


SHAPE = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()


@pytest.mark.parametrize(
    "content", [_header(2**60), _header(99_000_000), _header(len(SHAPE), SHAPE)]
)
def test_a_header_of_weights_that_claims_too_much(model, content):
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(str(model), ExLMModel)


@pytest.mark.parametrize(
    "entry, claimed",
    [("vocab_size", 10**8), ("num_hidden_layers", 10**6), ("intermediate_size", 10**8)],
)
def test_a_configuration_that_claims_too_much(model, entry, claimed):
    _change(model / "config.json", **{entry: claimed})
    with pytest.raises(InputError, match="claims more weights than its files can hold"):
        load_model(str(model), ExLMModel)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd"])
def test_a_manifest_of_a_model_cannot_name_files_elsewhere(model, name):
    entry = {"bytes": 1, "sha256": "0"}
    (model / "manifest.json").write_text(json.dumps({"files": {name: entry}}))
    with pytest.raises(InputError, match="is missing"):
        load_model(str(model), ExLMModel)


def test_an_index_that_claims_too_much(tmp_path):
    source = tmp_path / "in.smi"
    source.write_text("CCO\nCCN\nCCC\n")
    prepare([str(source)], str(tmp_path / "corpus"), held_out=0.0, workers=1)
    path = tmp_path / "corpus" / "train.npy"
    header, index = path.read_bytes().split(b"\n", 1)
    claimed = header.replace(b"(3,), }", b"(99999999,), }")[: len(header)]
    assert claimed != header
    path.write_bytes(claimed + b"\n" + index)
    with pytest.raises(InputError, match="train.npy"):
        Corpus(tmp_path / "corpus")


@pytest.fixture
def little_memory(monkeypatch):
    """Lower limits, and a test that fails if more than a small part of a file was in memory at
    once."""
    monkeypatch.setattr("exlm.data.open_files.LONGEST_LINE", 2**16)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20


def _bomb(path, start, block, count):
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(count):
            file.write(block)


STARTS = {
    "smi": b"",
    "txt": b"",
    "csv": b"smiles\n",
    "tsv": b"smiles\tname\n",
    "jsonl": b'{"smiles": "',
    "sdf": b"",
}
TOO_LONG = "more than 65,536 characters"


@pytest.mark.parametrize("suffix", STARTS)
def test_a_line_without_an_end(suffix, tmp_path, little_memory):
    path = tmp_path / f"bomb.{suffix}.gz"
    _bomb(path, STARTS[suffix], b"C" * 2**20, 20)
    with pytest.raises(InputError, match=TOO_LONG):
        read_frame(path)
    with pytest.raises(InputError, match=TOO_LONG):
        prepare([str(path)], str(tmp_path / "corpus"), workers=1)


@pytest.mark.parametrize(("suffix", "start"), [("fasta", b">a\n"), ("sdf", b"x\n")])
def test_a_record_of_many_lines_without_an_end(suffix, start, tmp_path, little_memory):
    path = tmp_path / f"bomb.{suffix}.gz"
    _bomb(path, start, b"C" * 1000 + b"\n", 20_000)
    with pytest.raises(InputError, match=TOO_LONG):
        read_frame(path)


def test_lines_up_to_the_limit_are_read(tmp_path):
    path = tmp_path / "long.smi"
    path.write_text(f"{'C' * (LONGEST_LINE - 1)}\nCC\n")
    assert read_frame(path)["smiles"].str.len().tolist() == [LONGEST_LINE - 1, 2]


def test_a_workbook_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("exlm.data.records.LARGEST_FILE", 2**20)
    path = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"{number}.xml", bytes(2**20))
    with pytest.raises(InputError, match="larger than 1,048,576 bytes"):
        read_frame(path)


def test_json_is_read_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(["question"] * 10))
    assert len(read_json(path)) == 10
    monkeypatch.setattr("exlm.data.open_files.LARGEST_FILE", 50)
    with pytest.raises(InputError, match="more than 50 characters"):
        read_json(path)


def test_a_small_json_file_takes_little_memory(tmp_path, little_memory):
    path = tmp_path / "questions.json"
    path.write_text("[1]")
    assert read_json(path) == [1]


def test_nesting_without_end(tmp_path):
    for name in ("in.jsonl", "in.json"):
        (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(InputError, match="not a JSON object"):
        read_frame(tmp_path / "in.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path / "in.json")
    assert read_or_empty(tmp_path / "in.json") == {}


def test_a_title_of_angle_brackets(tmp_path):
    """A search that tried every pair of them would not end."""
    path = tmp_path / "in.sdf"
    path.write_text(f"x\n\n\n  0  0\nM  END\n>{'<' * 1_000_000}\n1\n\n> <y>\n2\n\n$$$$\n")
    assert read_frame(path)["y"].tolist() == ["2"]


def test_a_line_that_is_no_text_and_has_no_end(tmp_path, little_memory):
    path = tmp_path / "in.smi.gz"
    _bomb(path, b"\xff", b"C" * 2**20, 20)
    with pytest.raises(InputError, match="not UTF-8: it has the byte 0xff"):
        read_frame(path)


def test_an_endless_molecule_is_not_given_to_rdkit():
    allowed = "C" * LONGEST_SMILES
    assert molecule_problem(allowed) is None
    assert molecule_problem(allowed + "C") == "not a SMILES string: it has over 8,192 characters"
    assert standardize(allowed + "C", "canonical") == allowed + "C"


def test_a_copied_model_is_still_checked(model):
    """What a manifest covers is compared before anything is loaded."""
    other = model.parent / "copy"
    shutil.copytree(model, other)
    (other / "manifest.json").write_text(
        json.dumps({"files": {"config.json": {"bytes": 1, "sha256": "0"}}})
    )
    with pytest.raises(InputError, match="config.json has"):
        load_model(str(other), ExLMModel)
