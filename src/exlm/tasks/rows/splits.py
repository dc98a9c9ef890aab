"""Splits a table into train, valid and test. Of five rows, the third of which cannot be used and
the last two are one molecule:

* a split has the ascending row numbers of each part: {"train": [3, 4], "valid": [0], "test": [1]}
* a mask (`rows_to_split`) says of every row whether it is meant: [True, True, False, True, True]
* groups (`find_groups`) have for every row the first row that equals it: [0, 1, 2, 3, 3]"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds import MurckoScaffold

from exlm.data.cell_texts import MISSING_TEXTS, class_name
from exlm.data.chemistry import LONGEST_SMILES
from exlm.data.columns import check_columns, listed
from exlm.data.open_files import read_json
from exlm.errors import InputError
from exlm.randomness import Purpose, random_bits
from exlm.tasks.config import TaskConfig
from exlm.tasks.rows.table import TextTable

PARTS = ("train", "valid", "test")
COMPUTED = ("scaffold", "random")  # splits that the table decides, and not the user
FRACTIONS = (0.8, 0.1, 0.1)
# The scaffold of a larger molecule takes seconds to minutes. MoleculeNet has none.
MOST_ATOMS = 1000
OTHER_NAMES = {"training": "train", "testing": "test"}
OTHER_NAMES |= dict.fromkeys(["val", "validation", "dev", "development"], "valid")

RowSplit = dict[str, np.ndarray]  # row numbers by part, from 0


def split_method(setting: str) -> tuple[str, str]:
    """What the setting `split` says: the method (one of COMPUTED, parts, column or file) and, after
    a colon, a column, FOLD=VALUE or a path. InputError if there is no such method."""
    name, colon, argument = setting.partition(":")
    is_plain = name in (*COMPUTED, "parts") and not colon
    if is_plain or (name in ("column", "file") and argument):
        return name, argument
    raise InputError(
        f"unknown split {setting!r}; use scaffold, random, column:NAME, file:PATH, or name files "
        "for the parts"
    )


def split_columns(setting: str | None) -> list[str]:
    """What the column that divides the rows may be called: of `column:a=b`, a=b or a."""
    name, argument = split_method(setting) if setting else ("", "")
    return [argument, argument.rpartition("=")[0]] if name == "column" else []


def split_rows(
    config: TaskConfig,
    table: TextTable,
    *,
    seed: int,
    rows_to_split: np.ndarray,
    groups: np.ndarray,
) -> RowSplit:
    """The split that a seed is trained on: the `rows_to_split` by part, as the setting `split`
    says, without rows that cannot be used. Computed parts keep each of the `groups` together. If no
    row was meant for valid, a tenth of train becomes valid. With the setting `train_rows`, train is
    a sample of so many rows. InputError if a part is empty."""
    numbers = np.flatnonzero(rows_to_split)
    split = split_by_user(config, table)
    computed_by = dict[str, str]()  # of every part that the user did not choose, for messages
    has_valid = table.parts is not None and "valid" in table.parts
    if split is not None:
        has_valid = has_valid or len(split["valid"]) > 0
        split = {part: np.intersect1d(rows, numbers) for part, rows in split.items()}
    else:
        computed_by = dict.fromkeys(PARTS, f"a {config.split} split of {len(numbers)} rows")
        if config.split == "scaffold":
            split = scaffold_split(table.texts, numbers, groups)
        else:
            split = random_split(numbers, FRACTIONS, seed=seed, groups=groups)
    split = {part: rows[table.usable[rows]] for part, rows in split.items()}
    if not len(split["valid"]) and not has_valid:
        train = split["train"]
        computed_by.setdefault("valid", f"a random split of the {len(train)} usable rows of train")
        split |= random_split(train, (0.9, 0.1), seed=seed, groups=groups)
    _check_parts(config.dataset, split, computed_by)
    train = split["train"]
    if config.train_rows is not None:
        order = np.argsort(random_bits(Purpose.TRAIN_ROWS, seed, train), kind="stable")
        split["train"] = np.sort(train[order[: config.train_rows]])
    return split


def _check_parts(dataset: str, split: RowSplit, computed_by: dict[str, str]) -> None:
    """InputError if a part has no rows; it says what the part was computed by, if it was."""
    for part, rows in split.items():
        if len(rows):
            continue
        if part in computed_by:
            raise InputError(
                f"{dataset}: {computed_by[part]} leaves no usable row for the {part} part; "
                "give more rows, or name files for the parts (task.valid, task.test)"
            )
        raise InputError(
            f"{dataset}: the {part} part has no row that can be used; "
            "look at its texts and labels, give more rows, or use another split"
        )


def split_by_user(config: TaskConfig, table: TextTable) -> RowSplit | None:
    """All rows of the parts that the user chose; None if parts are computed. InputError for `parts`
    of a single file."""
    assert config.split  # filled in before
    name, argument = split_method(config.split)
    if name in COMPUTED:
        return None
    if name == "column":
        return column_split(table.frame, argument, table.usable)
    if name == "file":
        return index_split(argument, len(table.frame))
    if table.parts is None:
        raise InputError("the split parts needs a file for each; name task.valid or task.test")
    parts = dict.fromkeys(["train", "valid", *table.parts])
    return {part: np.flatnonzero(table.parts == part) for part in parts}


def part_of_rows(split: RowSplit, count: int) -> np.ndarray:
    """[`count` rows] the part of every row, "" for none."""
    parts = np.full(count, "", dtype=object)
    for part, rows in split.items():
        parts[rows] = part
    return parts


def scaffold_split(
    smiles: Sequence[str], rows: Sequence[int] | np.ndarray, groups: np.ndarray
) -> RowSplit:
    """The usual deterministic split of `rows` by Bemis-Murcko scaffolds (`_scaffold`); molecules
    without one are left out.

    A set has all rows with the same scaffold. Sets are taken by size, then by smallest row number,
    both descending. With n rows in all, a set goes to train if train then has at most 0.8 n rows;
    else to valid if train and valid together then have at most 0.9 n rows; else to test. Rows of a
    group are spellings of one molecule, and have the scaffold of the first of them. InputError if
    one set has more than 0.8 n rows."""
    numbers = pd.Series(np.asarray(rows, dtype=np.int64))
    first_rows = numbers.groupby(groups[numbers]).transform("first")  # of the group of each row
    scaffolds = first_rows.map({row: _scaffold(smiles[row]) for row in first_rows.unique()})
    sets = sorted(
        numbers.groupby(scaffolds).agg(list), key=lambda rows: (len(rows), rows[0]), reverse=True
    )
    parsable = sum(map(len, sets))
    most_train = FRACTIONS[0] * parsable
    if sets and len(sets[0]) > most_train:
        [scaffold] = scaffolds[numbers == sets[0][0]]
        in_words = f"have the scaffold {scaffold}" if scaffold else "have no rings"
        raise InputError(
            f"{len(sets[0])} of {parsable} molecules {in_words}, so that a scaffold split "
            "cannot divide them; use task.split random"
        )
    most_train_and_valid = (FRACTIONS[0] + FRACTIONS[1]) * parsable
    split: dict[str, list[int]] = {part: [] for part in PARTS}
    for rows_of_set in sets:
        train_size = len(split["train"]) + len(rows_of_set)
        if train_size <= most_train:
            split["train"] += rows_of_set
        elif train_size + len(split["valid"]) <= most_train_and_valid:
            split["valid"] += rows_of_set
        else:
            split["test"] += rows_of_set
    return _as_arrays(split)


def _scaffold(smiles: str) -> str | None:
    """The SMILES of a molecule's scaffold, chirality included, "" without rings; of over MOST_ATOMS
    atoms the molecule itself; None if RDKit cannot parse it, or if it is too long to try."""
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles) if 0 < len(smiles) <= LONGEST_SMILES else None
        if molecule is None:
            return None
        if molecule.GetNumAtoms() > MOST_ATOMS:
            return smiles
        return MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True)


def random_split(
    rows: Sequence[int] | np.ndarray, fractions: Sequence[float], *, seed: int, groups: np.ndarray
) -> RowSplit:
    """The rows, shuffled with the seed and cut into train, valid and, if there is a third of the
    `fractions`, test. Rows of a group stay together, so that parts may lack a few rows."""
    rows = np.asarray(rows)
    group_of_row = groups[rows]
    distinct_groups, sizes = np.unique(group_of_row, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(distinct_groups))
    ends = np.rint(np.cumsum(fractions)[:-1] * len(rows))
    cuts = np.searchsorted(np.cumsum(sizes[order]), ends, side="right")
    groups_of_parts = np.split(distinct_groups[order], cuts)
    return {
        part: np.sort(rows[np.isin(group_of_row, groups_of_part)])
        for part, groups_of_part in zip(PARTS, groups_of_parts, strict=False)
    }


def column_split(frame: pd.DataFrame, column: str, usable: np.ndarray) -> RowSplit:
    """The rows by what a column says: a part or one of its OTHER_NAMES; rows without a name are in
    no part. There is a test part only if a row says so. A `column` such as `FOLD=3` makes a
    `fold_split` by the column FOLD. InputError for another name in a `usable` row ([rows] bool)."""
    fold_column, _, fold = column.rpartition("=")
    if column not in frame and fold_column:
        check_columns(frame, "the table to split", fold_column)
        return fold_split(frame[fold_column], fold)
    check_columns(frame, "the table to split", column)
    parts = _read_names(frame[column]).str.lower().replace(OTHER_NAMES)
    unknown = np.flatnonzero(~parts.isin(["", *PARTS]) & usable)
    if len(unknown):
        raise InputError(
            f"split column {column!r}, row {unknown[0] + 1}: {frame[column].iloc[unknown[0]]!r} is "
            f"not train, valid or test; correct it, or say column:{column}=VALUE to test on the "
            "rows with this value"
        )
    names_of_parts = PARTS if (parts == "test").any() else PARTS[:2]
    return {part: np.flatnonzero(parts == part) for part in names_of_parts}


def fold_split(folds: pd.Series, fold: str) -> RowSplit:
    """The rows of one fold are test, the rows of all other folds train; rows without a fold are in
    no part. InputError if no row has the fold."""
    names = _read_names(folds)
    fold = class_name(fold)
    if not fold or fold not in set(names):
        raise InputError(
            f"no row has {fold!r} in the split column {folds.name!r}, which has: "
            f"{listed(names.unique(), 10)}"
        )
    return {
        "train": np.flatnonzero((names != fold) & (names != "")),
        "valid": np.arange(0),
        "test": np.flatnonzero(names == fold),
    }


def _read_names(cells: pd.Series) -> pd.Series:
    """The names of parts or folds in the cells of a column, "" where missing."""
    names = cells.fillna("").map(class_name)
    return names.mask(names.isin(MISSING_TEXTS), "")


def index_split(path: str | Path, n_rows: int) -> RowSplit:
    """The rows that a JSON file names: {"train": [...], "valid": [...], "test": [...]}. Valid or
    test may be absent, and parts may have OTHER_NAMES. InputError if the file has another form, or
    if a row occurs twice or is outside 0 .. n_rows - 1."""
    content = read_json(path)
    if isinstance(content, list) and len(content) == 1:
        content = content[0]  # as chemprop writes them
    parts = content if isinstance(content, dict) else {}
    split = {OTHER_NAMES.get(part, part): rows for part, rows in parts.items()}
    are_lists = all(isinstance(rows, list) for rows in split.values())
    if not are_lists or not {"train"} < set(split) <= set(PARTS) or len(split) < len(parts):
        raise InputError(
            f"{path}: expected lists of rows under the keys train, valid and test, found "
            f"{json.dumps(content)[:80]}"
        )
    unassigned = set(range(n_rows))
    for part, rows in split.items():
        for row in rows:
            # True is an int and would be row 1.
            if type(row) is not int or row not in unassigned:
                raise InputError(
                    f"{path}: row {row!r} of {part} is none of the rows 0 to {n_rows - 1}, or "
                    "occurs twice"
                )
            unassigned.remove(row)
    names_of_parts = [part for part in PARTS if part in split or part == "valid"]
    return _as_arrays({part: split.get(part, []) for part in names_of_parts})


def _as_arrays(split: dict[str, list[int]]) -> RowSplit:
    return {part: np.array(sorted(rows), dtype=np.int64) for part, rows in split.items()}
