"""Corpora: the rows of files become examples, and what is left out is counted and named."""

import contextlib
import csv
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.data.corpus import Corpus, corpus_name
from exlm.data.prepare import prepare
from exlm.data.tokenization import smiles_tokenizer
from exlm.errors import InputError
from exlm.storage.manifest import write_manifest
from exlm.storage.tokenizers import load_tokenizer, tokenizer_hash
from tests.conftest import train_smiles_tokenizer

MOLECULES = ["CCO", "c1ccccc1", "CC(=O)O", "C[C@@H](N)C(=O)O", "[2H]C", "ClCBr", "C1CC1", "N#N"]


@pytest.fixture
def smi(tmp_path):
    return _write(tmp_path / "in.smi", MOLECULES)


def _write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def _prepare(inputs, output, **options):
    return prepare(
        [inputs] if isinstance(inputs, str) else inputs, str(output), **{"workers": 1} | options
    )


def _texts(path, split="train"):
    corpus, tokenizer = Corpus(path, split), load_tokenizer(path)
    return [tokenizer.decode(corpus[i]) for i in range(len(corpus))]


def _skipped(path):
    with open(path / "skipped.csv", newline="", encoding="utf-8") as file:
        return [
            (r["file"], int(r["row"]), r["value"], r["reason"], r["action"])
            for r in csv.DictReader(file)
        ]


def test_round_trip_and_manifest(smi, tmp_path):
    manifest = _prepare(smi, tmp_path / "out", held_out=0)
    corpus = Corpus(tmp_path / "out")
    assert _texts(tmp_path / "out") == MOLECULES
    assert len(corpus) == manifest["counts"]["train_examples"] == len(MOLECULES)
    assert manifest["counts"]["train_tokens"] == corpus.token_counts.sum()
    assert corpus.tokenizer_hash == tokenizer_hash(load_tokenizer(tmp_path / "out"))
    assert corpus.manifest == manifest
    assert len(Corpus(tmp_path / "out", "valid")) == 0
    corpus.check_files()


def test_gather_pads_what_getitem_returns(smi, tmp_path):
    _prepare(smi, tmp_path / "out", held_out=0)
    corpus = Corpus(tmp_path / "out")
    indices = np.array([3, 0, 5, 0])
    ids, lengths = corpus.gather(indices)
    assert ids.dtype == lengths.dtype == np.int64
    assert ids.shape == (4, lengths.max())
    for row, length, i in zip(ids, lengths, indices, strict=True):
        np.testing.assert_array_equal(row[:length], corpus[i])
        assert (row[length:] == load_tokenizer(tmp_path / "out").pad_token_id).all()


def test_examples_over_several_token_files(tmp_path, monkeypatch):
    monkeypatch.setattr("exlm.data.corpus.SHARD_TOKENS", 10)
    files = [_write(tmp_path / f"{i}.smi", [m]) for i, m in enumerate(MOLECULES)]
    manifest = _prepare(files, tmp_path / "out", held_out=0)
    assert len(manifest["token_files"]) > 2
    assert _texts(tmp_path / "out") == MOLECULES
    ids, lengths = Corpus(tmp_path / "out").gather(np.arange(len(MOLECULES))[::-1])
    tokenizer = load_tokenizer(tmp_path / "out")
    decoded = [tokenizer.decode(row[:n]) for row, n in zip(ids, lengths, strict=True)]
    assert decoded == MOLECULES[::-1]


def test_large_vocabulary(tmp_path):
    tokens = [f"[{i}C]" for i in range(70_000)]
    smiles_tokenizer(dict.fromkeys(tokens, 1)).save_pretrained(tmp_path / "tokenizer")
    lines = ["".join(tokens[i : i + 1000]) for i in (0, 66_000)]
    options = {"tokenizer": str(tmp_path / "tokenizer"), "molecules": False, "max_length": 2000}
    manifest = _prepare(_write(tmp_path / "in.smi", lines), tmp_path / "out", held_out=0, **options)
    assert manifest["token_dtype"] == "<u4"
    assert _texts(tmp_path / "out") == lines


def test_every_format_gives_the_same_tokens(tmp_path):
    lines = "".join(f"{m}\n" for m in MOLECULES).encode()
    table = "name,SMILES\n" + "".join(f'"a, b",{m}\n' for m in MOLECULES)
    # two frames, as pzstd writes
    half = zstandard.compress(lines[:20]) + zstandard.compress(lines[20:])
    contents = {
        "a.smi": "".join(f"{m}\tmolecule {i}\n" for i, m in enumerate(MOLECULES)).encode(),
        "a.txt": b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n"),
        "a.smi.gz": gzip.compress(lines),
        "a.smi.xz": lzma.compress(lines),
        "a.txt.zst": half,
        "a.csv": table.encode(),
        "a.csv.gz": gzip.compress(table.encode()),
        "a.tsv": "".join(f'{m}\t"an open quote\n' for m in ["smiles", *MOLECULES]).encode(),
        "a.jsonl": "".join(json.dumps({"smiles": m}) + "\n" for m in MOLECULES).encode(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    pq.write_table(
        pa.table({"id": range(len(MOLECULES)), "smiles": MOLECULES}), tmp_path / "a.parquet"
    )
    for name in [*contents, "a.parquet"]:
        _prepare(str(tmp_path / name), tmp_path / "out", held_out=0, overwrite=True)
        assert _texts(tmp_path / "out") == MOLECULES, name


def test_directory_reads_data_and_counts_the_rest(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    _write(folder / "b.smi", ["CC"])
    _write(folder / "a.smi", ["CCC"])
    _write(folder / ".hidden.smi", ["N"])
    _write(folder / "notes.md", ["not a molecule"])
    manifest = _prepare(str(folder), tmp_path / "out", held_out=0)
    assert _texts(tmp_path / "out") == ["CCC", "CC"]
    assert manifest["ignored_files"] == 1


def test_a_directory_is_read_with_its_subfolders_and_left_out_files_are_named(tmp_path, capsys):
    folder = tmp_path / "data"
    for part in ("b", "a/c", ".hidden", "corpus"):
        (folder / part).mkdir(parents=True)
    _write(folder / "z.smi", ["CC"])
    _write(folder / "b/y.smi", ["CCC"])
    _write(folder / "a/c/x.smi", ["CCCC"])
    _write(folder / "a/c/notes.md", ["not a molecule"])
    _write(folder / ".hidden/x.smi", ["N"])
    (folder / "b/manifest.json").write_text('{"name": "of another program"}')
    skipped = _write(folder / "corpus/skipped.csv", ["smiles", "O"])
    write_manifest(folder / "corpus", [Path(skipped)])
    manifest = _prepare(str(folder), tmp_path / "out", held_out=0)
    assert _texts(tmp_path / "out") == ["CCCC", "CCC", "CC"]
    printed = capsys.readouterr().out
    assert manifest["ignored_files"] == 2 and "2 files were left out, because" in printed
    assert str(folder / "a/c/notes.md") in printed


TEXT = ["Once upon a time there was", "a molecule.", "No", "It was so in COCO."]
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "LEERLGLIEVQAPILSRVGDGT", "CNS"]


@pytest.mark.parametrize("rows", [TEXT, PROTEINS], ids=["text", "proteins"])
@pytest.mark.parametrize("documents", ["none", "row", "blank"])
@pytest.mark.parametrize("saved", [False, True])
def test_what_is_no_smiles_is_not_cut_into_tokens_of_smiles(
    smi, tmp_path, capsys, rows, documents, saved
):
    if saved:
        train_smiles_tokenizer(MOLECULES).save_pretrained(tmp_path / "tokenizer")
    file = _write(tmp_path / "in.txt", rows)
    tokenizer = str(tmp_path / "tokenizer") if saved else "smiles"
    message = "rows are no SMILES, such as .* add --tokenizer bpe, for proteins --tokenizer protein"
    with pytest.raises(InputError, match=message):
        _prepare(file, tmp_path / "out", tokenizer=tokenizer, documents=documents)
    # with a few words among them they are SMILES still
    mixed = _write(tmp_path / "mixed.txt", MOLECULES + rows[:2])
    manifest = _prepare(mixed, tmp_path / "out", tokenizer=tokenizer, held_out=0)
    assert manifest["counts"]["train_examples"] == len(MOLECULES)


def test_hub_names_are_streamed(tmp_path, monkeypatch):
    asked = []

    def load_dataset(name, config, split, streaming):
        asked.append((name, config, split, streaming))
        return [{"id": 1, "Smiles": "CC"}, {"id": 2, "Smiles": None}, {"id": 3, "Smiles": "CCC"}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    manifest = _prepare("someone/molecules/drugs:small", tmp_path / "out", held_out=0)
    assert set(asked) == {("someone/molecules", "drugs", "small", True)}
    assert _texts(tmp_path / "out") == ["CC", "CCC"]
    assert manifest["counts"]["blank"] == 1


def test_unreachable_hub_name(tmp_path, monkeypatch):
    def load_dataset(name, config, split, streaming):
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(InputError, match="someone/molecules is neither a file here nor"):
        _prepare("someone/molecules", tmp_path / "out")


def test_a_hub_name_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="someone/molecules .* pip install '..hub.'"):
        _prepare("someone/molecules", tmp_path / "out")


def test_files_need_no_library_of_the_hub(smi, tmp_path, monkeypatch):
    (tmp_path / "in.smi.zst").write_bytes(zstandard.compress(Path(smi).read_bytes()))
    for library in ("datasets", "zstandard"):
        monkeypatch.setitem(sys.modules, library, None)
    _prepare(str(tmp_path / "in.smi.zst"), tmp_path / "out", held_out=0)
    assert _texts(tmp_path / "out") == MOLECULES


def test_invalid_rows_are_skipped_counted_and_listed(tmp_path):
    file = _write(
        tmp_path / "in.smi", ["CCO", "", "C(C)(C)(C)(C)C", "c1ccccc", "C" * 9, "[Xx]C", "CC"]
    )
    manifest = _prepare(file, tmp_path / "out", held_out=0, max_length=9)
    assert _texts(tmp_path / "out") == ["CCO", "CC"]
    assert manifest["counts"] | {"train_tokens": 0} == {
        "rows": 7,
        "blank": 1,
        "invalid": {"too_long": 2, "unparsable": 2},
        "skipped": 4,
        "kept_invalid": 0,
        "rows_with_unknown_tokens": 0,
        "contradictory_marks": 0,
        "mixtures_reduced_to_one_organic_component": 0,
        "duplicates": 0,
        "train_examples": 2,
        "valid_examples": 0,
        "train_tokens": 0,
        "valid_tokens": 0,
    }
    assert _skipped(tmp_path / "out") == [
        (file, 3, "C(C)(C)(C)(C)C", "too_long", "skipped"),
        (file, 4, "c1ccccc", "unparsable", "skipped"),
        (file, 5, "C" * 9, "too_long", "skipped"),
        (file, 6, "[Xx]C", "unparsable", "skipped"),
    ]


def test_keep_keeps_all_but_the_too_long(tmp_path):
    train_smiles_tokenizer(["CCO"]).save_pretrained(tmp_path / "tokenizer")
    file = _write(tmp_path / "in.smi", ["CCO", "C{é}", "C(", "C" * 20])
    options = {"tokenizer": str(tmp_path / "tokenizer"), "max_length": 10, "held_out": 0}
    manifest = _prepare(file, tmp_path / "out", on_invalid="keep", **options)
    assert _texts(tmp_path / "out") == ["CCO", "C<unk>", "C("]
    assert manifest["counts"]["rows_with_unknown_tokens"] == 1
    assert manifest["counts"]["kept_invalid"] == 2
    assert [row[3:] for row in _skipped(tmp_path / "out")] == [
        ("unparsable", "kept"),
        ("unparsable", "kept"),
        ("too_long", "skipped"),
    ]


def test_pieces_outside_the_vocabulary_are_spelled(tmp_path):
    train_smiles_tokenizer(["CCO"]).save_pretrained(tmp_path / "tokenizer")
    lines = ["C[14CH3]", "[Cu+2]", "[14CH3]O[14CH3]", "CCBr", "C(", "CO"]
    file = _write(tmp_path / "in.smi", lines)
    manifest = _prepare(file, tmp_path / "out", tokenizer=str(tmp_path / "tokenizer"), held_out=0)
    assert _texts(tmp_path / "out") == [line for line in lines if line != "C("]
    assert manifest["counts"]["rows_with_unknown_tokens"] == 0


def test_error_names_file_row_value_and_leaves_nothing(tmp_path):
    file = _write(tmp_path / "in.smi", ["CCO", "", "C1CC", "C("])
    with pytest.raises(InputError, match=r"in\.smi, row 3: 'C1CC'.*unparsable"):
        _prepare(file, tmp_path / "out", on_invalid="error")
    assert os.listdir(tmp_path) == ["in.smi"]


def test_special_tokens_in_text_are_text(tmp_path):
    train_smiles_tokenizer(["CCO"]).save_pretrained(tmp_path / "tokenizer")
    file = _write(tmp_path / "in.txt", ["C<mask>C", "CC"])
    _prepare(
        file, tmp_path / "out", tokenizer=str(tmp_path / "tokenizer"), molecules=False, held_out=0
    )
    assert _texts(tmp_path / "out") == ["CC"]


def test_lines_that_say_na_are_not_called_blank_alone(tmp_path, capsys):
    """They have a text, which stands for none."""
    _prepare(_write(tmp_path / "in.smi", ["CC", "", "NA", "null", "CO"]), tmp_path / "out")
    assert "\n3 blank or NA\n" in capsys.readouterr().out
    lines = _write(tmp_path / "in.txt", ["N/A", "", "CC"])
    with pytest.raises(InputError, match=r"no row is left for training \(3 rows, 2 blank or NA, "):
        _prepare(lines, tmp_path / "none", tokenizer="protein", max_length=3)


def test_rows_of_tables_do_not_count_the_header(tmp_path):
    file = _write(tmp_path / "in.csv", ["smiles,y", "CC,1", ",2", "C(,3"])
    manifest = _prepare(file, tmp_path / "out", held_out=0)
    assert manifest["counts"]["blank"] == 1
    assert _skipped(tmp_path / "out") == [(file, 3, "C(", "unparsable", "skipped")]


def test_csv_fields_may_be_long(tmp_path):
    file = _write(tmp_path / "in.csv", ["smiles,notes", f"CC,{'x' * 2**18}", "CO,"])
    _prepare(file, tmp_path / "out", held_out=0)
    assert _texts(tmp_path / "out") == ["CC", "CO"]


def test_an_open_quote_does_not_read_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr("exlm.data.delimited.LONGEST_LINE", 100)
    file = _write(tmp_path / "in.csv", ["smiles,y", "CC,1", '"CO,2', *["CN,3"] * 100])
    with pytest.raises(
        InputError,
        match=r"in\.csv, line 3: field larger than field limit \(100\).*a quote may be open",
    ):
        _prepare(file, tmp_path / "out")


def test_missing_column_lists_the_columns(tmp_path):
    file = _write(tmp_path / "in.csv", ["name,entry", "a,CC"])
    with pytest.raises(InputError, match="set text_column to one of: name, entry"):
        _prepare(file, tmp_path / "out")
    _prepare(file, tmp_path / "out", text_column="entry", held_out=0)
    assert _texts(tmp_path / "out") == ["CC"]


def test_duplicates_keep_the_first(tmp_path):
    many = [f"{'C' * n}O" for n in range(1, 200)]
    file = _write(tmp_path / "in.smi", many + many[::-1] + many)
    manifest = _prepare(file, tmp_path / "out", held_out=0, drop_duplicates=True)
    assert _texts(tmp_path / "out") == many
    assert manifest["counts"]["duplicates"] == 2 * len(many)


def test_equal_rows_are_on_the_same_side(tmp_path):
    many = [f"{'C' * n}{end}" for n in range(1, 200) for end in "ONS"]
    file = _write(tmp_path / "in.smi", many * 2)
    _prepare(file, tmp_path / "a", held_out=0.2)
    train, valid = _texts(tmp_path / "a"), _texts(tmp_path / "a", "valid")
    assert not set(train) & set(valid)
    assert sorted(train + valid) == sorted(many * 2)
    assert 0.1 < len(valid) / len(many * 2) < 0.3
    _prepare(file, tmp_path / "b", held_out=0.2, seed=1)
    assert _texts(tmp_path / "b", "valid") != valid


def test_result_does_not_depend_on_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("exlm.data.inputs.CHUNK_ROWS", 16)
    many = [f"{'C' * n}{end}" for n in range(1, 100) for end in ["O", "N", "("]]
    file = _write(tmp_path / "in.smi", many)
    one = _prepare(file, tmp_path / "one", workers=1)
    two = _prepare(file, tmp_path / "two", workers=2)
    assert one == two
    Corpus(tmp_path / "two").check_files()


def test_output_is_not_overwritten_unasked(smi, tmp_path):
    _prepare(smi, tmp_path / "out")
    with pytest.raises(InputError, match="overwrite"):
        _prepare(smi, tmp_path / "out")
    new = ["[se]1cccc1", "[se]1cccc1C"]  # with a vocabulary of its own
    _prepare(_write(tmp_path / "new.smi", new), tmp_path / "out", held_out=0, overwrite=True)
    assert _texts(tmp_path / "out") == new
    assert sorted(os.listdir(tmp_path)) == ["in.smi", "new.smi", "out"]


def test_an_empty_folder_takes_a_corpus(smi, tmp_path):
    """Workflow managers make the folders of outputs."""
    (tmp_path / "out").mkdir()
    _prepare(smi, tmp_path / "out")
    assert len(Corpus(tmp_path / "out", "train")) > 0


def test_overwrite_only_replaces_a_corpus(smi, tmp_path):
    (tmp_path / "out").mkdir()
    _write(tmp_path / "out/thesis.txt", ["precious"])
    with pytest.raises(InputError, match="replaces a corpus only"):
        _prepare(smi, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out/thesis.txt").exists()


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("missing.smi", None, "missing.smi does not exist"),
        ("empty.smi", b"", "empty.smi: holds no data rows"),
        ("empty.csv.gz", gzip.compress(b""), "empty.csv.gz: holds no data rows"),
        ("header.csv", b"smiles,y\n", "header.csv: holds no data rows"),
        (
            "two.csv",
            b"Smiles,SMILES\nC,C\n",
            "two.csv: cannot tell the text column; set text_column to one of: Smiles, SMILES",
        ),
        ("twice.csv", b"smiles,y,y\nC,1,2\n", "twice.csv: two columns are called 'y'; rename"),
        ("in.docx", b"x", "in.docx is no .smi, .txt, "),
        ("cut.smi.gz", gzip.compress(b"CCO\n" * 1000)[:-9], "cut.smi.gz cannot be read"),
        (
            "cut.smi.xz",
            lzma.compress(os.urandom(999).hex().encode())[:-40],
            "cut.smi.xz cannot be read",
        ),
        ("cut.smi.zst", zstandard.compress(b"CCO\n" * 1000)[:-3], "cut.smi.zst cannot be read"),
        (
            "latin.txt",
            "café au lait".encode("latin-1"),
            "latin.txt cannot be read: it is not UTF-8: it has the byte 0xe9 after 'caf'",
        ),
        ("bad.jsonl", b'{"smiles": "CC"}\nCC\n', "bad.jsonl, row 2: 'CC' is not a JSON object"),
        ("pair.jsonl", b'{"smiles": "CC"}\n["ab", "cd"]\n', "pair.jsonl, row 2: .* JSON object"),
        ("pairs.jsonl", b'[["smiles", "CCO"]]\n', "pairs.jsonl, row 1: .* is not a JSON object"),
        ("list.jsonl", b'{"smiles": "CC"}\n[]\n', "list.jsonl, row 2: '\\[\\]' is not a JSON obj"),
        ("text.jsonl", b'{"smiles": "CC"}\n""\n', "text.jsonl, row 2: '\"\"' is not a JSON object"),
        ("null.jsonl", b'{"smiles": "CC"}\nnull\n', "null.jsonl, row 2: 'null' is not a JSON obj"),
        ("number.jsonl", b'{"smiles": 3}\n', "number.jsonl, row 1: 3 is not text"),
        ("blank.smi", b"\n\n", "no valid SMILES found"),
        ("words.smi", b"C(\nC1\n", "no valid SMILES found"),
    ],
    # Two processes have to name the tests alike, and compressed bytes hold the time of day.
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_unusable_inputs(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        _prepare(str(tmp_path / name), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert set(os.listdir(tmp_path)) <= {name}


@pytest.mark.parametrize(
    "option", [{"held_out": 1.0}, {"max_length": 2}, {"workers": -1}, {"on_invalid": "x"}]
)
def test_unusable_options(smi, tmp_path, option):
    with pytest.raises(InputError, match=next(iter(option))):
        _prepare(smi, tmp_path / "out", **option)


def test_reader_notices_damage(smi, tmp_path):
    out = tmp_path / "out"
    manifest = _prepare(smi, out)
    tokens = out / "tokens-00000.bin"
    content = tokens.read_bytes()
    tokens.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(InputError, match="tokens-00000.bin does not match its SHA-256"):
        Corpus(out).check_files()
    tokens.write_bytes(content[:-2])
    with pytest.raises(InputError, match="tokens-00000.bin has"):
        Corpus(out)
    tokens.unlink()
    with pytest.raises(InputError, match="tokens-00000.bin is missing"):
        Corpus(out)
    with pytest.raises(InputError, match="not a whole corpus"):
        Corpus(tmp_path)
    for key in ("corpus_hash", "files", "token_files", "pad_token_id"):
        (out / "manifest.json").write_text(
            json.dumps({k: value for k, value in manifest.items() if k != key})
        )
        with pytest.raises(InputError, match="not a whole corpus"):
            Corpus(out)


def test_interrupt_leaves_nothing(tmp_path):
    _write(tmp_path / "in.smi", ["CC(C)Cc1ccc(cc1)C(C)C(=O)O"] * 30_000)

    def interrupt():
        while not list(tmp_path.glob(".partial-*/*/tokens-*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # a background shell ignores the signal
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        prepare([str(tmp_path / "in.smi")], str(tmp_path / "out"), workers=1)
    signal.signal(signal.SIGINT, handler)
    assert os.listdir(tmp_path) == ["in.smi"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are listed in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_when_their_command_is_killed(tmp_path, number):
    _write(tmp_path / "in.smi", ["CC(C)Cc1ccc(cc1)C(C)C(=O)O"] * 300_000)
    words = [str(tmp_path / "in.smi"), "--output", str(tmp_path / "out"), "--workers", "2"]
    command = [sys.executable, "-m", "exlm", "prepare", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert _until(lambda: len(_processes_of(process.pid)) >= 5), (
        "itself, two workers, and what starts and tidies them"
    )
    process.send_signal(number)
    _, printed = process.communicate()
    assert _until(lambda: not _processes_of(process.pid))
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert printed.endswith("exlm prepare: interrupted\n") and "Traceback" not in printed
        assert os.listdir(tmp_path) == ["in.smi"]


def _until(happens):
    deadline = time.time() + 600
    while not happens() and time.time() < deadline:
        time.sleep(0.05)
    return happens()


def _processes_of(session):
    processes = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            if os.getsid(int(pid)) == session and Path(f"/proc/{pid}/cmdline").read_bytes():
                processes.append(pid)
    return processes


def test_molecule_check_agrees_with_rdkit(data_dir):
    with gzip.open(data_dir / "molecules/tox21.csv.gz", "rt", newline="") as stream:
        smiles = [row["smiles"] for row in csv.DictReader(stream)]
    with rdBase.BlockLogs():
        bad = [s for s in smiles if Chem.MolFromSmiles(s) is None]
        assert [s for s in smiles if molecule_problem(s)] == bad
    assert len(bad) == 8


def test_what_rdkit_itself_fails_on_is_no_molecule():
    assert molecule_problem(f"CS{'(=O)' * 68}C")  # one of RDKit's own checks fails: a RuntimeError


def test_a_name_of_several_lines_leaves_the_message_on_one(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text('"a\nb",c\n1,2\n')
    with pytest.raises(InputError, match="cannot tell the text column") as caught:
        _prepare(str(path), tmp_path / "out")
    assert "\n" not in str(caught.value) and r"a\nb" in str(caught.value)


def _rows(corpus):
    return [corpus[i].tolist() for i in range(len(corpus))]


def test_several_corpora_are_read_as_one(smi, tmp_path):
    parts = [tmp_path / "first", tmp_path / "second"]
    _prepare(smi, parts[0], held_out=0.2)
    _prepare(
        _write(tmp_path / "more.smi", ["CCCCCCO", "CC", "OCC"]),
        parts[1],
        tokenizer=str(parts[0]),
        held_out=0,
    )
    paths = [str(part) for part in parts]
    for split in ("train", "valid"):
        rows = [row for part in parts for row in _rows(Corpus(part, split))]
        joined = Corpus(paths, split)
        assert _rows(joined) == rows
        assert joined.token_counts.tolist() == list(map(len, rows))
    joined = Corpus(paths)
    numbers = np.array([len(joined) - 1, 0, 3, len(joined) - 2])
    ids, lengths = joined.gather(numbers)
    for row, length, number in zip(ids, lengths, numbers, strict=True):
        assert row[:length].tolist() == joined[number].tolist()
        assert (row[length:] == joined.manifest["pad_token_id"]).all()
    assert joined.corpus_hash != Corpus(paths[::-1]).corpus_hash
    assert corpus_name(paths) == "first + second"
    _prepare(smi, tmp_path / "other", molecules=False)
    with pytest.raises(InputError, match="differ in (tokenizer_hash|molecules).*--tokenizer"):
        Corpus([*paths, tmp_path / "other"])
    (parts[1] / "tokens-00000.bin").write_bytes(bytes(3))
    with pytest.raises(InputError, match="second is damaged"):
        Corpus(paths)


def test_a_manifest_cannot_name_files_elsewhere(smi, tmp_path):
    _prepare(smi, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    for change in ({"token_files": ["../in.smi"]}, {"token_dtype": "O"}):
        (tmp_path / "out/manifest.json").write_text(json.dumps(manifest | change))
        with pytest.raises(InputError, match="is not a whole corpus"):
            Corpus(tmp_path / "out")


def test_marks_that_contradict_each_other_are_counted(tmp_path, capsys):
    """Before molecules are standardized, which takes the marks away."""
    file = _write(tmp_path / "in.smi", ["C/C=C(/C)/O", "C/C=C/C", "CCO"])
    for how in ("none", "canonical"):
        manifest = _prepare(file, tmp_path / how, held_out=0, standardize=how)
        assert manifest["counts"]["contradictory_marks"] == 1
        assert "1 molecules have marks / and \\ that contradict" in capsys.readouterr().out
