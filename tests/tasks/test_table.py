"""Labelled tables: how columns, labels and cells are read, and what is refused."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rdkit import Chem

from exlm.data.chemistry import are_molecules, contradiction, molecule_problem, standardize
from exlm.data.columns import match_columns
from exlm.data.decimals import find_possible_thousands
from exlm.data.formats import data_files
from exlm.data.frames import FileRows, read_file, read_frames
from exlm.data.spelling import Spelling
from exlm.data.tokenization import train_text_tokenizer
from exlm.data.writing import write_frame
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.cells import read_numbers, words_as_numbers
from exlm.tasks.labels.column_labels import label_cells, read_labels
from exlm.tasks.rows.duplicates import (
    describe_duplicates,
    describe_shared,
    find_groups,
    resolve_duplicates,
)
from exlm.tasks.rows.labelled_table import read_labelled_table
from exlm.tasks.rows.splits import split_by_user, split_rows
from exlm.tasks.rows.summary import describe_table, remarks_on_labels
from exlm.tasks.rows.table import LabelledTable, unlabelled_table
from exlm.tasks.tables.labelled_predictions import read_true_labels
from tests.conftest import read_frame
from tests.tables import make_table


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def load_table(path: Path, *columns, **options) -> LabelledTable:
    return make_table(read_file(path), path, *columns, **options)


def examples(function) -> list[list[str]]:
    """The lines of the table in a docstring, without its head."""
    lines = [line.strip() for line in function.__doc__.splitlines()]
    table = [line.strip("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")] for line in table[2:]]


@pytest.mark.parametrize(("cells", "numbers"), examples(read_numbers))
def test_numbers_are_read_as_the_docstring_says(cells, numbers):
    read = read_numbers(pd.Series(re.findall("`(.+?)`", cells)))
    np.testing.assert_array_equal(read, [float(number) for number in numbers.split(", ")])


@pytest.mark.parametrize(("cells", "names", "labels"), examples(words_as_numbers))
def test_words_as_numbers_are_read_as_the_docstring_says(cells, names, labels):
    frame = pd.DataFrame({"y": re.findall("`(.+?)`", cells)})
    binary_names = None if names == "None" else names.split(", ")
    read = words_as_numbers(frame, frame.apply(read_numbers), binary_names)
    np.testing.assert_array_equal(read["y"], [float(label) for label in labels.split(", ")])


def test_rows_that_cannot_be_used_are_kept_and_listed(tmp_path):
    path = write(
        tmp_path / "a.csv", "id,smiles,y\n007,CC,0.5\nb,xx,1.5\nc,,2\nd,CCO name,3\ne,CO,\n"
    )
    table = load_table(path, None, ["y"])
    assert table.problems == ["", "", "empty text", "", "no label"]
    assert table.usable.tolist() == [True, True, False, True, False]
    assert table.texts == ["CC", "xx", "", "CCO name", "CO"]
    # cells survive unchanged, 007 included
    assert table.frame.to_csv(index=False) == path.read_text()
    np.testing.assert_array_equal(table.labels.values[:, 0], [0.5, 1.5, np.nan, 3, np.nan])


@pytest.mark.parametrize(
    "cell,problem",
    [
        (None, "None is no list of two texts"),
        (["a"], "['a'] is no list of two texts"),
        (["a", "b", "c"], "['a', 'b', 'c'] is no list of two texts"),
        ("a", "'a' is no list of two texts"),
    ],
)
def test_one_bad_list_of_two_texts_is_the_problem_of_its_row(cell, problem):
    frame = pd.DataFrame({"both": [["Ada ran", "who?"], cell, ["Bo sat", "where?"]]})
    table = make_table(FileRows(frame), "a.jsonl", "both", [], pair_column="both")
    assert table.problems == ["", problem, ""]
    assert (table.texts, table.pairs) == (["Ada ran", "", "Bo sat"], ["who?", "", "where?"])


def test_one_bad_list_of_words_is_the_problem_of_its_row():
    frame = pd.DataFrame({"words": [["a", "b"], ["c", None], ["d"]]})
    table = make_table(FileRows(frame), "a.jsonl", "words", [])
    assert table.problems == ["", "None in its list is not one word", ""]
    table = make_table(FileRows(pd.DataFrame({"tags": [[3, 0], [1]]})), "a.jsonl", "tags", [])
    assert table.problems[0] == "3 in its list is not one word" and not table.usable.any()


def test_what_stands_for_a_missing_text_in_a_table(tmp_path):
    path = write(tmp_path / "a.csv", "answer;grade\ngood;5\nNA;3\nnan;1\nNAN;2\n\\N;4\nbad;\\N\n")
    problems = ["", "empty text", "empty text", "", "empty text", "no label"]
    assert load_table(path, "answer", ["grade"]).problems == problems


def test_a_table_without_usable_row_is_an_error_for_training_only(tmp_path):
    path = write(tmp_path / "a.csv", "smiles,y\n,1\n")
    with pytest.raises(InputError, match="no row can be used"):
        load_table(path, None, ["y"])
    assert not load_table(path, None, []).usable.any()


@pytest.mark.parametrize(
    ("cells", "task", "classes"),
    [
        ("y\n1\n0\n\n", "binary", None),
        ("y\n1.0\n0.0\nNA\n", "binary", None),
        ("y,z\n1,0\n,1\n", "multilabel", None),
        ("y\n10\n9\n2\n2\n", "multiclass", ["2", "9", "10"]),
        ("y\ncat\nant\nbee\nant\n", "multiclass", ["ant", "bee", "cat"]),
        ("y\n0.5\n1\n2\n", "regression", None),
        ("y\n" + "\n".join(map(str, [*range(60), 7])), "regression", None),
        # classes that are written in several ways
        (
            "y\n" + "\n".join(f"{row % 6}{['', '.0'][row // 6 % 2]}" for row in range(120)),
            "multiclass",
            list("012345"),
        ),
        (
            "y\n" + "\n".join(f"class {row % 30:02}{' ' * (row // 30 % 2)}" for row in range(120)),
            "multiclass",
            [f"class {number:02}" for number in range(30)],
        ),
        ("y\n1\n1.0\n2\n2.0\n3", "multiclass", ["1", "2", "3"]),
    ],
)
def test_task_type_is_inferred(tmp_path, cells, task, classes):
    header, *rows = cells.splitlines()
    text = "\n".join([f"smiles,{header}", *(f"C,{row}" for row in rows)])
    table = load_table(write(tmp_path / "a.csv", text), None, None)
    assert (table.labels.task_type, table.labels.class_names) == (task, classes)
    assert table.labels.columns == header.split(",")


@pytest.mark.parametrize(
    ("cells", "counts", "note"),
    [
        ("on\nOn \noff\noff", "On 1, off 2, on 1", "the classes 'On', 'on' differ only in case"),
        ("\u00e9\ne\u0301\na\na", "a 2, \u00e9 2", "add --positive a or"),  # in two encodings
        ("a; b\nb\na; b\nb", "a; b 2, b 2", "several labels in one cell"),
        ("3\n3\n1\n2", "1 1, 2 1, 3 2", "the 3 whole numbers in y are taken .* regression"),
        ("yes\nYes\nno\nno", "no 2, yes 2", None),
        ("ja\nja\nnein\nnein", "ja 2, nein 2", "add --positive ja or --positive nein for the"),
        ("\uff11x\n1x\na\na", "1x 1, a 2, \uff11x 1", "differ only in case, spaces or"),
    ],
)
def test_classes_are_counted_and_doubtful_ones_named(tmp_path, cells, counts, note):
    lines = "".join(f"C,{cell}\n" for cell in cells.split("\n"))
    table = load_table(write(tmp_path / "a.csv", f"smiles,y\n{lines}"), None, None)
    assert f"(classes and how many: {counts})" in describe_table(table, True)
    notes = remarks_on_labels(table)
    assert len(notes) == (note is not None)
    assert note is None or re.search(note, notes[0])


def test_class_labels_are_indices_and_missing_stays_nan(tmp_path):
    path = write(tmp_path / "a.csv", "text,y\nq,bee\nr,\ns,ant\n")
    np.testing.assert_array_equal(load_table(path, None, ["y"]).labels.values, [[1], [np.nan], [0]])


def test_classes_of_a_number_column_do_not_depend_on_missing_values(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"SMILES": ["C", "CC", "CCC"], "y": [1, None, 3]}).to_parquet(path)
    table = load_table(path, None, ["y"], task_type="multiclass")
    assert table.labels.class_names == ["1", "3"]
    np.testing.assert_array_equal(table.labels.values[:, 0], [0, np.nan, 1])


def test_prediction_table_has_no_labels(tmp_path):
    table = load_table(write(tmp_path / "a.csv", 'SMILES\nCC\n""\nCO\n'), None, [])
    assert not isinstance(table, LabelledTable) and len(table.texts) == 3
    assert table.usable.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("a,y\nC,1\n", (None, None), "set text_column to one of: a, y"),
        ("smiles,text,y\nC,C,1\n", (None, ["y"]), "set text_column to one of: smiles, text (and"),
        ("smiles,y\nC,1\n", ("mol", None), "no column 'mol'; it has: smiles, y"),
        ("smiles,y\nC,1\n", (None, ["q"]), "no column 'q'; it has: smiles, y"),
        ("smiles,y\nC,1\n", (None, ["smiles"]), "both text and label"),
        ("smiles,y\nC,1\n", (None, ["y", "y"]), "label_columns has 'y' twice"),
        ("smiles,y,z\nC,1,7\n", (None, None), "set label_columns, from: y, z"),
        (
            "smiles\nC\n",
            (None, None),
            "has no column for labels, only smiles; add one, or name another file",
        ),
        (
            "smiles,y\nC,\nC,NA\n",
            (None, None),
            "no row can be used with the labels in y",
        ),
        (
            "smiles,y\nC,0.5\nC,1\nC,O.5\n",
            (None, None),
            "column 'y', row 3: 'O.5' is no regression label",
        ),
        (
            "smiles,y\nC,>10\nC,1.5\nC,<2\n",
            (None, None),
            "row 1: '>10' is more than a number, or can be read in several ways; write the",
        ),
        (
            "smiles,y\nC,3.5\nC,10 uM\nC,>20 nM\n",
            (None, None),
            "row 2: '10 uM' is more than a number, or can be read in several ways; write the",
        ),
        ("smiles,y\nC,3 ± 0.1\nC,2 ± 0.2\n", (None, ["y"]), "'3 ± 0.1' is more than a number"),
        (
            "smiles,y\nC,inf\nC,1.5\n",
            (None, None),
            "column 'y', row 1: 'inf' is no regression label",
        ),
        (
            "smiles,y\nC,1\nC,2\n",
            (None, ["y"], "binary"),
            "column 'y', row 2: '2' is no binary label",
        ),
        (
            "smiles,y,z\nC,1,0\nC,1,-1\n",
            (None, ["y", "z"], "multilabel"),
            "column 'z', row 2: '-1'",
        ),
        ("smiles,y,z\nC,1,0\n", (None, None, "binary"), "one label column, not 2"),
        ("smiles,y\nC,1,2\n", (None, None), "one cell more than its header line has names (2)"),
        (
            "smiles,y\nC,1,2,3\n",
            (None, None),
            "no row can be used, the first: 4 fields instead of 2; check the separator and the",
        ),
        ('smiles,y\nC,"1\n' + "x" * 2**24, (None, None), "line 2: field larger than field limit"),
        ("smiles,y\n", (None, None), "no data rows"),
        ("", (None, None), "no data rows"),
    ],
)
def test_unusable_tables_are_explained(tmp_path, text, arguments, message):
    with pytest.raises(InputError) as caught:
        text_column, label_columns, *task_type = arguments
        path = write(tmp_path / "a.csv", text)
        load_table(path, text_column, label_columns, task_type=task_type[0] if task_type else None)
    assert message in str(caught.value) and "a.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_task_names_with_commas_and_quotes(tmp_path):
    path = write(tmp_path / "a.csv", 'smiles,"Injury, poisoning","so ""called"""\nC,1,0\n')
    table = load_table(path, None, None)
    assert table.labels.columns == ["Injury, poisoning", 'so "called"']
    assert table.labels.values.tolist() == [[1, 0]]


@pytest.mark.parametrize(
    "suffix", [".csv", ".csv.gz", ".csv.xz", ".csv.zst", ".tsv", ".jsonl.gz", ".parquet"]
)
def test_every_file_type_gives_the_same_table(tmp_path, suffix):
    frame = pd.DataFrame({"text": ["1e3", "2020-01-01", "c"], "y": [1.5, 2.25, -3.0]})
    path = tmp_path / f"a.b{suffix}"
    if ".jsonl" in suffix:
        frame.to_json(path, orient="records", lines=True)
    elif suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    table = load_table(path, None, None)
    assert table.texts == ["1e3", "2020-01-01", "c"]
    assert table.labels.values.tolist() == [[1.5], [2.25], [-3.0]]


def test_percent_signs_in_some_cells_alone_are_named(tmp_path):
    lines = "smiles,other,yield [%]\nCCO,1.5,85 %\nCCC,2,30.6\nCCN,2,\nCCCl,4,7%\n"
    path = write(tmp_path / "a.csv", lines)
    signs = "has a percent sign in 2 of 3 cells .row 1: '85 %', row 2: '30.6'.; write all in"
    with pytest.raises(InputError, match=signs):
        load_table(path, None, ["yield [%]"])
    # nor is another column the only one that has numbers
    with pytest.raises(InputError, match="cannot tell the label columns"):
        load_table(path, None, None)
    labels = load_table(write(path, lines.replace("30.6", "30.6%")), None, ["yield [%]"]).labels
    assert labels.values[:, 0].tolist() == pytest.approx([85, 30.6, np.nan, 7], nan_ok=True)


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="a.tsv: two columns are called 'y'; rename or remove one"):
        read_frame(write(tmp_path / "a.tsv", "text\ty\ty\na\t1\t0\n"))
    columns = [pa.array(["a"]), pa.array([1]), pa.array([0])]
    pq.write_table(pa.Table.from_arrays(columns, ["text", "y", "y"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="a.parquet: two columns are called 'y'; rename"):
        read_frame(tmp_path / "a.parquet")


def test_a_tsv_with_another_separator_is_read_by_it(tmp_path):
    lines = "smiles;label, unit\nCCO;1\nCCC;2\nCCN;3\nCC\n"
    assert list(read_frame(write(tmp_path / "a.tsv", lines)).columns) == ["smiles", "label, unit"]


def test_unreadable_files_are_explained(tmp_path):
    truncated = tmp_path / "a.csv.gz"
    truncated.write_bytes(gzip.compress(b"smiles,y\nC,1\n")[:20])
    latin = tmp_path / "b.csv"
    latin.write_bytes(b"text,y\ncaf\xe9,1\n")
    for path in (truncated, latin, tmp_path / "absent.csv", write(tmp_path / "a.doc", "x")):
        with pytest.raises(InputError, match=path.name):
            read_frame(path)


def test_between_tabs_quotes_are_text_and_bad_rows_are_not_used(tmp_path):
    path = write(
        tmp_path / "a.tsv", 'text\ty\n"so, he\t1\nsaid" she\t0\nx\nq\t1\t2\nz\t1\n\t\t\na\n\n'
    )
    frame, problems, _ = read_file(path)
    assert frame["text"].tolist() == ['"so, he', 'said" she', "x", "q", "z", "", "a"]
    assert list(problems) == [3, 5]
    table = load_table(path, None, ["y"])
    assert table.usable.tolist() == [True, True, False, False, True, False, False]
    assert table.problems[2:4] == ["no label", "3 fields instead of 2"]
    assert table.labels.task_type == "binary"
    without_header = write(tmp_path / "c.tsv", "a\tb\nc\td\n")
    [file] = data_files([without_header], columns_if_missing=("x", "y"))
    [rows] = read_frames(file)
    assert len(rows.frame) == 2


def test_quotes_that_excel_puts_around_cells_with_commas_are_taken_off(tmp_path):
    path = write(tmp_path / "a.txt", 'text\ty\n"a gorgeous, witty film"\t1\n"dull"\t0\nfine\t1\n')
    assert read_frame(path)["text"].tolist() == ["a gorgeous, witty film", "dull", "fine"]
    # a quotation that goes on shows that quotes are part of the text
    path = write(tmp_path / "b.tsv", 'text\ty\n"a gorgeous film"\t1\n"long", he said\t0\n')
    assert read_frame(path)["text"].tolist() == ['"a gorgeous film"', '"long", he said']


def test_one_of_several_columns_of_smiles_has_to_be_named(tmp_path):
    path = write(tmp_path / "pubchem.csv", "cid,canonicalsmiles,isosmiles,y\n1,CCO,CCO,1\n")
    with pytest.raises(InputError, match="cannot tell the text column"):
        load_table(path, None, ["y"])
    assert load_table(path, "isosmiles", ["y"]).texts == ["CCO"]


def test_a_column_of_remarks_that_is_nearly_empty_is_not_taken_for_texts(tmp_path):
    lines = ["Comment,Ligand (SMILES code),y", "see file,CCO,1", ",CC,2", ",CCC,3"]
    path = write(tmp_path / "a.csv", "\n".join(lines))
    with pytest.raises(
        InputError, match="'Comment', which was found .* empty in 2 of 3 rows; name"
    ):
        load_table(path, None, ["y"])
    assert load_table(path, "Ligand (SMILES code)", ["y"]).texts == ["CCO", "CC", "CCC"]


@pytest.mark.parametrize("name", ["SMILES (isomeric)", "Canonical SMILES", "smiles_std"])
def test_an_empty_column_is_no_candidate_and_a_name_with_smiles_is(tmp_path, name):
    """As in workbooks of measurements, whose remarks were left empty."""
    lines = [f"Comment,SMILES source,{name},unit,y", ",ChEMBL,CCO,,1.5", ",own,CC,NA,2.5"]
    path = write(tmp_path / "a.csv", "\n".join(lines))
    table = load_table(path, None, None)
    assert (table.text_column, table.labels.columns) == (name, ["y"])
    remarks = [line.replace(",", "tested twice,", 1) for line in lines[1:]]
    path = write(tmp_path / "b.csv", "\n".join([lines[0], *remarks]))
    assert load_table(path, None, ["y"]).text_column == name


def test_several_columns_of_molecules_are_named(tmp_path):
    path = write(tmp_path / "a.csv", "SMILES (raw),smiles_std,Comment,y\nCCO,OCC,dry,1\n")
    with pytest.raises(InputError, match=r"to one of: SMILES \(raw\), smiles_std \(and"):
        load_table(path, None, ["y"])


def test_a_column_that_is_empty_in_one_file_is_still_that_of_the_texts():
    train = pd.DataFrame({"smiles": ["CC", "CO"], "comment": "dry", "y": [1, 0]})
    test = pd.DataFrame({"smiles": [""], "comment": "wet", "y": [1]})
    table = make_table({"train": FileRows(train), "test": FileRows(test)}, "t.csv", None, ["y"])
    assert table.texts == ["CC", "CO", ""]
    only = make_table(FileRows(test.drop(columns="comment")), "t.csv", None, [])
    assert only.text_column == "smiles" and only.problems == ["empty text"]


def test_an_empty_column_is_no_label(tmp_path):
    path = write(tmp_path / "a.csv", "smiles,toxic,checked\nCCO,1,\nCC,0,n.d.\n")
    table = load_table(path, None, None)
    assert (table.labels.columns, table.labels.task_type) == (["toxic"], "binary")


def test_a_sheet_that_has_no_labels_is_named(tmp_path):
    pd.DataFrame({"Read me": ["see Data", "ask Eve"]}).to_excel(tmp_path / "a.xlsx", index=False)
    message = "a.xlsx has no column for labels, only Read me; add one, or name another sheet with"
    with pytest.raises(InputError, match=message):
        load_table(tmp_path / "a.xlsx", None, None)


def test_a_column_that_is_named_as_labels_is_not_proposed_as_texts(tmp_path):
    path = write(tmp_path / "claims.csv", "claim,evidence,label\na b,c d,1\n")
    with pytest.raises(InputError, match="set text_column to one of: claim, evidence .and pair"):
        load_table(path, None, ["label"])


def test_tables_come_back_as_they_were_written(tmp_path):
    frame = pd.DataFrame({"text": ['a "quoted" word', "b"], "y": ["1", "2"]})
    # as a row without prediction has
    write_frame(frame.assign(score=[0.5, np.nan]), tmp_path / "a.tsv")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.tsv"), frame.assign(score=["0.5", ""]))
    for text in ('"all quoted"', '"quoted", then not', "two\nlines", "a\ttab", '""'):
        odd = frame.assign(text=["b", text])
        write_frame(odd, tmp_path / "b.tsv")
        pd.testing.assert_frame_equal(read_frame(tmp_path / "b.tsv"), odd)
        in_pandas = pd.read_csv(tmp_path / "b.tsv", sep="\t", dtype=str)
        assert in_pandas["text"].tolist() == ["b", text]
    write_frame(frame, tmp_path / "a.xlsx")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.xlsx"), frame)


@pytest.mark.parametrize("text", ["a\x07b", "a" * 40_000])
def test_what_a_workbook_cannot_hold_is_refused(tmp_path, text):
    with pytest.raises(
        InputError, match="a.xlsx cannot hold .*'text': its name or texts are too long"
    ):
        write_frame(pd.DataFrame({"text": [text]}), tmp_path / "a.xlsx")
    assert not list(tmp_path.iterdir())


def test_a_carriage_return_in_a_csv_file_stays_in_its_cell(tmp_path):
    frame = pd.DataFrame(
        {"x": ["a\rb", 'c "d"', "e,f", "\r\n"], "score": [0.5, np.nan, -1e-300, 2.0]}
    )
    write_frame(frame, tmp_path / "a.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), frame)
    assert read_frame(tmp_path / "a.csv")["x"].tolist() == frame["x"].tolist()


def test_pairs_need_one_text_and_files_are_kept_apart(tmp_path):
    train = write(tmp_path / "a.csv", "first,second,y\na,b,1\nc,,0\n,,1\n")
    other = write(tmp_path / "b.csv", "first,second,y,note\nd,e,0,x\n")
    files = {"train": read_file(train), "valid": read_file(other)}
    table = make_table(files, train, "first", ["y"], pair_column="second")
    assert table.pairs == ["b", "", "", "e"] and table.texts == ["a", "c", "", "d"]
    assert table.usable.tolist() == [True, True, False, True]
    config = TaskConfig("a.csv", split="parts")
    split = split_rows(config, table, seed=0, rows_to_split=table.usable, groups=np.arange(4))
    assert {part: rows.tolist() for part, rows in split.items()} == {"train": [0, 1], "valid": [3]}
    files["valid"] = FileRows(files["valid"].frame.drop(columns="second"))
    with pytest.raises(
        InputError, match="a.csv, valid part: no column 'second'; it has: first, y, note"
    ):
        make_table(files, train, "first", ["y"], pair_column="second")


def test_molecules_are_told_from_text():
    assert are_molecules(["CCO", "c1ccccc1", "nonsense", "CC(=O)O"])
    assert not are_molecules(["I", "C", "A day in the sun", "no", "so it goes", ""])
    assert not are_molecules([""])


@pytest.mark.parametrize(
    ("smiles", "is_contradictory"),
    [
        (r"C/C=C(/C)/CO", True),
        (r"C/C=C(\C)\CO", True),
        (r"F/C(\Cl)=C\CO", True),
        (r"C/C=C(/C)\CO", False),
        (r"F/C(/Cl)=C\CO", False),
        (r"C/C=C/C=C\C", False),
        (r"C/C(\C)=O.C/C", False),  # no E or Z is lost
        (r"C/C=C(/C)/C(", False),  # no molecule
    ],
)
def test_marks_of_double_bonds_that_contradict_each_other(smiles, is_contradictory, capfd):
    assert bool(contradiction(smiles)) == is_contradictory
    molecule = Chem.MolFromSmiles(smiles)
    assert ("Conflicting single bond" in capfd.readouterr().err) == is_contradictory
    if is_contradictory:
        assert not {"/", "\\"}.intersection(Chem.MolToSmiles(molecule))


def test_molecule_problem(capfd):
    assert molecule_problem("C[C@H](N)C(=O)O") is None
    assert "InChI" in molecule_problem("InChI=1S/CH4/h1H4")
    assert "written [*:1], not R1" in molecule_problem("[R1]c1ccccc1")
    assert "leave out the extension" in molecule_problem("CC[*:1] |$;;R1$|")
    assert molecule_problem("[Ru]1CC1") is None
    assert molecule_problem("c1ccccc") == "not a SMILES string: unclosed ring"
    assert molecule_problem(" ") == "not a SMILES string"
    assert (
        molecule_problem("c1c(cc(c(c1Cl)CCl)c\ub81b2cc" + "C(=CC" * 99)
        == "not a SMILES string: it has '\ub81b'"
    )
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("space", "number"), [(" ", "0020"), ("\u00a0", "00A0")])
def test_lists_are_words_or_two_texts_and_never_their_spelling(tmp_path, space, number):
    words = [f"New{space}York", "wins"]
    no_word = (
        f"{words[0]!r} in its list is not one word: write another character in place of the space "
        f"(U+{number})"
    )
    records = [
        {"tokens": ["EU", "rejects"], "both": ["A man eats.", "He eats."], "label": 1},
        {"tokens": words, "both": ["It rains.", "It is dry."], "label": 0},
        {"tokens": None, "both": ["a", "b"], "label": 0},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    pd.DataFrame(records).to_parquet(tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        table = load_table(file, "tokens", ["label"])
        assert table.texts == ["EU rejects", " ".join(words), ""]
        assert table.problems == ["", no_word, "empty text"]
        table = load_table(file, "both", ["label"])
        assert table.texts == ["A man eats.", "It rains.", "a"]
        assert table.pairs == ["He eats.", "It is dry.", "b"]
        assert table.inferred["pair_column"] == "both"
        write_frame(table.frame, tmp_path / "out.csv")
        assert '"[""EU"", ""rejects""]"' in (tmp_path / "out.csv").read_text()


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        (
            [1, 2],
            1,
            "first row 1, value '1 2': 1 in its list is not one word; correct it, or",
        ),
        ({"en": "a"}, 1, "first row 1, .* is not text"),
        ("a b", ["x", "y"], "column 'label', row 1.* add --task_type token_classification"),
        ("a b", "O B-PER", "column 'label', row 1.* add --task_type token_classification"),
        ("['EU', 'rejects']", 1, "column 'text' has lists that were written as text"),
        ("EU rejects", "[3, 0]", "column 'label' has lists that were written as text"),
    ],
)
def test_lists_that_make_no_sense_are_refused(text, label, message):
    frame = pd.DataFrame({"text": [text] * 2, "label": [label] * 2})
    for label_columns in (["label"], None):
        with pytest.raises(InputError, match=message):
            make_table(FileRows(frame), "a.jsonl", "text", label_columns)


def test_a_column_whose_name_has_commas_may_be_named_as_it_is_written(tmp_path):
    path = write(tmp_path / "a.csv", 'smiles, logP,"Ki, nM",Ki\nC,1.5,2.5,3.5\n')
    table = load_table(path, None, ["Ki", "logP", "Ki, nM"])
    assert table.labels.columns == ["Ki", " logP", "Ki, nM"]
    assert match_columns(["Ki", "nM"], table.frame.columns) == ["Ki, nM"]
    # as the command line divides --label_columns 'Kd, nM,Ki, nM'
    columns = ["Ki, nM", "Kd,nM", "Kd ", "a", "b"]
    assert match_columns(["Kd", "nM", "Ki", "nM", "x"], columns) == ["Kd,nM", "Ki, nM", "x"]
    assert match_columns(["b", "a", "Kd"], columns) == ["b", "a", "Kd "]
    assert match_columns(["a", "b", "a", "c"], ["a,b", "a", "b", "a,c"]) == ["a", "b", "a,c"]


@pytest.mark.parametrize(
    ("cells", "positive", "words", "labels"),
    [
        (["Active", "inactive", "active"], None, ["inactive", "Active"], [1, 0, 1]),
        (["no", "YES", "", "no"], None, ["no", "YES"], [0, 1, np.nan, 0]),
        (["True", "False"], None, ["False", "True"], [1, 0]),
        (["Negative", "positive"], None, ["Negative", "positive"], [0, 1]),
        (["active", "inactive"], "inactive", ["active", "inactive"], [0, 1]),
        (["toxic", "safe"], "Toxic", ["safe", "toxic"], [1, 0]),
        (["1", "2"], "2", ["1", "2"], [0, 1]),
        (["1", "0"], None, None, [1, 0]),
    ],
)
def test_two_classes_by_name_are_binary(tmp_path, cells, positive, words, labels):
    path = write(tmp_path / "a.csv", "\n".join(["smiles,y", *(f"CC,{cell}" for cell in cells)]))
    table = load_table(path, None, ["y"], positive=positive)
    assert (table.labels.task_type, table.labels.binary_names, table.labels.class_names) == (
        "binary",
        words,
        None,
    )
    np.testing.assert_array_equal(table.labels.values[:, 0], labels)
    assert table.inferred.get("positive") == (words[1] if words and not positive else None)
    # another table may have 0 and 1, or one of the words alone
    other = pd.DataFrame({"smiles": ["C", "CC"], "y": [words[1] if words else "1", ""]})
    assert (
        make_table(
            FileRows(other), "b.csv", None, ["y"], task_type="binary", class_names=words
        ).labels.values[0, 0]
        == 1
    )


CELLS = [["1", "0", "1"], [1, 0, 1], [1.0, 0.0, None], ["1.0", "0.0", ""]]


@pytest.mark.parametrize("missing", ["", "N/A", None])
def test_pairs_with_one_missing_text_are_used(missing):
    frame = pd.DataFrame({"a": ["x", "y", "z"], "b": ["u", missing, "w"], "y": [0, 1, 0]})
    table = make_table(FileRows(frame), "a.csv", "a", ["y"], pair_column="b")
    assert list(table.usable) == [True, True, True]
    assert describe_table(table, False).startswith("3 pairs of texts, ")


@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("words", [["1", "0"], ["0", "1"], None])
def test_equal_labels_of_any_type_are_equal(cells, words):
    """A gap turns whole numbers into floats, and a positive 0 must stay the positive one."""
    frame = pd.DataFrame({"text": list("abc"), "y": pd.Series(cells)})
    task_type = "binary" if words else "multiclass"
    classes = words or ["0", "1"]
    table = make_table(
        FileRows(frame), "a.csv", None, ["y"], task_type=task_type, class_names=classes
    )
    assert table.labels.values[:2, 0].tolist() == [classes.index("1"), classes.index("0")]


def test_a_one_is_no_label_where_it_could_mean_either():
    frame = pd.DataFrame({"text": ["a", "b"], "y": [1, 0]})
    with pytest.raises(InputError, match="'1' is no binary label"):
        make_table(
            FileRows(frame), "a.csv", None, ["y"], task_type="binary", class_names=["yes", "no"]
        )


def test_classes_are_called_as_their_cells_say():
    long = ["12345678901234567", "12345678901234568", "12345678901234567"]
    frame = pd.DataFrame({"text": list("abc"), "y": long, "code": ["02", "01", "02"]})
    table = make_table(FileRows(frame), "a.csv", "text", ["y"], task_type="multiclass")
    assert table.labels.class_names == sorted(set(long)) and table.labels.values[:, 0].tolist() == [
        0,
        1,
        0,
    ]
    assert make_table(
        FileRows(frame), "a.csv", "text", ["code"], task_type="multiclass"
    ).labels.class_names == [
        "01",
        "02",
    ]
    # one cell that is no class does not make the others unknown
    frame = pd.DataFrame({"text": list("abc"), "y": [1.0, 4.5, 2.0]})
    known = read_labels(frame[["y"]], "a.csv", "multiclass", ["1", "2"], skip_unknown=True)
    np.testing.assert_equal(known.values[:, 0], [0, np.nan, 1])


def test_positive_is_one_of_two_words_of_all_columns():
    frame = pd.DataFrame({"text": ["a", "b"], "y": ["N", "y"], "z": ["Y", None]})
    table = make_table(FileRows(frame), "a.csv", None, ["y", "z"], positive="Y")
    assert (table.labels.task_type, table.labels.binary_names) == ("multilabel", ["N", "y"])
    np.testing.assert_array_equal(table.labels.values, [[0, 1], [1, np.nan]])
    other = FileRows(frame.assign(z=["low", "high"]))
    with pytest.raises(InputError, match="in every label column, .* are N, y, low, high; leave "):
        make_table(other, "a.csv", None, ["y", "z"], positive="Y")


def test_a_third_word_makes_classes_and_positive_must_be_one_of_two():
    frame = pd.DataFrame({"text": ["a", "b", "c"], "y": ["yes", "no", "maybe"]})
    assert make_table(FileRows(frame), "a.csv", None, ["y"]).labels.class_names == [
        "maybe",
        "no",
        "yes",
    ]
    with pytest.raises(InputError, match="positive is 'yes'; it must be one of two classes"):
        make_table(FileRows(frame), "a.csv", None, ["y"], positive="yes")
    two = frame[:2]
    assert make_table(
        FileRows(two), "a.csv", None, ["y"], task_type="multiclass"
    ).labels.class_names == [
        "no",
        "yes",
    ]
    with pytest.raises(InputError, match=r"'yes' is no regression label \(a number"):
        make_table(FileRows(two), "a.csv", None, ["y"], task_type="regression")
    frame = frame[:2].assign(z=["no", "no"])
    table = make_table(FileRows(frame), "a.csv", None, ["y", "z"])
    assert table.labels.task_type == "multilabel" and table.labels.values.tolist() == [
        [1, 0],
        [0, 0],
    ]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["10,8", "3", "-0,25", "1,234"], [10.8, 3, -0.25, 1.234]),
        (["0,123", "0,456"], [0.123, 0.456]),
        (["10.8%", "5 %"], [10.8, 5]),
        (["10,8%", "5,25%"], [10.8, 5.25]),
        (["\u22120,5", "1234,25"], [-0.5, 1234.25]),
        (["1,5e-3", "2"], [0.0015, 2]),
        (["2,265E-06", "1,500e-05"], [2.265e-6, 1.5e-5]),
    ],
)
def test_decimal_commas_and_percent_signs_are_read_and_said(cells, numbers, capsys):
    frame = pd.DataFrame({"text": ["a"] * len(cells), "y": cells})
    table = make_table(FileRows(frame), "a.csv", None, ["y"])
    assert table.labels.task_type == "regression" and table.labels.values[:, 0].tolist() == numbers
    assert f"note: in column 'y', {cells[0]!r} is read as {numbers[0]:g}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "cells",
    [
        ["1,234", "5,678"],
        ["1,234.5", "2,5"],
        ["1.234,5", "2,5"],
        ["1\u202f234", "2"],
        ["01", "2"],
    ],
)
def test_numbers_that_can_be_read_in_two_ways_are_no_classes(cells):
    frame = pd.DataFrame({"text": ["a"] * len(cells), "y": cells})
    with pytest.raises(InputError, match="row 1: .* can be read in several ways; write the"):
        make_table(FileRows(frame), "a.csv", None, ["y"])
    assert make_table(
        FileRows(frame), "a.csv", None, ["y"], task_type="multiclass"
    ).labels.class_names == sorted(cells)


DOUBTFUL = "smiles;y;z\nC;{};{}\nCC;{};{}\n"


@pytest.mark.parametrize(
    ("text", "ending", "message"),
    [
        (DOUBTFUL.format("1.000", "2,1", "2.037", "2"), ".csv", "row 1: '1.000' .* write 1000, or"),
        (DOUBTFUL.format("300", "1", "1.250", "2"), ".csv", r"row 2: '1.250' .* decimals, 1\.2500"),
        (DOUBTFUL.format("12,5", "1", "1.250", "2"), ".csv", "row 2: '1.250' .* decimals, 1,2500"),
        ("smiles\ty\tz\nC\t1.000\t2,1\nCC\t2\t3\n", ".tsv", "row 1: '1.000' can be read in"),
        (
            DOUBTFUL.format("2.14", "1", "2,04", "2"),
            ".csv",
            "row 2: '2,04' .* has decimal commas, as in '2,04', and decimal points, as in '2.14'",
        ),
    ],
)
def test_a_point_that_may_stand_between_thousands_is_refused(tmp_path, text, ending, message):
    path = write(tmp_path / f"a{ending}", text)
    with pytest.raises(InputError, match=f"column 'y', {message}"):
        load_table(path, None, ["y"])


@pytest.mark.parametrize(
    ("text", "ending", "numbers"),
    [
        ('smiles,y,z\nC,1.000,"2,1"\nCC,2.037,"3,5"\n', ".csv", [1, 2.037]),
        (DOUBTFUL.format("1.000", "2,1", "0.25", "2"), ".csv", [1, 0.25]),
        (DOUBTFUL.format("1.000", "2.1", "2.037", "2"), ".csv", [1, 2.037]),
        (DOUBTFUL.format("1.0000", "2,1", "2.037", "2"), ".csv", [1, 2.037]),
        (DOUBTFUL.format("1.250e1", "2,1", "2", "2"), ".csv", [12.5, 2]),
        ("smiles\ty\nC\t1.000\nCC\t2.037\n", ".tsv", [1, 2.037]),
        ('{"smiles": "C", "y": "1.000"}\n{"smiles": "CC", "y": 2.037}\n', ".jsonl", [1, 2.037]),
    ],
)
def test_a_point_that_stands_before_decimals_for_sure_is_read(tmp_path, text, ending, numbers):
    path = write(tmp_path / f"a{ending}", text)
    table = load_table(path, None, ["y"], task_type="regression")
    assert table.labels.values[:, 0].tolist() == numbers


def test_every_file_says_by_itself_whether_its_points_may_stand_between_thousands(tmp_path):
    paths = {
        "train": write(tmp_path / "a.csv", "smiles,y\nC,1.000\nCC,2.037\n"),
        "valid": write(tmp_path / "b.csv", "smiles;y\nCO;1.000\nCCO;2.037\n"),
    }
    files = {part: read_file(path) for part, path in paths.items()}
    with pytest.raises(InputError, match="valid row 1: '1.000' can be read in several ways"):
        make_table(files, "a.csv", None, ["y"])


def test_labels_whose_point_is_in_doubt_are_no_measured_values_of_a_prediction(tmp_path):
    frame = pd.DataFrame({"y": ["1.000", "2.037"]})
    may_be_thousands = find_possible_thousands(frame, frame, {"": ";"})
    labels = read_labels(
        frame, "t.csv", "regression", None, skip_unknown=True, may_be_thousands=may_be_thousands
    )
    assert labels.unknown_rows == 2 and np.isnan(labels.values).all()


def test_one_odd_word_of_several_labels_costs_its_cell_alone(capsys):
    frame = pd.DataFrame({"text": ["a", "b"], "x": ["T", "F"], "y": ["maybe", "T"]})
    labels = read_labels(frame[["x", "y"]], "t.csv", "multilabel", None, skip_unknown=True)
    np.testing.assert_array_equal(labels.values, [[1, np.nan], [0, 1]])
    told = capsys.readouterr().err
    assert "'maybe' is no multilabel label" in told
    assert "in column 'y', label 1 is T\n" in told  # no word stands for label 0 there


def test_words_of_several_ways_to_say_yes_are_said(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("smiles,act\nCCO,yes\nCCN,TRUE\nCCC,no\nCC,1\n")
    table = load_table(path, None, ["act"])
    assert table.labels.values[:, 0].tolist() == [1, 1, 0, 1]
    assert "label 1 is yes, TRUE, 1, label 0 is no" in capsys.readouterr().err


def test_a_bound_among_decimal_commas_is_the_cell_that_is_named():
    frame = pd.DataFrame({"text": ["a"] * 3, "y": ["1,29", "3,5", ">2,30"]})
    message = "row 3: '>2,30' is more than a number.* a bound .* leave its cell empty"
    with pytest.raises(InputError, match=f"{message}$"):
        make_table(FileRows(frame), "a.csv", None, ["y"], task_type="regression")
    frame["y"] = ["1,29", "<3,5", ">2,30"]
    message = (
        "row 2: '<3,5' is more than a number.* leave its cell empty .rows with such cells: 2.$"
    )
    with pytest.raises(InputError, match=message):
        make_table(FileRows(frame), "a.csv", None, ["y"], task_type="regression")


@pytest.mark.parametrize(
    ("columns", "pair"),
    [
        (["idx", "Premise", "hypothesis", "y"], ("Premise", "hypothesis")),
        (["question", "sentence", "y"], ("question", "sentence")),
        (["sentence_1", "sentence 2", "y"], ("sentence_1", "sentence 2")),
        (["text", "sentence1", "sentence2", "y"], ("text", None)),
    ],
)
def test_two_texts_are_found_by_their_names(columns, pair):
    frame = pd.DataFrame({name: ["0", "1"] for name in columns})
    table = make_table(FileRows(frame), "a.csv", None, ["y"])
    assert (table.text_column, table.pair_column) == pair
    assert table.inferred.get("pair_column") == pair[1]
    frame = pd.DataFrame({"left": ["a"], "right": ["b"], "y": [1]})
    with pytest.raises(InputError, match="left, right .and pair_column, if there are two texts"):
        make_table(FileRows(frame), "a.csv", None, ["y"])


def canonical(smiles: str) -> str:
    return standardize(smiles, "canonical")


def test_the_range_of_numbers_is_said():
    """A -99 for a missing answer shows in it."""
    frame = pd.DataFrame({"text": ["a", "b", "c", "d"], "y": [1.5, 5, -99, 3], "z": [""] * 4})
    table = make_table(FileRows(frame), "a.csv", "text", ["y", "z"], task_type="regression")
    line = "4 texts, regression of y (-99 to 5, median 2.25), z (no label)"
    assert describe_table(table, False).startswith(line)


def test_rows_with_the_same_molecule_are_counted_and_merged():
    frame = pd.DataFrame(
        {"smiles": ["OCC", "C", "CCO", "C(O)C", "C", "CC"], "y": [1, 2, 2, 6, 2, None]}
    )
    table = make_table(FileRows(frame), "a.csv", None, ["y"], task_type="regression")
    groups = find_groups(table, canonical)
    assert groups.tolist() == [0, 1, 0, 0, 1, 5]
    in_words = describe_duplicates(table, groups, "keep")
    assert in_words.startswith("5 rows share 2 texts or molecules, 1 of these")
    mean = resolve_duplicates(table, groups, "mean", None)
    assert mean.usable.tolist() == [True, True, False, False, False, False]
    assert mean.labels.values[:5, 0].tolist() == [3, 2, 3, 3, 2]
    drop = resolve_duplicates(table, groups, "drop", None)
    assert drop.usable.tolist() == [False, True, False, False, False, False]
    conflict = "rows with the same text or molecule have different labels"
    same = "the same text or molecule as row 2"
    assert drop.problems == [conflict, "", conflict, conflict, same, "no label"]
    assert resolve_duplicates(table, groups, "keep", None) is table
    pairs = pd.DataFrame({"a": ["CCO", "OCC", "C"], "b": ["CCN", "NCC", "CCN"], "y": [1, 2, 3]})
    of_pairs = make_table(
        FileRows(pairs), "a.csv", "a", ["y"], task_type="regression", pair_column="b"
    )
    assert find_groups(of_pairs, canonical).tolist() == [0, 0, 2]
    split = {"train": np.array([0, 1, 2]), "test": np.array([3, 4])}
    shared = "2 texts or molecules stand in several of them, 1 of these with different labels"
    assert describe_shared(table, groups, split) == shared
    assert describe_shared(table, groups, {"train": np.arange(5), "test": np.array([5])}) == ""
    with pytest.raises(InputError, match="mean is for regression"):
        resolve_duplicates(
            replace(table, labels=table.labels._replace(task_type="binary")), groups, "mean", None
        )
    # rows of a test file are not merged with those of a train file
    rows = FileRows(frame)
    files = make_table({"train": rows, "test": rows}, "a.csv", None, ["y"], task_type="regression")
    groups = find_groups(files, canonical)
    split = split_by_user(TaskConfig("a.csv", split="parts"), files)
    apart = resolve_duplicates(files, groups, "drop", split)
    assert apart.usable.tolist() == drop.usable.tolist() * 2


@pytest.mark.parametrize("split", ["column:part", "file:parts.json", "parts"])
def test_means_of_duplicates_do_not_cross_the_parts_of_a_split(tmp_path, monkeypatch, split):
    """A label of the train part must tell nothing of the test part."""
    monkeypatch.chdir(tmp_path)
    rows = {"train": [0, 1, 2], "valid": [3], "test": [4, 5]}
    Path("parts.json").write_text(json.dumps(rows))
    frame = pd.DataFrame({"smiles": ["CCO", "OCC", "CC", "CCC", "CCO", "CCO"], "y": range(6)})
    frame["part"] = ["train"] * 3 + ["valid", "test", "test"]
    files = FileRows(frame)
    if split == "parts":
        files = {part: FileRows(frame.iloc[places]) for part, places in rows.items()}
    table = make_table(files, "a.csv", "smiles", ["y"], task_type="regression")
    groups = find_groups(table, canonical)
    user_split = split_by_user(TaskConfig("a.csv", split=split), table)
    merged = resolve_duplicates(table, groups, "mean", user_split)
    assert merged.labels.values[merged.usable, 0].tolist() == [0.5, 2, 3, 4.5]
    assert split_by_user(TaskConfig("a.csv", split="random"), table) is None


def test_the_row_that_is_kept_has_the_labels_of_those_that_are_dropped():
    frame = pd.DataFrame({"text": ["a", "a", "b"], "y": [1, None, 2], "z": [None, 3, None]})
    table = make_table(FileRows(frame), "a.csv", "text", ["y", "z"], task_type="regression")
    kept = resolve_duplicates(table, find_groups(table, str), "drop", None)
    assert kept.usable.tolist() == [True, False, True]
    np.testing.assert_equal(kept.labels.values[[0, 2]], [[1, 3], [2, np.nan]])


def test_an_index_is_a_column_unless_it_counts_the_rows(tmp_path):
    frame = pd.DataFrame({"text": ["a", "b"], "chapter": ["one", "two"]})
    shuffled = pd.DataFrame({"text": list("abc")}).loc[[2, 0, 1]]
    shuffled.to_parquet(tmp_path / "shuffled.parquet")
    assert read_frame(tmp_path / "shuffled.parquet")["index"].tolist() == [2, 0, 1]
    frame.set_index("chapter").to_parquet(tmp_path / "a.parquet")
    frame.to_parquet(tmp_path / "b.parquet")
    assert sorted(read_frame(tmp_path / "a.parquet").columns) == ["chapter", "text"]
    assert list(read_frame(tmp_path / "b.parquet").columns) == ["text", "chapter"]


def test_codes_with_leading_zeros_are_classes_of_their_own(tmp_path):
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(6)], "y": ["1", "01", "2"] * 2})
    frame.to_csv(tmp_path / "a.csv", index=False)
    table = load_table(tmp_path / "a.csv", None, ["y"], task_type="multiclass")
    assert table.labels.class_names == ["01", "1", "2"]
    rows = FileRows(frame)
    with pytest.raises(InputError, match="'01' is no multiclass label"):
        make_table(rows, "a.csv", "text", ["y"], task_type="multiclass", class_names=["1", "2"])


def test_rows_with_a_class_that_a_model_does_not_know_are_counted(capsys):
    frame = pd.DataFrame({"text": ["a", "b", "c"], "y": ["low", "very high", "high"]})
    classes = ["high", "low"]
    with pytest.raises(InputError, match="'very high' is no multiclass label"):
        make_table(
            FileRows(frame), "t.csv", None, ["y"], task_type="multiclass", class_names=classes
        )
    labels = read_labels(frame[["y"]], "t.csv", "multiclass", classes, skip_unknown=True)
    np.testing.assert_array_equal(labels.values[:, 0], [1, np.nan, 0])
    printed = capsys.readouterr().err
    assert "1 rows have a label that cannot be scored, the first row 2" in printed
    assert "'very high' is no multiclass label (high, low)" in printed


def test_the_first_row_with_a_wrong_label_is_named_by_its_first_wrong_cell(capsys):
    frame = pd.DataFrame({"a": [0, 1, 0, "x"], "b": [1, "y", 0, "z"]})
    read_labels(frame, "t.csv", "multilabel", None, skip_unknown=True)
    first = "2 rows have a label that cannot be scored, the first row 2: 'y' is no multilabel label"
    assert first in capsys.readouterr().err
    with pytest.raises(InputError, match="column 'b', row 2: 'y' is no .* in 2 rows;"):
        read_labels(frame, "t.csv", "multilabel", None)
    read_labels(frame[3:], "t.csv", "multilabel", None, skip_unknown=True)
    assert "1 rows have a label that cannot be scored, the first row 4: 'x'" in (
        capsys.readouterr().err
    )


def test_rows_that_are_neither_of_two_classes_are_counted(capsys):
    frame = pd.DataFrame({"text": ["a", "b", "c"], "y": [0, 2, 1]})
    with pytest.raises(InputError, match="'2' is no binary label"):
        make_table(FileRows(frame), "t.csv", None, ["y"], task_type="binary")
    labels = read_labels(frame[["y"]], "t.csv", "binary", None, skip_unknown=True)
    np.testing.assert_array_equal(labels.values[:, 0], [0, np.nan, 1])
    assert "1 rows have a label that cannot be scored, the first row 2" in capsys.readouterr().err


def test_classes_of_a_model_in_another_encoding_are_the_same():
    frame = pd.DataFrame({"text": ["a", "b"], "y": ["caf\u00e9", "the"]})
    classes = ["cafe\u0301", "the"]
    table = make_table(
        FileRows(frame), "a.csv", "text", ["y"], task_type="multiclass", class_names=classes
    )
    assert table.labels.values.T.tolist() == [[0, 1]] and table.labels.class_names == classes


def test_the_positives_of_several_labels_are_said():
    frame = pd.DataFrame({"text": list("abcd"), "y": [1, 0, 1, None], "z": [0, 0, 0, 1]})
    table = make_table(FileRows(frame), "a.csv", "text", ["y", "z"])
    assert "y (2 of 3 positive), z (1 of 4 positive)" in describe_table(table, False)


def test_what_was_not_determined_is_no_label_and_words_are_classes():
    frame = pd.DataFrame({"text": list("abcdef"), "y": ["NT", "ND", "NT", "n.d.", "nd", ""]})
    table = make_table(FileRows(frame), "t.csv", None, None, task_type="multiclass")
    assert table.labels.class_names == ["ND", "NT", "nd"]
    assert table.problems == ["", "", "", "no label", "", "no label"]
    numbers = pd.DataFrame({"text": list("abcde"), "y": ["1", "Nt", "#N/A", "nD", "?"]})
    table = make_table(FileRows(numbers), "t.csv", None, ["y"], task_type="regression")
    assert table.problems == ["", *["no label"] * 4]
    numbers.loc[4, "y"] = "#DIV/0!"
    with pytest.raises(InputError, match="row 5: '#DIV/0!' is no regression label"):
        make_table(FileRows(numbers), "t.csv", None, ["y"], task_type="regression")


def test_a_header_in_the_middle_of_joined_files_is_no_row(tmp_path):
    path = tmp_path / "logs.csv"
    path.write_text("text,y\na,1\ntext,y\nb,2\n")
    table = make_table(read_file(path), path, None, [])
    assert table.problems == ["", "repeats the names of the columns", ""]


def test_a_title_above_the_header_is_no_header(tmp_path):
    for title in ("Results of May,,,,", "Compound,,Result,,"):
        (tmp_path / "t.csv").write_text(f"{title}\nsmiles,id,logP,note,by\nCCO,1,1.0,a,b\n")
        with pytest.raises(InputError, match="cannot tell the text column.*Unnamed: 1"):
            make_table(read_file(tmp_path / "t.csv"), "t.csv", None, None)


def test_texts_that_a_tokenizer_reads_alike_are_the_same_text():
    """Such as those that differ in case, for a tokenizer of small letters."""
    lines = ["Great movie, really", "great movie, really"] * 5
    uncased = Spelling(tokenizer=train_text_tokenizer("wordpiece", lines, 300)).as_compared
    assert uncased(lines[0]) == uncased(lines[1])
    cased = Spelling(tokenizer=train_text_tokenizer("bpe", lines, 300)).as_compared
    assert cased(lines[0]) != cased(lines[1]) and cased("e\u0301") == cased("\u00e9")


def test_the_column_of_a_split_is_no_label(tmp_path):
    """A column of folds has few whole numbers, as labels have."""
    rows = [f"{'C' * n}O,{'toxic' if n % 2 else 'safe'},{n % 3}" for n in range(1, 13)]
    path = write(tmp_path / "a.csv", "\n".join(["smiles,toxicity,fold", *rows]) + "\n")
    for split in ("column:fold", "column:fold=2"):
        table = read_labelled_table(TaskConfig(str(path), split=split))
        assert table.labels.columns == ["toxicity"] and table.labels.class_names == [
            "safe",
            "toxic",
        ]


def test_numbers_of_a_workbook_say_nothing_of_how_texts_are_written():
    cells = pd.Series([5.25, 6, "6,91", "7,02"], dtype=object)
    assert read_numbers(cells).tolist() == [5.25, 6, 6.91, 7.02]
    percent = pd.Series([0.25, "30%"], dtype=object)
    assert read_numbers(percent).isna().tolist() == [False, True]


@pytest.mark.parametrize("setting", [{"duplicates": "first"}, {"on_invalid": "ignore"}])
def test_misspelt_settings_are_refused(setting):
    with pytest.raises(InputError, match="must be one of"):
        TaskConfig("a.csv", **setting)


def test_words_that_most_rows_have_alone_are_no_classes_by_themselves():
    names = [f"batch {number}" for number in range(25)] + ["batch 0", "batch 1"]
    rows = FileRows(pd.DataFrame({"text": [f"t{i}" for i in range(27)], "name": names}))
    with pytest.raises(InputError, match="25 different words in 27 rows.*task_type multiclass"):
        make_table(rows, "t.csv", None, ["name"])
    assert (
        len(make_table(rows, "t.csv", None, ["name"], task_type="multiclass").labels.class_names)
        == 25
    )


def test_the_text_column_of_each_file_has_its_own_name_and_labels_one():
    train = pd.DataFrame({"smiles": ["CC", "CO"], "y": [1, 0], "note": ["a", "b"]})
    valid = pd.DataFrame({"id": [7], "SMILES": ["CN"], "y": [1]})
    files = {"train": FileRows(train), "valid": FileRows(valid)}
    assert make_table(files, "t.csv", "smiles", ["y"]).texts == ["CC", "CO", "CN"]
    table = make_table(files, "t.csv", None, None, valid="v.csv")
    assert (table.texts, table.labels.columns) == (["CC", "CO", "CN"], ["y"])
    assert table.labels.values[:, 0].tolist() == [1, 0, 1] and table.usable.all()
    files["valid"] = FileRows(valid.rename(columns={"y": "activity"}))
    sentence = "t.csv has the columns smiles, y, note, and v.csv has id, SMILES, activity; they"
    for label_columns in (["y"], None):
        with pytest.raises(InputError, match=f"{sentence} differ in the columns of labels"):
            make_table(files, "t.csv", None, label_columns, valid="v.csv")
    files["valid"] = FileRows(valid.assign(smiles="CO").rename(columns={"SMILES": "Smiles"}))
    assert make_table(files, "t.csv", None, ["y"]).texts == ["CC", "CO", "CO"]
    files["valid"] = FileRows(pd.DataFrame({"premise": ["a"], "hypothesis": ["b"], "y": [1]}))
    with pytest.raises(InputError, match="differ in whether a row has two texts"):
        make_table(files, "t.csv", None, ["y"], valid="v.csv")


def test_each_file_has_its_own_decimal_sign(capsys):
    files = {
        "train": FileRows(pd.DataFrame({"text": ["a", "b"], "y": ["1,5", "1,234"]})),
        "valid": FileRows(pd.DataFrame({"text": ["c", "d"], "y": ["2.5", "3"]})),
    }
    table = make_table(files, "t.csv", None, ["y"])
    assert table.labels.values[:, 0].tolist() == [1.5, 1.234, 2.5, 3]
    assert "in column 'y', '1,5' is read as 1.5" in capsys.readouterr().err
    files["valid"].frame["y"] = ["1,234", "2.5"]
    with pytest.raises(InputError, match="valid row 1: '1,234' is more than a number"):
        make_table(files, "t.csv", None, ["y"])


def test_several_columns_of_yes_and_no_are_labels():
    frame = pd.DataFrame({"text": list("abc"), "x": ["Yes", "No", ""], "y": ["no", "no", "yes"]})
    table = make_table(FileRows(frame), "t.csv", None, None)
    assert (table.labels.columns, table.labels.task_type) == (["x", "y"], "multilabel")
    np.testing.assert_array_equal(table.labels.values, [[1, 0], [0, 0], [np.nan, 1]])
    with pytest.raises(InputError, match="set label_columns, from: x, y, z"):
        make_table(FileRows(frame.assign(z=["red", "blue", "red"])), "t.csv", None, None)


def test_among_columns_of_two_words_the_odd_cell_is_named():
    words = ["Active", "Inactive", "Active", "Inactive"]
    frame = pd.DataFrame({"text": list("abcd"), "y": words, "z": [*words[:2], "Unclear", None]})
    with pytest.raises(InputError, match="column 'z', row 3: 'Unclear' is no multilabel label"):
        make_table(FileRows(frame), "t.csv", None, ["y", "z"])
    other_words = FileRows(frame.replace({"Active": "toxic", "Inactive": "safe"}))
    with pytest.raises(InputError, match="but column 'z', row 3 has 'Unclear', and the values"):
        make_table(other_words, "t.csv", None, ["y", "z"], positive="toxic")
    frame["z"] = [1.5, 2.5, "Unclear", 3.5]  # mostly numbers
    frame["y"] = [1.5, 2.5, 0.5, 3.5]
    with pytest.raises(InputError, match="column 'z', row 3: 'Unclear' is no regression label"):
        make_table(FileRows(frame), "t.csv", None, ["y", "z"])


@pytest.mark.parametrize("missing", ["?", "nd", "NT", "n.t."])
def test_what_was_not_determined_is_no_class_beside_two_usual_words(missing):
    cells = ["true", "False", missing, "true"]
    frame = pd.DataFrame({"text": list("abcd"), "y": cells, "z": cells[::-1]})
    table = make_table(FileRows(frame), "t.csv", None, ["y"])
    assert table.labels.task_type == "binary" and table.problems == ["", "", "no label", ""]
    labels = make_table(FileRows(frame), "t.csv", None, ["y", "z"]).labels
    assert labels.task_type == "multilabel"
    np.testing.assert_array_equal(labels.values, [[1, 1], [0, np.nan], [np.nan, 0], [1, 1]])
    # a model that has it as a class keeps it
    assert label_cells(frame, ["y"], [""] * 4, ["false", missing, "true"]).notna().all(axis=None)


@pytest.mark.parametrize(
    ("cells", "names", "message"),
    [
        ([1] * 9 + [2] * 2, None, "'2' in 2 rows.* model, and '1', which is one.* 0 or 1, and"),
        ([1, 1, 2, 2], ["FALSE", "TRUE"], "'2' in 2 rows.* in the training, FALSE or TRUE, and"),
        ([-1, -1, 0, 1], None, "'-1' in 2 rows.* model, and '0', which is one"),
        (["Toxic", "nontoxic", "nontoxic"], ["safe", "toxic"], "'nontoxic' .* safe or toxic"),
    ],
)
def test_two_classes_that_are_called_otherwise_than_in_the_training_are_refused(
    cells, names, message
):
    frame = pd.DataFrame({"ok": [0, 1] + [None] * (len(cells) - 2), "y": cells})
    with pytest.raises(InputError, match=f"column 'y' has {message}"):
        read_labels(frame, "t.csv", "multilabel", names, skip_unknown=True)


@pytest.mark.parametrize(
    "cells",
    [
        ["active", "inactive", "inconclusive", "inconclusive"],  # a third word
        ["active", "active", "active", "actve"],  # a misspelt one
        [0, 1] * 50 + [11, 11],
    ],
)
def test_what_is_neither_of_two_classes_is_only_no_label(cells, capsys):
    read_labels(pd.DataFrame({"y": cells}), "t.csv", "binary", None, skip_unknown=True)
    assert "rows have a label that cannot be scored" in capsys.readouterr().err


def test_cells_that_no_training_could_read_are_explained_as_there(tmp_path, capsys):
    saved_task = SavedTask(task_type="regression", label_columns=["y"])
    cases = {
        "2,094": "row 1: '2,094' is more than a number, or can be",
        "2.094": "row 1: '2.094' can be read in several ways",
    }
    for cell, message in cases.items():
        path = write(tmp_path / "a.csv", f"smiles;y\nCC;{cell}\nCCC;{cell}\n")
        table = unlabelled_table(read_file(path), str(path), "smiles")
        with pytest.raises(InputError, match=message):
            load_table(path, None, ["y"])
        with pytest.raises(InputError, match=message):
            read_true_labels(table, str(path), ["y"], saved_task)
    cells = pd.DataFrame({"y": ["2,5", "3.689", "3.06"]})
    read_labels(cells, "t.csv", "regression", None, skip_unknown=True)
    assert "the first row 1: '2,5' stands in a column that has decimal" in capsys.readouterr().err


def test_a_column_of_mostly_words_is_to_be_multiclass_first():
    frame = pd.DataFrame({"text": list("abcde"), "y": ["1A", "1B", "2", "no class", "1A"]})
    way_out = "'1A' is no .* in 4 rows; set task_type multiclass if these are classes, or correct"
    with pytest.raises(InputError, match=way_out):
        make_table(FileRows(frame), "t.csv", None, ["y"])


@pytest.mark.parametrize("cells", [(1, 2), (-1, 1)])
def test_two_whole_numbers_may_be_two_classes(cells):
    frame = pd.DataFrame({"text": list("abcd"), "y": [*cells, *cells]})
    [remark] = remarks_on_labels(make_table(FileRows(frame), "t.csv", None, None))
    assert remark.endswith(
        f"or --positive {cells[1]} for the scores of two classes, such as ROC-AUC"
    )
    table = make_table(FileRows(frame), "t.csv", None, None, positive=str(cells[1]))
    assert table.labels.values[:, 0].tolist() == [0, 1, 0, 1]
