"""What a fine-tuned model is good for: pipelines give what `predict` gives, `evaluate` says how
good that is."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy.special import expit
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    pipeline,
)

from exlm import InputError
from exlm.data.frames import FileRows
from exlm.data.tokenization import letter_tokenizer, train_text_tokenizer
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model, verify, weight_hash
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.answers import answer
from exlm.tasks.certainty import (
    calibration_error,
    conformal_margins,
    errors_to_keep,
    fit_temperature,
)
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.embed import embed
from exlm.tasks.encoders import load_finetuned
from exlm.tasks.explain import explain, write_page
from exlm.tasks.finetune import finetune
from exlm.tasks.grid import best_seed_directory, seed_directories
from exlm.tasks.label_types import Binary, Classes, Numbers, ZerosAndOnes
from exlm.tasks.output_meaning import OutputMeaning
from exlm.tasks.predict import evaluate, predict
from exlm.tasks.questions import make_windows, read_questions
from exlm.tasks.reading import TextReader
from exlm.tasks.saved_task import SavedTask, SeedModel
from exlm.tasks.scores import with_intervals
from exlm.tasks.table import make_table
from exlm.tasks.table_finetuning import TableFinetuning
from exlm_command import main
from tests.tasks.tiny_models import LINES, pairs, predicted, questions

FAST = FinetuneConfig(epochs=2, batch_size=16, learning_rate=3e-3, patience=0, precision="fp32")
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
COLUMNS = {
    "binary": ["nitrogen"],
    "multiclass": ["element"],
    "multilabel": ["nitrogen", "ring"],
    "regression": ["weight", "carbons"],
}


@pytest.fixture(scope="module")
def molecules(smiles_file, corpus, tmp_path_factory):
    """A folder with a pre-trained model of molecules and table.csv, which has labels of every
    kind."""
    folder = tmp_path_factory.mktemp("molecules")
    texts = smiles_file.read_text().split()[:120]
    frame = pd.DataFrame({"smiles": texts})
    frame["nitrogen"] = [int("n" in text.lower()) for text in texts]
    frame["ring"] = [int("1" in text) for text in texts]
    frame["element"] = [
        "nitrogen" if "N" in text else "oxygen" if "O" in text else "neither" for text in texts
    ]
    frame["weight"] = [1000.0 + 12.5 * len(text) for text in texts]
    frame["carbons"] = [text.lower().count("c") for text in texts]
    frame.to_csv(folder / "table.csv", index=False)
    tokenizer = load_tokenizer(corpus)
    torch.manual_seed(2)
    save_model(
        folder / "model", ExLMForMaskedLM(ArchitectureConfig(**SIZES).build(tokenizer)), tokenizer
    )
    return folder


@pytest.fixture(scope="module")
def tuned(molecules):
    """A function that fine-tunes on a type of task with two seeds, once, and returns the output
    directory."""

    def run(task_type):
        output = molecules / task_type
        task = TaskConfig(
            str(molecules / "table.csv"),
            label_columns=COLUMNS[task_type],
            task_type=task_type,
            split="random",
        )
        if not output.exists():
            finetune(str(output), str(molecules / "model"), task, FAST, [0, 1])
        return output

    return run


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with a pre-trained model of text, a table of pairs, and questions."""
    folder = tmp_path_factory.mktemp("texts")
    tokenizer = train_text_tokenizer("bpe", LINES, 300)
    torch.manual_seed(3)
    save_model(
        folder / "model", ExLMForMaskedLM(ArchitectureConfig(**SIZES).build(tokenizer)), tokenizer
    )
    for shift, name in enumerate(("train", "valid")):
        pairs(shift, 24).to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.json").write_text(json.dumps(questions(shift)))
    return folder


@pytest.fixture(autouse=True)
def _tokenizers(monkeypatch):
    """Pipelines of transformers set this variable where it is not set."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def piped(output, inputs):
    """What a pipeline on the output directory gives for every label, by the label's name."""
    classifier = pipeline("text-classification", str(output), device="cpu", top_k=None)
    return pd.DataFrame(
        [{entry["label"]: entry["score"] for entry in row} for row in classifier(inputs)]
    )


# Pipelines


@pytest.mark.parametrize("task_type", COLUMNS)
def test_a_pipeline_gives_what_predict_gives(tuned, molecules, task_type):
    output = tuned(task_type)
    seed = best_seed_directory(str(output))
    frame = predicted(str(seed), str(molecules / "table.csv"), str(molecules / "p.csv"))
    given = piped(output, frame["smiles"].tolist())
    assert len(given.columns) == {"binary": 1, "multiclass": 3}.get(task_type, 2)
    for name in given:
        np.testing.assert_allclose(given[name], frame[f"predicted {name}"], rtol=1e-5)
    if task_type == "regression":
        assert given["weight"].mean() > 500


def test_a_pipeline_on_pairs_gives_what_predict_gives(texts):
    task = TaskConfig(str(texts / "train.csv"), str(texts / "valid.csv"), pair_column="second")
    finetune(str(texts / "pairs"), str(texts / "model"), task, FAST, [0])
    frame = predicted(str(texts / "pairs"), str(texts / "valid.csv"), str(texts / "p.csv"))
    inputs = [{"text": row.text, "text_pair": row.second} for row in frame.itertuples()]
    np.testing.assert_allclose(
        piped(texts / "pairs", inputs)["label"], frame["predicted label"], rtol=1e-5
    )
    renamed = pd.read_csv(texts / "valid.csv").rename(columns={"text": "left", "second": "right"})
    renamed.to_csv(texts / "renamed.csv", index=False)
    names = {"text_column": "left", "pair_column": "right"}
    again = predicted(
        str(texts / "pairs"), str(texts / "renamed.csv"), str(texts / "p.csv"), **names
    )
    np.testing.assert_array_equal(again["predicted label"], frame["predicted label"])
    lists = pd.DataFrame({"both": renamed[["left", "right"]].to_numpy().tolist()})
    lists.to_json(texts / "lists.jsonl", orient="records", lines=True)
    with pytest.raises(InputError, match="no column 'second', and the model reads two texts of a"):
        predicted(str(texts / "pairs"), str(texts / "lists.jsonl"), str(texts / "p.csv"))
    names = {"text_column": "both", "pair_column": "both"}
    again = predicted(
        str(texts / "pairs"), str(texts / "lists.jsonl"), str(texts / "p.csv"), **names
    )
    np.testing.assert_array_equal(again["predicted label"], frame["predicted label"])


def test_a_model_of_single_texts_takes_no_pair(tuned, molecules):
    with pytest.raises(InputError, match="pair_column names 'smiles', but the model reads single"):
        predict(
            str(tuned("binary")),
            str(molecules / "table.csv"),
            str(molecules / "p.csv"),
            pair_column="smiles",
        )


def test_the_model_of_auto_classes_answers_as_predict_does(texts):
    task = TaskConfig(str(texts / "train.json"), str(texts / "valid.json"), max_length=60, stride=8)
    output = texts / "questions"
    finetune(str(output), str(texts / "model"), task, FAST, [0, 1])
    seed = best_seed_directory(str(output))
    frame = predicted(str(seed), str(texts / "valid.json"), str(texts / "p.csv"))
    both = predicted(str(output), str(texts / "valid.json"), str(texts / "p.csv"))
    network, tokenizer = (
        AutoModelForQuestionAnswering.from_pretrained(output),
        AutoTokenizer.from_pretrained(output),
    )
    asked, _ = read_questions(texts / "valid.json")
    windows, _ = make_windows(asked, tokenizer, 60, 8)
    margins = answer(network, asked, windows, tokenizer, task.max_answer, "fp32")["null_minus_best"]
    np.testing.assert_allclose(margins, frame["null_minus_best"], rtol=1e-4)
    assert (
        "probability std" not in frame
        and (both["probability std"] >= 0).all()
        and both["probability std"].any()
    )


# The output directory as a model


def test_the_output_is_the_model_of_the_best_seed(tuned, molecules):
    output = tuned("binary")
    report = json.loads((output / "results.json").read_text())
    best = output / f"seed-{report['best_seed']}"
    scores = {run["seed"]: run["scores"]["valid"]["roc_auc"] for run in report["runs"]}
    assert scores[report["best_seed"]] == max(scores.values()) and best == best_seed_directory(
        str(output)
    )
    verify(str(output))
    assert (
        weight_hash(str(output)) == weight_hash(str(best))
        and len(seed_directories(str(output))) == 2
    )
    for place in (output, best):
        embed(str(place), str(molecules / "table.csv"), str(molecules / f"{place.name}.npy"))
    assert np.array_equal(
        np.load(molecules / f"{output.name}.npy"), np.load(molecules / f"{best.name}.npy")
    )
    assert AutoModel.from_pretrained(output).config.task["label_columns"] == ["nitrogen"]


def test_the_column_of_the_training_is_embedded(tuned, molecules, tmp_path):
    output = tuned("binary")
    table = pd.read_csv(molecules / "table.csv")
    name = AutoModel.from_pretrained(output).config.task["text_column"]
    table.assign(mol="C", text="N").to_csv(tmp_path / "a.csv", index=False)
    embed(str(output), str(tmp_path / "a.csv"), str(tmp_path / "a.npy"))
    table[[name]].to_csv(tmp_path / "b.csv", index=False)
    embed(str(output), str(tmp_path / "b.csv"), str(tmp_path / "b.npy"))
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))


def test_a_seed_that_is_added_and_better_becomes_the_model(tuned, molecules, tmp_path):
    task = TaskConfig(str(molecules / "table.csv"), label_columns=["nitrogen"], split="random")
    best = []
    for seeds in ([0], [1], [0, 1]):
        report = finetune(str(tmp_path), str(molecules / "model"), task, FAST, seeds)
        best.append(weight_hash(str(tmp_path)))
        assert best[-1] == weight_hash(str(tmp_path / f"seed-{report['best_seed']}"))
    assert best[0] != best[1] and best[2] in best[:2]


# Predictions


def test_the_predicted_class_is_the_most_probable_one(tuned, molecules):
    frame = predicted(
        str(tuned("multiclass")), str(molecules / "table.csv"), str(molecules / "p.csv")
    )
    names = ["neither", "nitrogen", "oxygen"]
    shares = frame[[f"predicted {name}" for name in names]].to_numpy()
    assert frame["predicted class"].tolist() == [names[i] for i in shares.argmax(1)]
    assert frame["confidence"].tolist() == shares.max(1).tolist()
    table = pd.DataFrame({"smiles": ["CCN", "no molecule", "CCO"]})
    table.to_csv(molecules / "new.csv", index=False)
    predict(str(tuned("binary")), str(molecules / "new.csv"), str(molecules / "p.csv"))
    written = pd.read_csv(molecules / "p.csv")
    positive = written["predicted nitrogen"] >= 0.5
    as_text = pd.read_csv(molecules / "p.csv", dtype=str)["predicted class"]
    assert as_text.dropna().tolist() == positive[[0, 2]].astype(int).astype(str).tolist()
    sure = np.maximum(written["predicted nitrogen"], 1 - written["predicted nitrogen"])
    np.testing.assert_array_equal(written["confidence"], sure)
    assert np.isnan(written["confidence"][1])


def test_invalid_rows_can_be_kept_or_stop_the_command(tuned, molecules):
    output, path = str(tuned("binary")), molecules / "broken.csv"
    pd.DataFrame({"smiles": ["CCN", "C1CC"]}).to_csv(path, index=False)
    kept = predicted(output, str(path), str(molecules / "p.csv"), on_invalid="keep")
    assert kept["predicted nitrogen"].notna().all()
    with pytest.raises(InputError, match="row 2, value 'C1CC'"):
        predict(output, str(path), str(molecules / "p.csv"), on_invalid="error")


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.parquet"])
def test_prediction_goes_on_behind_the_parts_that_are_finished(
    tuned, molecules, tmp_path, monkeypatch, name
):
    """Parts are made once, and all of them as the first rows decide, also one in which no row can
    be used."""
    rows = [*pd.read_csv(molecules / "table.csv")["smiles"][:12], *["C1CC"] * 6, "CCN", "CCO"]
    pd.DataFrame({"n": range(20), "smiles": rows}).to_csv(tmp_path / "new.csv", index=False)
    arguments = str(tuned("multiclass")), str(tmp_path / "new.csv")
    whole, cut = tmp_path / f"whole-{name}", tmp_path / name
    one = predicted(*arguments, str(tmp_path / "one.csv"), distance=True)
    monkeypatch.setattr("exlm.tasks.table_predictor.ROWS", 6)
    monkeypatch.setattr("exlm.data.chunks.ROWS", 6)
    predict(*arguments, str(whole), distance=True)
    made, original = [], OutputMeaning.outputs

    def failing(*given):
        made.append(None)
        if len(made) == 5:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(OutputMeaning, "outputs", failing)
    with pytest.raises(KeyboardInterrupt):
        predict(*arguments, str(cut), distance=True)
    assert not cut.exists()
    predict(*arguments, str(cut), distance=True)
    # of two models, two of four parts were made
    assert len(made) == 5 + 4 and cut.read_bytes() == whole.read_bytes()
    read = {
        "p.csv": pd.read_csv,
        "p.tsv": partial(pd.read_csv, sep="\t"),
        "p.parquet": pd.read_parquet,
    }[name]
    found = read(cut)
    assert found["predicted class"].isna().tolist() == [12 <= i < 18 for i in range(20)]
    for column in (
        "predicted nitrogen",
        "predicted nitrogen std",
        "confidence",
        "distance to training",
    ):
        np.testing.assert_allclose(found[column], one[column], rtol=1e-4)


def test_an_impossible_device_is_named(tuned, molecules):
    for device in ("gpu", "cuda:99"):
        with pytest.raises(InputError, match=f"device is {device}; it must be"):
            predict(
                str(tuned("binary")),
                str(molecules / "table.csv"),
                str(molecules / "p.csv"),
                device=device,
            )


def test_several_labels_have_scores_of_their_own(tuned):
    report = json.loads((tuned("multilabel") / "results.json").read_text())
    values = report["labels"]["test"]
    assert list(values) == ["nitrogen", "ring"] and set(values["ring"]) >= {"mean", "std"}
    overall = report["test"]["roc_auc"]["mean"]
    assert np.mean([label["mean"] for label in values.values()]) == pytest.approx(overall)
    assert "labels" not in json.loads((tuned("binary") / "results.json").read_text())


def test_an_earlier_regression_model_predicts_the_same(tuned, molecules, tmp_path):
    """Its head returned standardised values, and its task has their mean and standard deviation."""
    seed, table = tuned("regression") / "seed-0", str(molecules / "table.csv")
    network, tokenizer = load_finetuned(str(seed), TableFinetuning.model_classes)
    mean, std = torch.tensor([1200.0, 10.0]), torch.tensor([80.0, 5.0])
    with torch.no_grad():
        network.classifier.output.weight.div_(std[:, None])
        network.classifier.output.bias.sub_(mean).div_(std)
    network.config.task |= {"mean": mean.tolist(), "std": std.tolist()}
    save_model(tmp_path / "earlier", network, tokenizer)
    new, earlier = (
        predicted(str(place), table, str(molecules / "p.csv"))
        for place in (seed, tmp_path / "earlier")
    )
    for column in ("predicted weight", "predicted carbons"):
        np.testing.assert_allclose(earlier[column], new[column], rtol=1e-5)


def test_predictions_are_float32_whatever_the_training_was_unless_told(tuned, molecules, tmp_path):
    trained = shutil.copytree(tuned("regression") / "seed-0", tmp_path / "model")
    table = str(molecules / "table.csv")
    expected = predicted(str(trained), table, str(tmp_path / "p.csv"))["predicted weight"]
    config = json.loads((trained / "config.json").read_text())
    config["task"]["precision"] = "bf16"
    (trained / "config.json").write_text(json.dumps(config))
    (trained / "manifest.json").unlink()
    again = predicted(str(trained), table, str(tmp_path / "p.csv"))["predicted weight"]
    half = predicted(str(trained), table, str(tmp_path / "p.csv"), precision="bf16")
    assert again.equals(expected) and not half["predicted weight"].equals(expected)
    np.testing.assert_allclose(half["predicted weight"], expected, rtol=0.02)


def test_predict_gives_the_predictions_of_a_training_in_bfloat16(molecules, corpus, tmp_path):
    tokenizer = load_tokenizer(corpus)
    network = ExLMForMaskedLM(ArchitectureConfig(**SIZES).build(tokenizer))
    save_model(tmp_path / "model", network, tokenizer)
    task = TaskConfig(str(molecules / "table.csv"), label_columns=["weight"], split="random")
    in_bf16 = replace(FAST, precision="bf16")
    finetune(str(tmp_path / "out"), str(tmp_path / "model"), task, in_bf16, [0])
    of_training = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")["predicted weight"]
    again = predicted(
        str(tmp_path / "out/seed-0"), str(molecules / "table.csv"), str(tmp_path / "p.csv")
    )
    of_rows = again["predicted weight"][: len(of_training)]
    np.testing.assert_allclose(of_rows, of_training, rtol=1e-5)


def test_a_head_reads_all_layers_also_behind_a_late_expansion(molecules, corpus, tmp_path):
    tokenizer = load_tokenizer(corpus)
    late = ArchitectureConfig(**SIZES, expanded_layers=1, copy_embedding=0.5).build(tokenizer)
    save_model(tmp_path / "model", ExLMForMaskedLM(late), tokenizer)
    task = TaskConfig(str(molecules / "table.csv"), label_columns=["ring"], split="random")
    finetune(str(tmp_path / "out"), str(tmp_path / "model"), task, FAST, [0])
    assert late.read_layers == 1 and AutoConfig.from_pretrained(tmp_path / "out").read_layers == 2
    finetune(str(tmp_path / "first"), str(tmp_path / "model"), task, replace(FAST, layers=1), [0])
    assert AutoConfig.from_pretrained(tmp_path / "first").read_layers == 1


# Distance to the training molecules


def test_molecules_unlike_the_training_molecules_are_far(tuned, molecules, capsys):
    output = tuned("binary")
    trained = (output / "seed-0/train.smi").read_text().split()
    odd = "FC(F)(F)S(=O)(=O)OB1OCCO1"
    pd.DataFrame({"smiles": [trained[0], odd, "C1CC"]}).to_csv(molecules / "far.csv", index=False)
    frame = predicted(
        str(output),
        str(molecules / "far.csv"),
        str(molecules / "p.csv"),
        distance=True,
        on_invalid="keep",
    )
    distance = frame["distance to training"]
    assert distance[0] == 0 and 0.7 < distance[1] <= 1 and np.isnan(distance[2])
    assert "1 far from the training molecules" in capsys.readouterr().out
    for seed in (0, 1):
        (output / f"seed-{seed}/train.smi").rename(output / f"seed-{seed}/hidden")
    with pytest.raises(InputError, match="distances need a model fine-tuned on molecules"):
        predict(str(output), str(molecules / "far.csv"), str(molecules / "p.csv"), distance=True)
    for seed in (0, 1):
        (output / f"seed-{seed}/hidden").rename(output / f"seed-{seed}/train.smi")


# Calibration


def test_calibration_error_of_several_labels_is_their_mean():
    """Errors of opposite sign do not cancel, and a label without rows counts for nothing."""
    labels = np.array([[1, 0, np.nan], [1, 0, np.nan]])
    probabilities = np.array([[0.7, 0.7, 0.5], [0.7, 0.7, 0.5]])
    assert calibration_error(ZerosAndOnes(), labels, probabilities) == pytest.approx(
        (0.3 + 0.7) / 2
    )


def test_calibration_error_of_known_cases():
    labels = np.array([[1.0], [1.0], [0.0], [np.nan]])
    sure = np.array([[1.0], [1.0], [1.0], [0.0]])
    assert calibration_error(Binary(), labels, sure) == pytest.approx(1 / 3)
    unsure = np.array([[0.6], [0.6], [0.6], [0.9]])
    assert calibration_error(Binary(), labels, unsure) == pytest.approx(2 / 3 - 0.6)
    classes, shares = np.array([[0.0], [2.0]]), np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    assert calibration_error(Classes(), classes, shares) == pytest.approx((0.3 + 0.8) / 2)
    assert np.isnan(calibration_error(Binary(), labels[3:], sure[3:]))
    one_class = np.zeros((3, 1)), np.ones((3, 1))  # it is always right
    assert calibration_error(Classes(), *one_class) == 0


@pytest.mark.parametrize("classes", [1, 4])
def test_the_temperature_undoes_a_factor_of_the_logits(classes):
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, (20000, classes))
    label_type = Binary() if classes == 1 else Classes()
    if classes == 1:
        labels = (generator.random((20000, 1)) < expit(logits)).astype(float)
    else:
        labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)[:, None].astype(float)
    assert fit_temperature(label_type, 2.5 * logits, labels) == pytest.approx(2.5, rel=0.05)


def test_calibrated_probabilities_are_those_of_the_temperature(tuned, molecules):
    seed, table = tuned("binary") / "seed-0", str(molecules / "table.csv")
    plain, calibrated = (
        predicted(str(seed), table, str(molecules / "p.csv"), calibrated=c) for c in (False, True)
    )
    temperature = json.loads((seed / "config.json").read_text())["task"]["temperature"]
    logits = [np.log(p / (1 - p)) for p in (f["predicted nitrogen"] for f in (plain, calibrated))]
    np.testing.assert_allclose(logits[0], temperature * logits[1], atol=1e-6)
    with pytest.raises(InputError, match="calibrated probabilities need a classification"):
        predict(str(tuned("regression")), table, str(molecules / "p.csv"), calibrated=True)


# Conformal prediction


@pytest.mark.parametrize("count", [39, 1000])  # kept as they are, and as quantiles
def test_intervals_contain_nine_labels_in_ten(count):
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        errors = Numbers().errors(generator.normal(5, 2, (count + 50, 1)), np.float64(5))
        saved = SavedTask(
            task_type="regression",
            label_columns=["y"],
            validation_errors=errors_to_keep(errors[:count]),
        )
        margins = conformal_margins(SeedModel(Path("run"), saved, {}, "cpu"), 0.9)
        covered.append(errors[count:] <= margins)
    assert 0.88 < np.mean(covered) < 0.92


def test_a_margin_has_the_rank_for_finitely_many_rows():
    def margin(count, level):
        errors = errors_to_keep(np.arange(1.0, count + 1)[:, None])
        saved = SavedTask(task_type="regression", label_columns=["pIC50"], validation_errors=errors)
        return conformal_margins(SeedModel(Path("run"), saved, {}, "cpu"), level)[0]

    assert [margin(count, 0.9) for count in (9, 10, 19, 29, 100)] == [9, 10, 18, 27, 91]
    assert [margin(9999, level) for level in (0.5, 0.9, 0.95, 0.99)] == [5000, 9000, 9500, 9900]
    assert margin(9999, 0.901) == 9050  # on the safe side
    for count, level, least in ((8, 0.9, 9), (18, 0.95, 19), (98, 0.99, 99)):
        with pytest.raises(
            InputError, match=f"with {count} .*'pIC50', .* of {level} needs {least}"
        ):
            margin(count, level)
        assert margin(least, level) == least


def test_predict_gives_intervals_for_numbers(tuned, molecules):
    output, table = tuned("regression"), str(molecules / "table.csv")
    frame = predicted(str(output), table, str(molecules / "p.csv"), interval=0.8)
    largest = np.zeros(2)
    for seed in (0, 1):
        rows = pd.read_csv(output / f"seed-{seed}" / "predictions.csv")
        valid = rows[rows["split"] == "valid"]
        for i, name in enumerate(COLUMNS["regression"]):
            errors = np.sort(np.abs(valid[name] - valid[f"predicted {name}"]))
            largest[i] = max(largest[i], errors[10])  # of 12 rows: ceil(0.8 * 13) is 11
    scores = evaluate(str(output), table, str(molecules / "e.json"), resamples=0, interval=0.8)
    for seed in (0, 1):  # each with margins of its own
        path = str(output / f"seed-{seed}")
        alone = evaluate(path, table, str(molecules / "e1.json"), resamples=0, interval=0.8)
        name = f"seed-{seed}"
        of_seed, of_model = (report["metrics"][name]["coverage"] for report in (scores, alone))
        assert of_seed["value"] == of_model["value"]
    for name, margin in zip(COLUMNS["regression"], largest, strict=True):
        middle = (frame[f"lower {name}"] + frame[f"upper {name}"]) / 2
        np.testing.assert_allclose(middle, frame[f"predicted {name}"], rtol=1e-6)
        np.testing.assert_allclose(frame[f"upper {name}"] - middle, margin, rtol=1e-4)


@pytest.mark.parametrize("task_type", ["binary", "multiclass"])
def test_predict_gives_sets_of_classes(tuned, molecules, task_type):
    seed, table = tuned(task_type) / "seed-0", str(molecules / "table.csv")
    [label] = COLUMNS[task_type]
    frame = predicted(str(seed), table, str(molecules / "p.csv"), interval=0.8)
    if task_type == "binary":
        frame["predicted 0"], frame["predicted 1"] = (
            1 - frame[f"predicted {label}"],
            frame["predicted nitrogen"],
        )
    rows = pd.read_csv(seed / "predictions.csv").query("split == 'valid'").index
    names = [0, 1] if task_type == "binary" else ["neither", "nitrogen", "oxygen"]
    true = [frame.loc[row, f"predicted {frame.loc[row, label]}"] for row in rows]
    least = np.sort(true)[1]  # of 12 rows: ceil(0.8 * 13) is 11, the last but one
    for _, row in frame.iterrows():
        likely = [name for name in names if row[f"predicted {name}"] >= least - 1e-6]
        assert json.loads(row[f"set {label}"]) == likely
    scores = evaluate(str(seed), table, str(molecules / "e.json"), resamples=0, interval=0.8)
    holds = [
        frame.loc[row, label] in json.loads(frame.loc[row, f"set {label}"]) for row in frame.index
    ]
    assert scores["metrics"]["seed-0"]["coverage"]["value"] == pytest.approx(np.mean(holds))


def test_a_row_without_a_prediction_has_no_set_and_an_unlabelled_file_has_them(tuned, molecules):
    (molecules / "new.csv").write_text("smiles\nCCO\nno molecule\n")
    arguments = str(molecules / "new.csv"), str(molecules / "p.csv")
    sets = predicted(str(tuned("multiclass")), *arguments, interval=0.8)["set element"]
    assert sets[0].startswith("[") and sets[1] == ""
    bounds = predicted(str(tuned("regression")), *arguments, interval=0.8)
    assert bounds[["lower weight", "upper carbons"]].notna().all(axis=1).tolist() == [True, False]


def test_intervals_that_cannot_be_given_are_refused(tuned, molecules, tmp_path):
    table = str(molecules / "table.csv")

    def refused(model, match, **options):
        with pytest.raises(InputError, match=match):
            predict(str(model), table, str(tmp_path / "p.csv"), **options)

    binary = tuned("binary")
    few = "12 validation rows that have the label 'nitrogen', and an interval of 0.95 needs 19"
    refused(binary, few, interval=0.95)
    for level in (0.0, 1.0, -1.0, float("nan")):
        refused(binary, "interval is .*; it must be over 0 and at most 0.995", interval=level)
    refused(binary, "leave out calibrated", interval=0.8, calibrated=True)
    refused(tuned("multilabel"), "a row, but the labels of .* are multilabel", interval=0.8)
    old = shutil.copytree(binary / "seed-0", tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    del config["task"]["validation_errors"]
    (old / "config.json").write_text(json.dumps(config))
    (old / "manifest.json").unlink()
    refused(old, "old keeps no errors of validation rows", interval=0.8)
    predict(str(old), table, str(tmp_path / "p.csv"))


# Explanations


def read_explanations(path):
    return [text and json.loads(text) for text in pd.read_csv(path)["explanation"].fillna("")]


def test_both_molecules_of_a_pair_must_be_molecules(molecules):
    reader = TextReader(load_tokenizer(molecules / "model"), 64, molecules=True)
    frame = pd.DataFrame({"a": ["CCC", "C1CC", "CCC"], "b": ["CCO", "CCO", "C1CC"], "y": [0, 1, 0]})
    table, _ = reader.read(make_table(FileRows(frame), "rows", "a", ["y"], pair_column="b"))
    assert table.usable.tolist() == [True, False, False]


def test_masking_what_matters_matters(molecules):
    """A stand-in for a model predicts the number of bromine atoms."""
    tokenizer = load_tokenizer(molecules / "model")
    bromine = tokenizer.convert_tokens_to_ids("Br")
    frame = pd.DataFrame({"smiles": ["CCC(Br)CBr", "CCO"]})
    reader = TextReader(tokenizer, 64, molecules=True)
    table, tokens = reader.read(make_table(FileRows(frame), "rows", "smiles", []))

    def count_bromine(examples):
        return np.array([[float((example["input_ids"] == bromine).sum())] for example in examples])

    explained = explain(
        table, tokens.examples, count_bromine, tokenizer, {"max_length": 64}, molecules=True
    )
    assert [span.text for span in explained[0].spans] == ["C", "C", "C", "(", "Br", ")", "C", "Br"]
    assert explained[0].changes[:, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 1]
    assert explained[0].predictions == [2] and not explained[1].changes.any()
    write_page(molecules / "page.html", explained, ["bromine"], draws_best_only=False)
    page = (molecules / "page.html").read_text()
    coloured = re.findall(r'title="(\S+)" style="background: #c55a11bf">(\w+)<', page)
    assert coloured == [("+1", "Br"), ("+1", "Br")]
    drawn = page[page.index("<svg") : page.index("</svg>")]
    assert len(re.findall("<ellipse.*fill:#C55A11BF", drawn)) == 2


def test_an_explanation_compares_with_the_prediction_for_the_masked_molecule(tuned, molecules):
    output, page = str(tuned("multiclass")), molecules / "page.html"
    table = molecules / "two.csv"
    table.write_text("smiles\nCCNC\nno molecule\nCCC(=O)O\n")
    frame = predicted(output, str(table), str(molecules / "p.csv"), explain=str(page))
    explanations = read_explanations(molecules / "p.csv")
    assert explanations[1] == "" and frame["problem"][1]
    assert explanations[0]["tokens"] == ["C", "C", "N", "C"]
    masked_text = f"CC{load_tokenizer(output).mask_token}C"
    pd.DataFrame({"smiles": [masked_text]}).to_csv(table, index=False)
    masked = predicted(
        output, str(table), str(molecules / "p.csv"), on_invalid="keep", molecules=True
    )
    for name in ("predicted neither", "predicted nitrogen", "predicted oxygen"):
        change = explanations[0][name][2]
        assert change == pytest.approx(frame[name][0] - masked[name][0], abs=1e-6)
        assert abs(change) > 1e-5
    best = frame["predicted class"][0]
    assert re.findall(r"predicted \w+", page.read_text())[0] == f"predicted {best}"
    assert page.read_text().count("<svg") == 2  # the most probable class of each molecule


def test_explore_shows_what_one_prediction_rests_on(tuned, molecules, capsys):
    model, page = str(tuned("multiclass")), molecules / "explored.html"
    main(["explore", model, "CCNC", "--output", str(page)])
    assert capsys.readouterr().out == f"1 prediction: {page}\n"
    of_table = molecules / "of_table.html"
    (molecules / "one.csv").write_text("smiles\nCCNC\n")
    predict(model, str(molecules / "one.csv"), str(molecules / "p.csv"), explain=str(of_table))
    assert page.read_text() == of_table.read_text()
    for arguments, message in (
        (("C(C", "--output", str(page)), "the text: no row can be used, the first: row 1"),
        (("CCO", "--output", "page.png"), "page.png; the name must end in .html"),
        (("CCO", "--words", "9"), "a fine-tuned model fills no masks; leave out words, or"),
        (("CCO", "--threshold", "0.1", "--free", "true"), "leave out threshold and free, or"),
        (("CCO", "--n_best", "3", "--allow", "C"), "leave out n_best and allow, or"),
    ):
        with pytest.raises(SystemExit):
            main(["explore", model, *arguments])
        assert message in capsys.readouterr().err


def test_words_of_pairs_are_masked_as_a_whole(texts):
    tokenizer = load_tokenizer(texts / "model")
    frame = pd.DataFrame({"text": ["Ada <b> Rome"], "second": ["Not Lima!"]})
    table, tokens = TextReader(tokenizer, 64, molecules=False).read(
        make_table(FileRows(frame), "rows", "text", [], pair_column="second")
    )
    masks = []

    def count_masks(examples):
        for example in examples:
            masks.append(int((example["input_ids"] == tokenizer.mask_token_id).sum()))
        return np.zeros((len(examples), 1))

    [explained] = explain(
        table, tokens.examples, count_masks, tokenizer, {"max_length": 64}, molecules=False
    )
    words = [span.text for span in explained.spans]
    assert words[0] == "Ada" and "Rome" in words and words[-3:] == ["Not", "Lima", "!"]
    special = tokenizer.num_special_tokens_to_add(pair=True)
    assert sum(masks) == len(tokens.examples[0]["input_ids"]) - special and masks[0] == 0
    write_page(texts / "page.html", [explained], ["label"], draws_best_only=False)
    page = (texts / "page.html").read_text()
    assert "<b>" not in page and "<svg" not in page


def test_residues_of_proteins_are_masked_one_by_one():
    tokenizer = letter_tokenizer("protein")
    frame = pd.DataFrame({"sequence": ["MKVA"]})
    table, tokens = TextReader(tokenizer, 64, molecules=False).read(
        make_table(FileRows(frame), "rows", "sequence", [])
    )
    saved = {"max_length": 64, "standardize": "none"}
    (explanation,) = explain(
        table,
        tokens.examples,
        lambda examples: np.zeros((len(examples), 1)),
        tokenizer,
        saved,
        False,
    )
    assert [span.text for span in explanation.spans] == ["M", "K", "V", "A"]


def test_explanations_that_cannot_be_given_are_refused(tuned, molecules):
    table = str(molecules / "table.csv")
    for path in ("page.pdf", table):
        with pytest.raises(InputError, match="must end in .html|is the input itself"):
            predict(str(tuned("binary")), table, str(molecules / "p.csv"), explain=path)


# Evaluation


def test_evaluate_gives_the_scores_of_the_predictions_with_intervals(tuned, molecules, capsys):
    output, table = str(tuned("binary")), str(molecules / "table.csv")
    report = evaluate(output, table, str(molecules / "e.json"), resamples=50)
    assert json.loads((molecules / "e.json").read_text()) == report
    frame = predicted(output, table, str(molecules / "p.csv"))
    correct = np.mean(frame["predicted class"].astype(int) == frame["nitrogen"].astype(int))
    assert list(report["metrics"]) == ["ensemble", "seed-0", "seed-1"] and report["labelled"] == 120
    scores = report["metrics"]["ensemble"]
    assert scores["accuracy"]["value"] == pytest.approx(correct)
    assert scores["roc_auc"]["low"] < scores["roc_auc"]["value"] < scores["roc_auc"]["high"]
    calibrated = evaluate(output, table, str(molecules / "e.json"), resamples=0, calibrated=True)[
        "metrics"
    ]["ensemble"]
    assert calibrated["calibration_error"]["value"] != scores["calibration_error"]["value"]
    out = capsys.readouterr().out
    assert f"{correct:.4f} (" in out
    assert re.search(r"^tasks_scored( +1){3}$", out, re.MULTILINE)  # a count is a whole number
    pd.read_csv(table).drop(columns="nitrogen").to_csv(molecules / "unlabelled.csv", index=False)
    with pytest.raises(InputError, match="nothing can be scored.* nitrogen; name the column"):
        evaluate(output, str(molecules / "unlabelled.csv"), str(molecules / "e.json"))


def test_results_count_rows_and_positives_and_say_what_so_few_are_worth(tuned, molecules, capsys):
    output = tuned("binary")
    task = TaskConfig(
        str(molecules / "table.csv"),
        label_columns=["nitrogen"],
        task_type="binary",
        split="random",
    )
    report = finetune(str(output), str(molecules / "model"), task, FAST, [0, 1])  # it is finished
    first = pd.read_csv(output / "seed-0/predictions.csv")
    positives = int(first.loc[first["split"] == "test", "nitrogen"].sum())
    assert report["runs"][0]["counts"]["test"] == {"rows": 12, "positives": positives}
    interval = report["runs"][0]["interval"]["test"]
    value = report["runs"][0]["scores"]["test"]["roc_auc"]
    assert interval["low"] <= value <= interval["high"] and interval["low"] < interval["high"]
    low, high = (report["interval"]["test"][end]["median"] for end in ("low", "high"))
    out = capsys.readouterr().out
    assert f"12 rows, {report['counts']['test']['positives']['median']:.0f} of them positive" in out
    assert f"95% interval over rows {low:.4f} to {high:.4f}" in out
    assert "with so few rows this number is a rough guess" in out


def test_the_errors_of_several_labels_count_alike(tuned, molecules):
    """One label is a hundred times as large as the other."""
    output = tuned("regression")
    result = json.loads((output / "seed-0/result.json").read_text())
    frame = pd.read_csv(output / "seed-0/predictions.csv")
    train, test = frame[frame["split"] == "train"], frame[frame["split"] == "test"]
    errors = {
        name: np.sqrt(np.mean((test[name] - test[f"predicted {name}"]) ** 2))
        for name in COLUMNS["regression"]
    }
    assert result["labels"]["test"] == pytest.approx(errors, rel=1e-4)
    alike = np.mean([errors[name] / train[name].std(ddof=0) for name in errors])
    assert result["scores"]["test"]["rmse"] == pytest.approx(alike, rel=1e-4)

    report = evaluate(str(output / "seed-0"), str(molecules / "table.csv"), resamples=0)
    every = {
        name: np.sqrt(np.mean((frame[name] - frame[f"predicted {name}"]) ** 2)) for name in errors
    }
    assert {name: scores["rmse"] for name, scores in report["labels"].items()} == pytest.approx(
        every, rel=1e-4
    )
    alike = np.mean([every[name] / train[name].std(ddof=0) for name in errors])
    assert report["metrics"]["seed-0"]["rmse"]["value"] == pytest.approx(alike, rel=1e-4)


def test_a_negative_seed_is_refused_in_one_sentence(tuned, molecules):
    with pytest.raises(InputError, match="seed is -1; it must be 0 or more"):
        evaluate(str(tuned("binary")), str(molecules / "table.csv"), seed=-1)


def test_evaluate_questions(texts, capsys):
    if not (texts / "questions").exists():
        test_the_model_of_auto_classes_answers_as_predict_does(texts)
    report = evaluate(str(texts / "questions"), str(texts / "valid.json"), resamples=20)
    out = capsys.readouterr().out
    assert re.search(r"^has_answer( +3 \(\d to \d\)){3}$", out, re.MULTILINE)
    recorded = json.loads((texts / "questions/results.json").read_text())["runs"][0]["scores"][
        "valid"
    ]
    assert {
        name: score["value"] for name, score in report["metrics"]["seed-0"].items()
    } == pytest.approx(recorded)


def test_questions_that_were_not_read_are_not_scored(texts, tmp_path):
    if not (texts / "questions").exists():
        test_the_model_of_auto_classes_answers_as_predict_does(texts)
    content = json.loads((texts / "valid.json").read_text())
    asked = content["data"][0]["paragraphs"][0]["qas"]
    asked[0]["question"] = "where " * 70
    (tmp_path / "long.json").write_text(json.dumps(content))
    model = str(texts / "questions")
    frame = predicted(model, str(tmp_path / "long.json"), str(tmp_path / "p.csv"))
    is_long = frame["problem"] != ""
    assert is_long.sum() == 1
    assert frame.loc[is_long, ["probability", "null_minus_best"]].isna().all(axis=None)
    report = evaluate(model, str(tmp_path / "long.json"), str(tmp_path / "e.json"), resamples=0)
    assert report["labelled"] == len(frame) - 1


def test_intervals_cover_the_mean_as_often_as_they_say():
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        sample = generator.normal(size=60)

        def mean(rows, sample=sample):
            return {"mean": sample[rows].mean()}

        interval = with_intervals(mean, np.arange(60), 200, trial)["mean"]
        hits += interval["low"] < 0 < interval["high"]
    assert 0.88 < hits / 200 < 0.99
    none = with_intervals(lambda rows: {"mean": 1.0}, np.arange(3), 0, 0)["mean"]
    assert none["value"] == 1.0 and np.isnan(none["low"])


def test_words_as_labels_and_labels_of_another_name(molecules, tmp_path, capsys):
    frame = pd.read_csv(molecules / "table.csv")[["smiles", "nitrogen"]]
    frame["activity"] = frame.pop("nitrogen").map({0: "inactive", 1: "Active"})
    frame = pd.concat([frame, frame[:3]])
    frame.to_csv(tmp_path / "a.csv", index=False)
    out = str(tmp_path / "out")
    task = TaskConfig(str(tmp_path / "a.csv"), split="random")
    report = finetune(out, str(molecules / "model"), task, FAST, [0])
    printed = capsys.readouterr().out
    assert "task.task_type = binary, task.positive = Active" in printed
    assert "6 rows share 3 texts or molecules, 0 of these with different labels" in printed
    assert report["metric"] == "roc_auc"
    table = predicted(out, str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
    expected = np.where(table["predicted activity"] >= 0.5, "Active", "inactive")
    assert table["predicted class"].tolist() == expected.tolist()
    other = frame.rename(columns={"activity": "IC50, class"})
    other["IC50, class"] = (other["IC50, class"] == "Active").astype(int)
    other.to_csv(tmp_path / "b.csv", index=False)
    target = str(tmp_path / "e.json")
    scores = [
        evaluate(out, str(tmp_path / name), target, resamples=0, **options)["metrics"]["seed-0"]
        for name, options in (("a.csv", {}), ("b.csv", {"label_columns": ["IC50", "class"]}))
    ]
    for name, score in scores[0].items():
        assert score["value"] == scores[1][name]["value"]
    with pytest.raises(InputError, match="label_columns names smiles, IC50, class; give the"):
        names = ["smiles", "IC50, class"]
        evaluate(out, str(tmp_path / "b.csv"), target, label_columns=names)


def test_labels_are_scored_against_their_own_predictions_in_any_order(tuned, molecules, tmp_path):
    model, table = str(tuned("regression")), str(molecules / "table.csv")
    options = {"output": str(tmp_path / "e.json"), "resamples": 0}
    given = evaluate(model, table, **options)["labels"]
    exchanged = evaluate(model, table, label_columns=COLUMNS["regression"][::-1], **options)
    assert exchanged["labels"] == given
    first, second = COLUMNS["regression"]
    frame = pd.read_csv(table).rename(columns={first: "other"})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match="in this order"):
        evaluate(model, str(tmp_path / "a.csv"), label_columns=[second, "other"], **options)
    other = evaluate(model, str(tmp_path / "a.csv"), label_columns=["other", second], **options)
    assert other["labels"] == given


def test_a_table_with_some_of_the_labels_is_scored_by_these(tuned, molecules, tmp_path, capsys):
    model, table = str(tuned("regression")), molecules / "table.csv"
    frame = pd.read_csv(table)[["smiles", "weight"]]
    frame.to_csv(tmp_path / "one.csv", index=False)
    options = {"output": str(tmp_path / "e.json"), "resamples": 0}
    one = evaluate(model, str(tmp_path / "one.csv"), **options)
    assert "has no column carbons; the other labels are scored" in capsys.readouterr().err
    assert one["labels"]["weight"] == evaluate(model, str(table), **options)["labels"]["weight"]
    assert one["labels"]["carbons"]["rows"] == 0
    predict(model, str(tmp_path / "one.csv"), str(tmp_path / "p.csv"))
    assert f"{len(frame)} labelled rows: rmse" in capsys.readouterr().out


def test_a_column_that_differs_in_capitals_is_that_of_the_training(tuned, molecules, tmp_path):
    frame = pd.read_csv(molecules / "table.csv")[["smiles"]][:4]
    frame.assign(mol="C").rename(columns={"smiles": "SMILES"}).to_csv(tmp_path / "a.csv")
    frame.to_csv(tmp_path / "b.csv")
    model = str(tuned("regression"))
    capitals = predicted(model, str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
    usual = predicted(model, str(tmp_path / "b.csv"), str(tmp_path / "q.csv"))
    assert capitals["predicted weight"].tolist() == usual["predicted weight"].tolist()


def test_every_chunk_is_read_as_the_first_rows_of_its_file(tuned, tmp_path, monkeypatch):
    """An earlier model does not say that it knows molecules. Its training is read once."""
    model = tmp_path / "model"
    shutil.copytree(tuned("binary") / "seed-0", model)
    config = json.loads((model / "config.json").read_text())
    config["task"]["molecules"] = None
    (model / "config.json").write_text(json.dumps(config))
    (model / "manifest.json").unlink()
    pd.DataFrame({"smiles": ["CCN", "CCO", "CCN", "C1CC"]}).to_csv(tmp_path / "m.csv", index=False)
    monkeypatch.setattr("exlm.tasks.table_predictor.ROWS", 2)
    monkeypatch.setattr("exlm.data.chunks.ROWS", 2)
    readings = []
    monkeypatch.setattr(
        "exlm.tasks.training_molecules.training_molecules",
        lambda places: readings.append(places) or ["C"],
    )
    arguments = str(model), str(tmp_path / "m.csv"), str(tmp_path / "p.csv")
    frame = predicted(*arguments, distance=True)
    assert frame["problem"].tolist() == ["", "", "", "not a SMILES string: unclosed ring"]
    assert len(readings) == 1


def test_the_recipe_of_a_run_on_squad_can_be_run_again(texts, tmp_path):
    for name, file in (("train", "train-v2.0.json"), ("valid", "dev-v2.0.json")):
        shutil.copy(texts / f"{name}.json", tmp_path / file)
    task = TaskConfig("squad2", data_dir=str(tmp_path), stride=16, max_length=64)
    out = str(tmp_path / "out")
    report = finetune(out, str(texts / "model"), task, replace(FAST, epochs=1), [0])
    recipe = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    again = TaskConfig(**recipe["task"]), FinetuneConfig(**recipe["train"])
    assert finetune(out, str(texts / "model"), *again, [0])["runs"] == report["runs"]


def test_a_number_with_a_bound_costs_its_row_alone(tuned, molecules, capsys):
    """As a class that the model does not know does."""
    output = str(tuned("regression"))
    frame = pd.read_csv(molecules / "table.csv").astype({"weight": str, "carbons": str})
    frame.loc[0, "weight"] = ">1000"
    frame.to_csv(molecules / "bound.csv", index=False)
    report = evaluate(output, str(molecules / "bound.csv"), str(molecules / "e.json"), resamples=0)
    rows = {name: scores["rows"] for name, scores in report["labels"].items()}
    assert rows == {"weight": 119, "carbons": 120}
    assert "the first row 1: '>1000' is no label of the model (a number)" in capsys.readouterr().err


def test_a_label_called_class_keeps_its_probability(molecules, tuned):
    frame = pd.read_csv(molecules / "table.csv").rename(columns={"nitrogen": "class"})
    frame[["smiles", "class"]].to_csv(molecules / "class.csv", index=False)
    task = TaskConfig(str(molecules / "class.csv"), label_columns=["class"], split="random")
    finetune(str(molecules / "class"), str(molecules / "model"), task, FAST, [0])
    found = predicted(
        str(molecules / "class"), str(molecules / "class.csv"), str(molecules / "p.csv")
    )
    assert found["predicted class"].between(0.001, 0.999).all()
    assert set(found["most probable class"]) <= {0, 1}
