"""Cells as texts: the table of `cell_texts.py`."""

import re
from ast import literal_eval

import pandas as pd
import pytest

from exlm.data import cell_texts
from exlm.data.frames import FileRows
from exlm.tasks.rows.table import unlabelled_table

ROWS = re.findall(
    r"^\| `(.*?)` *\| (.*?) *\| (.*?) *\| (.*?) *\|$", cell_texts.__doc__, re.MULTILINE
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_cell_becomes_the_text_that_the_table_says(row):
    cell, *texts = row
    functions = (cell_texts.text_to_read, cell_texts.class_name, cell_texts.text_to_write)
    for function, text in zip(functions, texts, strict=True):
        if text not in ("", "JSON"):
            assert function(literal_eval(cell)) == literal_eval(text.strip("`"))


def test_a_missing_time_is_no_text():
    frame = pd.DataFrame({"text": pd.to_datetime(["2020-01-01", None])})
    table = unlabelled_table(FileRows(frame), "t.parquet", "text")
    assert table.problems == ["", "empty text"]
