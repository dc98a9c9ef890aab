"""Splits: by scaffold, at random, by a column and by a file of indices."""

import gzip
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from exlm.data.chemistry import LONGEST_SMILES, fingerprints
from exlm.data.frames import FileRows, read_file
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.rows import splits
from exlm.tasks.rows.datasets import MOLECULENET
from exlm.tasks.rows.hashes import split_hash
from exlm.tasks.rows.splits import (
    FRACTIONS,
    column_split,
    index_split,
    random_split,
    scaffold_split,
    split_rows,
)
from exlm.tasks.rows.task_files import find_dataset
from exlm.tasks.tables.training_texts import distance_to_training
from tests.tables import make_table

DATA = Path(os.environ.get("EXLM_DATA", Path(__file__).parents[3] / "shared/data")) / "molecules"


def test_the_scaffold_of_a_giant_is_not_computed(monkeypatch):
    def scaffold(mol, includeChirality):
        assert mol.GetNumAtoms() < 1000
        return ""

    monkeypatch.setattr(splits.MurckoScaffold, "MurckoScaffoldSmiles", scaffold)
    split = scaffold_split(["CCO", "CCN", "C" * 1500, "CC"] * 3, range(12), np.arange(12))
    assert sum(len(rows) for rows in split.values()) == 12
    giants = [{row % 4 for row in rows} for rows in as_lists(split).values()]
    assert sum(2 in part for part in giants) == 1  # they are one group of their own


def split_usable(setting, table, seed=0):
    """The rows that can be used, each a group of its own."""
    return split_rows(
        TaskConfig("a.csv", split=setting),
        table,
        seed=seed,
        rows_to_split=table.usable,
        groups=np.arange(len(table.texts)),
    )


def as_lists(split: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {part: rows.tolist() for part, rows in split.items()}


@pytest.fixture
def table(tmp_path):
    rows = [
        f"{'C' * n}c1ccccc1,{n % 2},{part}"
        for n, part in enumerate(["train"] * 8 + ["dev", "TEST"])
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["smiles,y,part", ",1,train", *rows]))
    return make_table(read_file(path), path, None, ["y"])


@pytest.mark.parametrize("name", ["bace", "bbbp", "clintox", "sider", "tox21"])
def test_scaffold_split_equals_the_reference(name):
    reference = DATA / "scaffold_splits.json.gz"
    if not reference.is_file():
        pytest.skip(f"no {reference}: set EXLM_DATA to the folder that holds molecules/")
    dataset = MOLECULENET[name]
    path = find_dataset(name, str(DATA))
    table = make_table(read_file(path), path, dataset.text_column, dataset.label_columns)
    assert table.labels.task_type == dataset.task_type
    split = split_usable("scaffold", table)
    assert as_lists(split) == json.loads(gzip.decompress(reference.read_bytes()))[name]


def test_scaffold_split_by_hand():
    benzenes = ["c1ccccc1" + "C" * n for n in range(8)]
    smiles = ["C1CC1", "nonsense", *benzenes, "C1CCC1", ""]  # n = 10 parsable rows
    split = scaffold_split(smiles, range(len(smiles)), np.arange(len(smiles)))
    # Eight benzenes fill train; of the two single rings the later row comes first.
    assert as_lists(split) == {"train": [2, 3, 4, 5, 6, 7, 8, 9], "valid": [10], "test": [0]}


def test_other_spellings_of_a_molecule_have_its_scaffold():
    # RDKit marks the double bond in the scaffold of the second alone.
    spellings = [r"C(=C(\CC)c1ccc(O)cc1)(/CC)c1ccc(cc1)O", r"c1(O)ccc(cc1)/C(CC)=C(/c1ccc(cc1)O)CC"]
    same = np.array([0, 0, *range(2, 10)])
    split = scaffold_split([*spellings, *["C1CC1"] * 8], range(10), same)
    assert as_lists(split) == {"train": list(range(2, 10)), "valid": [], "test": [0, 1]}


def test_scaffolds_keep_chirality_and_rows_restrict():
    pair = ["C1C[C@H]2CCCC[C@H]2N1", "C1C[C@@H]2CCCC[C@H]2N1"]
    benzenes = ["c1ccccc1"] * 8
    smiles = [*pair, "CC", *benzenes]
    assert as_lists(scaffold_split(smiles, [0, 1, *range(3, 11)], np.arange(11))) == {
        "train": list(range(3, 11)),
        "valid": [1],
        "test": [0],
    }


def test_random_split_partitions_by_seed():
    each = np.arange(100)  # every row is a group of its own
    split = random_split(each, FRACTIONS, seed=3, groups=each)
    assert [len(split[part]) for part in ("train", "valid", "test")] == [80, 10, 10]
    assert sorted(np.concatenate(list(split.values()))) == list(range(100))
    assert as_lists(split) == as_lists(random_split(each, FRACTIONS, seed=3, groups=each))
    assert as_lists(split) != as_lists(random_split(each, FRACTIONS, seed=4, groups=each))
    carved = random_split(split["train"], (0.9, 0.1), seed=3, groups=each)
    assert len(carved["valid"]) == 8 and "test" not in carved
    assert set(carved["valid"]) < set(split["train"])


def test_rows_of_a_group_stay_together():
    groups = np.arange(100) // 3 * 3
    split = random_split(range(100), FRACTIONS, seed=3, groups=groups)
    parts = [set(groups[rows]) for rows in split.values()]
    assert not parts[0] & parts[1] and not (parts[0] | parts[1]) & parts[2]
    assert sum(map(len, split.values())) == 100 and 78 <= len(split["train"]) <= 80


def test_column_split_accepts_the_usual_names():
    frame = pd.DataFrame({"part": ["Training", "val", "validation", " DEV ", "valid", "test"]})
    assert as_lists(column_split(frame, "part", True)) == {
        "train": [0],
        "valid": [1, 2, 3, 4],
        "test": [5],
    }
    frame.loc[1, "part"] = None
    frame.loc[2, "part"] = " "
    assert as_lists(column_split(frame, "part", True))["valid"] == [3, 4]
    frame.loc[4, "part"] = "holdout"
    with pytest.raises(InputError, match="row 5: 'holdout'"):
        column_split(frame, "part", True)
    with pytest.raises(InputError, match="the table to split: no column 'q'; it has: part"):
        column_split(frame, "q", True)


def test_only_rows_that_can_be_used_need_a_part():
    frame = pd.DataFrame({"part": ["train", "valid", "NA", "old"], "fold": ["1", "2", "NA", "2"]})
    usable = np.array([True, True, True, False])
    assert as_lists(column_split(frame, "part", usable)) == {"train": [0], "valid": [1]}
    with pytest.raises(InputError, match="row 4: 'old' is not train"):
        column_split(frame, "part", ~usable)
    assert as_lists(column_split(frame, "fold=2", usable))["train"] == [0]
    assert as_lists(column_split(frame, "fold=2.0", usable))["train"] == [0]


def test_texts_too_long_for_rdkit_have_no_scaffold_and_no_distance():
    endless = "C" * (LONGEST_SMILES + 1)
    split = scaffold_split([endless, *["C1CC1"] * 4, "CC"], range(6), np.arange(6))
    assert sorted(np.concatenate(list(split.values()))) == [1, 2, 3, 4, 5]
    [_, distance] = distance_to_training(fingerprints(["CC"]), ["CC", endless])
    assert np.isnan(distance)


def test_the_rows_of_one_fold_are_the_test_part():
    """Folds are usually numbers, floats where one is missing, and may come from a CSV file."""
    for folds in ([0, 1, 2, 1, None], ["0", "1", "2", "1", ""]):
        frame = pd.DataFrame({"fold": folds})
        split = {"train": [0, 2], "valid": [], "test": [1, 3]}
        assert as_lists(column_split(frame, "fold=1", True)) == split
    with pytest.raises(InputError, match="no row has '7' in the split column 'fold', which has: 0"):
        column_split(frame, "fold=7", True)
    with pytest.raises(InputError, match="or say column:fold=VALUE to test on"):
        column_split(frame, "fold", True)


def test_index_split_reads_plain_and_compressed_json(tmp_path):
    content = json.dumps({"train": [2, 0], "test": [1]})
    (tmp_path / "a.json").write_text(content)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(content.encode()))
    for name in ("a.json", "a.json.gz"):
        assert as_lists(index_split(tmp_path / name, 3)) == {
            "train": [0, 2],
            "valid": [],
            "test": [1],
        }
    (tmp_path / "b.json").write_text('{"train": [0], "val": [1], "test": [2]}')
    assert as_lists(index_split(tmp_path / "b.json", 3))["valid"] == [1]
    (tmp_path / "c.json").write_text('[{"train": [0], "val": [1], "test": [2]}]')  # chemprop's
    assert as_lists(index_split(tmp_path / "c.json", 3))["valid"] == [1]


def test_parts_that_a_user_chose_need_no_test(tmp_path):
    """As for predictions out of fold, where valid is all there is to score."""
    frame = pd.DataFrame({"part": ["train", "valid", "train"]})
    assert as_lists(column_split(frame, "part", True)) == {"train": [0, 2], "valid": [1]}
    (tmp_path / "a.json").write_text('{"train": [0, 2], "valid": [1]}')
    assert as_lists(index_split(tmp_path / "a.json", 3)) == {"train": [0, 2], "valid": [1]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"train": [0, 3], "test": [1]}', "row 3 of train is none of the rows 0 to 2"),
        ('{"train": [-1], "test": [1]}', "row -1 of train is none of"),
        ('{"train": [0, 1], "test": [1]}', "row 1 of test is .* or occurs twice"),
        ('{"train": [0, 0], "test": [1]}', "row 0 of train is .* or occurs twice"),
        ('{"train": ["0"], "test": [1]}', "row '0' of train is none of"),
        ('{"train": 0, "test": [1]}', 'expected lists of rows .* found {"train": 0, "test"'),
        (
            '{"bace": {"train": [0]}}',
            "expected lists of rows under the keys train, valid and test, found .*bace",
        ),
        ("[0, 1]", r"found \[0, 1\]"),
        ("{", "cannot be read"),
    ],
)
def test_index_split_explains_bad_files(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        index_split(path, 3)


def test_a_split_has_usable_rows_only(table, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"train": [0, 1, 2], "valid": [4], "test": [3]}))
    assert as_lists(split_usable(f"file:{path}", table)) == {
        "train": [1, 2],
        "valid": [4],
        "test": [3],
    }
    by_column = split_usable("column:part", table)
    assert as_lists(by_column) == {"train": [1, 2, 3, 4, 5, 6, 7, 8], "valid": [9], "test": [10]}
    drawn = split_usable("random", table, seed=1)
    assert sorted(np.concatenate(list(drawn.values()))) == list(range(1, 11))


@pytest.mark.parametrize(("rows", "part"), [(1, "valid"), (2, "valid"), (4, "test"), (5, "valid")])
def test_too_few_rows_for_a_random_split_are_said_to_be_too_few(rows, part):
    """Their texts and labels are all right."""
    frame = pd.DataFrame({"text": [f"text {row}" for row in range(rows)], "y": np.arange(rows) / 7})
    small = make_table(FileRows(frame), "a.csv", "text", ["y"], task_type="regression")
    message = f"a random split of {rows} rows leaves no usable row for the {part} part; give more"
    with pytest.raises(InputError, match=message):
        split_usable("random", small)


def test_too_few_rows_of_train_for_a_valid_part_are_said_to_be_too_few():
    frame = pd.DataFrame({"text": list("abcde"), "y": [0.1, 0.2, 0.3, 0.4, 0.5]})
    files = {"train": FileRows(frame[:4]), "test": FileRows(frame[4:].reset_index(drop=True))}
    table = make_table(files, "a.csv", "text", ["y"], task_type="regression")
    message = "a random split of the 4 usable rows of train leaves no usable row for the valid part"
    with pytest.raises(InputError, match=message):
        split_usable("parts", table)


def test_rows_that_are_named_for_valid_are_not_replaced_by_others(table):
    """Row 9, the only one of valid, cannot be read by the model."""
    unreadable = replace(table, problems=[*table.problems[:9], "too long", *table.problems[10:]])
    with pytest.raises(InputError, match="the valid part has no row that can be used"):
        split_rows(
            TaskConfig("a.csv", split="column:part"),
            unreadable,
            seed=0,
            rows_to_split=table.usable,
            groups=np.arange(len(table.texts)),
        )


def test_a_split_explains_what_it_cannot_do(table):
    for kind in ("cluster", "column:", "scaffold:x"):
        with pytest.raises(
            InputError, match="use scaffold, random, column:NAME, file:PATH, or name files"
        ):
            split_usable(kind, table)
    with pytest.raises(InputError, match="the split parts needs a file for each"):
        split_usable("parts", table)
    with pytest.raises(InputError, match="10 of 10 .* the scaffold c1ccccc1, .* task.split random"):
        split_usable("scaffold", table)
    with pytest.raises(InputError, match="9 of 10 molecules have no rings"):
        scaffold_split(["CCO"] * 9 + ["c1ccccc1"], range(10), np.arange(10))


def test_split_hash_identifies_the_rows():
    split = {"train": np.array([2, 0]), "valid": np.array([], dtype=int), "test": np.array([1])}
    text = b'{"train":[0,2],"valid":[],"test":[1]}'
    assert split_hash(split) == hashlib.sha256(text).hexdigest()
    assert split_hash(split) != split_hash({**split, "test": np.array([3])})
