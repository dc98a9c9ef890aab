"""Files that can be trusted: manifests of SHA-256 sums, atomic writes, and a lock per directory."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputError

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file, by name."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(files)}


def write_manifest(directory: Path, files: Iterable[Path], **facts: Any) -> None:
    """`manifest.json`: size and SHA-256 of every one of `files`, and `facts`. Everything is synced to disk."""
    files = list(files)
    for path in files:
        sync(path)
    target = directory / MANIFEST
    write_text(target, json.dumps({"files": entries(files), **facts}, indent=1))
    sync(directory)


def problem(directory: Path) -> str | None:
    """What is wrong with a directory that has a manifest, naming the file, or None."""
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"]
        reasons = [_file_problem(directory, name, entry["bytes"], entry["sha256"]) for name, entry in files.items()]
    except FileNotFoundError:
        return f"{MANIFEST} is missing (the write was interrupted)"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    return next((reason for reason in reasons if reason), None)


def _file_problem(directory: Path, name: str, size: int, digest: str) -> str | None:
    path = directory / name
    if Path(name).name != name or not path.is_file():
        return f"{name} is missing"
    if path.stat().st_size != size:
        return f"{name} has {path.stat().st_size} bytes instead of {size} (truncated?)"
    return None if sha256(path) == digest else f"{name} does not match its SHA-256 (damaged on disk or in a copy)"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; what was written there takes its place at the end, or is removed on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
        sync(partial)


def sync(path: Path) -> None:
    """Waits until a file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Two runs must not write into one directory.

    Raises:
        InputError: if another process holds the lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another run is writing to {directory}; wait for it or choose another output") from None
        yield
