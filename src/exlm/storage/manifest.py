"""Directories that can be verified: `manifest.json` has the size and SHA-256 of every file. Its
entry `files` has the files of a model or a corpus, and `run_files` what a run wrote beside a model.
A model is refused if one of its `files` has changed; `exlm verify` compares all files."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from exlm.errors import InputError
from exlm.storage.files import (
    GRID_RESULTS,
    RECIPE,
    RUN_RESULT,
    TRAINING_LOG,
    read_or_empty,
    replacing,
    sha256,
    sync,
    write_json,
    write_text,
)

MANIFEST = "manifest.json"
# What runs write beside a model, or in the place of one, and nobody is meant to edit. Whatever else
# is in their directories may be the user's.
RUN_FILES = (
    *(RECIPE, "invalid_rows.csv", TRAINING_LOG, "program.log", RUN_RESULT, GRID_RESULTS),
    *("baseline.json", "predictions.csv", "predictions-valid.csv", "predictions-test.csv"),
    *("train.smi", "train.sha256"),
)
SECTIONS = ("files", "run_files")  # entries of a manifest that have files


def file_entries(directory: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file, by its name in `directory` (with `/` if it is in a folder
    there)."""
    return {path.relative_to(directory).as_posix(): _entry(path) for path in sorted(files)}


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def write_manifest(directory: Path, files: list[Path], **facts: Any) -> None:
    """Writes the manifest of `files`, with other `facts` beside them. Everything is synced to
    disk."""
    for path in files:
        sync(path)
    content = {"files": file_entries(directory, files), **facts}
    write_text(directory / MANIFEST, json.dumps(content, indent=1))
    sync(directory)


def finish_run(directory: Path, last: str, content: Any) -> None:
    """Writes the JSON file `last`, which says that a run is finished. The manifest, which already
    has the model's `files`, gets the RUN_FILES right before that, `last` among them. What
    `record_file` added stays while the file is there."""
    with replacing(directory / last) as partial:
        write_json(partial, content)
        written = [directory / name for name in RUN_FILES if name != last]
        entries = file_entries(directory, [path for path in written if path.is_file()])
        manifest = {"files": {}, **read_or_empty(directory / MANIFEST)}
        recorded = manifest.get("run_files", {})
        others = {
            name: recorded[name]
            for name in recorded
            if name not in RUN_FILES and (directory / name).is_file()
        }
        manifest["run_files"] = {**others, **entries, last: _entry(partial)}
        write_json(directory / MANIFEST, manifest)


def record_file(file: Path) -> None:
    """Adds a file that was written beside a finished run to the `run_files` of the manifest there,
    if there is one."""
    manifest = read_or_empty(file.parent / MANIFEST, *SECTIONS)
    if manifest:
        manifest["run_files"] = {**manifest.get("run_files", {}), file.name: _entry(file)}
        write_json(file.parent / MANIFEST, manifest)


def forget_removed(directory: Path) -> None:
    """Takes the entries of files that are not there out of a manifest."""
    manifest = read_or_empty(directory / MANIFEST, *SECTIONS)
    for section in manifest.keys() & SECTIONS:
        entries = manifest[section]
        manifest[section] = {name: entries[name] for name in entries if (directory / name).exists()}
    if manifest:  # it is empty if it is damaged
        write_json(directory / MANIFEST, manifest)


def manifest_entries(directory: Path) -> dict[str, Any]:
    """The entries of all files of a manifest; {} if there is none, or it is damaged."""
    manifest = read_or_empty(directory / MANIFEST)
    entries: dict[str, Any] = {}
    for section in SECTIONS:
        content = manifest.get(section)
        if isinstance(content, dict):
            entries |= content
    return entries


def has_checksums(directory: Path) -> bool:
    """Whether a directory has a manifest as `write_manifest` or `finish_run` writes it."""
    entries = list(manifest_entries(directory).values())
    return bool(entries) and all(isinstance(entry, dict) and "sha256" in entry for entry in entries)


def find_change(file: Path) -> str | None:
    """What is wrong if a file is not as the manifest beside it says; None if all is right, or if
    the manifest does not have the file."""
    entry = manifest_entries(file.parent).get(file.name)
    if entry is None or entry == _entry(file):
        return None
    return f"{file.name} does not match its SHA-256 (it was changed after the run wrote it)"


def damage(directory: Path, contents: bool = True, of_run: bool = False) -> str | None:
    """What is wrong in a directory with a manifest, or None; without `contents` only sizes of files
    are compared. What a run wrote beside its model is compared if `of_run`."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        entries = manifest["files"] | (manifest.get("run_files", {}) if of_run else {})
        checksums = {name: (file["bytes"], file["sha256"]) for name, file in entries.items()}
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
