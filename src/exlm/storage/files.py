"""Reliable files: manifests of SHA-256 sums, atomic writes, a lock per directory, and a record of
the machine."""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from exlm.errors import InputError

MANIFEST = "manifest.json"
BEGUN, KEPT = "begun.json", "kept"  # of a directory that `unfinished` makes


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries(directory: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file, by its name in `directory` (with `/` if it is in a folder
    there)."""
    return {
        path.relative_to(directory).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in sorted(files)
    }


def write_manifest(directory: Path, files: list[Path], **further: Any) -> None:
    """Writes `manifest.json`: size and SHA-256 of all `files`, and `further` entries. Everything is
    synced to disk."""
    for path in files:
        sync(path)
    write_text(
        directory / MANIFEST, json.dumps({"files": entries(directory, files), **further}, indent=1)
    )
    sync(directory)


def problem(directory: Path, contents: bool = True) -> str | None:
    """What is wrong in a directory with a manifest, or None; without `contents` only sizes of files
    are compared."""
    try:
        content = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        files = {
            name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()
        }
    except FileNotFoundError:
        return f"{MANIFEST} is missing (the write was interrupted)"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged"
    for name, (size, digest) in files.items():
        path = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size} (truncated?)"
        if contents and sha256(path) != digest:
            return f"{name} does not match its SHA-256 (damaged on disk or in a copy)"
    return None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`. The file written there is renamed to `path`, or on an
    error removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_directory(path: Path, overwrite: bool | None = None) -> Iterator[Path]:
    """An empty directory that takes the place of `path` at the end, or is removed on an error.
    InputError if `path` exists, unless it has a manifest and may be overwritten (None: the user has
    no such option)."""
    if path.exists() and not (overwrite and (path / MANIFEST).is_file()):
        advice = (
            "" if overwrite is None else ", or add --overwrite true (it replaces a corpus only)"
        )
        raise InputError(f"the output {path} exists; choose another{advice}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix=".partial-", dir=path.parent, ignore_cleanup_errors=True
    ) as scratch:
        partial = Path(scratch) / "partial"
        partial.mkdir()
        yield partial
        if path.exists():
            path.rename(Path(scratch) / "replaced")
        partial.rename(path)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
        sync(partial)


def read(path: Path) -> dict[str, Any]:
    """The content of a JSON or YAML file; {} if there is none or it is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
        return (yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def plain(value: Any) -> Any:
    """The value in types of YAML and JSON: dataclasses become dicts, tuples lists, paths strings,
    NaN null."""
    text = json.dumps(
        value, default=lambda other: os.fspath(other) if isinstance(other, Path) else asdict(other)
    )
    return json.loads(text, parse_constant=lambda _: None)


def write_yaml(path: Path, content: Any) -> None:
    write_text(path, yaml.safe_dump(plain(content), sort_keys=False))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(plain(content), indent=1, allow_nan=False))


def sync(path: Path) -> None:
    """Waits until a file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def finished_result(
    path: Path, entry: str, settings: dict[str, Any], earlier: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """What a finished run wrote into the JSON file `path`, or None where there is no such run.
    InputError if the settings in its `entry` are not `settings`; the message names the first one
    that differs. `earlier` are the values of settings that runs of earlier versions did not
    record."""
    result = read(path)
    if entry not in result:
        return None
    for name, value in settings.items():
        if (before := result[entry].get(name, (earlier or {}).get(name))) != value:
            change = f"({name}): {repr(before)[:80]} instead of {repr(value)[:80]}"
            raise InputError(
                f"{path.parent} holds a finished run with other settings {change}; choose another output"
            )
    return result


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
def unfinished(path: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """A directory KEPT in `path` for what a command needs to go on after an interruption. It is
    emptied first if it was left by a command with other `settings` (JSON types). At the end `path`
    is removed; on an error it stays, unless KEPT is empty. InputError if another command uses
    it."""
    with lock(path):
        kept = path / KEPT
        if read(path / BEGUN) != settings:
            shutil.rmtree(kept, ignore_errors=True)
            write_json(path / BEGUN, settings)
        kept.mkdir(exist_ok=True)
        finished = False
        try:
            yield kept
            finished = True
        finally:
            if finished or not any(kept.iterdir()):
                shutil.rmtree(path, ignore_errors=True)


def machine() -> dict[str, Any]:
    """Processor and the cores that this process may use, device, PyTorch version and threads, for
    every result."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    # macOS has none
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found = {"processor": f"{name}, {cores} cores", "device": device}
    return found | {"torch": torch.__version__, "threads": torch.get_num_threads()}
