"""Directories that can be verified: `manifest.json` has the size and SHA-256 of every file."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from exlm.errors import InputError
from exlm.storage.files import read_or_empty, sha256, sync, write_text

MANIFEST = "manifest.json"


def file_entries(directory: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file, by its name in `directory` (with `/` if it is in a folder
    there)."""
    return {
        path.relative_to(directory).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in sorted(files)
    }


def write_manifest(directory: Path, files: list[Path], **facts: Any) -> None:
    """Writes the manifest of `files`, with other `facts` beside them. Everything is synced to
    disk."""
    for path in files:
        sync(path)
    content = {"files": file_entries(directory, files), **facts}
    write_text(directory / MANIFEST, json.dumps(content, indent=1))
    sync(directory)


def has_checksums(directory: Path) -> bool:
    """Whether a directory has a manifest as `write_manifest` writes it."""
    files = read_or_empty(directory / MANIFEST).get("files")
    entries = list(files.values()) if isinstance(files, dict) else []
    return bool(entries) and all(isinstance(entry, dict) and "sha256" in entry for entry in entries)


def damage(directory: Path, contents: bool = True) -> str | None:
    """What is wrong in a directory with a manifest, or None; without `contents` only sizes of files
    are compared."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        checksums = {
            name: (file["bytes"], file["sha256"]) for name, file in manifest["files"].items()
        }
    except FileNotFoundError:
        return f"{MANIFEST} is missing (the write was interrupted)"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged"
    for name, (size, digest) in checksums.items():
        path = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size} (truncated?)"
        if contents and sha256(path) != digest:
            return f"{name} does not match its SHA-256 (damaged on disk or in a copy)"
    return None


@contextmanager
def new_directory(path: Path, overwrite: bool = False, advice: str = "") -> Iterator[Path]:
    """An empty directory that takes the place of `path` at the end, or is removed on an error.
    InputError if `path` exists, unless it is empty, or has a manifest and may be overwritten;
    `advice` is what the message says of a way to do so."""
    is_empty = path.is_dir() and not any(path.iterdir())
    may_replace = is_empty or (overwrite and (path / MANIFEST).is_file())
    if path.exists() and not may_replace:
        raise InputError(f"the output {path} exists; choose another{advice}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix=".partial-", dir=path.parent, ignore_cleanup_errors=True
    ) as scratch:
        partial = Path(scratch) / "partial"
        partial.mkdir()
        yield partial
        for file in partial.iterdir():
            sync(file)
        if path.exists():
            path.rename(Path(scratch) / "replaced")
        partial.rename(path)
