"""GLUE: every layout of its files gives the same rows, and what is wrong with them is said."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from exlm import InputError
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm.tasks.rows.datasets import GLUE, departures
from exlm.tasks.rows.labelled_table import read_labelled_table
from exlm.tasks.rows.task_files import resolve
from tests.tasks.tiny_models import save_family

QUOTE = 'They said "no'  # a quote that never ends: in a CSV it would swallow the lines behind it
FIRST = ["A cat sleeps.", QUOTE, "It rains.", "Dogs bark.", "Birds sing.", "She left."]
SECOND = [
    "An animal sleeps.",
    "They agreed.",
    'It is "dry".',
    "Dogs make noise.",
    "Fish sing.",
    "She stayed.",
]
ENTAILMENT = ["entailment", "not_entailment"] * 3
THREE = ["entailment", "neutral", "contradiction"] * 2
BINARY = ["1", "0"] * 3
SCORES = ["5.000", "0.500", "3.200", "1.000", "2.750", "4.000"]

# Columns of the original files: values, or one value for all rows. {i} is the row number.
ORIGINAL = {
    "mnli": {
        "index": "{i}",
        "promptID": "31193",
        "pairID": "31193n",
        "genre": "travel",
        "sentence1_binary_parse": "( A )",
        "sentence2_binary_parse": "( B )",
        "sentence1_parse": "(ROOT A)",
        "sentence2_parse": "(ROOT B)",
        "sentence1": FIRST,
        "sentence2": SECOND,
        "label1": "neutral",
        "gold_label": THREE,
    },
    "qqp": {
        "id": "{i}",
        "qid1": "1{i}",
        "qid2": "2{i}",
        "question1": FIRST,
        "question2": SECOND,
        "is_duplicate": BINARY,
    },
    "qnli": {"index": "{i}", "question": FIRST, "sentence": SECOND, "label": ENTAILMENT},
    "sst-2": {"sentence": FIRST, "label": BINARY},
    "cola": {"source": "gj04", "label": BINARY, "mark": "*", "sentence": FIRST},
    "rte": {"index": "{i}", "sentence1": FIRST, "sentence2": SECOND, "label": ENTAILMENT},
    "mrpc": {
        "Quality": BINARY,
        "#1 ID": "70{i}",
        "#2 ID": "71{i}",
        "#1 String": FIRST,
        "#2 String": SECOND,
    },
    "sts-b": {
        "index": "{i}",
        "genre": "main-news",
        "filename": "MSRpar",
        "year": "2012test",
        "old_index": "000{i}",
        "source1": "none",
        "source2": "none",
        "sentence1": FIRST,
        "sentence2": SECOND,
        "score": SCORES,
    },
}
FOLDERS = {
    "mnli": "MNLI",
    "qqp": "QQP",
    "qnli": "QNLI",
    "sst-2": "SST-2",
    "cola": "CoLA",
    "rte": "RTE",
    "mrpc": "MRPC",
    "sts-b": "STS-B",
}
HUB_COLUMNS = {
    "mnli": ("premise", "hypothesis"),
    "qqp": ("question1", "question2"),
    "qnli": ("question", "sentence"),
    "sst-2": ("sentence",),
    "cola": ("sentence",),
}
LABELS = {"mnli": "gold_label", "qqp": "is_duplicate", "mrpc": "Quality", "sts-b": "score"}
TASKS = sorted(GLUE)


def original(name: str) -> pd.DataFrame:
    """The rows of a task as GLUE's own files have them."""
    rows = range(len(FIRST))
    return pd.DataFrame(
        {
            column: cells if isinstance(cells, list) else [cells.format(i=i) for i in rows]
            for column, cells in ORIGINAL[name].items()
        }
    )


def hub(name: str) -> pd.DataFrame:
    """The same rows as the hub has them: classes are numbers, in the order of its documentation."""
    label = original(name)[LABELS.get(name, "label")]
    if name == "sts-b":
        numbers = label.astype("float32")
    elif name == "mnli":
        numbers = label.map(THREE.index)
    elif name in ("qnli", "rte"):
        numbers = label.map(ENTAILMENT.index)
    else:
        numbers = label.astype(int)
    columns = HUB_COLUMNS.get(name, ("sentence1", "sentence2"))
    texts = dict(zip(columns, (FIRST, SECOND), strict=False))
    return pd.DataFrame({**texts, "label": numbers, "idx": range(len(label))})


def lines(name: str, stem: str = "train") -> list[str]:
    """Of the file; MNLI's development sets have the labels of more people."""
    frame = original(name)
    if stem.startswith("dev_m"):
        frame = frame.drop(columns="gold_label").assign(
            label2="-", label3="", gold_label=frame["gold_label"]
        )
    header = [] if name == "cola" else ["\t".join(frame.columns)]
    return header + ["\t".join(cells) for cells in frame.itertuples(index=False)]


def stems(name: str, layout: str) -> list[str]:
    """Files of the train part and the development sets."""
    if layout == "hub":
        dev = ["validation_matched", "validation_mismatched"] if name == "mnli" else ["validation"]
        return [f"{stem}-00000-of-00001" for stem in ("train", *dev)]
    if name == "mrpc" and layout == "tsv":
        return ["msr_paraphrase_train", "msr_paraphrase_test"]
    return ["train", "dev_matched", "dev_mismatched"] if name == "mnli" else ["train", "dev"]


def write(root, name: str, layout: str):
    """A folder of GLUE with one task."""
    folder = root / (name.replace("-", "") if layout == "hub" else FOLDERS[name])
    folder.mkdir(parents=True)
    for stem in stems(name, layout):
        if layout == "tsv":
            suffix = "txt" if name == "mrpc" else "tsv"
            (folder / f"{stem}.{suffix}").write_text("\n".join(lines(name, stem)) + "\n")
        elif layout == "csv":
            original(name).to_csv(folder / f"{stem}.csv", index=False)
        else:
            hub(name).to_parquet(folder / f"{stem}.parquet")
    return folder


def load(root, name: str):
    return read_labelled_table(TaskConfig(name, data_dir=str(root)))


@pytest.mark.parametrize("layout", ["tsv", "csv", "hub"])
@pytest.mark.parametrize("name", TASKS)
def test_every_layout_gives_the_same_rows(tmp_path, name, layout):
    write(tmp_path, name, layout)
    table = load(tmp_path, name)
    parts = [["train"] * 6, ["valid"] * 6, *([["mismatched"] * 6] if name == "mnli" else [])]
    assert table.parts.tolist() == sum(parts, [])
    assert table.texts == FIRST * len(parts) and table.usable.all()
    assert table.pairs == (None if name in ("sst-2", "cola") else SECOND * len(parts))
    truth = {"mnli": [0, 1, 2] * 2, "qnli": [0, 1] * 3, "rte": [0, 1] * 3}
    truth["sts-b"] = [float(score) for score in SCORES]
    assert table.labels.values[:, 0].tolist() == pytest.approx(
        truth.get(name, [1, 0] * 3) * len(parts)
    )
    assert table.labels.task_type == GLUE[name].task_type


def test_names_are_known_in_any_spelling(tmp_path):
    write(tmp_path, "sst-2", "tsv")
    for name in ("SST-2", "sst2"):
        task = TaskConfig(name, data_dir=str(tmp_path))
        assert read_labelled_table(resolve(task)[0]).texts == FIRST * 2


def test_rows_with_another_number_of_fields_are_not_used(tmp_path):
    file = write(tmp_path, "rte", "tsv") / "train.tsv"
    content = lines("rte")
    content[2:2] = ["only one field", "a\tb", "\t".join("abcde"), ""]  # lines 3 to 6
    file.write_text("\n".join(content) + "\n")
    table = load(tmp_path, "rte")
    usable_texts = [table.texts[row] for row in np.flatnonzero(table.usable)]
    assert usable_texts[:6] == FIRST
    problems = ["empty text", "no label", "5 fields instead of 4", "empty text"]
    assert table.problems[:6] == ["", *problems, ""]
    assert not any(table.problems[6:])


@pytest.mark.parametrize(
    "name,label,allowed",
    [
        ("rte", "maybe", "entailment, not_entailment"),
        ("cola", "2", "0 or 1"),
        ("mnli", "-", "entailment, neutral, contradiction"),
        ("sts-b", "high", "a number"),
    ],
)
def test_a_label_that_is_none_of_the_task(tmp_path, name, label, allowed):
    file = write(tmp_path, name, "tsv") / "train.tsv"
    content = lines(name)
    row = 3 + (name != "cola")
    column = list(ORIGINAL[name]).index(LABELS.get(name, "label"))
    cells = content[row].split("\t")
    cells[column] = label
    content[row] = "\t".join(cells)
    file.write_text("\n".join(content) + "\n")
    with pytest.raises(InputError) as error:
        load(tmp_path, name)
    assert all(words in str(error.value) for words in ("row 4", repr(label), allowed))


def test_missing_folders_files_and_columns_are_named(tmp_path):
    with pytest.raises(InputError, match="no folder rte in .*task.data_dir"):
        load(tmp_path, "rte")
    folder = write(tmp_path, "rte", "tsv")
    (folder / "dev.tsv").rename(folder / "other.tsv")
    with pytest.raises(InputError, match="must have one file dev or .*train.tsv"):
        load(tmp_path, "rte")
    (folder / "dev.tsv").write_text("sentence1\tlabel\nA.\tentailment\n")
    with pytest.raises(
        InputError, match="columns sentence1, sentence2, label; all have label, sentence1$"
    ):
        load(tmp_path, "rte")


METRICS = {"cola": "matthews", "sts-b": "spearman"}


@pytest.mark.parametrize("name", TASKS)
def test_a_run_reports_the_metric_of_the_task_and_every_part(tmp_path, name):
    write(tmp_path, name, "tsv")
    model = save_family(tmp_path / "model", "bert")
    train = FinetuneConfig(epochs=1, batch_size=4, learning_rate=1e-3, precision="fp32")
    finetune(
        str(tmp_path / "out"), str(model), TaskConfig(name, data_dir=str(tmp_path)), train, [0]
    )
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["metric"] == METRICS.get(name, "accuracy")
    assert results["metric"] in results["valid"]
    assert "test" not in results and ("mismatched" in results) == (name == "mnli")
    if name == "mnli":
        assert results["mismatched"] == results["valid"]  # the same rows in both files here
    if name in ("mrpc", "qqp"):
        assert {"accuracy", "f1"} <= results["valid"].keys()


@pytest.mark.parametrize("name", TASKS)
def test_the_real_files(data_dir, name):
    root = data_dir / "text/glue"
    if not root.is_dir():
        pytest.skip(f"{root} is not there; set EXLM_DATA")
    stated = re.findall(
        rf"glue/{FOLDERS[name]}/(train|dev|dev_matched)\.tsv\.xz \| ([\d,]+)",
        (root / "../README.md").read_text(),
    )
    table = read_labelled_table(TaskConfig(name, data_dir=str(root)))
    sizes = pd.Series(table.parts).value_counts(sort=False).tolist()
    assert sizes == [int(rows.replace(",", "")) for _, rows in stated]
    assert table.usable.all() and not pd.isna(table.labels.values).any()


def test_sizes_that_are_not_those_of_glue_are_noted(tmp_path):
    (tmp_path / "rte").mkdir()
    for cut, differences in ((0, []), (100, ["train has 2,390 rows, GLUE's has 2,490"])):
        for stem, size in (("train", 2490 - cut), ("dev", 277)):
            lines = ["sentence1,sentence2,label", *["a,b,entailment"] * size]
            (tmp_path / f"rte/{stem}.csv").write_text("\n".join(lines))
        assert departures(TaskConfig("rte"), load(tmp_path, "rte")) == differences
    write(tmp_path, "mnli", "csv")
    (tmp_path / "MNLI/dev_mismatched.csv").unlink()
    assert departures(TaskConfig("mnli"), load(tmp_path, "mnli"))[-1] == "mismatched is missing"
