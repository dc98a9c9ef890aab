"""Preparing a corpus of the paper's size: time, and the largest memory of a process.

    EXLM_DATA=data python benchmarks/prepare.py molecules --size 19_000_000
    EXLM_DATA=data python benchmarks/prepare.py text --size 5_000_000_000

The input is made by repeating real data: molecules beside random chains, so that most differ, and
texts with numbered sentences between them. It is written to `--folder`, is made once, and stays
there.
"""

import argparse
import itertools
import json
import lzma
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from exlm.data.formats import format_of
from exlm.data.inputs import find_files, texts_and_problems
from exlm.storage.files import replacing
from exlm.storage.machine import machine

ATOMS = ("C", "N", "O", "S", "CC", "CO", "CN")  # any chain of these is a molecule
OPTIONS = {
    "molecules": ["--held_out", "0.001", "--drop_duplicates", "true"],
    "text": ["--tokenizer", "bpe", "--documents", "row", "--held_out", "0.001"],
}


def molecules(data: Path, size: int) -> Iterator[str]:
    """`size` SMILES: those of all files, again and again, behind a random chain."""
    draw = random.Random(0)
    known = [text for name in sorted(data.glob("molecules/*.smi.xz")) for text in _lines(name)]
    for number in range(size):
        rounds, at = divmod(number, len(known))
        chain = "".join(draw.choices(ATOMS, k=rounds + 4)) + "." if rounds else ""
        yield f"{chain}{known[at]}\n"


def texts(data: Path, size: int) -> Iterator[str]:
    """About `size` characters of text."""
    files = sorted(str(path) for path in data.glob("text/pretrain/*") if format_of(path))
    known = [text for file in find_files(files)[0] for text, _ in texts_and_problems(file) if text]
    done = 0
    for number in itertools.count():
        text = f"{known[number % len(known)]} It was read {number} times.\n"
        yield text
        if (done := done + len(text)) >= size:
            return


def _lines(path: Path) -> list[str]:
    with lzma.open(path, "rt") as file:
        return [line.split()[0] for line in file if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=OPTIONS)
    parser.add_argument("--size", type=int, required=True, help="molecules, or characters of text")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/scale"))
    options = parser.parse_args()
    source = (
        options.folder
        / f"{options.kind}-{options.size}.{'smi' if options.kind == 'molecules' else 'txt'}"
    )
    if not source.exists():
        make = molecules if options.kind == "molecules" else texts
        with replacing(source) as partial, partial.open("w") as file:
            file.writelines(make(Path(os.environ["EXLM_DATA"]), options.size))
    output = options.folder / f"corpus-{options.kind}-{options.size}"
    command = [
        sys.executable,
        "-m",
        "exlm",
        "prepare",
        str(source),
        "--output",
        str(output),
        "--overwrite",
        "true",
    ]
    start = time.monotonic()
    done = subprocess.run([*command, "--workers", str(options.workers), *OPTIONS[options.kind]])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        json.dumps(
            {
                "kind": options.kind,
                "size": options.size,
                "bytes": source.stat().st_size,
                "status": done.returncode,
                "workers": options.workers,
                "seconds": round(time.monotonic() - start),
                "processor_seconds": round(used.ru_utime + used.ru_stime),
                # of one process, the files it maps included
                "peak_memory_MB": round(used.ru_maxrss / 1024),
                "machine": machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
