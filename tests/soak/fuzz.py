"""Inputs that nobody meant: every one becomes tokens, rows or one sentence, within a second."""

import contextlib
import gzip
import io
import json
import random
import resource
import shutil
import signal
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from examples.public_tables import molecules

from exlm.data.corpus import Corpus
from exlm.data.examples import PrepareOptions, RowTokenizer
from exlm.data.frames import read_file
from exlm.data.inputs import InputRow, find_files, texts_and_problems
from exlm.errors import InputError
from exlm.storage.models import load_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.questions.questions import read_questions
from exlm.tasks.rows.table import unlabelled_table
from exlm_command.parser import settings
from tests.soak import work
from tests.soak.work import Test

ODD = [
    "\x00",
    "\ufeff",
    "\u2028",
    "\ud83d",
    "é",
    "漢",
    "🧪",
    '"',
    '""',
    "'",
    ",",
    ";",
    "\t",
    "\r",
    "\n",
    "\r\n",
    "\\",
    "%",
    "[",
    "]",
    "(",
    ")",
    "#",
    "@@",
    "%99",
    "%(100)",
    "[Zz]",
    "[MASK]",
    "<mask>",
    "null",
    "NaN",
    "inf",
    "1e999",
    "-0",
    "{",
    "}",
    "!!python/object/apply:os.system ['true']",
    "&a [*a]",
    "<script>alert(1)</script>",
    "../../etc/passwd",
]
TABLE = 'smiles,y,name\nCCO,1.5,ethanol\nc1ccccc1,2,"ben,zene"\nCC(=O)O,,acid\n'
SQUAD = json.dumps(
    {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": "Ada is here.",
                        "qas": [
                            {
                                "id": "1",
                                "question": "Who?",
                                "answers": [{"text": "Ada", "answer_start": 0}],
                            }
                        ],
                    }
                ]
            }
        ]
    }
)
RECIPE = Path(__file__).parents[2] / "src/exlm/recipes/molecules/exlm-1M.yaml"


class Hang(BaseException):
    """An input took more than a second."""


def mutate(text: str, draw: random.Random) -> str:
    """One to five changes: something odd put in, characters removed, doubled, swapped or
    replaced."""
    for _ in range(draw.randint(1, 5)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.randint(1, 8))
        kind = draw.randrange(6)
        if kind == 0:
            text = text[:at] + draw.choice(ODD) + text[at:]
        elif kind == 1:
            text = text[:at] + text[end:]
        elif kind == 2:
            text = text[:end] + text[at:end] * draw.randint(1, 20) + text[end:]
        elif kind == 3:
            text = text[:at] + draw.choice(string.printable) + text[at + 1 :]
        elif kind == 4:
            text = text[end:] + text[:at]
        else:
            text = text[:at] + chr(draw.randrange(1, 0x11000)) + text[at:]
    return text


def _bytes(text: str, draw: random.Random) -> bytes:
    """The text in one of several encodings, sometimes with a damaged byte, sometimes cut."""
    encoding = draw.choice(["utf-8"] * 6 + ["utf-16", "latin-1"])
    content = text.encode(encoding, errors="surrogatepass" if encoding == "utf-8" else "replace")
    if content and draw.random() < 0.2:
        at = draw.randrange(len(content))
        content = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
    return content[: draw.randrange(len(content) + 1)] if draw.random() < 0.1 else content


@contextlib.contextmanager
def _a_second() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Hang

    previous = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _count(inputs: Iterator[tuple[Any, Callable[[], str | None]]]) -> dict[str, Any]:
    """Calls every input's function, which returns what is wrong, or None. InputError is a good
    answer."""
    cases, refused, bad = 0, 0, []
    for text, call in inputs:
        cases += 1
        try:
            with _a_second(), contextlib.redirect_stdout(io.StringIO()):
                wrong = call()
        except InputError as error:
            refused += 1
            wrong = (
                None
                if 0 < len(str(error)) < 2000 and "\n" not in str(error)
                else f"no sentence: {error}"
            )
        except Hang:
            wrong = "took more than a second"
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"[:300]
        if wrong:
            bad.append((repr(text)[:300], wrong))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "passed": not bad,
        "cases": cases,
        "refused": refused,
        "bad": bad[:5],
        "bad_cases": len(bad),
        "peak": peak,
    }


def smiles(index: int, directory: Path) -> dict[str, Any]:
    """10,000 mutated SMILES: each becomes tokens that decode to it, or a line with a reason."""
    corpus = work.corpus(directory.parent.parent)
    tokenizer, draw = load_tokenizer(corpus), random.Random(index)
    known = molecules(600)
    options = PrepareOptions(**Corpus(corpus).manifest["options"] | {"on_invalid": "skip"})
    row_tokenizers = [
        RowTokenizer(
            f"{corpus}/tokenizer.json", tokenizer.unk_token_id, replace(options, molecules=checked)
        )
        for checked in (False, True)
    ]

    def call(texts: list[str], row_tokenizer: RowTokenizer) -> str | None:
        rows = [InputRow("x", number, 0, text) for number, text in enumerate(texts, 1)]
        found = row_tokenizer(rows)
        lengths = (
            found.examples["length"] if "length" in (found.examples.dtype.names or ()) else None
        )
        said = {line[1] for line in found.invalid}
        kept = len(found.examples)
        if kept + len(said) != len(texts):
            return f"{len(texts)} rows gave {kept} examples and {len(said)} reasons"
        if lengths is not None and int(lengths.sum()) != len(found.token_ids):
            return "lengths and tokens do not agree"
        return None

    def inputs() -> Iterator[tuple[Any, Callable[[], str | None]]]:
        for number in range(1000):
            texts = [mutate(draw.choice(known), draw).strip() or "C" for _ in range(10)]
            texts = [text.encode(errors="replace").decode() for text in texts]
            yield (
                texts,
                lambda texts=texts, row_tokenizer=row_tokenizers[number % 2]: call(
                    texts, row_tokenizer
                ),
            )

    found = _count(inputs())
    return found | {"cases": 10 * found["cases"]}


def _table(path: Path) -> str | None:
    """Reads a file as `exlm predict` does."""
    rows = read_file(path)
    table = unlabelled_table(rows, path, None)
    return None if len(table.texts) == len(rows.frame) == len(table.problems) else "rows were lost"


def _texts(path: Path) -> str | None:
    """Reads a file as `exlm prepare` does."""
    [file], _ = find_files([str(path)])
    return (
        None
        if all(isinstance(text, str) for text, _ in texts_and_problems(file))
        else "a row has no text"
    )


def readers(index: int, directory: Path) -> dict[str, Any]:
    """2,000 mutated files in all text formats, read as tables or as texts."""
    draw = random.Random(index)
    contents = {
        ".csv": TABLE,
        ".tsv": TABLE.replace(",", "\t"),
        ".txt": "CCO\nCC\n",
        ".smi": "CCO a\nCC b\n",
        ".jsonl": '{"smiles": "CCO", "y": 1}\n{"smiles": "CC", "y": null}\n',
        ".fasta": ">a b\nMKV\nLL\n>c\nMA\n",
        ".json": SQUAD,
        ".sdf": "\n  x\n\n  0  0  0  0  0  0            999 V2000\nM  END\n> <y>\n1\n\n$$$$\n",
    }

    def call(path: Path) -> str | None:
        if path.name.startswith("x.json") and ".jsonl" not in path.name:
            read_questions(path, labelled=draw.random() < 0.5)
            return None
        return (_table if draw.random() < 0.5 else _texts)(path)

    def inputs() -> Iterator[tuple[Any, Callable[[], str | None]]]:
        for _ in range(2000):
            suffix = draw.choice(list(contents))
            content = _bytes(mutate(contents[suffix], draw), draw)
            path = directory / f"x{suffix}"
            if draw.random() < 0.1:
                path, content = (
                    directory / f"x{suffix}.gz",
                    gzip.compress(content)[: draw.randint(10, 200)],
                )
            path.write_bytes(content)
            yield (path.name, content), lambda path=path: call(path)

    return _count(inputs())


def binary_tables(index: int, directory: Path) -> dict[str, Any]:
    """1,000 Parquet files and workbooks with bytes that are changed, removed, doubled or put in."""
    draw, frame = random.Random(index), pd.read_csv(io.StringIO(TABLE))
    originals = []
    for number, path in enumerate(
        (directory / "x.parquet", directory / "y.parquet", directory / "z.xlsx")
    ):
        if path.suffix == ".xlsx":
            frame.to_excel(path, index=False)
        else:
            pd.concat([frame] * (1 + 20 * number)).to_parquet(
                path, compression=("zstd", "snappy")[number]
            )
        originals.append((path, path.read_bytes()))

    def inputs() -> Iterator[tuple[Any, Callable[[], str | None]]]:
        for _ in range(1000):
            path, content = draw.choice(originals)
            for _ in range(draw.randint(1, 5)):
                at = draw.randrange(len(content) + 1)
                end, noise = (
                    at + draw.choice((0, 1, 1, 4, 32)),
                    draw.randbytes(draw.choice((0, 1, 1, 4, 32))),
                )
                content = (
                    content[:at]
                    + noise
                    + content[end if draw.random() < 0.5 else at + len(noise) :]
                )
            path.write_bytes(content)
            yield (path.name, content), partial(_table if draw.random() < 0.5 else _texts, path)

    return _count(inputs())


def recipes(index: int, directory: Path) -> dict[str, Any]:
    """100 mutated recipes: settings, or one sentence."""
    draw, text = random.Random(index), RECIPE.read_text()

    def call(path: Path) -> str | None:
        settings("pretrain", ["--config", str(path)])
        return None

    def inputs() -> Iterator[tuple[Any, Callable[[], str | None]]]:
        for number in range(100):
            path = directory / f"{number}.yaml"
            content = mutate(text, draw)
            path.write_bytes(content.encode(errors="surrogatepass"))
            yield content, lambda path=path: call(path)

    return _count(inputs())


def model_directories(index: int, directory: Path) -> dict[str, Any]:
    """50 model directories, each with one mutated file: the manifest refuses them; without it, so
    does what reads."""
    from exlm.model.modeling_exlm import ExLMModel
    from tests.soak.kills import pretraining, reference

    shared, draw = directory.parent.parent, random.Random(index)
    model, _ = reference(shared, "pretraining", lambda path: pretraining(shared, path))
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")

    def call(path: Path) -> str | None:
        load_model(str(path), ExLMModel)
        return None

    def inputs() -> Iterator[tuple[Any, Callable[[], str | None]]]:
        for number in range(50):
            path, name = directory / str(number), names[number % len(names)]
            path.mkdir()
            for file in (*names, *(() if number % 2 else ("manifest.json",))):
                shutil.copy(model / file, path / file)
            content = (path / name).read_bytes()
            if name.endswith("json"):
                (path / name).write_text(mutate(content.decode(), draw), errors="replace")
            else:
                at = draw.randrange(200)
                (path / name).write_bytes(
                    content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
                )
            yield f"{number}/{name}", lambda path=path: call(path)

    return _count(inputs())


TESTS = [
    Test(
        "fuzz smiles",
        "mutated SMILES become tokens or a reason: no crash, no row lost, no second's wait",
        80,
        smiles,
    ),
    Test("fuzz readers", "mutated files become rows or one sentence", 100, readers),
    Test(
        "fuzz binary tables",
        "mutated Parquet files and workbooks become rows or one sentence",
        50,
        binary_tables,
    ),
    Test("fuzz recipes", "mutated recipes become settings or one sentence", 20, recipes),
    Test(
        "fuzz models",
        "mutated model directories are loaded or refused in one sentence",
        20,
        model_directories,
    ),
]
