"""The directories of runs: whether their settings are those of now, and a lock.

There are two answers to other settings. What took long is refused, with the name of the setting
that differs (`refuse_other_settings`); what is cheap to repeat is made anew
(`resumable_directory`)."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from exlm.errors import InputError
from exlm.identity import first_difference
from exlm.storage.files import read_or_empty, to_json_types, write_json

# In a `resumable_directory`: the identity that it belongs to; and the folder of what is done so
# far, which is kept when the command is interrupted.
BEGUN = "begun.json"
PROGRESS = "kept"


def refuse_other_settings(
    holder: str, before: dict[str, Any], now: dict[str, Any], advice: str
) -> None:
    """InputError names the first setting that differs between two identities. `holder` says what
    has the settings `before`, such as "runs/a holds a finished run", `advice` what to do."""
    difference = first_difference(before, now)
    if difference is None:
        return
    name, value_before, value_now = difference
    file, checksum, _ = name.partition("_sha256")
    if checksum:
        raise InputError(f"{holder}, and the content of its {file} has changed since; {advice}")
    raise InputError(
        f"{holder} with other settings ({name}): {value_before} instead of {value_now}; {advice}"
    )


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
    refuse_other_settings(f"{path.parent} holds a finished run", result[entry], identity, advice)
    return result


def refuse_other_training(path: Path, identity: dict[str, Any]) -> None:
    """InputError names the first setting that differs, if the `resumable_directory` `path` keeps
    something of a training with another `identity`."""
    begun = read_or_empty(path / BEGUN)
    if begun and any((path / PROGRESS).glob("*")):
        refuse_other_settings(
            f"{path.parent} holds an unfinished training",
            begun,
            identity,
            advice=f"repeat its command, choose another output, or remove {path}",
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
        begun = read_or_empty(path / BEGUN)
        if not begun or first_difference(begun, to_json_types(identity)):
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
