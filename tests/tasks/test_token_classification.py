"""A label for every residue of a protein, or for every word of a text."""

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from exlm import ExLMForMaskedLM, ExLMForTokenClassification, InputError
from exlm.data.frames import FileRows
from exlm.data.tokenization import letter_tokenizer, train_text_tokenizer
from exlm.describe.on_disk import info
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.embed import embed
from exlm.tasks.encoders.loading import EncoderSource, load_saved_task
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.finetune import finetune
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.labels.scores import score_predictions
from exlm.tasks.predict import evaluate, predict
from exlm.tasks.rows.reading import UNREAD, TableTokens, first_tokens
from exlm.tasks.rows.units import RESIDUE, WORD, read_unit_labels, spell_labels
from exlm.tasks.tables.network_outputs import run_network
from exlm.tasks.tables.supervision import read_table_task
from exlm.tasks.tables.unit_table import read_unit_table
from tests.conftest import read_frame
from tests.tables import make_table
from tests.tasks.tiny_models import LINES, NAMES, TOWNS, predicted, save_family

GREASY = "AVILMFWC"
FAST = FinetuneConfig(
    epochs=8, batch_size=8, learning_rate=1e-2, dropout=0.0, pooler_dropout=0.0, precision="fp32"
)


def save(path, tokenizer):
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    save_model(path, ExLMForMaskedLM(ArchitectureConfig(**sizes).build(tokenizer)), tokenizer)
    return str(path)


@pytest.fixture(scope="module")
def biologist(tmp_path_factory):
    return save(tmp_path_factory.mktemp("biologist"), letter_tokenizer("protein"))


def proteins(rows=60):
    """Random proteins; greasy residues are H, all others C, and the first three are not
    resolved."""
    draw = random.Random(0)
    texts = [
        "".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=draw.randint(8, 30))) for _ in range(rows)
    ]
    labels = ["".join("H" if residue in GREASY else "C" for residue in text) for text in texts]
    frame = pd.DataFrame(
        {"sequence": texts, "label": labels, "mask": ["000" + "1" * (len(t) - 3) for t in texts]}
    )
    return frame.assign(split=(["train"] * 8 + ["valid", "test"]) * (rows // 10))


def test_numbers_before_the_words_of_a_conll_file_are_no_words(tmp_path):
    """As in GermEval; # begins a comment."""
    lines = ["# a source", "1\tAda\tB-PER\tO", "2\tlives\tO\tO", "", "1\tRome\tB-LOC\tO", ""]
    (tmp_path / "a.conll").write_text("\n".join(lines))
    frame = read_frame(tmp_path / "a.conll")
    assert frame["tokens"].tolist() == [["Ada", "lives"], ["Rome"]]
    assert frame["tags"].tolist() == [["B-PER", "O"], ["B-LOC"]]
    (tmp_path / "b.conll").write_text("1\tCD\tO\nof\tIN\tO\n\n1\tCD\tO\n")
    assert read_frame(tmp_path / "b.conll")["tokens"].tolist() == [["1", "of"], ["1"]]


def test_a_mask_says_what_counts():
    frame = pd.DataFrame({"sequence": ["MKV"] * 3, "label": ["HCH"] * 3})
    frame["mask"] = ["011", [0, 1, 1], "0.1"]
    table = make_table(FileRows(frame), "a.csv", "sequence", [])
    labels, problems = read_unit_labels(table, "label", "mask", RESIDUE, ["C", "H"], 9)
    np.testing.assert_array_equal(labels[:2], [[np.nan, 0, 1]] * 2)
    assert problems[:2] == ["", ""] and "'.', which is neither 0 nor 1" in problems[2]


def test_a_mask_that_lost_its_zeros_is_told_to_be_text(tmp_path):
    """Some are short because they were so written, with zeros in front or in a list."""
    masks = [11, "011", 0, [1, 1], "01"]
    frame = pd.DataFrame({"sequence": ["MKV"] * 5, "label": ["HCH"] * 5, "mask": masks})
    table = make_table(FileRows(frame), "a.csv", "sequence", [])
    _, problems = read_unit_labels(table, "label", "mask", RESIDUE, ["C", "H"], 9)
    advice = ", which was stored as a number, without zeros in front: make it a text"
    of_mask = "3 residues or words, but 3 labels and a mask of "
    assert problems == [
        f"{of_mask}2{advice}",
        "",
        f"{of_mask}1{advice}",
        f"{of_mask}2",
        f"{of_mask}2",
    ]
    frame = proteins(20).assign(mask=lambda table: table["mask"].map(int))
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    config = TaskConfig(
        str(tmp_path / "a.xlsx"), task_type="token_classification", mask_column="mask"
    )
    with pytest.raises(InputError, match="20 of 20 rows .*stored as a number, .*make it a text"):
        read_unit_table(config, 512)


def test_units_that_were_cut_have_a_mark_that_is_no_label():
    predictions = np.array([[[0.2, 0.8], [0.9, 0.1], [np.nan, np.nan]]])
    assert spell_labels(predictions, ["MKV"], ["C", "H"], RESIDUE) == ["HC-"]
    assert spell_labels(predictions, ["MKV"], ["-", "H"], RESIDUE) == ["H-?"]


def test_a_model_learns_labels_of_residues_and_writes_them_as_strings(biologist, tmp_path, capsys):
    frame, data, out = proteins(), str(tmp_path / "data.csv"), str(tmp_path / "out")
    frame.loc[0, "label"] = "HH"
    frame.loc[1, "sequence"] = "-" + frame.loc[1, "sequence"][1:]
    frame.loc[2, ["sequence", "label"]] = [frame.loc[2, "sequence"].lower(), frame.loc[2, "label"]]
    frame.to_csv(data, index=False)
    task = TaskConfig(
        data, task_type="token_classification", mask_column="mask", split="column:split"
    )
    report = finetune(out, biologist, task, FAST, [0, 1])
    assert report["test"]["accuracy"]["min"] > 0.95 and report["metric"] == "accuracy"
    invalid = pd.read_csv(tmp_path / "out" / "invalid_rows.csv")
    assert list(invalid["row"]) == [1, 2] and (invalid["action"] == "left out").all()
    assert (
        "but 2 labels and a mask of" in invalid["reason"][0]
        and "not in the vocabulary" in invalid["reason"][1]
    )
    found = predicted(out, data, str(tmp_path / "predicted.csv"))
    assert (
        found.loc[1, "predicted label"] == "" and "not in the vocabulary" in found.loc[1, "problem"]
    )
    for row in (0, *range(2, 60)):
        assert len(found.loc[row, "predicted label"]) == len(frame.loc[row, "sequence"])
    alike = np.array([*"".join(found["predicted label"][2:])]) == np.array(
        [*"".join(frame["label"][2:])]
    )
    assert alike.mean() > 0.95
    assert "58 labelled rows\n" in capsys.readouterr().out
    assert "- texts: proteins (residues)" in info(out)
    evaluation = evaluate(out, data, str(tmp_path / "scores.json"), resamples=3)
    trained_on = (frame["split"] == "train").sum() - frame["split"][:2].eq("train").sum()
    assert evaluation["in_training"] == trained_on > 0  # also the one in small letters
    scores = evaluation["metrics"]
    assert (
        set(scores) == {"ensemble", "seed-0", "seed-1"}
        and scores["ensemble"]["macro_f1"]["value"] > 0.95
    )
    shown = capsys.readouterr().out
    assert "every class by itself" in shown and "rows of each class" in shown
    f1 = [of_class["f1"] for of_class in evaluation["classes"].values()]
    assert np.mean(f1) == pytest.approx(scores["ensemble"]["macro_f1"]["value"])
    units = pd.DataFrame(evaluation["confusion"]).to_numpy()
    assert np.trace(units) / units.sum() == scores["ensemble"]["accuracy"]["value"]
    frame.drop(columns="mask").to_csv(data, index=False)
    with pytest.raises(InputError, match="has no column mask, which the model was trained with"):
        evaluate(out, data, str(tmp_path / "scores.json"), resamples=0)
    frame.loc[3:5, "label"] = ["?" * len(text) for text in frame.loc[3:5, "sequence"]]
    frame.loc[6, "label"] = ""
    frame.to_csv(data, index=False)
    capsys.readouterr()
    assert evaluate(out, data, str(tmp_path / "scores.json"), resamples=0)["labelled"] == 54
    note = "4 rows have a label that cannot be scored, the first row 1: "
    assert note in capsys.readouterr().err


def test_residues_that_do_not_count_change_no_score(biologist, tmp_path):
    frame, reports = proteins(20), []
    for name, first in (("a", "CCC"), ("b", "HHH")):
        changed = frame.assign(label=first + frame["label"].str[3:])
        changed.to_csv(tmp_path / f"{name}.csv", index=False)
        task = TaskConfig(
            str(tmp_path / f"{name}.csv"), task_type="token_classification", mask_column="mask"
        )
        reports.append(
            finetune(
                str(tmp_path / name),
                biologist,
                task,
                FinetuneConfig(epochs=1, precision="fp32"),
                [0],
            )
        )
    assert reports[0]["test"] == reports[1]["test"]


def test_what_is_cut_off_has_no_label_and_the_row_is_reported(biologist, tmp_path):
    data, out = str(tmp_path / "data.csv"), str(tmp_path / "out")
    proteins(20).to_csv(data, index=False)
    task = TaskConfig(data, task_type="token_classification", max_length=10)
    finetune(out, biologist, task, FinetuneConfig(epochs=1, precision="fp32"), [0])
    reasons = pd.read_csv(tmp_path / "out" / "invalid_rows.csv")
    assert (
        len(reasons)
        and (reasons["action"] == "cut").all()
        and reasons["reason"].str.endswith("at most 10").all()
    )
    found = predicted(out, data, str(tmp_path / "predicted.csv"))
    for text, labels in zip(found["sequence"], found["predicted label"], strict=True):
        assert (
            len(labels) == len(text) and labels[8:] == "-" * len(text[8:]) and "-" not in labels[:8]
        )


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet", "exlm"])
def test_named_entities_of_words(family, tmp_path, monkeypatch):
    """The label of a word sits on its first token, whatever the tokenizer does with spaces."""
    model = str(tmp_path / "model")
    if family == "exlm":
        save(tmp_path / "model", train_text_tokenizer("bpe", LINES, 300))
    else:
        save_family(tmp_path / "model", family)
    names = {
        **dict.fromkeys(NAMES, "B-PER"),
        **dict.fromkeys((f"{town}." for town in TOWNS), "B-LOC"),
    }
    lines = [line for line in LINES if line.endswith(".")]
    labels = [" ".join(names.get(word, "O") for word in line.split()) for line in lines]
    data, out = str(tmp_path / "data.csv"), str(tmp_path / "out")
    pd.DataFrame({"text": lines, "tags": labels}).to_csv(data, index=False)
    task = TaskConfig(
        data, task_type="token_classification", label_columns=["tags"], metric="macro_f1"
    )
    finetune(out, model, task, replace(FAST, epochs=20), [0])
    found = predicted(out, data, str(tmp_path / "predicted.csv"))
    assert (
        np.mean(
            [a.split() == b.split() for a, b in zip(found["predicted label"], labels, strict=True)]
        )
        > 0.9
    )
    if family == "exlm":
        network = AutoModelForTokenClassification.from_pretrained(out)
        assert isinstance(network, ExLMForTokenClassification)
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # the pipeline sets it
        tagger = pipeline(
            "token-classification",
            network,
            tokenizer=AutoTokenizer.from_pretrained(out),
            device="cpu",
        )
        assert {entry["entity"] for entry in tagger(lines[0])} <= {"B-PER", "B-LOC", "O"}


def test_first_tokens_of_units():
    tokenizer = train_text_tokenizer("bpe", ["aa bb aa bb cc cc"] * 3, 300)
    text = "zz  bb q\u00e9"
    [first] = first_tokens([text], tokenizer, WORD, max_length=50)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert [tokens[i].lstrip("\u0120")[0] for i in first] == ["z", "b", "q"]
    protein = letter_tokenizer("protein")
    found = first_tokens(["mkv*", "MK"], protein, RESIDUE, max_length=4)
    assert found.tolist() == [[1, 2, -1, -1], [1, 2, -1, -1]]  # cut after two residues


@pytest.mark.parametrize("as_list", [False, True])
def test_units_that_share_a_token_have_no_labels_of_their_own(as_list, tmp_path, capsys):
    """As characters do that bpe joins; with wordpiece, Chinese ones are tokens."""
    texts = [f"{start}{end}" for end in "cdefghijkl" for start in ("\u6628\u5929", "ab", "ba")]
    bpe = train_text_tokenizer("bpe", ["\u6628\u5929"] * 9, 300)
    [starts] = first_tokens(texts[:1], bpe, RESIDUE, max_length=50)
    assert starts[0] == starts[1]
    model = save(tmp_path / "bpe", bpe)
    labels = ["AAA", "ABA", "BAA"] * 10
    cells = list(map(list, labels)) if as_list else labels
    frame = pd.DataFrame({"text": texts, "label": cells})
    data, out = str(tmp_path / "a.jsonl"), tmp_path / "out"
    frame.to_json(data, orient="records", lines=True)
    task = TaskConfig(data, task_type="token_classification")
    finetune(str(out), model, task, FinetuneConfig(epochs=1, precision="fp32"), [0])
    invalid = pd.read_csv(out / "invalid_rows.csv")
    assert invalid["row"].tolist() == [*range(1, 31, 3)]
    reason = "'\u6628', '\u5929' share a token, so they cannot have labels of their own; "
    assert invalid["reason"].str.startswith(reason).all()
    found = predicted(str(out), data, str(tmp_path / "p.csv"))
    assert (found["predicted label"] == "").tolist() == [True, False, False] * 10
    assert found["problem"][0].startswith(reason)
    report = evaluate(str(out), data, str(tmp_path / "e.json"), resamples=0)
    assert report["labelled"] == 20 and report["unusable"] == 10
    frame[::3].to_json(data, orient="records", lines=True)
    with pytest.raises(InputError, match="no row can be used, .* share a token, .*wordpiece"):
        finetune(str(tmp_path / "none"), model, task, FAST, [0])
    wordpiece = train_text_tokenizer("wordpiece", ["\u6628\u5929"] * 9, 300)
    assert first_tokens(texts[:1], wordpiece, RESIDUE, max_length=50)[0, :2].tolist() == [1, 2]


def test_words_that_the_tokenizer_reads_as_nothing_count_as_wrong(tmp_path, capsys):
    """They are outside of all entities, so that entities are those of seqeval. What is cut does not
    count."""
    nothing = "\u200d"
    model = save(tmp_path / "model", train_text_tokenizer("wordpiece", LINES, 300))
    tags = {**dict.fromkeys(NAMES, "B-PER"), nothing: "I-PER"}
    texts = [f"{line} {nothing}" for line in LINES]
    labels = [" ".join(tags.get(word, "O") for word in text.split()) for text in texts]
    data, out = str(tmp_path / "a.csv"), tmp_path / "out"
    pd.DataFrame({"text": texts, "tags": labels}).to_csv(data, index=False)
    task = TaskConfig(data, task_type="token_classification", max_length=40)
    report = finetune(str(out), model, task, replace(FAST, epochs=20), [0])
    assert 0.5 < report["test"]["accuracy"]["mean"] < 1
    invalid = pd.read_csv(out / "invalid_rows.csv")
    assert len(invalid) == len(texts) and (invalid["action"] == "kept").all()
    place = len(texts[0].split())
    reason = f"the tokenizer reads as nothing: '\\u200d' (residue or word {place})"
    assert invalid["reason"][0] == reason
    found = predicted(str(out), data, str(tmp_path / "p.csv"))["predicted label"].str.split()
    assert found.str[-1].eq("-").all() and not found.str[:-1].map(lambda row: "-" in row).any()
    capsys.readouterr()
    scores = evaluate(str(out), data, str(tmp_path / "e.json"), resamples=0)
    count = f"{len(texts)} with words or residues that the tokenizer reads as nothing"
    assert count in capsys.readouterr().out
    true = list(itertools.chain.from_iterable(label.split() for label in labels))
    right = np.mean(np.array(true) == np.array([*itertools.chain.from_iterable(found)]))
    assert scores["metrics"]["seed-0"]["accuracy"]["value"] == right < 1
    entities = sum(label.count("PER") for label in labels)  # each I-PER is one of its own
    assert scores["classes"]["PER"]["entities"] == entities


def test_what_lies_behind_a_cut_is_not_read_as_nothing():
    tokenizer = train_text_tokenizer("wordpiece", ["a b c"] * 3, 300)
    text = "a \u200d b \ufe0f c \u200d"
    nothing = [1, UNREAD, 2, UNREAD, 3, UNREAD]
    assert first_tokens([text], tokenizer, WORD, max_length=9)[0].tolist() == nothing
    assert first_tokens([text], tokenizer, WORD, max_length=4)[0].tolist() == [1, UNREAD, 2, -1]
    assert first_tokens(["a b c", text], tokenizer, WORD, 9)[0].tolist() == [1, 2, 3, -1, -1, -1]


def test_scores_of_a_unit_that_is_read_as_nothing():
    """It is no class of its own, but wrong, and divides entities."""
    names = ["B-PER", "I-PER", "O"]
    labels = np.array([[0.0, 1, 1, 2]])
    predictions = np.eye(3)[[[0, 1, 1, 2]]]
    label_type = LABEL_TYPES["token_classification"]
    logits = np.log(predictions + 1e-9)
    logits[0, 1] = -np.inf
    assert np.allclose(label_type.predictions(logits)[0, 1], 0)
    predictions[0, 1] = 0
    scores = score_predictions(label_type, labels, predictions, class_names=names)
    assert scores["accuracy"] == 0.75
    assert scores["macro_f1"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert scores["entity_f1"] == 0
    assert label_type.as_rows(labels, logits)[1].shape == (3, 3)


def test_finding_first_tokens_leaves_the_tokenizer_as_it_is():
    tokenizer = letter_tokenizer("protein")
    tokenizer.padding_side = "left"
    first_tokens(["MKV"], tokenizer, RESIDUE, max_length=10)
    assert tokenizer.padding_side == "left"


def test_texts_that_are_no_proteins_are_refused_unless_kept(biologist, tmp_path):
    path, out = tmp_path / "news.txt", str(tmp_path / "a.npy")
    path.write_text("the weather is fine today\n" * 12)
    with pytest.raises(InputError, match="no row can be used.*not in the vocabulary"):
        embed(biologist, str(path), out)
    embed(biologist, str(path), out, on_invalid="keep")
    assert np.isfinite(np.load(out)).all()
    path.write_text("MKVLA\nMK-LA\n")
    embed(biologist, str(path), out)
    assert np.isfinite(np.load(out)).all(1).tolist() == [True, False]


def test_settings_that_do_not_fit_are_named(biologist, tmp_path):
    data = str(tmp_path / "data.csv")
    proteins(20).to_csv(data, index=False)
    for change, message in (
        ({"label_columns": ["label", "mask"]}, "one label column"),
        ({"label_columns": ["absent"]}, "no column 'absent'"),
        ({"mask_column": "absent"}, "no column 'absent'"),
        ({"metric": "rmse"}, "no metric 'rmse'"),
    ):
        with pytest.raises(InputError, match=message):
            task = TaskConfig(data, task_type="token_classification", **change)
            finetune(str(tmp_path / "out"), biologist, task, FAST)


@pytest.mark.parametrize("task_type", ["token_classification", "question_answering"])
def test_what_settings_alone_tell_is_told_before_the_data_are_read(biologist, tmp_path, task_type):
    task = TaskConfig(str(tmp_path / "absent.csv"), task_type=task_type)
    with pytest.raises(InputError, match="train.pooling is for classes and numbers"):
        finetune(str(tmp_path / "out"), biologist, task, FAST, grid={"pooling": ["first", "mean"]})
    with pytest.raises(InputError, match="the grid has 'rate'"):
        finetune(str(tmp_path / "out"), biologist, task, FAST, grid={"rate": [1]})


def test_a_part_of_a_table_may_have_no_row_that_can_be_used():
    frame = pd.DataFrame({"sequence": ["MKV", "", "AC"]})
    table = replace(make_table(FileRows(frame), "a.csv", "sequence", []), problems=["wrong"] * 3)
    tokens = TableTokens([{}] * 3, np.full((3, 3), -1))
    saved_task = SavedTask(
        task_type="token_classification", unit_pattern=RESIDUE, class_names=["H", "E"]
    )
    rows = np.flatnonzero(table.usable)
    found = run_network(torch.nn.Linear(1, 1), None, tokens, rows, len(saved_task.head_names))
    assert (
        found.shape == (3, 3, 2)
        and np.isnan(found).all()
        and spell_labels(found, table.texts, ["H", "E"], RESIDUE) == ["", "", ""]
    )


@pytest.mark.parametrize("tags", [["O", "B-PER", "B-LOC"], [0, 3, 7]])
def test_lists_of_words_and_tags(tags, tmp_path):
    """The usual layout of `datasets`; -100 is no label."""
    model, out = save(tmp_path / "model", train_text_tokenizer("bpe", LINES, 300)), tmp_path / "out"
    records = []
    for line in LINES:
        words = line.split()
        kinds = [tags[(word in NAMES) + 2 * (word.strip(".!") in TOWNS)] for word in words]
        kinds[2] = -100
        records.append({"id": len(records), "tokens": words, "ner_tags": kinds})
    data = str(tmp_path / "data.parquet")
    pd.DataFrame(records).astype({"ner_tags": object}).to_json(
        tmp_path / "data.jsonl", orient="records", lines=True
    )
    if isinstance(tags[0], int):
        pd.DataFrame(records).to_parquet(data)
    else:
        data = str(tmp_path / "data.jsonl")
    report = finetune(
        str(out), model, TaskConfig(data, task_type="token_classification"), FAST, [0]
    )
    assert report["test"]["accuracy"]["mean"] > 0.9
    assert load_saved_task(str(out)).class_names == sorted(map(str, tags))
    found = predicted(str(out), data, str(tmp_path / "predicted.csv"))
    for words, labels in zip(found["tokens"], found["predicted label"], strict=True):
        assert len(json.loads(words)) == len(labels.split())
    assert evaluate(str(out), data, str(tmp_path / "e.json"), resamples=0)["labelled"] == len(LINES)
    with pytest.raises(InputError, match="for numbers and one class a row"):
        predict(str(out), data, str(tmp_path / "p.csv"), interval=0.8)
    if not isinstance(tags[0], int):
        numbers = [{**record, "ner_tags": [0] * len(record["tokens"])} for record in records]
        pd.DataFrame(numbers).to_parquet(tmp_path / "numbers.parquet")
        message = "training, B-LOC, B-PER, O, in place of the numbers of classes .*int2str"
        with pytest.raises(InputError, match=message):
            evaluate(str(out), str(tmp_path / "numbers.parquet"), str(tmp_path / "e.json"))


def test_a_row_without_any_word_has_no_label():
    frame = pd.DataFrame({"sequence": ["AB", "", "AA"], "label": ["HH", "", "HE"]})
    table = make_table(FileRows(frame), "a.csv", "sequence", [])
    labels, problems = read_unit_labels(table, "label", None, RESIDUE, ["E", "H"], 9)
    assert np.array_equal(labels, [[1, 1], [np.nan, np.nan], [1, 0]], equal_nan=True)
    assert problems == ["", "", ""]


def test_the_reason_of_a_row_with_a_missing_tag_names_its_place():
    frame = pd.DataFrame({"tokens": [["Ada", "ran"], ["Bo", "sat"]], "tags": [["B", None], "BO"]})
    table = make_table(FileRows(frame), "a.jsonl", "tokens", [])
    _, problems = read_unit_labels(table, "tags", None, WORD, ["B", "O"], 9)
    assert problems == ["label 2 of 2 is missing", "2 residues or words, but 1 labels"]


def test_one_blank_in_a_protein_makes_no_words_of_all(biologist, tmp_path):
    frame = pd.DataFrame({"sequence": ["MKVLA"] * 9 + ["MKV LA"], "label": ["HHHEE"] * 10})
    frame.to_csv(tmp_path / "a.csv", index=False)
    config = TaskConfig(str(tmp_path / "a.csv"), task_type="token_classification")
    task = read_table_task(EncoderSource(str(biologist)), config).task
    assert task.table.labels.class_names == ["E", "H"]


def test_no_array_is_longer_than_what_a_model_reads(biologist, tmp_path):
    frame = proteins(20)
    frame.loc[0, ["sequence", "label"]] = ["MKVLA" * 50, "HHHEE" * 50]
    frame.to_csv(tmp_path / "a.csv", index=False)
    config = TaskConfig(str(tmp_path / "a.csv"), task_type="token_classification", max_length=30)
    encoder_task = read_table_task(EncoderSource(str(biologist)), config)
    labels = encoder_task.task.table.labels.values
    assert labels.shape == encoder_task.tokens.unit_starts.shape == (20, 30)
    assert spell_labels(np.full((1, 2, 2), 0.5), ["MKV"], ["C", "H"], RESIDUE) == ["CC-"]


def test_spellings_of_a_protein_are_one_text(biologist, tmp_path):
    frame = pd.DataFrame({"sequence": ["MKVLA", "mkvla", "MKVLA*", "MKV"] * 5, "y": range(20)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    config = TaskConfig(str(tmp_path / "a.csv"), label_columns=["y"], task_type="regression")
    task = read_table_task(EncoderSource(str(biologist)), config).task
    assert task.groups.tolist() == [0, 0, 0, 3] * 5
    # the stop alone, which is cut off
    pd.DataFrame({"sequence": ["MKV", "*"]}).to_csv(tmp_path / "stop.csv", index=False)
    embed(str(biologist), str(tmp_path / "stop.csv"), str(tmp_path / "stop.parquet"))
    problems = pd.read_parquet(tmp_path / "stop.parquet")["problem"]
    assert problems.tolist() == ["", "there is nothing in it that the model reads"]


def test_a_star_at_the_end_is_no_residue(biologist, tmp_path):
    """Whether labels have a place for it or not; nor is it one for a model that was told so."""
    frame = proteins(20).assign(label=lambda table: table["label"].str.replace("C", "-"))
    expected = frame["label"].tolist()
    frame["sequence"] += "*"
    frame["label"] += ["*", "", "L", "H"] * 5
    frame["mask"] += ["1", "0", "", "1"] * 5
    frame.to_csv(tmp_path / "a.csv", index=False)
    config = TaskConfig(
        str(tmp_path / "a.csv"),
        task_type="token_classification",
        mask_column="mask",
        split="column:split",
    )
    run = tmp_path / "run"
    finetune(str(tmp_path / "run"), str(biologist), config, FinetuneConfig(epochs=1), seeds=[0])
    assert len(pd.read_csv(run / "invalid_rows.csv")) == 0
    saved = json.loads((run / "seed-0/config.json").read_text())
    assert [*saved["id2label"].values()] == ["-", "H"]
    saved["task"]["unit"] = RESIDUE
    for _ in range(2):
        found = predicted(str(run / "seed-0"), str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
        assert found["predicted label"].str.len().tolist() == list(map(len, expected))
        report = evaluate(str(run / "seed-0"), str(tmp_path / "a.csv"), str(tmp_path / "e.json"), 0)
        assert report["labelled"] == 20
        (run / "seed-0/manifest.json").unlink(missing_ok=True)
        (run / "seed-0/config.json").write_text(json.dumps(saved))


def test_a_star_is_a_unit_where_no_tokenizer_cuts_it():
    frame = pd.DataFrame({"sequence": ["CC*"], "label": ["ABC"]})
    table = make_table(FileRows(frame), "a.csv", "sequence", [])
    labels, problems = read_unit_labels(table, "label", None, RESIDUE, ["A", "B", "C"], 9)
    assert labels.tolist() == [[0, 1, 2]] and problems == [""]


def test_a_split_has_the_shares_of_the_rows_that_are_left_without_duplicates(biologist, tmp_path):
    sequences = ["MKVLA"] * 10 + ["MKV" + "A" * length for length in range(2, 20)]
    frame = pd.DataFrame({"sequence": sequences, "y": range(28)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    config = TaskConfig(
        str(tmp_path / "a.csv"), label_columns=["y"], task_type="regression", duplicates="mean"
    )
    task = read_table_task(EncoderSource(str(biologist)), config).task
    sizes = {part: len(rows) for part, rows in task.split_of(0).items()}
    assert sizes == {"train": 15, "valid": 2, "test": 2}


def test_labels_of_residues_may_have_several_letters():
    """In a list; predictions have spaces between them."""
    labels_of_rows = [["FR1", "FR1", "CDR1"], ["CDR1", "FR1"]]
    frame = pd.DataFrame({"sequence": ["MKV", "AC"], "label": labels_of_rows})
    table = make_table(FileRows(frame), "a.jsonl", "sequence", [])
    labels, problems = read_unit_labels(table, "label", None, RESIDUE, ["CDR1", "FR1"], 9)
    assert problems == ["", ""] and labels.tolist()[0] == [1, 1, 0]
    predictions = np.full((2, 3, 2), np.nan)
    predictions[0] = [[0, 1], [0, 1], [1, 0]]
    predictions[1, :2] = [[1, 0], [0, 1]]
    as_texts = spell_labels(predictions, table.texts, ["CDR1", "FR1"], RESIDUE)
    assert as_texts == list(map(" ".join, labels_of_rows))


def test_many_numbers_are_no_classes_of_residues(tmp_path):
    model = save(tmp_path / "model", letter_tokenizer("protein"))
    rows = [{"sequence": "MKVA", "rsa": [i / 7, i / 11, i / 13, 0.5]} for i in range(1, 40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task_type = "token_classification"
    config = TaskConfig(str(tmp_path / "a.jsonl"), label_columns=["rsa"], task_type=task_type)
    with pytest.raises(InputError, match="different numbers; each would be a class"):
        read_table_task(EncoderSource(model), config)


def test_the_label_column_may_have_a_comma_in_its_name(tmp_path):
    proteins(20).rename(columns={"label": "state, 2"}).to_csv(tmp_path / "a.csv", index=False)
    as_the_command_line_cuts_it = ["state", "2"]
    config = TaskConfig(str(tmp_path / "a.csv"), label_columns=as_the_command_line_cuts_it)
    assert read_unit_table(config, 512).labels.columns == ["state, 2"]


def test_a_table_with_a_row_for_each_word_is_refused(tmp_path):
    frame = pd.DataFrame({"token": ["Anna", "lives", "in", "a", "town"], "tag": ["B-PER", *"OOOO"]})
    frame.to_csv(tmp_path / "long.csv", index=False)
    config = TaskConfig(
        str(tmp_path / "long.csv"),
        text_column="token",
        label_columns=["tag"],
        task_type="token_classification",
    )
    with pytest.raises(InputError, match="do not have a label for each residue or word .*CoNLL"):
        read_unit_table(config, 512)


def test_several_labels_in_a_cell_are_told_how_to_be_read():
    frame = pd.DataFrame({"text": ["a", "b", "c"], "topics": ["010; 101", "010", "101"]})
    with pytest.raises(InputError, match="several labels need a column for each"):
        make_table(FileRows(frame), "a.csv", "text", ["topics"], task_type="multilabel")
