"""One list of formats for all commands: every file gives the same texts to `prepare` and to the
commands on tables."""

import csv
import gzip
import io
import json
import lzma
import math
import re
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rdkit import Chem

from exlm.data import open_files, output_files
from exlm.data.chemistry import molecule_problem, standardize
from exlm.data.columns import choose_column, identifier_column
from exlm.data.formats import DataFile, data_files
from exlm.data.frames import read_file, read_frames
from exlm.data.inputs import find_files, texts_and_problems
from exlm.data.output_files import output_layout, output_path
from exlm.data.prepare import prepare
from exlm.data.writing import with_columns, write_frame
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.saved_task import TextSettings
from exlm.tasks.rows.task_files import read_parts
from exlm_command import main
from tests.conftest import read_frame
from tests.tables import make_table

SMILES = ["CCO", "c1ccccc1", "CC(=O)O"]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def rows(name, header=True, text_column=None):
    """What `prepare` reads."""
    [file], _ = find_files([name], header)
    return [text for text, _ in texts_and_problems(file, text_column)]


def texts(name, header=True, text_column=None):
    """What the commands on tables read."""
    return make_table(read_file(name, header), name, text_column, []).texts


def excel(path):
    pd.DataFrame({"id": [7, 8, 9], "SMILES": SMILES}).to_excel(path, index=False)


def sdf(path):
    records = []
    for i, smiles in enumerate(SMILES):
        block = Chem.MolToMolBlock(Chem.MolFromSmiles(smiles)).split("\n", 1)[1]
        records.append(f"mol {i}\n{block}>  <logP>  (1)\n{i}.5\n\n> <note>\ntwo\nlines\n\n$$$$\n")
    path.write_text("".join(records))


FILES = {
    "a.smi": "".join(f"{s}\tname {i}\n" for i, s in enumerate(SMILES)),
    "a.csv": "id,smiles\n" + "".join(f"{i},{s}\n" for i, s in enumerate(SMILES)),
    "semicolons.csv": "id;Canonical_SMILES\n" + "".join(f"{i};{s}\n" for i, s in enumerate(SMILES)),
    "tabs.csv": "id\tDrug\n" + "".join(f"{i}\t{s}\n" for i, s in enumerate(SMILES)),
    "one.csv": "entry\n" + "\n".join(SMILES),
    "a.tsv": "id\tstructure\n" + "".join(f"{i}\t{s}\n" for i, s in enumerate(SMILES)),
    "a.txt": "\n".join(SMILES) + "\n",
    "a.jsonl": "".join(f'{{"n": {i}, "Molecule": "{s}"}}\n' for i, s in enumerate(SMILES)),
    "a.fasta": "".join(
        f";note\n>name {i}\n{s[:1]}\n;note\n{s[1:]}\n" for i, s in enumerate(SMILES)
    ),
    "a.xlsx": excel,
    "a.sdf": sdf,
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_texts_to_every_command(tmp_path, name):
    path, content = tmp_path / name, FILES[name]
    content(path) if callable(content) else write(path, content)
    assert rows(str(path)) == texts(str(path)) == SMILES
    if name != "a.xlsx":
        packed = tmp_path / f"{name}.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert rows(str(packed)) == texts(str(packed)) == SMILES


def test_names_and_properties_become_columns(tmp_path):
    smi = read_frame(write(tmp_path / "a.smi", "CCO ethyl alcohol\nC\n"))
    assert smi.to_dict("list") == {"smiles": ["CCO", "C"], "name": ["ethyl alcohol", ""]}
    sdf(tmp_path / "a.sdf")
    frame = read_frame(tmp_path / "a.sdf")
    assert frame["name"].tolist() == ["mol 0", "mol 1", "mol 2"]
    assert frame["logP"].tolist() == ["0.5", "1.5", "2.5"]
    assert frame["note"].tolist() == ["two\nlines"] * 3


@pytest.mark.parametrize("title", ["smiles", "Smiles", "SMILES", "Text", "mol"])
def test_the_structure_of_an_sdf_is_its_text_and_properties_keep_their_values(tmp_path, title):
    sdf(tmp_path / "a.sdf")
    content = (tmp_path / "a.sdf").read_text().replace("<note>\ntwo", f"<{title}>\nC")
    path = write(tmp_path / "b.sdf", content.replace("C\nlines", "C"))
    assert rows(path) == texts(path) == SMILES
    property_column = f"property {title}"
    assert rows(path, text_column=property_column) == texts(path, text_column=property_column)
    assert texts(path, text_column=property_column) == ["C"] * 3


def test_a_structure_that_cannot_be_read_keeps_its_row_and_has_a_reason(tmp_path):
    sdf(tmp_path / "a.sdf")
    first, rest = (tmp_path / "a.sdf").read_text().split("$$$$\n", 1)
    path = write(tmp_path / "b.sdf", f"{first}$$$$\nbroken\nno block\n> <logP>\n7\n\n$$$$\n{rest}")
    table = make_table(read_file(path), path, None, [])
    assert table.texts == [SMILES[0], "", *SMILES[1:]]
    assert table.problems == ["", "RDKit cannot read this structure", "", ""]
    assert table.frame["name"].tolist()[1] == "broken" and table.frame["logP"].tolist()[1] == "7"
    manifest = prepare([path], str(tmp_path / "out"), workers=1, held_out=0)
    assert manifest["counts"]["invalid"] == {"unreadable": 1}
    assert manifest["counts"]["train_examples"] == 3
    with pytest.raises(InputError, match="row 2: '' is invalid .unreadable: RDKit cannot read"):
        prepare([path], str(tmp_path / "out"), workers=1, on_invalid="error", overwrite=True)


@pytest.mark.parametrize(
    "content",
    [
        "CCO\nCC\n",
        "Smiles\tid\nCCO\t1\nCC\t2\n",
    ],
)
def test_standard_input_has_lines_or_a_table(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    open_files._standard_input.cache_clear()
    assert rows("-") == rows("-") == texts("-") == ["CCO", "CC"]
    open_files._standard_input.cache_clear()


@pytest.fixture
def give(monkeypatch):
    """A function that gives bytes as standard input."""

    def give_bytes(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        open_files._standard_input.cache_clear()

    yield give_bytes
    open_files._standard_input.cache_clear()


@pytest.mark.parametrize(
    "ending",
    [".smi", ".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ".sdf", ".txt", ".csv.gz", ".jsonl.xz"],
)
def test_standard_input_has_the_format_of_its_ending(tmp_path, give, ending):
    path = tmp_path / f"a{ending}"
    if ending == ".sdf":
        sdf(path)
    elif ending in (".txt", ".smi"):
        path.write_text("\n".join(SMILES))
    else:
        open_packed = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix)
        plain = tmp_path / f"b{ending.removesuffix(path.suffix) if open_packed else ending}"
        write_frame(pd.DataFrame({"smiles": SMILES, "note": ["a, b", "c\td", "e"]}), plain)
        if open_packed:
            with open_packed(path, "wb") as packed:
                packed.write(plain.read_bytes())
        else:
            plain.rename(path)
    give(path.read_bytes())
    name = f"-{ending}"
    assert rows(name) == texts(name) == SMILES
    pd.testing.assert_frame_equal(read_frame(name), read_frame(path))


@pytest.mark.parametrize(
    ("content", "way_out"),
    [
        (b'{"text": "a"}\n', "write -.jsonl in place of -"),
        (b">one\nMKV\n", "write -.fasta in place of -"),
        (b"PAR1\x15\x04\x15\x10", "write -.parquet in place of -"),
        (b"PK\x03\x04\x14\x00", "write -.xlsx in place of -"),
        (gzip.compress(b"CCO\n", mtime=0), "write -.csv.gz, or the like, in place of -"),
        (lzma.compress(b"CCO\n"), "write -.csv.xz, or the like, in place of -"),
        (b"Review,y\ngood,1\n", "write -.csv in place of - for a table, or -.txt for texts"),
        (b'id;"SMILES"\n1;CCO\n', "write -.csv in place of - for a table, or -.txt for texts"),
        (b"question,context\na,b\n", "write -.csv in place of - for a table, or -.txt for texts"),
        (b"smiles\nCCO\n", "write -.csv in place of - for a table, or -.txt for texts"),
        (b"na\xefve\n", "convert it, if it is from Windows with iconv -f cp1252 -t utf-8"),
    ],
)
def test_what_is_no_lines_on_standard_input_is_refused_with_a_way_out(give, content, way_out):
    give(content)
    for read in (rows, texts):
        with pytest.raises(InputError, match=f"{re.escape(way_out)}$"):
            read("-")


def test_lines_on_standard_input_stay_lines(give):
    for content in ("A text, with a comma.\nIts review; short\n", "CCO |x|\nC,N\n"):
        give(content.encode())
        assert rows("-") == texts("-") == content.splitlines()
    give(b"text,y\na,1\n")
    assert rows("-.txt") == texts("-.txt") == ["text,y", "a,1"]


def test_a_table_on_standard_input_is_known_by_the_column_that_one_names(give):
    give(b"what was said,y\ngood,1\n")
    for read in (
        lambda: texts("-", text_column="what was said"),
        lambda: TextSettings(text_column="What was said").text_column_in(["text"], "-"),
        lambda: rows("-", text_column="what was said"),
        lambda: rows("-", header=False),
    ):
        with pytest.raises(InputError, match="write -.csv in place of -|for a table, write -.csv"):
            read()
    assert rows("-.csv", text_column="what was said") == ["good"]


def test_a_file_that_is_no_text_is_no_matter_of_its_encoding(tmp_path):
    path = tmp_path / "a.csv"
    pd.DataFrame({"smiles": SMILES}).to_parquet(path)
    for read in (rows, texts):
        with pytest.raises(InputError, match="begins as a .parquet file does; give it a name that"):
            read(str(path))


@pytest.mark.parametrize(
    ("content", "is_table"),
    [
        ("ticket\tutterance\n1\tBye\n2\n", True),
        ("A line, with a comma.\nAnother, too.\n", False),
        ("Review; a collection\nGood film; I liked it\nA; b; c\n", False),
        ("smiles\nCCO\n", False),
        ("CCCCO butanol\nCC ethane\n", False),
    ],
)
def test_every_command_takes_a_text_file_for_the_same(tmp_path, content, is_table):
    path = write(tmp_path / "a.txt", content)
    [file], _ = find_files([path])
    assert file.format == ("tsv" if is_table else "lines")
    assert (list(read_frame(path)) != ["text"]) is is_table
    if not is_table:
        assert texts(path) == rows(path) == content.splitlines()
    else:
        assert texts(path, text_column="utterance") == rows(path, text_column="utterance")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (">sp|P1 one\nMKV\n", "begins with >, as a .fasta file does; give it a name that ends in"),
        ('{ "text": "a"}\n', 'begins with { ", as a .jsonl file does; give it a name that ends in'),
    ],
)
def test_a_text_file_that_begins_as_another_format_is_refused(tmp_path, content, message):
    path = write(tmp_path / "a.txt", content)
    for read in (rows, texts):
        with pytest.raises(InputError, match=re.escape(message)):
            read(path)


def test_half_a_character_is_the_fault_of_its_row_alone(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a \\ud83d"}\n{"text": "b \\ud83d\\ude00"}\n')
    table = make_table(read_file(path), path, None, [])
    assert table.problems == ["it has half a character (a surrogate)", ""]
    assert table.texts[1] == "b \N{GRINNING FACE}"
    write_frame(table.frame, tmp_path / "b.csv")


def test_lines_have_no_line_ends(tmp_path):
    lines = write(tmp_path / "a.txt", "CCO\r\nCC\n")
    assert read_frame(lines)["text"].tolist() == ["CCO", "CC"]


def test_standard_input_is_an_input_on_the_command_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(SMILES).encode())))
    open_files._standard_input.cache_clear()
    main(["prepare", "-", "--output", str(tmp_path / "out"), "--workers", "1", "--held_out", "0"])
    open_files._standard_input.cache_clear()
    assert json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["train_examples"] == 3


def test_a_table_without_a_header_line(tmp_path):
    path = write(tmp_path / "a.csv", "".join(f"{s},{i}.5\n" for i, s in enumerate(SMILES)))
    for read in (rows, texts):
        with pytest.raises(InputError, match="seems to have no header line"):
            read(path)
        assert read(path, False, "column 1") == SMILES
    alone = write(tmp_path / "b.csv", "".join(f"{s}\n" for s in SMILES))
    assert rows(alone, False) == texts(alone, False) == SMILES


@pytest.mark.parametrize(
    ("columns", "text_column"),
    [
        (["id", "smiles", "structure"], "smiles"),  # the name that is always meant comes first
        (["Name", "CANONICAL SMILES"], "CANONICAL SMILES"),
        (["label", "Sentence"], "Sentence"),
        (["review", "stars"], "review"),
        (["comment", "sequence"], "sequence"),
        (["comment", "toxic"], "comment"),
        (["Compound", "Structure (SMILES)"], "Structure (SMILES)"),
        (["whatever"], "whatever"),
        (["SMILES", "smiles"], "smiles"),  # the exact name wins
        (["SMILES", "Smiles"], None),
        (["smiles", "text"], None),
        (["drug", "sequence"], None),
        (["well", "drug", "comment", "sequence", "y"], None),
        (["a", "b"], None),
    ],
)
def test_the_column_of_the_texts(columns, text_column):
    frame = pd.DataFrame("CCO", [0, 1], columns)
    if text_column:
        assert choose_column(frame, None, "a.csv") == text_column
    else:
        candidates = ["drug", "sequence"] if "drug" in columns else columns
        with pytest.raises(InputError) as caught:
            choose_column(frame, None, "a.csv")
        assert str(caught.value) == (
            "a.csv: cannot tell the text column; set text_column to one of: "
            f"{', '.join(candidates)} (and pair_column, if there are two texts)"
        )


def test_no_new_column_takes_the_place_of_another():
    frame = with_columns(pd.DataFrame({"split": [1]}), {"exlm split": 5, "split": 6})
    assert frame.to_dict("records") == [{"split": 1, "exlm split": 5, "exlm exlm split": 6}]


def test_words_of_sentences_are_texts_for_all_commands(tmp_path):
    path = write(tmp_path / "a.conll", "Ada B-PER\nlives O\n\nShe O\ncodes O\n")
    assert rows(path) == texts(path) == ["Ada lives", "She codes"]
    (tmp_path / "a.jsonl").write_text('{"tokens": ["Ada", "lives"]}\n{"tokens": ["Ada", 3]}\n')
    with pytest.raises(InputError, match="row 2: .*3. is not text"):
        rows(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("blank", ["", ",", " ,", '"",'])
def test_blank_lines_count_as_rows_except_at_the_end(tmp_path, blank):
    path = write(tmp_path / "a.csv", f"smiles,y\nCCO,1\n{blank}\nCC,2\n{blank}\n{blank}\n")
    table = make_table(read_file(path), path, None, [])
    assert table.texts == ["CCO", "", "CC"] and table.problems == ["", "empty text", ""]
    assert rows(path) == ["CCO", "", "CC"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_row_with_too_many_cells_is_reported_and_one_with_too_few_is_filled_up(
    tmp_path, capsys, separator
):
    lines = ["smiles,y", "CCO", "CC,1,2", "C,3", "N", "O,4"]
    path = write(tmp_path / "a.csv", "\n".join(lines).replace(",", separator))
    assert rows(path) == ["CCO", "", "C", "N", "O"]
    table = make_table(read_file(path), path, None, [])
    assert table.problems == ["", "3 fields instead of 2", "", "", ""]
    assert table.frame["y"].tolist() == ["", "1", "3", "", "4"]
    note = "a.csv that have fewer than 2 cells: 2; those that are missing at their ends are read as"
    assert capsys.readouterr().err.count(note) == 1  # though the file was read twice


def test_damaged_and_unknown_files(tmp_path):
    for name, content, message in (
        ("a.xlsx", "no workbook", "a.xlsx cannot be read.*save it again"),
        ("a.fasta", "ACGT\n", "a.fasta, line 1: a FASTA file begins with >"),
        ("a.doc", "x", "a.doc: unknown file type; use a .smi, .txt, .csv"),
    ):
        with pytest.raises(InputError, match=message):
            read_frame(write(tmp_path / name, content))


def test_excel_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    excel(tmp_path / "a.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match="needs openpyxl; install it with: pip install '..excel.'"):
        rows(str(tmp_path / "a.xlsx"))


def test_the_input_is_not_overwritten_and_standard_input_needs_an_output(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", "smiles\nC\n")
    with pytest.raises(InputError, match="a.csv is the input itself"):
        output_path("runs/a", path, str(tmp_path / "." / "a.csv"), "predictions.csv", (".csv",))
    with pytest.raises(InputError, match="--output"):
        output_path("runs/a", "-", None, "predictions.csv", (".csv",))
    monkeypatch.setattr("os.access", lambda *_: False)  # a read-only place
    with pytest.raises(InputError, match="nothing can be written to"):
        output_path("runs/a", "a.csv", str(tmp_path / "b.csv"), "", (".csv",))


def test_two_models_do_not_write_to_the_same_file_by_default(tmp_path):
    names = {
        output_path(model, "data/new.csv", None, "predictions.csv", (".csv",)).name
        for model in ("runs/a", "b")
    }
    assert names == {"new-a-predictions.csv", "new-b-predictions.csv"}


@pytest.mark.parametrize(
    ("input", "name"),
    [
        ("new.csv", "new-a-predictions.csv"),
        ("new.csv.gz", "new.csv.gz-a-predictions.csv"),
        ("new.train.csv", "new.train-a-predictions.csv"),
        ("new.smi", "new.smi-a-predictions.csv"),
    ],
)
def test_two_inputs_do_not_write_to_the_same_file_by_default(input, name):
    assert output_path("runs/a", input, None, "predictions.csv", (".csv",)).name == name


def test_molecules_in_one_spelling_become_one_row(tmp_path):
    aspirin = ["CC(=O)Oc1ccccc1C(=O)O", "OC(=O)c1ccccc1OC(C)=O", "O=C(C)Oc1ccccc1C(=O)[O-].[Na+]"]
    path = write(tmp_path / "a.smi", "\n".join([*aspirin, "CCO"]))
    options = {"workers": 1, "held_out": 0, "drop_duplicates": True}
    for how, examples in (("none", 4), ("canonical", 3), ("parent", 2)):
        manifest = prepare([path], str(tmp_path / how), standardize=how, **options)
        assert manifest["counts"]["train_examples"] == examples
        assert manifest["options"]["standardize"] == how
    with pytest.raises(InputError, match="standardize=parent rewrites molecules"):
        prepare([path], str(tmp_path / "x"), workers=1, molecules=False, standardize="parent")


def test_a_label_of_zero_is_no_blank_row_of_a_workbook(tmp_path):
    table = pd.DataFrame({"smiles": ["CC", None, "CO", None], "y": [1, 0, 1, 0]})
    table.to_excel(tmp_path / "a.xlsx", index=False)
    table.to_csv(tmp_path / "a.csv", index=False)
    excel_frame, csv_frame = read_frame(tmp_path / "a.xlsx"), read_frame(tmp_path / "a.csv")
    assert excel_frame["y"].tolist() == [1, 0, 1, 0]
    assert excel_frame.astype(str).equals(csv_frame)
    assert rows(str(tmp_path / "a.xlsx")) == rows(str(tmp_path / "a.csv")) == ["CC", "", "CO", ""]


def test_a_column_may_have_an_empty_name(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"": "CCO"}\n{"": "CC"}\n')
    table = make_table(read_file(path), path, None, [])
    assert table.texts == ["CCO", "CC"] and table.text_column == ""


def test_a_separator_is_found_though_only_the_first_long_lines_are_read(tmp_path):
    lines = [f"protein {i};{'MKVL' * 1000};{i}" for i in range(30)]
    path = write(tmp_path / "a.csv", "\n".join(["name;sequence;label", *lines]))
    assert read_frame(path).columns.tolist() == ["name", "sequence", "label"]


@pytest.mark.parametrize(
    "text",
    [
        "smiles;log P, exp\nCCO;1,5\nCCN;\nCC;3\n",  # a comma in a name, and in numbers
        "smiles;log P, exp\nCCO;1.5\nCCN;\nCC;3\n",
        'sep=;\nsmiles;"log P, exp"\nCCO;1.5\nCCN\nCC;3\n',  # as Excel writes it, and a short row
        "smiles\tlog P, exp\nCCO\t1.5\nCCN\t\nCC\t3\n",
    ],
)
def test_other_separators_than_commas(tmp_path, text):
    frame = read_frame(write(tmp_path / "a.csv", text))
    assert list(frame) == ["smiles", "log P, exp"] and frame["smiles"].tolist() == [
        "CCO",
        "CCN",
        "CC",
    ]
    assert read_frame(write(tmp_path / "b.csv", "smiles;y\nCCO;1\nCC\nCN;2\n")).shape == (3, 2)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_files_that_begin_with_a_mark_of_their_encoding_are_read(tmp_path, encoding):
    content = "smiles,IC50 [µM]\nCCO,1.5\n"
    (tmp_path / "a.csv").write_bytes(content.encode(encoding))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(content.encode(encoding)))
    for name in ("a.csv", "b.csv.gz"):
        frame = read_frame(tmp_path / name)
        assert list(frame) == ["smiles", "IC50 [µM]"] and frame.iloc[0].tolist() == ["CCO", "1.5"]
    (tmp_path / "a.csv").write_bytes(content.encode("cp1252"))
    encodings = "the encoding it was saved in .*cp1254 Turkish, cp1256 Arabic, cp874 Thai, gb18030"
    message = f"byte 0xb5 after 'smiles,IC50 .'; .*{encodings}.*iconv -f cp1252"
    with pytest.raises(InputError, match=message):
        read_frame(tmp_path / "a.csv")


def test_a_sheet_is_that_of_the_workbooks_among_several_files(tmp_path):
    with pd.ExcelWriter(tmp_path / "a.xlsx") as book:
        pd.DataFrame({"made by": ["Ada"]}).to_excel(book, sheet_name="Notes", index=False)
        pd.DataFrame({"smiles": ["CCO"], "y": [1]}).to_excel(book, sheet_name="IC50", index=False)
    valid = write(tmp_path / "b.csv", "smiles,y\nC,2\n")
    config = TaskConfig(str(tmp_path / "a.xlsx"), valid=str(valid), sheet="IC50")
    rows = read_parts(config)
    assert [rows[part].frame["smiles"].tolist() for part in rows] == [["CCO"], ["C"]]
    with pytest.raises(InputError, match="b.csv has no sheets"):
        read_parts(TaskConfig(str(valid), sheet="IC50"))


def test_a_sheet_is_named_and_can_be_chosen(tmp_path, capsys):
    path = tmp_path / "a.xlsx"
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"made by": ["Ada"]}).to_excel(book, sheet_name="Notes", index=False)
        pd.DataFrame({"smiles": ["CCO"], "y": [1]}).to_excel(book, sheet_name="IC50", index=False)
    assert list(read_frame(path)) == ["made by"]
    assert (
        "the sheet 'Notes' is read; --sheet reads one of the others: IC50"
        in capsys.readouterr().err
    )
    assert read_frame(path, sheet="IC50")["smiles"].tolist() == ["CCO"]
    with pytest.raises(InputError, match="no sheet 'X'; it has: Notes, IC50"):
        read_frame(path, sheet="X")
    with pytest.raises(InputError, match="a.csv has no sheets; leave out sheet"):
        read_frame(write(tmp_path / "a.csv", "smiles\nC\n"), sheet="IC50")


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_quoted_cells_between_tabs_are_read_as_other_programs_wrote_them(tmp_path, quoting):
    texts = ['"Well," he said', "two\nlines", "a\ttab", "plain", 'a 5" screen']
    table = pd.DataFrame({"text": texts, "y": range(5)})
    for name in ("a.tsv", "a.csv", "a.txt"):
        table.to_csv(tmp_path / name, sep="\t", index=False, quoting=quoting)
        assert read_frame(tmp_path / name)["text"].tolist() == texts


@pytest.mark.parametrize(
    "text", ['"Well," he said', '"Well," he said, ""no""', 'a ""b"" c', '"" or ""', '"']
)
def test_quotes_that_enclose_no_cells_are_part_of_the_text(tmp_path, text):
    frame = read_frame(write(tmp_path / "a.tsv", f"y\ttext\n0\t{text}\n1\tb\n"))
    assert frame["text"].tolist() == [text, "b"]


def test_times_and_records_are_readable_in_text_files(tmp_path):
    frame = pd.DataFrame(
        {
            "at": pd.to_datetime(["2024-01-01T00:00:00.123456789"]),
            "record": [{"a": 0, "b": np.array([1, None], dtype=object)}],
        }
    )
    write_frame(frame, tmp_path / "a.jsonl")
    [line] = read_frame(tmp_path / "a.jsonl").to_dict("records")
    assert line["at"].startswith("2024-01-01T00:00:00.123456789")
    write_frame(frame, tmp_path / "a.csv")
    assert json.loads(read_frame(tmp_path / "a.csv")["record"][0]) == {"a": 0, "b": [1, None]}


def test_the_file_behind_a_symbolic_link_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real" / "a.csv")
    write_frame(pd.DataFrame({"y": [1]}), link)
    assert link.is_symlink() and (tmp_path / "real" / "a.csv").read_text() == "y\n1\n"


def test_cells_that_a_format_cannot_hold_are_named(tmp_path):
    times = pd.DataFrame({"at": pd.to_datetime(["2026-11-26T06:00"]).tz_localize("UTC")})
    with pytest.raises(InputError, match="a.xlsx cannot hold a column .*; write a .parquet file"):
        write_frame(times, tmp_path / "a.xlsx")
    assert not (tmp_path / "a.xlsx").exists()


@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_the_column_that_a_file_cannot_hold_is_named(tmp_path, ending):
    frame = pd.DataFrame({"a": [1], "bytes": [b"\xff"], "b": ["x"]})
    with pytest.raises(InputError, match="cannot hold a column of the table, 'bytes': 'utf-8'"):
        write_frame(frame, tmp_path / f"a{ending}")
    with pytest.raises(InputError, match="cannot hold a column of the table, 'y': Out of range"):
        write_frame(pd.DataFrame({"a": [1.0], "y": [np.inf]}), tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "cells,ending,way_out",
    [
        ([{"a": {}}], ".parquet", "write a .jsonl file, or leave the column out"),
        ([[math.inf]], ".csv", "write a .parquet file, or leave the column out"),
        ([[math.inf], "a"], ".csv", "leave the column out"),
        ([[math.inf], "a"], ".parquet", "leave the column out"),
    ],
)
def test_only_a_format_that_can_hold_a_column_is_advised(tmp_path, cells, ending, way_out):
    frame = pd.DataFrame({"cells": pd.Series(cells, dtype=object)})
    with pytest.raises(InputError, match=f"'cells': [^;]*; {way_out}$"):
        write_frame(frame, tmp_path / f"a{ending}")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet", ".xlsx"])
@pytest.mark.parametrize("name", ["a\tb", "a\nb", "a\rb", 'a"b', '"a" b', "a,b", "a;b"])
def test_any_name_of_a_column_is_read_as_it_was_written(tmp_path, name, ending):
    frame = pd.DataFrame({"text": ["CCO", "CC"], name: [0.5, 1.0], "note": ["x", "y"]})
    path = tmp_path / f"a{ending}"
    write_frame(frame, path)
    if ending == ".xlsx":
        name = name.replace("\r", "\n")  # as XML has it
    assert list(read_frame(path)) == ["text", name, "note"]
    assert read_frame(path)["text"].tolist() == ["CCO", "CC"]


def test_a_name_that_a_workbook_cannot_hold_is_named(tmp_path):
    for name in ("a\x01b", "a" * 40_000):
        frame = pd.DataFrame({"text": ["CCO"], name: [0.5]})
        with pytest.raises(InputError, match="a.xlsx cannot hold .*, 'a.*': its name or texts"):
            write_frame(frame, tmp_path / "a.xlsx")
        assert not (tmp_path / "a.xlsx").exists()


def test_empty_rows_at_the_end_of_a_workbook_are_left_out_though_a_cell_has_a_space(tmp_path):
    frame = pd.DataFrame({"smiles": ["CC", "", "CO", "", "", " "], "y": [1, "", 0, "", " ", ""]})
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    assert read_frame(tmp_path / "a.xlsx")["smiles"].tolist() == ["CC", "", "CO"]


def test_zeros_that_a_format_puts_in_front_of_numbers_are_said(tmp_path, capsys):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["id", "smiles"], [1234567, "C"], [579, "CC"]):
        book.active.append(row)
    for row in (2, 3):
        book.active.cell(row, 1).number_format = "0000000"
    book.save(tmp_path / "a.xlsx")
    assert read_frame(tmp_path / "a.xlsx")["id"].tolist() == [1234567, 579]
    assert "zeros in front of numbers, as in A3, by the format 0000000" in capsys.readouterr().err
    book.active["A3"].number_format = "General"
    book.save(tmp_path / "b.xlsx")
    read_frame(tmp_path / "b.xlsx")
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "columns,identifier",
    [
        (["mol name", "smiles", "ID"], "ID"),
        (["Compound ID", "id"], "id"),
        (["id", "Name"], "Name"),
        (["cid", "Compound Name"], "Compound Name"),
        (["smiles", "cid"], "cid"),
        (["smiles"], None),
    ],
)
def test_a_column_that_is_called_name_or_id_names_the_rows(columns, identifier):
    assert identifier_column(columns) == identifier


def test_a_title_above_the_names_of_columns_is_named(tmp_path):
    rows_of_sheet = [["Lab X report", "", ""], ["id", "smiles", "y"], ["1", "CC", "2"]]
    pd.DataFrame(rows_of_sheet).to_excel(tmp_path / "a.xlsx", index=False, header=False)
    with pytest.raises(InputError, match="Lab X report, Unnamed: 1.* if it is a title, delete"):
        rows(str(tmp_path / "a.xlsx"))
    with pytest.raises(InputError, match="no column 'smiles'; it has: .* if it is a title, delete"):
        choose_column(read_frame(tmp_path / "a.xlsx"), "smiles", "a.xlsx")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_read(tmp_path, encoding):
    (tmp_path / "a.csv").write_bytes("smiles;név\nCC;ő\n".encode(encoding))
    assert read_frame(tmp_path / "a.csv").to_dict("list") == {"smiles": ["CC"], "név": ["ő"]}


def test_pipes_between_cells(tmp_path):
    frame = read_frame(write(tmp_path / "a.csv", "answer|topic\ngood, but|price\nbad|other\n"))
    assert frame["topic"].tolist() == ["price", "other"]


def test_long_whole_numbers_keep_their_digits(tmp_path):
    """Also where some are missing, which would make floats of them."""
    barcode = 2026112600000000001
    ids = pa.table({"text": ["a", "b"], "id": pa.array([barcode, None], pa.int64())})
    pq.write_table(ids, tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", f'{{"text": "a", "id": {barcode}}}\n{{"text": "b", "id": null}}\n')
    for name in ("a.parquet", "a.jsonl"):
        frame = read_frame(tmp_path / name)
        for target in ("out.csv", "out.jsonl", "out.parquet", "out.xlsx"):
            write_frame(frame, tmp_path / target)
            first, second = read_frame(tmp_path / target)["id"]
            assert str(first) == str(barcode) and (second == "" or pd.isna(second))


def test_only_columns_of_several_types_become_strings_in_parquet(tmp_path):
    frame = pd.DataFrame({"row": [0, 1, 2], "dates": [5, "K", None], "y": [0.5, None, 2.0]})
    write_frame(frame, tmp_path / "a.parquet")
    written = pd.read_parquet(tmp_path / "a.parquet")
    assert written["row"].tolist() == [0, 1, 2]
    assert written["dates"].tolist()[:2] == ["5", "K"] and pd.isna(written["dates"][2])
    assert written["y"].isna().tolist() == [False, True, False]


def test_texts_stay_texts_where_a_format_has_types_and_other_endings_are_refused(tmp_path):
    source = tmp_path / "a.csv"
    source.write_text("x,id\n1.50,007\n-2,8\n")
    frame = read_frame(source)
    for ending in (".parquet", ".jsonl", ".xlsx", ".csv"):
        write_frame(frame, tmp_path / f"b{ending}")
        assert read_frame(tmp_path / f"b{ending}")["x"].tolist() == ["1.50", "-2"]
    amounts = pd.DataFrame({"paid": [Decimal("12345678901234567.89")], "hash": [b"\xff"]})
    write_frame(amounts, tmp_path / "c.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "c.parquet"), amounts)
    with pytest.raises(InputError, match="b.txt; the name must end in .csv or .tsv or .jsonl or"):
        write_frame(frame, tmp_path / "b.txt")


def test_sentences_of_conll_files(tmp_path):
    content = (
        "-DOCSTART- -X- O\n\n# id 1 en\nEU NNP B-ORG\nrejects VBZ O\n\n\n# NN O\nfoo NN\n\n"
        "# NN O\nhit VB O\n"
    )
    frame = read_frame(write(tmp_path / "a.conll", content))
    assert frame["tokens"].tolist() == [["EU", "rejects"], ["foo"], ["#", "hit"]]
    assert frame["tags"][0] == ["B-ORG", "O"] and frame["column 2"][2] == ["NN", "VB"]
    frame, problems, _ = read_file(
        write(tmp_path / "b.conll", "New York\tO\nis\tO\n\na\tO\tx\nb\tO\n")
    )
    assert frame["tokens"][0] == ["New York", "is"]
    assert problems == {1: "lines of several widths"}
    # comments with as many fields as the words have
    content = "# sent_id = 0\nEU NNP B-NP B-ORG\n# NN O O\n\n# newpar\n"
    frame = read_frame(write(tmp_path / "c.conll", content))
    assert frame["tokens"].tolist() == [["EU", "#"]]
    frame = read_frame(write(tmp_path / "d.conll", "# newpar\nEU\tB-ORG\n"))
    assert frame["tokens"].tolist() == [["EU"]]


def test_words_and_parts_of_speech_of_conllu_files(tmp_path):
    lines = [
        "# text = Das ist zum Essen da , sagte er laut .",  # ten fields, and no tabs
        "1\tDas\tder\tPRON\tPDS\t_\t0\troot\t_\t_",
        "2-3\tzum\t_\t_\t_\t_\t_\t_\t_\t_",
        "2\tzu\tzu\tADP\tAPPR\t_\t1\tcase\t_\t_",
        "2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_",
        "3\tdem\tder\tDET\tART\t_\t1\tdet\t_\t_",
    ]
    frame = read_frame(write(tmp_path / "a.conllu", "\n".join(lines)))
    assert frame["tokens"].tolist() == [["Das", "zu", "dem"]]
    assert frame["tags"].tolist() == [["PRON", "ADP", "DET"]]


@pytest.mark.parametrize("width", [3, 9, 11, 12])
def test_words_of_conllu_files_are_the_second_column(tmp_path, width):
    """However many columns there are; `tags` is the fourth if these are those of CoNLL-U."""
    lines = ["# global.columns = ID FORM LEMMA"]
    for number, word in (("1-2", "zum"), ("1", "zu"), ("2", "dem")):
        fields = [number, word, *[f"{number}.{i}" for i in range(3, width + 1)]]
        lines.append("\t".join(fields))
    frame = read_frame(write(tmp_path / "a.conllu", "\n".join(lines)))
    assert frame["tokens"].tolist() == [["zu", "dem"]] and frame["id"].tolist() == [["1", "2"]]
    label = 4 if width > 10 else width
    assert frame["tags"].tolist() == [[f"1.{label}", f"2.{label}"]]
    assert len(frame.columns) == width
    if width > 10:
        assert frame[f"column {width}"].tolist() == [[f"1.{width}", f"2.{width}"]]
    frame = read_frame(write(tmp_path / "b.conllu", "1st X\n2 Y\n"))  # no numbers of words
    assert frame["tokens"].tolist() == [["1st", "2"]]


def test_comments_that_look_like_labelled_words_are_left_out_and_told(tmp_path, capsys):
    """Nine of ten sentences begin with them. # may be a word in some, with a label of others."""
    words = "go V\n# SYM\n. SYM"
    sentences = [f"# {i}\n# doc-{i}\n{words}" for i in range(19)]
    path = write(tmp_path / "a.conll", "\n\n".join([*sentences, words]))
    frame = read_frame(path)
    assert frame["tokens"].tolist() == [["go", "#", "."]] * 20
    told = capsys.readouterr().err
    assert "38 lines such as '# 0', with which sentences begin, are left out as comments" in told
    one_comment = [f"# {i}\n# SYM\n{words}" for i in range(2)]
    others = [f"# {i}\n{words}" for i in range(2, 30)]
    frame = read_frame(write(tmp_path / "b.conll", "\n\n".join(one_comment + others)))
    assert frame["tokens"].tolist() == [["#", "go", "#", "."]] * 2 + [["go", "#", "."]] * 28
    capsys.readouterr()
    frame = read_frame(write(tmp_path / "c.conll", f"# SYM\n{words}\n\n# SYM\n{words}"))
    assert frame["tokens"].tolist() == [["#", "go", "#", "."]] * 2
    few = "\n\n".join([f"# {number}\n{words}" for number in range(8)] + [words] * 2)
    frame = read_frame(write(tmp_path / "d.conll", few))
    assert frame["tokens"].tolist() == [["#", "go", "#", "."]] * 8 + [["go", "#", "."]] * 2
    frame = read_frame(write(tmp_path / "e.conll", "# O\nAda B-PER\n\n# O\nBo B-PER\n"))
    assert frame["tokens"].tolist() == [["#", "Ada"], ["#", "Bo"]]
    assert not capsys.readouterr().err


def test_a_hashtag_may_begin_as_a_comment_of_conllu_does(tmp_path):
    content = "#newdocumentary B-LOC\nRome O\n\n#newpar-x O\nRome B-LOC\n\n#newpar\nRome O\n"
    frame = read_frame(write(tmp_path / "a.conll", content))
    assert frame["tokens"].tolist() == [
        ["#newdocumentary", "Rome"],
        ["#newpar-x", "Rome"],
        ["Rome"],
    ]


def test_text_that_begins_with_an_equals_sign_is_no_formula(tmp_path):
    frame = pd.DataFrame({"id": ["=1+1", "0007"], "smiles": ["CCO", "CCC"]})
    write_frame(frame, tmp_path / "table.xlsx")
    assert read_frame(tmp_path / "table.xlsx").to_dict("list") == frame.to_dict("list")


@pytest.mark.parametrize("smiles", ["CCO\u200b", "\u0421CO", "CCO\xad", "C\u200bCO"])
def test_a_character_that_rdkit_would_leave_out_is_named(smiles):
    assert molecule_problem(smiles) in [
        f"not a SMILES string: it has {character!r}" for character in smiles
    ]
    assert standardize(smiles, "canonical") == smiles


def test_a_workbook_whose_formulas_were_never_computed_is_refused(tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["SMILES", "pIC50"], ["CCO", "=9-LOG10(50)"], ["CCN", 5.5]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    message = r"formulas such as '=9-LOG10\(50\)' without their values, the first in cell B2; .* =$"
    with pytest.raises(InputError, match=message):
        read_frame(tmp_path / "a.xlsx")


def test_sequences_in_blocks_are_joined(tmp_path):
    path = write(tmp_path / "a.fas", ">one\nMKVLL AAGGW\nRT\n# a comment\n>two\nMM\n")
    assert read_frame(path)["sequence"].tolist() == ["MKVLLAAGGWRT", "MM"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["CCC,propane", "CCCC,butane"], "unexpected end of data"),
        ([], "unexpected end of data"),  # the end of the file is missing
        (["CCC,propane", 'CCCC,"butane"', "CC,ethane"], "',' expected after"),
    ],
)
def test_a_quote_that_is_not_closed_swallows_no_rows(tmp_path, lines, message):
    lines = ["smiles,name", "CCO,ethanol", 'CCN,"ethylamine', *lines]
    path = write(tmp_path / "a.csv", "\n".join(lines))
    with pytest.raises(InputError, match=f"line 3: {message}.*a quote may be open"):
        read_frame(path)


@pytest.mark.parametrize(
    ("lines", "header", "line"),
    [
        (['C,"a'], False, 1),
        (["CC,a", 'C,"a'], False, 2),
        (["smiles,name", 'C,"a'], True, 2),
        (["# comment", "", "smiles,name", "", 'C,"a'], True, 5),
        (["", "CC,a", "", 'C,"a'], False, 4),
        (['smiles,"name', "C,a"], True, 1),
    ],
)
def test_an_open_quote_is_found_in_its_line(tmp_path, lines, header, line):
    path = write(tmp_path / "a.csv", "\n".join(lines))
    with pytest.raises(InputError, match=f"a.csv, line {line}: unexpected end of data"):
        read_frame(path, header)


def test_bad_rows_at_the_start_of_a_table_do_not_refuse_it(tmp_path):
    path = write(tmp_path / "a.csv", "smiles,y\nC,1,2\nCC,3,4\nCCC,5\n")
    tables = list(read_frames(*data_files([path]), rows=1))
    assert [bool(table.problems) for table in tables] == [True, True, False]
    path = write(tmp_path / "b.csv", "smiles,y\nC,1,2\nCC,3,4,5\n")
    with pytest.raises(InputError, match="no row can be used, the first: 3 fields instead of 2"):
        list(read_frames(*data_files([path]), rows=1))


def test_cells_in_quotes_may_have_several_lines(tmp_path):
    path = write(tmp_path / "d.csv", 'text,n\n"one\ntwo, or\nthree",1\n"a ""b""\nc",2\n')
    assert read_frame(path)["text"].tolist() == ["one\ntwo, or\nthree", 'a "b"\nc']


def test_quotes_do_not_join_lines_that_are_rows(tmp_path):
    path = write(tmp_path / "a.tsv", 'text\ty\n"so, he\t1\nsaid"\t0\n')
    assert read_frame(path)["text"].tolist() == ['"so, he', 'said"']


def test_words_for_a_missing_text_are_none_for_every_command(tmp_path):
    table = write(tmp_path / "a.csv", "id,text\n1,the cat\n2,NA\n3,null\n4,a dog\n")
    assert rows(table) == texts(table) == ["the cat", "", "", "a dog"]
    fasta = write(tmp_path / "a.fasta", ">one\nNA\n>two\nMKV\n")
    assert rows(fasta) == texts(fasta) == ["", "MKV"]
    manifest = prepare([fasta], str(tmp_path / "out"), "protein", workers=1, held_out=0)
    assert manifest["counts"]["blank"] == 1


def test_every_command_refuses_the_same_rows(tmp_path):
    path = write(tmp_path / "a.csv", "smiles,name\nCCO,a\n[Na+],[Cl-],salt\nCCN,b\n")
    rows = list(texts_and_problems(DataFile(str(path), "csv")))
    assert rows == [("CCO", ""), ("", "3 fields instead of 2"), ("CCN", "")]
    assert read_file(path).problems == {1: "3 fields instead of 2"}


def test_jsonl_keeps_every_digit_and_type(tmp_path):
    cells = {"x": [1.2345678901234567e-07, None], "y": [[1, None], {"a": 0.1}]}
    cells |= {"n": [2**70, 1], "t": ["\u00e9", ""], "b": [True, False]}
    frame = pd.DataFrame(cells)
    write_frame(frame.assign(day=pd.Timestamp("2026-01-02")), tmp_path / "a.jsonl")
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert records[0] == {name: of[0] for name, of in cells.items()} | {
        "day": "2026-01-02T00:00:00"
    }
    assert records[1] == {name: of[1] for name, of in cells.items()} | {
        "day": "2026-01-02T00:00:00"
    }
    write_frame(frame[["n"]], tmp_path / "a.parquet")
    assert read_frame(tmp_path / "a.parquet")["n"].tolist() == [str(2**70), "1"]


def test_whole_numbers_stay_whole_where_a_part_lacks_the_column(tmp_path, monkeypatch):
    monkeypatch.setattr(output_files, "PIECE_ROWS", 2)
    source = write(tmp_path / "a.jsonl", '{"x":9007199254740993}\n{"x":2}\n{"y":1}\n{"y":2}\n')

    def copy(rows, path):
        write_frame(rows.frame, path)
        return {}

    output_files.write_by_frames(*data_files([source]), tmp_path / "b.jsonl", {}, copy)
    records = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [record["x"] for record in records] == [9007199254740993, 2, None, None]


def test_cells_of_several_lines_between_tabs_as_pandas_writes_them(tmp_path):
    frame = pd.DataFrame({"smiles": ["CCO", "CC", "C"], "note": ["two\nlines", "a", "b"]})
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.tsv"), frame)
    frame["note"] = ['"Well," he', "a", "b"]  # a quotation
    lines = ["\t".join(row) for row in [[*frame], *frame.values.tolist()]]
    path = write(tmp_path / "b.tsv", "\n".join(lines))
    pd.testing.assert_frame_equal(read_frame(path), frame)


def test_semicolons_beside_commas_in_names_and_numbers(tmp_path):
    path = write(tmp_path / "a.csv", "smiles;name, IUPAC;x\nCCO;a;1,5\nCC;b;2,5\n")
    assert [*read_frame(path)] == ["smiles", "name, IUPAC", "x"]


def test_prepare_reads_the_sheet_that_is_named(tmp_path):
    with pd.ExcelWriter(tmp_path / "a.xlsx") as book:
        pd.DataFrame({"made by": ["Ada"]}).to_excel(book, sheet_name="Notes", index=False)
        pd.DataFrame({"smiles": SMILES}).to_excel(book, sheet_name="IC50", index=False)
    other = write(tmp_path / "b.smi", "CCN\n")
    arguments = ["--output", str(tmp_path / "out"), "--workers", "1", "--held_out", "0"]
    main(["prepare", str(tmp_path / "a.xlsx"), other, "--sheet", "IC50", *arguments])
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["counts"]["train_examples"] == 4
    assert [source["sheet"] for source in manifest["sources"]] == ["IC50", None]
    with pytest.raises(InputError, match="b.smi has no sheets; leave out sheet"):
        prepare([other], str(tmp_path / "x"), workers=1, sheet="IC50")


def test_cells_of_one_name_in_a_row_of_json_or_a_structure_are_refused(tmp_path):
    """The last of them would be taken without a word."""
    lines = write(tmp_path / "a.jsonl", '{"text": "a", "y": 1}\n{"text": "a", "text": "b"}\n')
    sdf(tmp_path / "whole.sdf")
    first, rest = (tmp_path / "whole.sdf").read_text().split("$$$$\n", 1)
    structures = write(tmp_path / "b.sdf", first + "$$$$\n" + rest.replace("<note>", "<logP>"))
    twice = {
        lines: "two columns are called 'text'; rename or remove one",
        structures: r"b.sdf, row 2 \('mol 1'\): two properties are called 'logP'; rename or remov",
    }
    for path, message in twice.items():
        with pytest.raises(InputError, match=message):
            read_frame(path)
        with pytest.raises(InputError, match=message):
            rows(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_semicolons_divide_rows_of_unlike_numbers_of_cells(tmp_path, name):
    path = write(tmp_path / name, "smiles;y;z\nCCO;1\nCC;1;2\nC;5;6;7\nN;8\n")
    frame, problems, _ = read_file(path)
    assert frame.to_dict("list") == {
        "smiles": ["CCO", "CC", "C", "N"],
        "y": ["1", "1", "5", "8"],
        "z": ["", "2", "6", ""],
    }
    assert problems == {2: "4 fields instead of 3"}


def test_lines_of_sentences_without_a_header_are_not_divided(tmp_path):
    sentences = ["Hello, you.", "I, he, she.", "We, you, they, it."]
    path = write(tmp_path / "a.txt", "\n".join(sentences))
    assert rows(path, False) == texts(path, False) == sentences


@pytest.mark.parametrize(
    ("header", "row"), [("text\ty", "a,1"), ("text,y", "a;1"), ("text|y", "a\t1")]
)
def test_a_header_line_with_other_separators_than_all_rows_is_refused(tmp_path, header, row):
    path = write(tmp_path / "a.csv", f"{header}\n{row}\n{row}\n")
    with pytest.raises(InputError, match="a.csv: there are .* in its header line, and .* in all"):
        read_frame(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_files_with_the_line_ends_of_old_macs_are_read(tmp_path, name):
    mark = "," if name == "a.csv" else "\t"
    lines = [f"smiles{mark}y", f"CCO{mark}1", f"CC{mark}2"]
    (tmp_path / name).write_bytes("\r".join(lines).encode())
    frame = read_frame(tmp_path / name)
    assert frame.to_dict("list") == {"smiles": ["CCO", "CC"], "y": ["1", "2"]}
    assert rows(str(tmp_path / name)) == ["CCO", "CC"]


@pytest.mark.parametrize("content", [b"smiles,n\nCCO,a\rb\nCC,c\n", b"smiles,n\r\nCCO,a\rCC,c\r\n"])
def test_a_carriage_return_in_a_cell_without_quotes_divides_no_row(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    for read in (read_frame, lambda path: rows(str(path))):
        with pytest.raises(InputError, match="a.csv, line 2: .* or a carriage return in a cell"):
            read(tmp_path / "a.csv")
    quoted = content.replace(b"a\rb", b'"a\rb"')
    if quoted != content:
        (tmp_path / "b.csv").write_bytes(quoted)
        assert read_frame(tmp_path / "b.csv")["n"].tolist() == ["a\rb", "c"]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ('"smiles","y"', '"1","CCO",5'),
        ('"smiles"\t"y"', '"1"\t"CCO"\t5'),
        ('"smiles";"y"', '"1";"CCO";5'),
        ('"smiles" "y"', '"1" "CCO" 5'),
        ("smiles", "1,CCO"),
    ],
)
def test_row_names_of_r_without_a_name_are_refused(tmp_path, header, row):
    path = write(tmp_path / "a.csv", f"{header}\n{row}\n{row}\n")
    for read in (rows, texts):
        with pytest.raises(InputError, match="a.csv: .*row.names = FALSE"):
            read(path)


def test_comments_above_a_table_are_left_out_and_counted(tmp_path, capsys):
    comments = "# from ChEMBL, with care\n# second\n\n"
    path = write(tmp_path / "a.csv", f"{comments}#smiles\ty\nCCO\t1\nCC\t2\n")
    assert texts(path) == rows(path) == ["CCO", "CC"]
    assert list(read_frame(path)) == ["#smiles", "y"]
    note = "a.csv are left out (lines: 2, the first: '# from ChEMBL, with care')"
    assert capsys.readouterr().err.count(note) == 1
    path = write(tmp_path / "b.csv", '# second, too\nsmiles,y\nCCO,1\nCC,"2\n')
    with pytest.raises(InputError, match="b.csv, line 4: "):
        read_frame(path)


@pytest.mark.parametrize("text", ["#activity\nCCO\nCC\n", "#activity,smiles\n1,CCO\n2,CC\n"])
def test_a_header_may_begin_with_a_hash(tmp_path, text):
    assert len(texts(write(tmp_path / "a.csv", text))) == 2
    assert next(iter(read_frame(tmp_path / "a.csv"))) == "#activity"


def test_a_name_of_several_lines_is_no_line_of_its_own(tmp_path):
    path = write(tmp_path / "a.csv", '"IC50; \n[nM]",smiles\n1,CCO\n2,CC\n')
    assert texts(path) == rows(path) == ["CCO", "CC"]


GERMAN = "smiles;MW;note\nCCO;46,07;a, b\nCCF;1.048,1;x\n"  # as Excel writes it


@pytest.mark.parametrize(
    ("content", "decimal", "first_row"),
    [
        (GERMAN, ",", "CCO;46,07;a, b;0,25"),
        (GERMAN.replace("46,07", "46.07"), ".", "CCO;46.07;a, b;0.25"),  # two decimal signs
        (GERMAN.replace("46,07", "46").replace("1.048,1", "48"), ".", "CCO;46;a, b;0.25"),
        ("smiles,MW\nCCO,46.07\nCCF,48.1\n", None, "CCO,46.07,0.25"),
        ("smiles\tMW\nCCO\t46,07\nCCF\t48,1\n", None, 'CCO,"46,07",0.25'),
    ],
)
def test_a_csv_file_has_the_semicolons_and_the_decimal_sign_of_its_input(
    tmp_path, capsys, content, decimal, first_row
):
    path = write(tmp_path / "a.csv", content)
    target = tmp_path / "out.csv"
    layout = output_layout(path, True, target)
    table = read_frame(path).assign(score=[0.25, np.nan])
    write_frame(table, target, layout=layout)
    assert target.read_text().splitlines()[1] == first_row
    expected = ["0.25" if decimal != "," else "0,25", ""]
    assert read_frame(target).astype(str).equals(table.assign(score=expected).astype(str))
    has_note = "out.csv has semicolons between its cells" in capsys.readouterr().err
    assert has_note == (decimal == ".")


@pytest.mark.parametrize(
    ("content", "label_columns", "decimal", "note"),
    [
        ("smiles;y\nC;5,1E-01\nCC;2E-2\n", ["y"], ",", ""),
        ("smiles;y;z\nC;2,14;1.000\nCC;2,04;2.001\n", ["y"], ",", ""),  # a point of thousands
        ("smiles;y;z\nC;2,14;0.5\nCC;2,04;0.75\n", ["y"], ",", ""),
        ("smiles;y;z\nC;2,14;0.5\nCC;2,04;0.75\n", ["z"], ".", "commas, such as '2,14'"),
        ("smiles;y;z\nC;2,14;5\nCC;2,04;7\n", ["z"], ",", ""),
        ("smiles;y\n" + "C;1\n" * 30 + "C;2,5\n", ["y"], ",", ""),
        ("smiles;z\nC;0.5\n", ["y"], ".", "choose the point in a program that expects"),
    ],
)
def test_new_numbers_have_the_mark_of_the_labels_or_else_of_the_other_columns(
    tmp_path, capsys, content, label_columns, decimal, note
):
    path = write(tmp_path / "a.csv", content)
    layout = output_layout(path, True, tmp_path / "out.csv", label_columns)
    message = capsys.readouterr().err
    assert (layout.separator, layout.decimal) == (";", decimal)
    assert note in message and bool(note) == bool(message)


def test_a_table_for_pandas_has_tabs_in_tsv_whatever_the_input_has(tmp_path):
    path = write(tmp_path / "a.csv", GERMAN)
    target = tmp_path / "out.tsv"
    layout = output_layout(path, True, target)
    write_frame(read_frame(path).assign(score=0.25), target, layout=layout)
    assert pd.read_csv(target, sep="\t")["score"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".xlsx"])
@pytest.mark.parametrize("input_ending", [".csv", ".tsv", ".txt", ".xlsx"])
def test_a_column_without_a_name_comes_back_without_one(tmp_path, input_ending, ending):
    """R writes row names so, and pandas a table that it has read from R."""
    headings = ["", "Unnamed: 0", "smiles", "", "Unnamed: 3.1"]
    cells = pd.DataFrame([headings, ["1", "a", "CCO", "x", "b"]])
    path = tmp_path / f"a{input_ending}"
    if input_ending == ".xlsx":
        cells.to_excel(path, index=False, header=False)
    else:
        mark = "," if input_ending == ".csv" else "\t"
        cells.to_csv(path, sep=mark, index=False, header=False)
    frame = read_frame(path)
    assert len(set(frame)) == 5 and set(headings[1:3]) < set(frame)
    target = tmp_path / f"out{ending}"
    write_frame(frame.assign(score=1), target, layout=output_layout(str(path), True, target))
    read_back = {".csv": pd.read_csv, ".tsv": pd.read_table, ".xlsx": pd.read_excel}[ending]
    first_rows = read_back(target, header=None, dtype=str, keep_default_na=False)
    assert first_rows.values.tolist() == [[*headings, "score"], [*cells.iloc[1], "1"]]


def test_columns_without_a_name_do_not_lose_their_semicolons(tmp_path):
    path = write(tmp_path / "a.csv", '"";"id";"smiles"\n"1";"a";"CCO"\n')
    layout = output_layout(path, True, tmp_path / "out.csv")
    write_frame(read_frame(path), tmp_path / "out.csv", layout=layout)
    assert (tmp_path / "out.csv").read_text() == ";id;smiles\n1;a;CCO\n"


def test_blank_lines_above_a_table_are_left_out(tmp_path):
    assert texts(write(tmp_path / "a.csv", "\n\nsmiles,y\nCCO,1\n")) == ["CCO"]


def test_a_table_without_a_header_line_loses_no_row(tmp_path):
    smiles = [*SMILES, "CC1N(O)CC2"]
    path = write(tmp_path / "a.csv", "".join(f"{s},{i}.5\n" for i, s in enumerate(smiles)))
    for read in (rows, texts):
        with pytest.raises(InputError, match="no header line.*--header false") as caught:
            read(path)
        assert "set text_column" not in str(caught.value)
        assert read(path, False, "column 1") == smiles
    alone = write(tmp_path / "b.csv", "".join(f"{s}\n" for s in SMILES))
    assert rows(alone, False) == texts(alone, False) == SMILES
    with pytest.raises(InputError, match="set text_column to one of: column 1, column 2"):
        rows(path, False)
