"""Splits a table into train, valid and test. Each part is an ascending array of row numbers,
counted from 0."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds import MurckoScaffold

from exlm.data.columns import check_columns
from exlm.data.frames import read_json
from exlm.errors import InputError
from exlm.tasks.table import LabelledTable

SPLITS = ("train", "valid", "test")
FRACTIONS = (0.8, 0.1, 0.1)
OTHER_NAMES = {"val": "valid", "validation": "valid", "dev": "valid"}

Split = dict[str, np.ndarray]


def make_split(kind: str, table: LabelledTable, seed: int) -> Split:
    """Split the usable rows of a table. kind: `scaffold`, `random`, `column:NAME`, `file:PATH` or
    `parts` (each file that was joined is one). The last three may have no valid rows. InputError
    for a split without train rows."""
    name, _, argument = kind.partition(":")
    rows = np.flatnonzero(table.usable if table.divided is None else table.divided)
    if kind == "scaffold":
        split = scaffold_split(table.texts, rows.tolist())
    elif kind == "random":
        split = random_split(rows, FRACTIONS, seed)
    elif name == "column" and argument:
        split = column_split(table.frame, argument)
    elif name == "file" and argument:
        split = index_split(argument, len(table.frame))
    elif kind == "parts" and table.parts is not None:
        split = {
            name: np.flatnonzero(table.parts == name)
            for name in dict.fromkeys([*SPLITS, *table.parts])
        }
    else:
        known = "scaffold, random, column:NAME, file:PATH, or name files for the parts"
        raise InputError(f"unknown split {kind!r}; use {known}")
    if not len(rows):
        raise InputError(
            "no row can be used; the rows and what is wrong with them are listed above"
        )
    split = {name: np.intersect1d(chosen, rows) for name, chosen in split.items()}
    if not len(split["train"]):
        raise InputError(
            f"the {kind} split of {len(rows)} usable rows has no train rows; use another split"
        )
    return split


def scaffold_split(smiles: Sequence[str], rows: Sequence[int]) -> Split:
    """The usual deterministic split of `rows` by Bemis-Murcko scaffolds. SMILES that RDKit cannot
    parse are left out. Rows with the same scaffold SMILES (chirality included; "" for acyclic
    molecules) form a group. Groups are taken by size, then by smallest row number, both descending.
    With n parsable rows, a group goes to train if train then has at most 0.8 n rows; else to valid
    if train and valid together then have at most 0.9 n rows; else to test."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    with rdBase.BlockLogs():
        for row in rows:
            if smiles[row] and (molecule := Chem.MolFromSmiles(smiles[row])):
                groups[
                    MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True)
                ].append(row)
    n = sum(map(len, groups.values()))
    split: dict[str, list[int]] = {name: [] for name in SPLITS}
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0]), reverse=True):
        in_train = len(split["train"]) + len(group)
        valid_fits = in_train + len(split["valid"]) <= (FRACTIONS[0] + FRACTIONS[1]) * n
        split["train" if in_train <= FRACTIONS[0] * n else "valid" if valid_fits else "test"] += (
            group
        )
    return {name: np.array(sorted(chosen), dtype=np.int64) for name, chosen in split.items()}


def random_split(rows: Sequence[int] | np.ndarray, fractions: Sequence[float], seed: int) -> Split:
    """Shuffle the rows with the seed, and cut them into parts with the fractions of train, valid
    and test (rounded)."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    cuts = np.rint(np.cumsum(fractions)[:2] * len(shuffled)).astype(int)
    return {
        name: np.sort(chosen) for name, chosen in zip(SPLITS, np.split(shuffled, cuts), strict=True)
    }


def column_split(frame: pd.DataFrame, column: str) -> Split:
    """Split by a column. Every row must say train, valid (or val, validation, dev) or test there,
    else InputError."""
    check_columns(frame, "the table to split", column)
    values = frame[column].astype(str).str.strip().str.lower().replace(OTHER_NAMES)
    for row in np.flatnonzero(~values.isin(SPLITS)):
        value = frame[column].iloc[row]
        raise InputError(
            f"split column {column!r}, row {row + 1}: {value!r} is not train, valid or test; correct it"
        )
    return {name: np.flatnonzero(values == name) for name in SPLITS}


def index_split(path: str | Path, n_rows: int) -> Split:
    """Read {"train": [...], "valid": [...], "test": [...]} from JSON, plain or compressed; valid
    may be absent. InputError if the file has another form, or if a row occurs twice or is outside 0
    .. n_rows - 1."""
    content = read_json(path)
    lists = isinstance(content, dict) and all(isinstance(rows, list) for rows in content.values())
    if not lists or not {"train", "test"} <= set(content) <= set(SPLITS):
        found = json.dumps(content)[:80]
        raise InputError(
            f"{path}: expected lists of rows under the keys train, valid and test, found {found}"
        )
    left = set(range(n_rows))
    for name, row in ((name, row) for name, rows in content.items() for row in rows):
        if type(row) is not int or row not in left:
            raise InputError(
                f"{path}: row {row!r} of {name} is none of the rows 0 to {n_rows - 1}, or occurs twice"
            )
        left.remove(row)
    return {name: np.array(sorted(content.get(name, [])), dtype=np.int64) for name in SPLITS}


def split_hash(split: Split) -> str:
    """SHA-256, in hex, of the compact JSON text {"train":[...],"valid":[...],"test":[...]} with
    ascending rows."""
    lists = {name: np.sort(rows).tolist() for name, rows in split.items()}
    return hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()
