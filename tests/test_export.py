"""ONNX files give what PyTorch gives, for batches of any size and length, and need no PyTorch."""

import ast
import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import exlm
from exlm import (
    ExLMForMaskedLM,
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMModel,
    InputError,
)
from exlm.describe.on_disk import info, verify
from exlm.integrations.export import export
from exlm.storage.files import sha256
from exlm.tasks.predict import predict
from tests.conftest import MOLECULES
from tests.test_their_tools import save

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
ROOT = Path(__file__).parents[1]
CASES = {
    "encoder": (
        ExLMForMaskedLM,
        {"expanded_layers": 1},
        ["last_hidden_state", "sentence_embedding"],
    ),
    "classes": (
        ExLMForSequenceClassification,
        {"expanded_layers": 1, "copy_embedding": 0.5},
        ["logits"],
    ),
    "questions": (
        ExLMForQuestionAnswering,
        {"objective": "mlm", "repeat": 2},
        ["start_logits", "end_logits"],
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A model directory, its export, the loaded network and the names of the outputs."""
    head, switches, names = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    path = save(folder / "model", head, **switches)
    export(path, str(folder / "onnx"))
    kind = ExLMModel if head is ExLMForMaskedLM else head
    return folder, kind.from_pretrained(path).eval(), names


def test_a_file_says_nothing_of_the_folders_of_its_maker(case):
    content = (case[0] / "onnx/model.onnx").read_bytes()
    for path in (exlm.__path__[0], ROOT, Path.home(), sys.prefix):
        assert str(path).encode() not in content
    assert b"stack_trace" not in content and b'File "' not in content


def test_the_outputs_are_those_of_pytorch(case):
    folder, network, names = case
    for name in ("model", "onnx"):
        tokenizer = Tokenizer.from_file(str(folder / name / "tokenizer.json"))
        assert tokenizer.encode(" CCO ").ids == tokenizer.encode("CCO").ids
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    assert [output.name for output in session.get_outputs()] == names
    for rows, length in ((1, 3), (4, 20), (3, 41)):
        mask = torch.arange(length) < torch.randint(2, length + 1, (rows, 1))
        ids = torch.where(mask, torch.randint(5, 20, (rows, length)), 1)
        found = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.long().numpy()})
        with torch.no_grad():
            if isinstance(network, ExLMModel):
                expected = (
                    network(ids, mask).last_hidden_state,
                    network.embedding(ids, mask),
                )
            else:
                expected = network(ids, mask).to_tuple()
        for ours, theirs in zip(found, expected, strict=True):
            real = mask.numpy() if theirs.shape[:2] == mask.shape else np.full(rows, True)
            np.testing.assert_allclose(ours[real], theirs.numpy()[real], atol=1e-4)


def test_an_export_can_be_verified(case, capsys, tmp_path):
    folder = tmp_path / "onnx"
    shutil.copytree(case[0] / "onnx", folder)
    verify(str(folder))
    assert capsys.readouterr().out == f"{folder}: as it was written\n"
    assert f"SHA-256 of the weights: {sha256(folder / 'model.onnx')}" in info(str(folder))
    with (folder / "model.onnx").open("r+b") as file:
        file.write(b"other")
    with pytest.raises(InputError, match="1 of 1 directories are damaged"):
        verify(str(folder))


def test_an_export_warns_of_nothing(tmp_path):
    model = save(tmp_path / "model", ExLMModel, num_hidden_layers=1)
    words = [sys.executable, "-m", "exlm", "export", model, "--output", str(tmp_path / "onnx")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_export_can_be_quantized(case):
    quantization = pytest.importorskip("onnxruntime.quantization")
    folder, network, _ = case
    target = folder / "quantized.onnx"
    quantization.quantize_dynamic(folder / "onnx/model.onnx", target)
    ids = torch.tensor([[2, 7, 9, 12, 3]])
    mask = torch.ones_like(ids)
    inputs = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    quantized = onnxruntime.InferenceSession(target).run(None, inputs)[0]
    with torch.no_grad():
        exact = network(ids, mask)[0].numpy()
    assert np.abs(quantized - exact).max() < 0.2 * max(1, np.abs(exact).max())


def test_the_example_needs_no_pytorch(case):
    folder, network, names = case
    example = ROOT / "examples/onnx_without_torch.py"
    code = (
        "import runpy, sys\n"
        f"sys.argv[1:] = {[str(folder / 'onnx'), *MOLECULES[:3]]!r}\n"
        f"runpy.run_path({str(example)!r})\n"
        "assert not {'torch', 'transformers', 'exlm'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, rest = done.stdout.splitlines()[-1].split(" ", 1)
    printed = np.array(ast.literal_eval(rest[rest.index("[") :]))
    tokenizer = AutoTokenizer.from_pretrained(folder / "onnx")
    batch = tokenizer(MOLECULES[:3], padding=True, return_tensors="pt")
    with torch.no_grad():
        encoder = isinstance(network, ExLMModel)
        expected = network.embedding(**batch) if encoder else network(**batch)[name]
    assert name == names[-1]
    real = (
        batch["attention_mask"].bool().numpy()
        if expected.shape == batch["input_ids"].shape
        else np.full(3, True)
    )
    np.testing.assert_allclose(printed[real], expected.numpy()[real], atol=1e-4)


TASK = {
    "task_type": "multiclass",
    "max_length": 12,
    "precision": "fp32",
    "text_column": "first",
    "label_columns": ["label"],
    "classes": ["a", "b"],
    "molecules": False,
}


def save_classifier(folder, pair_column):
    """Of one text or of two, with the same weights."""
    task = TASK | {"pair_column": pair_column}
    return save(folder / "model", ExLMForSequenceClassification, task=task, num_hidden_layers=1)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """The directory that was exported of a classifier, which `exlm export` describes."""
    folder = tmp_path_factory.mktemp("classifier")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        export(save_classifier(folder, None), str(folder / "onnx"))
    assert "cuts what is longer than 12 tokens" in printed.getvalue()
    return folder / "onnx"


@pytest.mark.parametrize("pair_column", [None, "second"])
def test_the_exported_tokenizer_cuts_long_texts_as_predict_does(pair_column, classifier, tmp_path):
    model = save_classifier(tmp_path, pair_column)
    rows = pd.DataFrame(
        {
            "first": ["CCO", "CCNCCO" * 4, "CCC", "CCNCC" * 4],
            "second": ["CN", "C", "CO" * 9, "CCCN" * 5],
        }
    )
    rows.to_csv(tmp_path / "rows.csv", index=False)
    predicted = pd.read_csv(predict(model, str(tmp_path / "rows.csv")))
    tokenizer = Tokenizer.from_file(str(classifier / "tokenizer.json"))
    tokenizer.enable_padding()
    texts = list(zip(rows["first"], rows["second"], strict=True)) if pair_column else rows["first"]
    batch = tokenizer.encode_batch(list(texts))
    inputs = {
        "input_ids": np.array([row.ids for row in batch]),
        "attention_mask": np.array([row.attention_mask for row in batch]),
    }
    session = onnxruntime.InferenceSession(classifier / "model.onnx")
    logits = torch.tensor(session.run(None, inputs)[0])
    columns = predicted[["predicted a", "predicted b"]]
    np.testing.assert_allclose(logits.softmax(1), columns, atol=1e-5)
    # transformers cuts where it is told to, as before
    loaded = AutoTokenizer.from_pretrained(classifier)
    assert len(loaded("C" * 50)["input_ids"]) == 52
    assert len(loaded("C" * 50, truncation=True)["input_ids"]) == 12


def test_what_cannot_be_exported(tmp_path):
    path = save(tmp_path / "model", boundary_states="k")
    with pytest.raises(InputError, match="boundary_states k cannot be exported"):
        export(path, str(tmp_path / "onnx"))
    assert not (tmp_path / "onnx").exists()
    with pytest.raises(InputError, match="/nowhere does not exist"):
        export("/nowhere", str(tmp_path / "onnx"))
