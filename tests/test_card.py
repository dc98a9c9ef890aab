"""Model cards and `exlm info`: what is written is what was run; what is uploaded loads again."""

import base64
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pandas as pd
import pytest
import yaml
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from exlm import InputError
from exlm.data.prepare import prepare
from exlm.describe.card import run_facts, write_card
from exlm.describe.on_disk import info
from exlm.paper.report import report
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig
from exlm.storage.manifest import damage
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from tests.conftest import MOLECULES

SIZES = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory) -> Path:
    """A short pre-training."""
    path = tmp_path_factory.mktemp("runs") / "exlm"
    train = LoopConfig(steps=2, optimizer=OptimizerConfig(1e-3, 1), save_every=0)
    data = DataConfig(
        str(corpus), tokens_per_batch=512, tokens_per_micro_batch=512, eval_sequences=8
    )
    pretrain(str(path), data, ArchitectureConfig(**SIZES), train)
    return path


@pytest.fixture(scope="module")
def tuned(run) -> Path:
    """A short fine-tuning of it with two seeds."""
    smiles = [f"{'C' * n}{core}" for n in range(1, 4) for core in MOLECULES]
    table = run.parent / "lengths.csv"
    pd.DataFrame({"smiles": smiles, "size": [len(text) + 0.5 for text in smiles]}).to_csv(
        table, index=False
    )
    task = TaskConfig(str(table), split="random", task_type="regression")
    output = str(run.parent / "tuned")
    train = FinetuneConfig(epochs=1)
    finetune(output, str(run), task, train, seeds=[0, 1], license="cc-by-4.0")
    return run.parent / "tuned"


def card(directory: Path) -> tuple[dict, str]:
    """The metadata and the text of a model card."""
    _, metadata, text = (directory / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_names_of_several_lines_stand_in_one(run, tmp_path, capsys):
    smiles = [f"{'C' * n}{core}" for n in range(1, 4) for core in MOLECULES]
    sizes = [len(text) + 0.5 for text in smiles]
    pd.DataFrame({"smiles": smiles, "size\n[ atoms]": sizes}).to_csv(tmp_path / "t.csv")
    task = TaskConfig(str(tmp_path / "t.csv"), split="random", label_columns=["size [ atoms]"])
    finetune(str(tmp_path / "tuned"), str(run), task, FinetuneConfig(epochs=1), seeds=[0])
    assert f"regression of size [ atoms] ({min(sizes):g} to" in capsys.readouterr().out
    assert "- task: regression of size [ atoms]\n" in card(tmp_path / "tuned")[1]
    report([str(tmp_path)], str(tmp_path / "out"))
    for path in ("report.md", "tables/mine.tex"):
        assert "size [ atoms]" in (tmp_path / "out" / path).read_text()
    saved = json.loads((tmp_path / "tuned" / "results.json").read_text())
    assert saved["runs"][0]["label_columns"] == ["size\n[ atoms]"]


def test_what_is_interrupted_before_its_card_gets_one_when_it_goes_on(
    corpus, run, tmp_path, monkeypatch
):
    def interrupted(*_):
        raise RuntimeError("killed")

    train = LoopConfig(steps=2, optimizer=OptimizerConfig(1e-3, 1), save_every=0)
    data = DataConfig(
        str(corpus), tokens_per_batch=512, tokens_per_micro_batch=512, eval_sequences=8
    )
    table = tmp_path / "lengths.csv"
    pd.DataFrame(
        {"smiles": MOLECULES * 3, "size": [len(text) + 0.5 for text in MOLECULES * 3]}
    ).to_csv(table)
    task = TaskConfig(str(table), split="random", task_type="regression", label_columns=["size"])
    calls = {
        "exlm.pretrain.run": (
            tmp_path / "run",
            lambda path: pretrain(str(path), data, ArchitectureConfig(**SIZES), train),
        ),
        "exlm.tasks.grid": (
            tmp_path / "tuned/seed-0",
            lambda path: finetune(
                str(path.parent), str(run), task, FinetuneConfig(epochs=1), seeds=[0]
            ),
        ),
    }
    for module, (path, call) in calls.items():
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
            patch.setattr(f"{module}.write_card", interrupted)
            call(path)
        call(path)
        assert ("perplexity" if module == "exlm.pretrain.run" else "- valid, seed 0: rmse") in card(
            path
        )[1]


def test_a_pre_training_has_no_licence_of_another_run(run):
    (run.parent / "recipe.yaml").write_text("license: gpl-3.0\n")
    write_card(run)
    (run.parent / "recipe.yaml").unlink()
    assert "license" not in card(run)[0]


def test_the_card_of_a_pre_training(run, corpus):
    metadata, text = card(run)
    assert metadata["library_name"] == "transformers" and metadata["pipeline_tag"] == "fill-mask"
    assert "license" not in metadata and "exlm" in metadata["tags"]
    assert "No licence of the weights was named" in text
    # No index of packages has it.
    assert "pip install exlm" not in text and "`pip install .` in the folder of" in text
    manifest = json.loads((corpus / "manifest.json").read_text())
    result = json.loads((run / "result.json").read_text())
    assert manifest["corpus_hash"] in text
    assert f"{manifest['counts']['train_examples']:,} sequences" in text
    assert f"accuracy {result['evaluation']['accuracy']:.4f}" in text and "2 updates" in text
    assert "title     = {{ExLM}: Rethinking the Impact of {[MASK]} Tokens" in text


def test_the_card_of_a_fine_tuning(tuned):
    for directory in (tuned, tuned / "seed-0", tuned / "seed-1"):
        metadata, text = card(directory)
        assert metadata["pipeline_tag"] == "text-classification" and "regression of size" in text
        assert "lengths.csv" in text and "split random" in text
        assert "SHA-256 of the file lengths.csv: " in text
        assert metadata["license"] == "cc-by-4.0"
    report = json.loads((tuned / "results.json").read_text())
    assert f"rmse of 2 seeds: median {report['test']['rmse']['median']:.4f}" in card(tuned)[1]
    # who loads one model of several is told that `exlm predict` has other numbers
    assert "one of 2 seeds" in card(tuned)[1] and "seeds, the best" not in card(tuned / "seed-0")[1]


def test_a_card_names_the_weights_that_a_training_began_with(run, tuned, tmp_path):
    """By the number that sha256sum gives."""
    task = TaskConfig(str(run.parent / "lengths.csv"), split="random", task_type="regression")
    train = FinetuneConfig(epochs=1)
    again = tmp_path / "again"
    finetune(str(again), str(run), task, train, seeds=[0])
    start = LoopConfig(steps=2, optimizer=OptimizerConfig(1e-3, 1), save_every=0)
    corpus = json.loads((run / "result.json").read_text())["recipe"]["data"]["corpus"]
    data = DataConfig(corpus, tokens_per_batch=512, tokens_per_micro_batch=512, eval_sequences=8)
    longer = tmp_path / "longer"
    pretrain(str(longer), data, ArchitectureConfig(**SIZES), start, start_from=str(run))
    for directory, word, origin in (
        (again, "fine-tuned", run),
        (longer, "started", run),
    ):
        checksum = hashlib.sha256((origin / "model.safetensors").read_bytes()).hexdigest()
        line = f"- {word} from: {origin.name} (SHA-256 of model.safetensors {checksum})\n"
        assert line in card(directory)[1] and line in info(str(directory))


def test_runs_of_earlier_versions_recorded_another_checksum_of_the_weights(run, tuned, tmp_path):
    report = json.loads((tuned / "results.json").read_text())
    for result in report["runs"]:
        del result["weight_files"]
    (tmp_path / "results.json").write_text(json.dumps(report))
    checksum = report["settings"]["model_sha256"]
    assert f"fine-tuned from: exlm (checksum of the model {checksum})" in info(str(tmp_path))


def test_the_python_of_a_card_runs(run, tuned):
    for directory, name in ((run, "ExLMForMaskedLM"), (tuned, "ExLMForSequenceClassification")):
        code = card(directory)[1].split("```python\n")[1].split("```")[0]
        names: dict = {}
        exec(code.replace("THIS_DIRECTORY_OR_HUB_NAME", str(directory)), names)
        assert type(names["model"]).__name__ == name and names["tokenizer"].mask_token


def test_info_does_not_give_a_run_the_size_of_another_corpus(smiles_file, tmp_path):
    """The corpus at its path was prepared anew after the run."""
    corpus = tmp_path / "corpus"
    prepare([str(smiles_file)], str(corpus), held_out=0.2, workers=1)
    train = LoopConfig(steps=2, optimizer=OptimizerConfig(1e-3, 1), save_every=1)
    data = DataConfig([str(corpus)], tokens_per_batch=512, tokens_per_micro_batch=512)
    run = tmp_path / "run"
    result = pretrain(str(run), data, ArchitectureConfig(**SIZES), train)
    card_of_run = card(run)[1]
    assert "- size of the corpus: " in info(str(run))
    prepare([str(smiles_file)], str(corpus), held_out=0.4, workers=1, overwrite=True)
    text = info(str(run))
    line = "size of the corpus: not known (another corpus is at corpus now"
    assert text.count("size of the corpus") == 1 and line in text
    assert f"SHA-256 of the corpus: {result['identity']['corpus']}" in text
    assert card(run)[1] == card_of_run
    (run / "result.json").unlink()  # as if it were not finished
    assert line in info(str(run))
    shutil.rmtree(corpus)
    assert "size of the corpus" not in info(str(run))


def test_info_of_everything(run, tuned, corpus, tmp_path, capsys):
    manifest = json.loads((corpus / "manifest.json").read_text())
    text = info(str(corpus))
    assert manifest["corpus_hash"] in text and "vocabulary" in text
    assert f"{manifest['counts']['rows']:,} rows" in text
    assert "finished in" in info(str(run)) and "of 2 seeds" in info(str(tuned))
    assert "seed 1" in info(str(tuned / "seed-1"))
    assert capsys.readouterr().out.count(manifest["corpus_hash"]) >= 2
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(run / "recipe.yaml", unfinished)
    (unfinished / "log.jsonl").write_text('{"step": 1, "kind": "train"}\n{"step": 2, "ki')
    assert "not finished: 1 of 2 updates" in info(str(unfinished))
    shutil.copy(tuned / "recipe.yaml", unfinished)
    (unfinished / "log.jsonl").unlink()
    assert "not finished: 0 trainings" in info(str(unfinished))
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "empty", "neither a corpus"),
        (tmp_path / "none", "none does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            info(str(path))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("recipe.yaml", "data:\n", "recipe.yaml is damaged: data has no entries"),
        ("log.jsonl", '{"step": 1}\n3\n', "log.jsonl is damaged: '3' is no entry of a log"),
        ("manifest.json", '{"files": 3}', "manifest.json is damaged: files has no entries"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        info(str(tmp_path))


class Hub(BaseHTTPRequestHandler):
    """A stand-in for the Hugging Face hub, which writes what arrives to the folder `files`."""

    files: Path

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        answer: dict = {"url": "https://huggingface.co/someone/exlm"}
        if "/preupload/" in self.path:
            names = [
                {"path": file["path"], "uploadMode": "regular"}
                for file in json.loads(sent)["files"]
            ]
            answer = {"files": [name | {"shouldIgnore": False} for name in names]}
        if "/commit/" in self.path:
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    target = self.files / line["value"]["path"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(base64.b64decode(line["value"]["content"]))
            answer = {"commitUrl": "https://huggingface.co/someone/exlm/commit/1", "commitOid": "1"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path) -> Iterator[tuple[huggingface_hub.HfApi, Path]]:
    """A client of the stand-in, and the folder of the files that arrived."""
    files = tmp_path / "arrived"
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Receiver", (Hub,), {"files": files})
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield (
            huggingface_hub.HfApi(f"http://127.0.0.1:{server.server_port}", token="hf_token"),
            files,
        )
        server.shutdown()


def test_what_is_uploaded_to_a_hub_loads_again(run, tuned, hub):
    client, arrived = hub
    client.upload_folder(
        repo_id="someone/exlm", folder_path=run, ignore_patterns=["checkpoint-*", "tensorboard/*"]
    )
    assert card(arrived) == card(run) and AutoTokenizer.from_pretrained(arrived).mask_token
    assert type(AutoModelForMaskedLM.from_pretrained(arrived)).__name__ == "ExLMForMaskedLM"
    assert damage(arrived) is None and (arrived / "1_Pooling/config.json").is_file()
    client.upload_folder(repo_id="someone/exlm", folder_path=tuned, ignore_patterns="seed-*")
    model = AutoModelForSequenceClassification.from_pretrained(arrived)
    assert type(model).__name__ == "ExLMForSequenceClassification" and model.config.task[
        "label_columns"
    ] == ["size"]


def test_a_corpus_of_an_earlier_version_is_described(corpus):
    manifest = json.loads((corpus / "manifest.json").read_text())
    manifest["options"]["check_molecules"] = manifest["options"].pop("molecules")
    del manifest["counts"]["kept_invalid"]
    (corpus / "manifest.json").write_text(json.dumps(manifest))
    assert "rows checked as molecules gave" in info(str(corpus))


@pytest.mark.parametrize("objective,has_states", [("exlm", True), ("ctc", True), ("other", False)])
def test_states_are_only_said_of_objectives_that_are_known_to_have_them(
    tmp_path, objective, has_states
):
    config = {"model_type": "exlm", "objective": objective, "num_states": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ("3 states per mask" in run_facts(tmp_path)) == has_states
