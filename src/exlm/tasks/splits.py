"""Splits of a table into train, valid and test: each part an ascending array of 0-based data rows."""

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds import MurckoScaffold

from exlm.errors import InputError
from exlm.tasks.table import LabelledTable, listed

PARTS = ("train", "valid", "test")
DEFAULT_FRACTIONS = (0.8, 0.1, 0.1)
_PART_NAMES = {"val": "valid", "validation": "valid", "dev": "valid"} | {part: part for part in PARTS}

Split = dict[str, np.ndarray]


def make_split(kind: str, table: LabelledTable, seed: int, fractions: Sequence[float] = DEFAULT_FRACTIONS) -> Split:
    """Split the usable rows of a table. kind: `scaffold`, `random`, `column:NAME`, `file:PATH` or `parts`.

    `parts` are those of the table, which may have others than train, valid and test. The seed matters to `random`
    only; the last three kinds ignore the fractions and may have no valid rows.
    Raises InputError for an unknown kind and for a split without train rows.
    """
    name, _, argument = kind.partition(":")
    rows = np.flatnonzero(table.usable)
    if kind == "scaffold":
        split = scaffold_split(table.texts, fractions, rows.tolist())
    elif kind == "random":
        split = random_split(rows.tolist(), fractions, seed)
    elif name == "column" and argument:
        split = column_split(table.frame, argument)
    elif name == "file" and argument:
        split = index_split(argument, len(table.frame))
    elif kind == "parts" and table.parts is not None:
        split = {name: np.flatnonzero(table.parts == name) for name in dict.fromkeys([*PARTS, *table.parts])}
    else:
        raise InputError(
            f"unknown split {kind!r}; use scaffold, random, column:NAME, file:PATH, or name files for the parts"
        )
    split = {part: np.intersect1d(chosen, rows) for part, chosen in split.items()}
    if not len(split["train"]):
        raise InputError(f"the {kind} split of {len(rows)} usable rows has no train rows; use another split")
    return split


def scaffold_split(
    smiles: Sequence[str], fractions: Sequence[float] = DEFAULT_FRACTIONS, rows: Sequence[int] | None = None
) -> Split:
    """Deterministic Bemis-Murcko scaffold split of `rows` (None: all), leaving out unparsable SMILES.

    Rows with the same scaffold SMILES (chirality included; "" for acyclic molecules) form a group. Groups
    are taken by size, then by smallest row number, both descending. Each goes to train if train then has at
    most 0.8 n rows, else to valid if train and valid then have at most 0.9 n, else to test (n: parsable
    rows). The rule is that of the common deterministic scaffold splitter of the pre-training literature.
    """
    _check_fractions(fractions)
    groups = _scaffold_groups(smiles, range(len(smiles)) if rows is None else rows)
    n = sum(map(len, groups))
    train_limit, valid_limit = fractions[0] * n, (fractions[0] + fractions[1]) * n
    split: dict[str, list[int]] = {part: [] for part in PARTS}
    for group in sorted(groups, key=lambda group: (len(group), group[0]), reverse=True):
        if len(split["train"]) + len(group) <= train_limit:
            split["train"] += group
        elif len(split["train"]) + len(split["valid"]) + len(group) <= valid_limit:
            split["valid"] += group
        else:
            split["test"] += group
    return _sorted_split(split)


def random_split(rows: int | Sequence[int], fractions: Sequence[float] = DEFAULT_FRACTIONS, seed: int = 0) -> Split:
    """Shuffle rows (or 0 .. rows - 1) with the seed and cut at the rounded cumulative fractions."""
    _check_fractions(fractions)
    shuffled = np.random.default_rng(seed).permutation(rows)
    cuts = np.rint(np.cumsum(fractions)[:2] * len(shuffled)).astype(int)
    return _sorted_split(dict(zip(PARTS, np.split(shuffled, cuts), strict=True)))


def column_split(frame: pd.DataFrame, column: str) -> Split:
    """Split by a column that holds train, valid (or val, validation, dev) or test in every row, any case.

    Raises InputError for an absent column and for any other value.
    """
    if column not in frame.columns:
        raise InputError(f"no split column {column!r}; the table has: {listed(frame)}")
    parts = [_PART_NAMES.get(str(value).strip().lower()) for value in frame[column]]
    if None in parts:
        row = parts.index(None)
        value = frame[column].iloc[row]
        raise InputError(f"split column {column!r}, row {row}: {value!r} is not train, valid or test; correct it")
    return {part: np.flatnonzero(np.asarray(parts) == part) for part in PARTS}


def index_split(path: str | Path, n_rows: int) -> Split:
    """Read {"train": [...], "valid": [...], "test": [...]} from JSON, plain or .gz; valid may be absent.

    Raises InputError for a file of another form, and for rows that are repeated or outside 0 .. n_rows - 1.
    """
    content = _read_json(Path(path))
    if not isinstance(content, dict) or not {"train", "test"} <= set(content) <= set(PARTS):
        found = listed(content) if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{path}: expected the keys train, valid and test, found {found}")
    split = {part: content.get(part, []) for part in PARTS}
    seen: set[int] = set()
    for part, rows in split.items():
        _check_rows(rows, part, n_rows, seen, path)
    return _sorted_split(split)


def split_hash(split: Split) -> str:
    """sha256 of the compact JSON text {"train":[...],"valid":[...],"test":[...]}, rows ascending, in hex."""
    lists = {part: np.sort(rows).tolist() for part, rows in split.items()}
    return hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()


def _scaffold_groups(smiles: Sequence[str], rows: Sequence[int]) -> list[list[int]]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    with rdBase.BlockLogs():
        for row in sorted(rows):
            molecule = Chem.MolFromSmiles(smiles[row]) if smiles[row] else None
            if molecule is not None:
                scaffold = MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True)
                groups[scaffold].append(row)
    return list(groups.values())


def _check_fractions(fractions: Sequence[float]) -> None:
    if len(fractions) != 3 or min(fractions) < 0 or not np.isclose(sum(fractions), 1):
        raise InputError(f"split fractions {list(fractions)} are not three numbers >= 0 that sum to 1")


def _check_rows(rows: object, part: str, n_rows: int, seen: set[int], path: str | Path) -> None:
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise InputError(f"{path}: {part} is not a list of row numbers")
    outside = [row for row in rows if not 0 <= row < n_rows]
    if outside:
        raise InputError(f"{path}: {part} row {outside[0]} is outside the table's rows 0 to {n_rows - 1}")
    for row in rows:
        if row in seen:
            raise InputError(f"{path}: row {row} of {part} occurs twice; a row may be in one part, once")
        seen.add(row)


def _read_json(path: Path) -> object:
    try:
        data = path.read_bytes()
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a JSON split: {error}") from error


def _sorted_split(split: dict[str, list[int]] | Split) -> Split:
    return {part: np.sort(np.asarray(rows, dtype=np.int64)) for part, rows in split.items()}
