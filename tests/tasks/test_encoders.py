"""Any Hugging Face encoder on the harness: what holds for ExLM holds for every family."""

import json
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoTokenizer, pipeline

from exlm import InputError
from exlm.data.tokenization import train_text_tokenizer
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage import tokenizers as stored_tokenizers
from exlm.storage.models import save_model
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import inference
from exlm.tasks.encoders.loading import EncoderSource, load_encoder_tokenizer, load_finetuned
from exlm.tasks.finetune import finetune
from exlm.tasks.rows.reading import tokenize
from tests.tasks.tiny_models import FAMILIES, LINES, pairs, predicted, questions, save_family

FAST = FinetuneConfig(
    epochs=2,
    batch_size=8,
    learning_rate=1e-3,
    dropout=0.25,
    pooler_dropout=0.125,
    patience=0,
    precision="fp32",
)
STILL = FinetuneConfig(epochs=1, batch_size=32, learning_rate=1e-30, precision="fp32")
LIMITED = {"bert", "roberta", "albert", "deberta", "deberta-v2"}  # to 64 tokens


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """train.csv, valid.csv, both.csv, and questions with and without answer in train.json and
    valid.json."""
    folder = tmp_path_factory.mktemp("files")
    frames = {"train": pairs(0, 24), "valid": pairs(1, 12)}
    for name, frame in (frames | {"both": pd.concat(frames.values())}).items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    for shift, name in enumerate(("train", "valid")):
        (folder / f"{name}.json").write_text(json.dumps(questions(shift)))
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(family, tmp_path_factory) -> Path:
    return save_family(tmp_path_factory.mktemp(family), family)


def run(model, files, output, train=FAST, seeds=(0,), **settings):
    task = TaskConfig(str(files / "train.csv"), str(files / "valid.csv"), pair_column="second")
    return finetune(str(output), str(model), task, train, list(seeds), **settings)


@pytest.fixture(scope="module")
def tuned(model, files):
    """The output of a fine-tuning run of the family, and its report."""
    output = model.with_name(f"{model.name}-tuned")
    return output, run(model, files, output)


@pytest.fixture(scope="module")
def exlm_report(files, tmp_path_factory) -> dict:
    """The report of the same run with an ExLM model."""
    place = tmp_path_factory.mktemp("exlm")
    tokenizer = train_text_tokenizer("bpe", LINES, 300)
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    save_model(place, ExLMForMaskedLM(ArchitectureConfig(**sizes).build(tokenizer)), tokenizer)
    return run(place, files, place / "tuned")


def keys(report, depth=4):
    """The names in a nested report."""
    if depth and isinstance(report, list):
        return [keys(item, depth - 1) for item in report]
    return (
        {key: keys(value, depth - 1) for key, value in report.items()}
        if isinstance(report, dict)
        else None
    )


def test_results_are_those_of_an_exlm_run(tuned, exlm_report):
    output, report = tuned
    written = json.loads((output / "results.json").read_text())
    assert keys(written) == keys(exlm_report)
    assert written["valid"]["accuracy"]["median"] == report["valid"]["accuracy"]["median"]
    assert written["runs"][0]["split"]["train"] == 24 and written["runs"][0]["split"]["valid"] == 12


def test_layers_computed_again_give_the_same_model(model, tuned, family, files, tmp_path):
    output, report = tuned
    again = replace(FAST, gradient_checkpointing=True)
    if family in ("albert", "xlnet"):  # transformers cannot do it
        with pytest.raises(
            InputError, match="cannot compute its layers again; leave out gradient_checkpointing"
        ):
            run(model, files, tmp_path, again)
        return
    assert run(model, files, tmp_path, again)["runs"][0]["scores"] == report["runs"][0]["scores"]
    left, right = (load_file(path / "seed-0/model.safetensors") for path in (output, tmp_path))
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-6, rtol=1e-5)


def test_predict_gives_the_predictions_of_the_run(tuned, files, tmp_path):
    output, report = tuned
    recorded = pd.read_csv(output / "seed-0/predictions.csv")
    again = predicted(str(output), str(files / "valid.csv"), str(tmp_path / "p.csv"))
    np.testing.assert_allclose(again["predicted label"], recorded["predicted label"], atol=1e-4)
    assert set(recorded["split"]) == {"valid"}
    accuracy = np.mean((recorded["predicted label"] >= 0.5) == recorded["label"])
    assert report["valid"]["accuracy"]["median"] == pytest.approx(accuracy)


def test_a_prediction_does_not_depend_on_its_batch(tuned, files, monkeypatch):
    network, tokenizer = load_finetuned(str(tuned[0] / "seed-0"))
    frame = pd.read_csv(files / "both.csv")
    examples = tokenize(frame["text"].tolist(), tokenizer, frame["second"].tolist(), 64)
    assert len({len(example["input_ids"]) for example in examples}) > 3

    def logits(tokens_per_batch: int, precision: str) -> np.ndarray:
        function = lambda **batch: network(**batch).logits  # noqa: E731
        monkeypatch.setattr(inference, "TOKENS_PER_BATCH", tokens_per_batch)
        outputs = np.empty((len(examples), network.config.num_labels))
        batches = inference.batch_outputs(network, function, examples, tokenizer, precision)
        for numbers, outputs_of_batch in batches:
            outputs[numbers] = outputs_of_batch
        return outputs

    alone = logits(1, "fp32")
    np.testing.assert_allclose(logits(10**6, "fp32"), alone, atol=2e-5)
    np.testing.assert_allclose(logits(10**6, "bf16"), alone, atol=0.1)
    assert np.ptp(alone) > 1e-3


def test_the_second_text_is_told_from_the_first(model, family):
    tokenizer = load_encoder_tokenizer(str(model))
    example = tokenize(["Ada"], tokenizer, ["Rome"])[0]
    types = set(example.get("token_type_ids", []))
    assert types == {"bert": {0, 1}, "albert": {0, 1}, "xlnet": {0, 1, 2}}.get(family, set())


def test_over_long_pairs_are_cut_to_what_the_model_can_read(model, files, tuned, family, capsys):
    longest = EncoderSource(str(model)).limit_length(1000)
    assert longest == (64 if family in LIMITED else 1000)
    reported = pd.read_csv(tuned[0] / "invalid_rows.csv")
    cut = reported[reported["reason"].str.contains("at most 64", na=False)]
    assert set(cut["action"]) == ({"cut"} if family in LIMITED else set())
    assert {("train", 2), ("valid", 2)} <= set(
        zip(cut["part"], cut["row"], strict=True)
    ) or family not in LIMITED
    if family in LIMITED:
        run(model, files, tuned[0])  # it is finished, and says the same again
        out = capsys.readouterr().out
        assert f"rows cut: {len(cut)} (see invalid_rows.csv), the first: train row 2" in out
        assert "rows left out" not in out


def test_dropout_reaches_every_layer(tuned):
    network, _ = load_finetuned(str(tuned[0] / "seed-0"))
    rates = {name: m.p for name, m in network.named_modules() if isinstance(m, nn.Dropout)}
    encoder = {
        rate for name, rate in rates.items() if name.startswith(f"{network.base_model_prefix}.")
    }
    head = {
        rate for name, rate in rates.items() if not name.startswith(f"{network.base_model_prefix}.")
    }
    assert encoder == {0.25} and head == {0.125}
    settings = network.config.to_dict()
    assert all(
        settings.get(name, 0.25) == 0.25
        for name in ("attention_dropout", "attention_probs_dropout_prob")
    )


def test_the_mean_over_tokens_is_refused_where_the_head_cannot_read_it(
    model, family, files, tmp_path
):
    train = replace(STILL, pooling="mean")
    if family == "modernbert":
        run(model, files, tmp_path, train)
        network, _ = load_finetuned(str(tmp_path / "seed-0"))
        assert network.config.classifier_pooling == "mean"
    else:
        with pytest.raises(InputError, match="train.pooling is for .*; leave it out"):
            run(model, files, tmp_path, train)


def test_from_scratch_starts_from_other_weights(model, files, tmp_path):
    source = load_file(model / "model.safetensors")
    for scratch in (False, True):
        run(model, files, tmp_path / str(scratch), STILL, from_scratch=scratch)
        tuned = load_file(tmp_path / str(scratch) / "seed-0/model.safetensors")
        matrices = [name for name in source.keys() & tuned.keys() if source[name].ndim > 1]
        same = [torch.allclose(source[name], tuned[name], atol=1e-7) for name in matrices]
        assert len(same) > 5 and (not any(same) if scratch else all(same))


def test_question_answering(model, files, tmp_path):
    task = TaskConfig(str(files / "train.json"), str(files / "valid.json"), max_length=60, stride=8)
    train = FinetuneConfig(epochs=1, batch_size=4, learning_rate=1e-3, precision="fp32")
    report = finetune(str(tmp_path / "out"), str(model), task, train, [0])
    assert report["metric"] == "f1" and 0 <= report["valid"]["f1"]["median"] <= 100
    recorded = pd.read_csv(tmp_path / "out/seed-0/predictions-valid.csv", keep_default_na=False)
    again = predicted(
        str(tmp_path / "out"), str(files / "valid.json"), str(tmp_path / "answers.csv")
    )
    assert again["id"].tolist() == recorded["id"].tolist() == [f"q{i}" for i in range(6)]
    assert again["answer"].tolist() == recorded["answer"].tolist()
    np.testing.assert_allclose(
        again["probability"], recorded["probability"].astype(float), atol=1e-4
    )


def test_a_fine_tuned_model_gives_the_encoder_of_its_best_seed(bert, files, tmp_path):
    quick = FinetuneConfig(epochs=2, batch_size=4, learning_rate=3e-2, patience=0, precision="fp32")
    first = run(bert, files, tmp_path / "first", quick, seeds=(0, 1, 2))
    scores = [result["scores"]["valid"]["roc_auc"] for result in first["runs"]]
    assert len(set(scores)) > 1  # else any seed would be the best
    run(tmp_path / "first", files, tmp_path / "second", STILL)

    def weights(directory: str) -> dict[str, torch.Tensor]:
        network, _ = load_finetuned(str(tmp_path / directory))
        return network.base_model.state_dict()

    best, started = weights(f"first/seed-{np.argmax(scores)}"), weights("second/seed-0")
    for name, values in best.items():
        torch.testing.assert_close(started[name], values, atol=1e-7, rtol=0)


def test_every_file_has_both_texts(bert, files, tmp_path):
    pd.read_csv(files / "valid.csv").drop(columns="second").to_csv(
        tmp_path / "valid.csv", index=False
    )
    task = TaskConfig(str(files / "train.csv"), str(tmp_path / "valid.csv"), pair_column="second")
    with pytest.raises(InputError, match="valid.csv: no column 'second'"):
        finetune(str(tmp_path / "out"), str(bert), task, STILL, [0])


def refused(model, files, tmp_path) -> str:
    """The one line that a run ends with."""
    with pytest.raises(InputError) as error:
        run(model, files, tmp_path / "out", STILL)
    message = str(error.value)
    assert "\n" not in message and str(model) in message and not list(tmp_path.glob("out/seed-*"))
    return message


def test_a_tokenizer_with_more_tokens_than_the_model(files, tmp_path):
    place = save_family(tmp_path / "model", "bert")
    tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.add_tokens([f"token{i}" for i in range(50)])
    tokenizer.save_pretrained(place)
    assert "do not belong together" in refused(place, files, tmp_path)


def test_a_tokenizer_with_another_mask_than_exlm(files, tmp_path):
    tokenizer = train_text_tokenizer("bpe", LINES, 300)
    config = ArchitectureConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2).build(
        tokenizer
    )
    config.mask_token_id -= 1
    save_model(tmp_path / "model", ExLMForMaskedLM(config), tokenizer)
    assert "do not belong together" in refused(tmp_path / "model", files, tmp_path)


def test_a_tokenizer_without_padding(files, tmp_path):
    place = save_family(tmp_path / "model", "modernbert")
    tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(place)
    assert "no pad token" in refused(place, files, tmp_path)


def test_a_directory_that_is_no_model(files, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(tmp_path / "empty", files, tmp_path)


def test_a_mistyped_path_is_named(files, tmp_path):
    assert "./runs/exlmm does not exist" in refused("./runs/exlmm", files, tmp_path)
    assert "/runs/exlmm does not exist" in refused("/runs/exlmm", files, tmp_path)


def test_a_hub_name_without_a_network(files, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "directory or hub name" in refused("nobody/no-such-encoder", files, tmp_path)


def test_the_head_of_every_family_returns_real_units(model, files, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # pipelines set it where it is not set
    frames = {name: pd.read_csv(files / f"{name}.csv") for name in ("train", "valid")}
    for name, frame in frames.items():
        frame.assign(label=500.0 + frame["text"].str.len()).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    task = TaskConfig(
        str(tmp_path / "train.csv"),
        str(tmp_path / "valid.csv"),
        task_type="regression",
        max_length=64,
    )
    finetune(str(tmp_path / "out"), str(model), replace(task, label_columns=["label"]), FAST, [0])
    recorded = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")["predicted label"]
    regress = pipeline(
        "text-classification", str(tmp_path / "out"), device="cpu", truncation=True, max_length=64
    )
    scores = [result["score"] for result in regress(frames["valid"]["text"].tolist())]
    np.testing.assert_allclose(scores, recorded, rtol=1e-5)
    assert np.mean(scores) > 400


def test_exlm_gets_no_token_types_of_a_tokenizer_that_tells_them(bert, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bert)
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    save_model(tmp_path, ExLMForMaskedLM(ArchitectureConfig(**sizes).build(tokenizer)), tokenizer)
    read_tokenizer = load_encoder_tokenizer(str(tmp_path))
    assert read_tokenizer.model_input_names == ["input_ids", "attention_mask"]


def test_a_mistyped_name_asks_the_hub_once(files, tmp_path, monkeypatch):
    asked = []

    def no_answer(url: str, **options: object) -> None:
        asked.append(url)
        raise ConnectionError("no network")

    monkeypatch.setattr(stored_tokenizers, "get_hf_file_metadata", no_answer)
    monkeypatch.setattr(
        AutoConfig, "from_pretrained", lambda name: pytest.fail("transformers would ask again")
    )
    error = refused("runs/exlmm", files, tmp_path)
    assert "no such directory, and not found on the hub: no network" in error and len(asked) == 1
    with pytest.raises(InputError, match="no tokenizer could be loaded from bertt"):
        stored_tokenizers.load_tokenizer("bertt")
    assert len(asked) == 2
    assert "./runs/exlmm does not exist" in refused("./runs/exlmm", files, tmp_path)
    assert "/runs/exlmm does not exist" in refused("/runs/exlmm", files, tmp_path)
    assert len(asked) == 2  # these can be no names on a hub
