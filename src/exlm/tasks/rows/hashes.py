"""SHA-256, in hex, of a table, of some of its rows and of a split: equal where these are equal."""

import hashlib
import json

import numpy as np
import pandas as pd

from exlm.tasks.rows.splits import RowSplit
from exlm.tasks.rows.table import LabelledTable, TextTable


def content_hash(table: TextTable) -> str:
    """SHA-256 of a table's columns, cells and parts."""
    frame = table.frame.astype(str)
    if table.parts is not None:
        frame = frame.assign(**{"": table.parts})
    names = "\t".join(map(str, frame.columns)).encode()
    cells = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
    return hashlib.sha256(names + cells).hexdigest()


def rows_hash(table: LabelledTable, rows: np.ndarray) -> str:
    """SHA-256 of the texts and labels of some rows, in whatever order."""
    class_names = table.labels.class_names
    lines = []
    for row in rows:
        labels = table.labels.values[row].tolist()
        if class_names:
            # their indices depend on the classes of other rows
            labels = [class_names[int(label)] for label in labels if not np.isnan(label)]
        pair = table.pairs[row] if table.pairs else None
        lines.append(json.dumps([table.texts[row], pair, labels]))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def split_hash(split: RowSplit) -> str:
    """SHA-256 of the compact JSON text {"train":[...],"valid":[...],"test":[...]}, with ascending
    rows of the parts that the split has."""
    lists = {part: np.sort(rows).tolist() for part, rows in split.items()}
    return hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()
