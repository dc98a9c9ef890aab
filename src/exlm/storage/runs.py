"""The directories of runs: whether their settings are those of now, a lock, the machine.

There are two answers to other settings. What took long is refused, with the name of the setting
that differs (`finished_result`, checkpoints); what is cheap to repeat is made anew
(`resumable_directory`)."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from exlm import __version__
from exlm.errors import InputError
from exlm.identity import first_difference, normalize
from exlm.storage.files import read_or_empty, to_json_types, write_json

# In a `resumable_directory`: the identity that it belongs to; and the folder of what is done so
# far, which is kept when the command is interrupted.
BEGUN = "begun.json"
PROGRESS = "kept"


def finished_result(
    path: Path,
    entry: str,
    identity: dict[str, Any],
    advice: str = "choose another output",
) -> dict[str, Any] | None:
    """What a finished run wrote into the JSON file `path`, or None where there is no such run.
    InputError names the first setting of the identity in its `entry` that is not as in `identity`;
    `advice` is what it says of a way out."""
    result = read_or_empty(path)
    if entry not in result:
        return None
    if difference := first_difference(result[entry], identity):
        name, before, now = difference
        if "_sha256" in name:
            raise InputError(
                f"{path.parent} holds a finished run, and the content of its "
                f"{name.partition('_sha256')[0]} has changed since; {advice}"
            )
        raise InputError(
            f"{path.parent} holds a finished run with other settings ({name}): "
            f"{before} instead of {now}; {advice}"
        )
    return result


def refuse_other_settings(path: Path, identity: dict[str, Any]) -> None:
    """InputError names the first setting that differs, if the `resumable_directory` `path` keeps
    something of a command with another `identity`."""
    begun = read_or_empty(path / BEGUN)
    if not begun or not any((path / PROGRESS).glob("*")):
        return
    if difference := first_difference(begun, identity):
        name, before, now = difference
        raise InputError(
            f"{path.parent} holds an unfinished training with other settings ({name}): "
            f"{before} instead of {now}; repeat its command, choose another output, or remove "
            f"{path}"
        )


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Locks a directory, so that two runs cannot write into it at once; InputError if another run
    holds the lock."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(directory / ".lock", timeout=0).acquire()
    except Timeout:
        raise InputError(
            f"another run is writing to {directory}; wait for it or choose another output"
        ) from None
    with held:
        yield


@contextmanager
def resumable_directory(path: Path, identity: dict[str, Any]) -> Iterator[Path]:
    """The folder PROGRESS in `path`, for what a command needs to go on after an interruption. It is
    emptied first if it was left by a command with another `identity`. At the end `path` is removed;
    on an error it stays, unless nothing is in the folder. InputError if another command uses it."""
    with lock(path):
        folder = path / PROGRESS
        if normalize(read_or_empty(path / BEGUN)) != normalize(to_json_types(identity)):
            shutil.rmtree(folder, ignore_errors=True)
            write_json(path / BEGUN, identity)
        folder.mkdir(exist_ok=True)
        is_finished = False
        try:
            yield folder
            is_finished = True
        finally:
            if is_finished or not any(folder.iterdir()):
                shutil.rmtree(path, ignore_errors=True)


def machine() -> dict[str, Any]:
    """Processor and the cores that this process may use, device, PyTorch version and threads, for
    every result."""
    processor = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        if line.startswith("model name"):
            processor = line.split(":")[1].strip()
            break
    # macOS does not say which cores a process may use.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": f"{processor}, {cores} cores",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def doctor() -> dict[str, str]:
    """Prints what a report of a bug should have: versions, processor, device, threads."""
    facts = {"exlm": __version__, **{name: version(name) for name in ("transformers", "rdkit")}}
    facts |= {name: str(value) for name, value in machine().items()}
    for name, value in facts.items():
        print(f"{name:12}  {value}")
    return facts
