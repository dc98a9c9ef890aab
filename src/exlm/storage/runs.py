"""Runs and their directories: which settings make two runs the same, a lock, the machine.

There are two answers to other settings. What took long is refused, with the name of the setting
that differs (`finished_result`, checkpoints); what is cheap to repeat is made anew
(`made_with`, `resumable_directory`)."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from exlm.errors import InputError
from exlm.storage.files import read_or_empty, to_json_types, write_json

# The settings of a model with IDENTITY_IF_CHANGED. Some versions recorded them with their default
# too, or as null, others not.
DEFAULTS = {"model.state_share": 0.5}
LONGEST = 80  # characters of a value in a message

GRID_REPORT = "results.json"  # of a fine-tuning or a baseline with all its seeds

# In a `resumable_directory`: the settings that it belongs to; and the folder of what is done so
# far, which is kept when the command is interrupted.
BEGUN = "begun.json"
PROGRESS = "kept"


def identity(config: Any, section: str = "") -> dict[str, Any]:
    """The settings of a dataclass that two runs must share to be the same, in types of JSON, by
    name: `section.name`, or `section.name.inner` of a dataclass in it."""
    settings: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        rule = field.metadata.get("identity")
        name = f"{section}.{field.name}" if section else field.name
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if rule == "never" or (rule == "if changed" and value == default):
            continue
        if is_dataclass(value):
            settings.update(identity(value, name))
        else:
            settings[name] = to_json_types(value)
    return settings


def first_difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str, str] | None:
    """Name, earlier value and value, for a message, of the first setting of `now` that was another
    one `before`; None if all are the same. A setting in a dictionary is named `dictionary.name`,
    and may also be one that was recorded only `before`, so that it has its default now."""
    return _first_difference(with_defaults(before), with_defaults(now))


def with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run, also those of DEFAULTS that are not recorded."""
    missing = {name: x for name, x in DEFAULTS.items() if settings.get(name) is None}
    return {**settings, **missing}


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str, str] | None:
    for name, value in now.items():
        earlier = before.get(name)
        if isinstance(value, dict) and isinstance(earlier, dict):
            inner = _first_difference(earlier, dict.fromkeys(earlier) | value)
            if inner:
                return f"{name}.{inner[0]}", *inner[1:]
        elif earlier != value:
            before_in_words = repr(before[name])[:LONGEST] if name in before else "not recorded"
            in_words = "the default" if value is None else repr(value)[:LONGEST]
            return name, before_in_words, in_words
    return None


def finished_result(
    path: Path,
    entry: str,
    settings: dict[str, Any],
    advice: str = "choose another output",
) -> dict[str, Any] | None:
    """What a finished run wrote into the JSON file `path`, or None where there is no such run.
    InputError names the first setting in its `entry` that is not as in `settings`; `advice` is what
    it says of a way out."""
    result = read_or_empty(path)
    if entry not in result:
        return None
    if difference := first_difference(result[entry], settings):
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


def made_with(settings: dict[str, Any], record: Path) -> bool:
    """Whether the JSON file `record` says that what it belongs to was made with these settings."""
    return read_or_empty(record) == to_json_types(settings)


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
def resumable_directory(path: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """The folder PROGRESS in `path`, for what a command needs to go on after an interruption. It is
    emptied first if it was left by a command with other `settings`. At the end `path` is removed;
    on an error it stays, unless nothing is in the folder. InputError if another command uses it."""
    with lock(path):
        folder = path / PROGRESS
        if not made_with(settings, path / BEGUN):
            shutil.rmtree(folder, ignore_errors=True)
            write_json(path / BEGUN, settings)
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
