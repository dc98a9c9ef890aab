"""Inputs found by following which lines of the readers they reach: every one becomes rows or one
sentence.

    python -m tests.guided csv [--minutes 5] [--corpus build/guided]

READER is one of csv, jsonl, smi, fasta. It needs `pip install atheris`, which requirements.txt does
not have. Inputs that reached something new are kept in `--corpus` and used again.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

with contextlib.suppress(ImportError):
    import atheris

SEEDS = {
    "csv": [
        'smiles,y,name\nCCO,1.5,ethanol\nc1ccccc1,2,"ben,zene"\n',
        "a;b\n1;2\n",
        "\ufeffx\n\n\n",
    ],
    "jsonl": [
        '{"smiles": "CCO", "y": 1}\n{"smiles": "CC", "y": null}\n',
        '{"a": {"b": [1e999]}}\n\n',
    ],
    "smi": ["CCO a\nCC b\n", "# note\nCCO\tethanol\n\n"],
    "fasta": [">a b\nMKV\nLL\n>c\nMA*\n", ";note\n>x\n\nmkv\n"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reader", choices=SEEDS)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--corpus", type=Path, default=Path("build/guided"))
    options = parser.parse_args()
    with atheris.instrument_imports(include=["exlm.data", "exlm.tasks.rows.table"]):
        from exlm.data.frames import read_file
        from exlm.errors import InputError
        from exlm.tasks.rows.table import unlabelled_table
    corpus = options.corpus / options.reader
    corpus.mkdir(parents=True, exist_ok=True)
    for i, text in enumerate(SEEDS[options.reader]):
        (corpus / f"seed-{i}").write_text(text)
    path = Path(tempfile.mkdtemp()) / f"x.{options.reader}"

    def one(content: bytes) -> None:
        path.write_bytes(content)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                rows = read_file(path)
                table = unlabelled_table(rows, path, None)
            assert len(table.texts) == len(rows.frame) == len(table.problems), "rows were lost"
        except InputError as error:
            assert str(error) and "\n" not in str(error) and len(str(error)) < 2000, "no sentence"

    limits = [
        f"-max_total_time={round(60 * options.minutes)}",
        "-timeout=5",
        "-max_len=2000",
        "-rss_limit_mb=4000",
    ]
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={corpus}/failed-", *limits], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
