"""What all trials share: small data, a short run, commands in processes of their own, digests of
what they wrote."""

import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
from examples.public_tables import melting_points

from exlm.data.prepare import prepare
from exlm.storage.files import read_log

STEPS = 40
# Everything that may go wrong at once: dropout, order prior, micro-batches of several lengths, two
# epochs and more.
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.1,
    "max_position_embeddings": 256,
    "tokens_per_batch": 1500,
    "tokens_per_micro_batch": 500,
    "eval_sequences": 20,
    "steps": STEPS,
    "warmup_steps": 5,
    "log_every": 4,
    "eval_every": 10,
    "save_every": 2,
}
VOLATILE = ("seconds", "machine", "date", "time", "torch", "per_second", "path", "output")

processes = multiprocessing.get_context("forkserver")  # a new process needs no import of PyTorch
processes.set_forkserver_preload(
    ["exlm_command.parser", "exlm.pretrain.run", "exlm.tasks.finetune", "exlm.tasks.predict"]
)


@dataclass(frozen=True)
class Test:
    """A promise, and a function (number of the trial, empty directory) -> what was seen, `passed`
    among it."""

    name: str
    promise: str
    trials: int
    trial: Callable[[int, Path], dict[str, Any]]


def molecules(path: Path, rows: int = 500) -> Path:
    """A table of molecules, repeated until there are `rows`, and their melting points."""
    frame = melting_points(600)
    frame = frame[frame["smiles"].str.len() < 60]
    frame = frame.sample(rows, replace=rows > len(frame), random_state=0)
    frame.to_csv(path, index=False)
    return path


def unlabelled(path: Path, rows: int) -> None:
    """A list of so many SMILES."""
    table = pd.read_csv(molecules(path.with_suffix(".csv"), rows))
    path.write_text("\n".join(table["smiles"]) + "\n")


def shared(work: Path, name: str, make: Callable[[Path], Any]) -> Path:
    """`work/name`, made on first use by `make(path)`."""
    if not (path := work / name).exists():
        work.mkdir(parents=True, exist_ok=True)
        make(path)
    return path


def corpus(work: Path) -> Path:
    """A corpus of 450 molecules."""
    table = shared(work, "molecules.csv", molecules)
    return shared(
        work, "corpus", lambda path: prepare([str(table)], str(path), held_out=0.1, workers=1)
    )


def pretraining(work: Path, output: Path, **changes: Any) -> list[str]:
    """The words of a short pre-training."""
    options = {f"--{name}": str(value) for name, value in (TINY | changes).items()}
    start = [
        "pretrain",
        "molecules/exlm-1M",
        "--corpus",
        str(corpus(work)),
        "--output",
        str(output),
    ]
    return [*start, *(word for pair in options.items() for word in pair)]


def command(
    words: list[str], log: Path, before: Callable[..., None] | None = None, *arguments: Any
) -> BaseProcess:
    """Starts `exlm WORDS`; its output goes to `log`. `before(*arguments)` is called in the new
    process."""
    process = processes.Process(target=_run, args=(words, str(log), before, arguments))
    process.start()
    return process


def _run(
    words: list[str], log: str, before: Callable[..., None] | None, arguments: tuple[Any, ...]
) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    from exlm_command import main

    if before:
        before(*arguments)
    sys.argv = ["exlm", *words]
    main(words)


def finish(words: list[str], log: Path) -> int:
    """Runs `exlm WORDS` to its end, and returns the exit status."""
    process = command(words, log)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def reference(work: Path, name: str, words: Callable[[Path], list[str]]) -> tuple[Path, float]:
    """The output of a command that was not disturbed, and how many seconds it took."""
    path, clock = work / f"reference-{name}", work / f"reference-{name}.seconds"
    if not clock.exists():
        begin = time.monotonic()
        if status := finish(words(path), work / f"reference-{name}.txt"):
            raise RuntimeError(
                f"the undisturbed {name} ended with {status}; see {work}/reference-{name}.txt"
            )
        clock.write_text(str(time.monotonic() - begin))
    return path, float(clock.read_text())


def digest(path: Path) -> dict[str, str]:
    """What a run wrote: a hash for every file, without what depends on the clock, the machine or
    the place, and of the checkpoints the newest alone: which earlier ones are kept depends on where
    the run was stopped."""
    old = sorted(path.glob("checkpoint-*"))[:-1]
    files = (
        [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())
    )
    files = [file for file in files if not set(old) & set(file.parents)]
    return {
        file.name if file == path else file.relative_to(path).as_posix(): hashlib.sha256(
            _content(file, path)
        ).hexdigest()
        for file in files
        if not file.name.startswith((".lock", "events.", "README"))
        and file.name not in ("manifest.json",)
    }


def _content(file: Path, root: Path) -> bytes:
    if file.name == "log.jsonl":
        return json.dumps([_steady(record) for record in read_log(file)], sort_keys=True).encode()
    if file.suffix == ".json":
        return json.dumps(
            _steady(json.loads(file.read_text().replace(str(root), ""))), sort_keys=True
        ).encode()
    if file.suffix in (".yaml", ".yml"):
        return b""  # the recipe names the output
    return file.read_bytes()


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _steady(item)
            for key, item in value.items()
            if not any(word in key for word in VOLATILE)
        }
    return [_steady(item) for item in value] if isinstance(value, list) else value


def differences(path: Path, expected: Path) -> list[str]:
    """Names of the files that differ between two results."""
    if not path.exists():
        return [f"{path.name} is missing"]
    found, wanted = digest(path), digest(expected)
    return sorted(
        name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
    )
