"""The output directory of a fine-tuning is a model: pipelines and the auto classes give what
`predict` gives."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rdkit.Chem import MolFromSmiles, MolToSmiles
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    pipeline,
)

from exlm import InputError
from exlm.storage.models import check_model, weight_hash
from exlm.tasks.config import TaskConfig
from exlm.tasks.embed import embed
from exlm.tasks.finetune import finetune
from exlm.tasks.predict import predict
from exlm.tasks.questions.answers import answer
from exlm.tasks.questions.questions import make_windows, read_questions
from exlm.tasks.results import best_seed_directory, seed_directories
from tests.tasks.tiny_models import predicted
from tests.tasks.tuned_models import COLUMNS, FAST


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


def test_the_model_of_auto_classes_answers_as_predict_does(texts, answering):
    seed = best_seed_directory(str(answering))
    frame = predicted(str(seed), str(texts / "valid.json"), str(texts / "p.csv"))
    both = predicted(str(answering), str(texts / "valid.json"), str(texts / "p.csv"))
    network = AutoModelForQuestionAnswering.from_pretrained(answering)
    tokenizer = AutoTokenizer.from_pretrained(answering)
    asked = read_questions(texts / "valid.json")
    windows = make_windows(asked, tokenizer, 60, 8)
    margins = answer(network, asked, windows, tokenizer, TaskConfig.max_answer, "fp32")[
        "null_minus_best"
    ]
    np.testing.assert_allclose(margins, frame["null_minus_best"], rtol=1e-4)
    assert (
        "probability std" not in frame
        and (both["probability std"] >= 0).all()
        and both["probability std"].any()
    )


def test_the_output_is_the_model_of_the_best_seed(tuned, molecules):
    output = tuned("binary")
    report = json.loads((output / "results.json").read_text())
    best = output / f"seed-{report['best_seed']}"
    scores = {run["seed"]: run["scores"]["valid"]["roc_auc"] for run in report["runs"]}
    assert scores[report["best_seed"]] == max(scores.values()) and best == best_seed_directory(
        str(output)
    )
    check_model(str(output))
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
    for first in (0, 1):  # one of them is not the best of both
        output = tmp_path / f"{first}-first"
        for seeds in ([first], [0, 1]):
            report = finetune(str(output), str(molecules / "model"), task, FAST, seeds)
            best = output / f"seed-{report['best_seed']}"
            assert weight_hash(str(output)) == weight_hash(str(best))


def test_rows_of_an_earlier_training_are_told(molecules, tmp_path, capsys):
    """A molecule counts in any spelling; a model that goes on remembers all trainings."""
    texts = pd.read_csv(molecules / "table.csv")["smiles"]
    frame = pd.DataFrame({"smiles": texts, "y": [int("N" in text) for text in texts]})
    frame["part"] = ["train"] * 80 + ["valid"] * 20 + ["test"] * 20
    frame.to_csv(tmp_path / "old.csv", index=False)
    later = frame.assign(part=["test"] * 30 + ["valid"] * 20 + ["train"] * 70)
    later.loc[0, "smiles"] = MolToSmiles(MolFromSmiles(texts[0]), canonical=False, rootedAtAtom=1)
    later.to_csv(tmp_path / "new.csv", index=False)
    task = TaskConfig(str(tmp_path / "old.csv"), label_columns=["y"], split="column:part")
    old, model = str(tmp_path / "old"), str(molecules / "model")
    assert "in_earlier_training" not in finetune(old, model, task, FAST, [0])["runs"][0]
    again = finetune(str(tmp_path / "same"), old, task, FAST, [0])
    assert again["runs"][0]["in_earlier_training"] == {"valid": 0, "test": 0}
    assert "warning" not in capsys.readouterr().err
    task = replace(task, dataset=str(tmp_path / "new.csv"))
    for name, start in (("a", old), ("c", str(tmp_path / "same"))):
        report = finetune(str(tmp_path / name), start, task, FAST, [0])
        assert report["runs"][0]["in_earlier_training"] == {"valid": 20, "test": 30}
        err = capsys.readouterr().err
        assert (
            "20 of the 20 valid rows and 30 of the 30 test rows have a text or molecule of" in err
        )
    written = pd.read_csv(tmp_path / "c/seed-0/predictions.csv")
    assert written.loc[written["part"] != "train", "in_training"].all()
    scratch = finetune(str(tmp_path / "d"), old, task, FAST, [0], from_scratch=True)
    assert "in_earlier_training" not in scratch["runs"][0]
    written = pd.read_csv(tmp_path / "d/seed-0/predictions.csv")
    assert not written.loc[written["part"] != "train", "in_training"].any()
    (tmp_path / "old/seed-0/train.smi").unlink()
    capsys.readouterr()
    report = finetune(str(tmp_path / "e"), old, task, FAST, [0])
    assert report["runs"][0]["in_earlier_training"] == {"valid": None, "test": None}
    assert "keeps no record of the texts of its training" in capsys.readouterr().err
    # half a record would mislead: what goes on from there knows nothing, either
    assert not (tmp_path / "e/seed-0/train.smi").exists()
    report = finetune(str(tmp_path / "f"), str(tmp_path / "e"), task, FAST, [0])
    assert report["runs"][0]["in_earlier_training"] == {"valid": None, "test": None}
