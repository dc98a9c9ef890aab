"""Predictions of fine-tuned models: classes, chunks, columns, precisions, and how far a molecule is
from those of the training."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem
from transformers import AutoConfig

from exlm import InputError
from exlm.data.frames import FileRows
from exlm.data.spelling import Spelling
from exlm.data.writing import write_frame
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.config import TaskConfig
from exlm.tasks.embed import embed
from exlm.tasks.encoders.loading import load_finetuned
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.finetune import finetune
from exlm.tasks.predict import evaluate, predict
from exlm.tasks.tables import seed_models
from exlm.tasks.tables.prediction_columns import bound_columns, prediction_columns
from exlm.tasks.tables.training_texts import TrainingTexts
from tests.tables import make_table
from tests.tasks.tiny_models import predicted
from tests.tasks.tuned_models import COLUMNS, FAST, SIZES


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
    monkeypatch.setattr("exlm.tasks.tables.table_predictor.PIECE_ROWS", 6)
    monkeypatch.setattr("exlm.data.output_files.PIECE_ROWS", 6)
    predict(*arguments, str(whole), distance=True)
    made, original = [], seed_models.run_network

    def failing(*given, **options):
        made.append(None)
        if len(made) == 5:
            raise KeyboardInterrupt
        return original(*given, **options)

    monkeypatch.setattr(seed_models, "run_network", failing)
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
    network, tokenizer = load_finetuned(str(seed))
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


def test_what_a_model_keeps_of_its_task_has_the_same_keys_in_all_versions():
    earlier = {
        "task_type": "token_classification",
        "text_column": "sequence",
        "pair_column": None,
        "classes": ["E", "H"],
        "words": None,
        "molecules": False,
        "unit": "\\S",
    }
    saved_task = SavedTask.from_json(earlier)
    assert saved_task.class_names == ["E", "H"] and saved_task.unit_pattern == r"\S"
    assert saved_task.standardize == "none" and saved_task.temperature is None
    written = saved_task.to_json()
    assert written["molecules"] is False and "words" not in written
    assert {name: written[name] for name in ("classes", "unit")} == {
        "classes": ["E", "H"],
        "unit": r"\S",
    }
    assert SavedTask.from_json(written) == saved_task
    assert SavedTask(binary_names=["no", "yes"]).to_json()["words"] == ["no", "yes"]


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
    assert late.task_layers == 1 and AutoConfig.from_pretrained(tmp_path / "out").task_layers == 2
    finetune(str(tmp_path / "first"), str(tmp_path / "model"), task, replace(FAST, layers=1), [0])
    assert AutoConfig.from_pretrained(tmp_path / "first").task_layers == 1


def test_pairs_have_no_distance_to_the_training(tuned, molecules, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tuned("binary") / "seed-0", copy)
    config = json.loads((copy / "config.json").read_text())
    config["task"]["pair_column"] = "second"
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "manifest.json").unlink()
    with pytest.raises(InputError, match="fine-tuned on pairs; leave it out"):
        predict(str(copy), str(molecules / "table.csv"), distance=True)


def test_texts_that_are_no_molecules_are_not_reduced(tuned, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(tuned("binary") / "seed-0", copy)
    config = json.loads((copy / "config.json").read_text())
    config["task"]["standardize"] = "parent"
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "manifest.json").unlink()
    (tmp_path / "salt.csv").write_text("smiles\nCCO.CCN\n")
    predict(str(copy), str(tmp_path / "salt.csv"), molecules=True)
    assert "1 mixtures reduced" in capsys.readouterr().out
    predict(str(copy), str(tmp_path / "salt.csv"), molecules=False)
    assert "mixtures" not in capsys.readouterr().out


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
    with pytest.raises(InputError, match="the molecules of the training are not known"):
        predict(str(output), str(molecules / "far.csv"), str(molecules / "p.csv"), distance=True)
    for seed in (0, 1):
        (output / f"seed-{seed}/hidden").rename(output / f"seed-{seed}/train.smi")


def test_a_column_that_differs_in_capitals_is_that_of_the_training(tuned, molecules, tmp_path):
    frame = pd.read_csv(molecules / "table.csv")[["smiles"]][:4]
    frame.assign(mol="C").rename(columns={"smiles": "SMILES"}).to_csv(tmp_path / "a.csv")
    frame.to_csv(tmp_path / "b.csv")
    model = str(tuned("regression"))
    capitals = predicted(model, str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
    usual = predicted(model, str(tmp_path / "b.csv"), str(tmp_path / "q.csv"))
    assert capitals["predicted weight"].tolist() == usual["predicted weight"].tolist()


def test_the_structures_of_an_sdf_are_read_not_a_property_called_as_the_training_column(
    molecules, tmp_path, capsys
):
    """`Molecule` is the text column of the training, and a property with other molecules."""
    frame = pd.read_csv(molecules / "table.csv").rename(columns={"smiles": "Molecule"})
    frame[["Molecule", "weight"]].to_csv(tmp_path / "table.csv", index=False)
    task = TaskConfig(str(tmp_path / "table.csv"), text_column="Molecule", split="random")
    model = str(tmp_path / "tuned")
    finetune(model, str(molecules / "model"), task, FAST, [0])
    smiles = [Chem.CanonSmiles(text) for text in frame["Molecule"][:3]]
    blocks = [Chem.MolToMolBlock(Chem.MolFromSmiles(text)) for text in smiles]
    records = [f"{block}> <Molecule>\nC\n\n$$$$\n" for block in blocks]
    (tmp_path / "new.sdf").write_text("".join(records))
    pd.DataFrame({"Molecule": [*smiles, "C"]}).to_csv(tmp_path / "new.csv", index=False)
    expected = predicted(model, str(tmp_path / "new.csv"), str(tmp_path / "p.csv"))
    found = predicted(model, str(tmp_path / "new.sdf"), str(tmp_path / "q.csv"))
    properties = predicted(
        model, str(tmp_path / "new.sdf"), str(tmp_path / "r.csv"), text_column="Molecule"
    )
    title = "predicted weight"
    np.testing.assert_allclose(found[title], expected[title][:3], rtol=1e-5)
    np.testing.assert_allclose(properties[title], expected[title][3], rtol=1e-5)
    assert "has no column" not in capsys.readouterr().err


def test_every_chunk_is_read_as_the_first_rows_of_its_file(tuned, tmp_path, monkeypatch):
    """An earlier model does not say that it knows molecules. Its training is read once."""
    model = tmp_path / "model"
    shutil.copytree(tuned("binary") / "seed-0", model)
    config = json.loads((model / "config.json").read_text())
    config["task"]["molecules"] = None
    (model / "config.json").write_text(json.dumps(config))
    (model / "manifest.json").unlink()
    pd.DataFrame({"smiles": ["CCN", "CCO", "CCN", "C1CC"]}).to_csv(tmp_path / "m.csv", index=False)
    monkeypatch.setattr("exlm.tasks.tables.table_predictor.PIECE_ROWS", 2)
    monkeypatch.setattr("exlm.data.output_files.PIECE_ROWS", 2)
    readings = []
    monkeypatch.setattr(
        "exlm.tasks.tables.training_texts._lines",
        lambda places, name: readings.append(places) or {"C", "CCO"},
    )
    arguments = str(model), str(tmp_path / "m.csv"), str(tmp_path / "p.csv")
    frame = predicted(*arguments, distance=True)
    assert frame["problem"].tolist() == ["", "", "", "not a SMILES string: unclosed ring"]
    assert frame["in_training"].tolist() == [False, True, False, False]
    assert len(readings) == 2  # once for distances, and once for the column, of two chunks


def test_a_label_called_class_keeps_its_probability(molecules, tuned, capsys):
    frame = pd.read_csv(molecules / "table.csv").rename(columns={"nitrogen": "class"})
    frame[["smiles", "class"]].to_csv(molecules / "class.csv", index=False)
    task = TaskConfig(str(molecules / "class.csv"), label_columns=["class"], split="random")
    finetune(str(molecules / "class"), str(molecules / "model"), task, FAST, [0])
    note = "which class is the most probable is in the column 'most probable class'"
    assert capsys.readouterr().err.count(note) == 1
    found = predicted(
        str(molecules / "class"), str(molecules / "class.csv"), str(molecules / "p.csv")
    )
    assert capsys.readouterr().err.count(note) == 1
    predict(str(tuned("binary")), str(molecules / "class.csv"), str(molecules / "p.csv"))
    assert note not in capsys.readouterr().err
    assert found["predicted class"].between(0.001, 0.999).all()
    assert set(found["most probable class"]) <= {0, 1}


def test_the_predicted_classes_of_booleans_and_numbers_are_no_texts(tmp_path):
    shares = [np.array([[0.2], [0.9], [np.nan]])]
    predicted_values = {}
    sets = {}
    for names in (["False", "True"], ["no", "yes"], ["1", "2"]):
        saved_task = SavedTask(task_type="binary", label_columns=["y"], binary_names=names)
        columns = prediction_columns(saved_task, shares, None)
        sets[names[1]] = bound_columns(saved_task, shares[0], np.array([0.95]))["set y"]
        write_frame(pd.DataFrame(columns), tmp_path / "p.jsonl")
        lines = (tmp_path / "p.jsonl").read_text().splitlines()
        predicted_values[names[1]] = [json.loads(line)["predicted class"] for line in lines]
    assert predicted_values == {
        "True": [False, True, None],
        "yes": ["no", "yes", None],
        "2": [1, 2, None],
    }
    assert sets == {
        "True": ["[false, true]", "[false, true]", None],
        "yes": ['["no", "yes"]', '["no", "yes"]', None],
        "2": ["[1, 2]", "[1, 2]", None],
    }


def test_the_rows_of_the_training_are_marked(tuned, molecules, tmp_path, capsys):
    output = tuned("regression")
    trained = {text for seed in (0, 1) for text in (output / f"seed-{seed}/train.smi").open()}
    first = next(iter(trained)).strip()
    frame = pd.DataFrame({"smiles": [first, "OC(=O)CCBr", "C1CC"], "weight": [1.0, 2.0, 3.0]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = predicted(str(output), str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
    assert found["in_training"].tolist() == [True, False, False]
    warning = capsys.readouterr().err
    assert "1 of the labelled rows have a text or molecule of the training" in warning
    assert "the column in_training of exlm predict marks them" in warning
    for rows, expected in (([0, 1], [True, False]), ([1, 2], [False, False])):
        frame["smiles"].iloc[rows].to_frame().to_csv(tmp_path / "b.csv", index=False)
        found = predicted(str(output), str(tmp_path / "b.csv"), str(tmp_path / "p.csv"))
        assert found["in_training"].tolist() == expected


def test_kept_molecules_with_odd_line_breaks_are_of_the_training(tmp_path):
    """Also those, but for \\n, that an earlier version wrote as they were."""
    texts = ["C(\x0bC", "N(\u2028O", "C(\x1cN", "O(\rC", "S(\nC", "CCO", "C(  C"]
    table = make_table(FileRows(pd.DataFrame({"smiles": [*texts, "CO"]})), "a.csv", "smiles", [])
    spelling = Spelling(molecules=True).as_compared
    nothing_before = TrainingTexts([], spelling, molecules=True)
    nothing_before.write_with(table, np.arange(7), tmp_path)
    is_seen = TrainingTexts([tmp_path], spelling, molecules=True).find_in(table)
    assert is_seen.tolist() == [True] * 7 + [False]
    earlier = "\n".join(texts).replace("S(\nC", "S( C")
    (tmp_path / "train.smi").write_bytes(earlier.encode())
    is_seen = TrainingTexts([tmp_path], spelling, molecules=True).find_in(table)
    assert is_seen.tolist() == [True] * 7 + [False]


@pytest.mark.parametrize("label", ["nitrogen", "has nitrogen"])
@pytest.mark.parametrize("ending", ["jsonl", "sdf"])
def test_labels_that_begin_late_in_a_file_are_scored(
    tuned, molecules, tmp_path, monkeypatch, capsys, label, ending
):
    for module in ("exlm.tasks.tables.table_predictor", "exlm.data.output_files"):
        monkeypatch.setattr(f"{module}.PIECE_ROWS", 3)
    smiles = pd.read_csv(molecules / "table.csv")["smiles"][:10]
    lines = [{"smiles": text} | ({label: i % 2} if i > 5 else {}) for i, text in enumerate(smiles)]
    file = tmp_path / f"late.{ending}"
    if ending == "jsonl":
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        with Chem.SDWriter(str(file)) as writer:
            for line in lines:
                molecule = Chem.MolFromSmiles(line["smiles"])
                if label in line:
                    molecule.SetProp(label, str(line[label]))
                writer.write(molecule)
    options = {} if label == "nitrogen" else {"label_columns": [label]}
    arguments = str(tuned("binary")), str(file)
    report = evaluate(*arguments, str(tmp_path / "e.json"), resamples=0, **options)
    assert report["labelled"] == 4
    predict(*arguments, str(tmp_path / "p.csv"), **options)
    assert "4 labelled rows\n" in capsys.readouterr().out.split("everything is in")[1]
    assert len(pd.read_csv(tmp_path / "p.csv")) == 10


@pytest.mark.parametrize("others", [{}, {"nitrogen": 1}])
@pytest.mark.parametrize("cells,ending", [("1 1e400 2", "jsonl"), ("[] [1,NaN] [2]", "csv")])
def test_cells_that_the_output_cannot_hold_are_told_before_the_work(
    tuned, tmp_path, monkeypatch, others, cells, ending
):
    with (tmp_path / "a.jsonl").open("w") as file:
        for text, cell in zip(["CCO", "CCN", "CC"], cells.split(), strict=True):
            print(f'{json.dumps({"smiles": text, **others})[:-1]}, "w": {cell}}}', file=file)
    model = str(tuned("binary"))
    monkeypatch.setattr("exlm.data.output_files.PIECE_ROWS", 1)
    monkeypatch.setattr(seed_models.EncoderModel, "predict", None)
    target = tmp_path / f"p.{ending}"
    with pytest.raises(InputError) as raised:
        predict(model, str(tmp_path / "a.jsonl"), str(target))
    assert str(raised.value).startswith(f"{target} cannot hold a column of the table, 'w': ")
    assert not list(tmp_path.glob(".*"))
    monkeypatch.undo()
    predict(model, str(tmp_path / "a.jsonl"), str(tmp_path / "p.parquet"))
    assert len(pd.read_parquet(tmp_path / "p.parquet")) == 3


def test_columns_that_were_there_stay_and_the_names_of_the_new_ones_are_told(
    tuned, molecules, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("exlm.tasks.tables.table_predictor.PIECE_ROWS", 2)
    monkeypatch.setattr("exlm.data.output_files.PIECE_ROWS", 2)
    model = str(tuned("binary"))
    table = pd.DataFrame({"smiles": ["OC(=O)CCBr", "C1CC", "BrCCF"]})
    table.assign(**{"predicted nitrogen": 7, "problem": "mine"}).to_csv(
        tmp_path / "a.csv", index=False
    )
    found = predicted(model, str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
    assert (found["predicted nitrogen"] == 7).all() and (found["problem"] == "mine").all()
    assert found["exlm predicted nitrogen"].isna().tolist() == [False, True, False]
    note = (
        "a.csv already has columns called predicted nitrogen, problem, which stay as they are; "
        "what exlm predict adds is called exlm predicted nitrogen, exlm problem"
    )
    assert capsys.readouterr().err.count(note) == 1
    table.to_csv(tmp_path / "b.csv", index=False)
    predict(model, str(tmp_path / "b.csv"), str(tmp_path / "p.csv"))
    assert "already has" not in capsys.readouterr().err
    embed(str(molecules / "model"), str(tmp_path / "a.csv"), str(tmp_path / "e.parquet"))
    note = "called problem, which stay as they are; what exlm embed adds is called exlm problem"
    assert capsys.readouterr().err.count(note) == 1


def test_the_last_sentences_have_the_true_names_of_columns(tuned, molecules, tmp_path, capsys):
    table = pd.read_csv(molecules / "table.csv")
    table.loc[0, "smiles"] = "C1CC"
    table.assign(problem="mine", in_training="yes", split="a").to_csv(tmp_path / "t.csv")
    evaluate(str(tuned("binary")), str(tmp_path / "t.csv"), str(tmp_path / "e.json"), resamples=0)
    out, err = capsys.readouterr()
    assert "(the column exlm problem of exlm predict says why)" in out
    assert "column exlm in_training of exlm predict marks them" in err
    task = TaskConfig(
        str(tmp_path / "t.csv"), label_columns=["nitrogen"], split="random", duplicates="keep"
    )
    finetune(str(tmp_path / "run"), str(molecules / "model"), task, FAST, [0, 1])
    told = capsys.readouterr().err
    assert told.count("what the training adds is called exlm split, exlm in_training, exlm pr") == 1
    columns = pd.read_csv(tmp_path / "run/seed-1/predictions.csv").columns
    assert {"exlm split", "exlm in_training", "exlm problem"} < {*columns}


def test_columns_without_a_name_stay_without_one(tuned, molecules, tmp_path, monkeypatch):
    monkeypatch.setattr("exlm.tasks.tables.table_predictor.PIECE_ROWS", 2)
    monkeypatch.setattr("exlm.data.output_files.PIECE_ROWS", 2)
    lines = ['"";"smiles";"";"Unnamed: 2"', *[f"{i};{'C' * i}O;x;y" for i in range(1, 4)]]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    pd.read_csv(tmp_path / "a.csv", sep=";", header=None).to_excel(
        tmp_path / "a.xlsx", index=False, header=False
    )
    given = [["", "smiles", "", "Unnamed: 2"], *[line.split(";") for line in lines[1:]]]
    for name in ("a.csv", "a.xlsx"):
        for target in (tmp_path / "p.csv", tmp_path / "p.tsv"):
            predict(str(tuned("regression")), str(tmp_path / name), str(target))
            mark = next(mark for mark in ";,\t" if mark in target.read_text())
            rows = [line.split(mark) for line in target.read_text().splitlines()]
            assert [row[:4] for row in rows] == given and rows[0][4] == "predicted weight"
    embed(str(molecules / "model"), str(tmp_path / "a.csv"), str(tmp_path / "e.csv"))
    assert (tmp_path / "e.csv").read_text().startswith(";smiles;;Unnamed: 2;row;text;")


def test_a_model_of_molecules_reads_the_column_called_smiles(tuned, molecules, tmp_path, capsys):
    """As in the table that `exlm fill` writes. The name of the training comes first."""
    frame = pd.DataFrame({"text": "CC[MASK]", "SMILES": ["OC(=O)CCBr", "BrCCF"]})
    model = str(tuned("binary"))
    trained = shutil.copytree(tuned("binary") / "seed-0", tmp_path / "model")
    config = json.loads((trained / "config.json").read_text())
    config["task"]["text_column"] = "Structure"
    (trained / "config.json").write_text(json.dumps(config))
    (trained / "manifest.json").unlink()
    expected = None
    for name, columns in (
        (model, {}),
        (str(trained), {}),
        (str(trained), {"structure": frame["SMILES"], "SMILES": "C"}),
    ):
        frame.assign(**columns).to_csv(tmp_path / "a.csv", index=False)
        found = predicted(name, str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
        assert found["problem"].tolist() == ["", ""]
        if name == str(trained):
            expected = expected or found["predicted nitrogen"].tolist()
            assert found["predicted nitrogen"].tolist() == expected


def test_a_note_tells_of_texts_that_are_all_the_same(tuned, tmp_path, capsys):
    path = str(tmp_path / "fillings.csv")
    pd.DataFrame({"text": ["CCO"] * 3, "filled": ["CCN", "CCC", "CCO"]}).to_csv(path, index=False)
    model = str(tuned("regression"))
    predict(model, path)
    assert "the same text in 'text'" in capsys.readouterr().err
    predict(model, path, text_column="filled")
    assert "the same text" not in capsys.readouterr().err


def test_labels_that_are_numbers_are_numbers_in_formats_that_have_them(tuned, molecules, tmp_path):
    model = str(tuned("regression"))
    first, second = COLUMNS["regression"]
    frame = pd.read_csv(molecules / "table.csv")[["smiles", first, second]].astype(str)
    frame.loc[1, first] = ""
    frame.loc[2, "smiles"] = "C1"  # without a prediction, and its label stays
    frame.loc[3, second] = ">10"
    frame.to_csv(tmp_path / "a.csv", index=False)
    numbers = pd.to_numeric(frame[first]).to_numpy()
    for ending, read in (("xlsx", pd.read_excel), ("parquet", pd.read_parquet)):
        path = predict(model, str(tmp_path / "a.csv"), str(tmp_path / f"p.{ending}"))
        written = read(path)
        np.testing.assert_allclose(written[first].to_numpy(float), numbers)
        assert list(written[second].astype(str)) == list(frame[second])  # nothing is lost
    path = predict(model, str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
    written = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert list(written[first]) == list(frame[first])
