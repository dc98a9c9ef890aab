"""Files that are written whole or not at all, and values as JSON and YAML."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from exlm.errors import InputError

RECIPE = "recipe.yaml"  # the settings of a run, or of a grid with all its seeds
TRAINING_LOG = "log.jsonl"
RUN_RESULT = "result.json"  # of one training: a pre-training, or a seed of a fine-tuning
MEASUREMENTS = "measurements.json"  # what `exlm analyze` measures of a pre-trained model
MODEL_CARD = "README.md"
GRID_RESULTS = "results.json"  # of a fine-tuning or a baseline with all its seeds


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def name_of_path(text: str) -> str:
    """The name of a file or folder in the place of its path, also behind `file:`, so that what is
    published says nothing about its author's folders. Any other text, as the name of a model on a
    hub, stays."""
    kind, colon, name = text.rpartition(":")
    is_path = os.path.isabs(name) or os.path.exists(name)
    return f"{kind}{colon}{Path(name).name}" if is_path else text


def sync(path: Path) -> None:
    """Waits until a file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_suffix(path: str | Path, suffixes: Iterable[str]) -> None:
    """Raises InputError if a file to write has another ending."""
    if Path(path).suffix not in suffixes:
        raise InputError(f"cannot write {path}; the name must end in {' or '.join(suffixes)}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`. The file written there is renamed to `path`, or on an
    error removed. A symbolic link stays, and its file is replaced."""
    if path.is_symlink():
        path = path.resolve()
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


def to_json_types(value: Any) -> Any:
    """The value in types of YAML and JSON: dataclasses become dicts, tuples lists, paths strings,
    NaN and infinities null."""
    text = json.dumps(value, default=lambda x: str(x) if isinstance(x, Path) else asdict(x))
    return json.loads(text, parse_constant=lambda _: None)


def write_yaml(path: Path, content: Any) -> None:
    write_text(path, yaml.safe_dump(to_json_types(content), sort_keys=False))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(to_json_types(content), indent=1, allow_nan=False))


def read_or_empty(path: Path, *sections: str) -> dict[str, Any]:
    """The content of a JSON or YAML file; {} if there is none, or it is damaged or no mapping.
    InputError if it has one of these `sections`, and that is no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    if not isinstance(content, dict):
        return {}
    for section in sections:
        if not isinstance(content.get(section, {}), dict):
            raise InputError(f"{path} is damaged: {section} has no entries; restore or correct it")
    return content


def write_log(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Writes a log anew."""
    write_text(path, "".join(json.dumps(entry) + "\n" for entry in entries))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log, a line of JSON each; a last line cut off by a crash is ignored. [] if
    there is no such file. InputError for another line that is no entry."""
    entries: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):
                break
            entry = None
        if not isinstance(entry, dict) or "step" not in entry:
            raise InputError(f"{path} is damaged: {line[:80]!r} is no entry of a log; remove it")
        entries.append(entry)
    return entries
