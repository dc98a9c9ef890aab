"""Checkpoints that either verify or are passed over.

A checkpoint is a directory `checkpoint-00001000` with `model.safetensors`, `optimizer.safetensors`, `state.json`
and, written last, `manifest.json` with the SHA-256 of every file: neither safetensors nor PyTorch notices a flipped
bit in a weight. It is written under a temporary name, synced and renamed, so that a crash or a full disk at any
moment leaves the previous checkpoint as it was.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import InputError

PREFIX = "checkpoint-"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, files: Iterable[Path], **facts: Any) -> None:
    """`manifest.json`: size and SHA-256 of every one of `files`, and `facts`. Everything is synced to disk."""
    files = sorted(files)
    for path in files:
        _sync(path)
    manifest = {"files": {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in files}, **facts}
    target = directory / "manifest.json"
    target.write_text(json.dumps(manifest, indent=1))
    _sync(target)
    _sync(directory)


def problem(directory: Path) -> str | None:
    """What is wrong with a directory that has a manifest, naming the file, or None."""
    try:
        files = json.loads((directory / "manifest.json").read_text())["files"]
    except FileNotFoundError:
        return "manifest.json is missing (the write was interrupted)"
    except (ValueError, KeyError, TypeError):
        return "manifest.json is damaged"
    for name, expected in files.items():
        path = directory / name
        if Path(name).name != name or not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']} (truncated?)"
        if sha256(path) != expected["sha256"]:
            return f"{name} does not match its SHA-256 (damaged on disk or in a copy)"
    return None


def save(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> Path:
    """Writes the checkpoint of `step` finished updates.

    Raises:
        InputError: if it cannot be written (disk full); earlier checkpoints are untouched.
    """
    final = directory / f"{PREFIX}{step:08d}"
    partial = directory / f".partial-{final.name}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        save_file(_model_tensors(model), partial / "model.safetensors")
        save_file(_optimizer_tensors(model, optimizer), partial / "optimizer.safetensors")
        (partial / "state.json").write_text(json.dumps({"step": step, **state}, indent=1))
        write_manifest(partial, list(partial.iterdir()))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise InputError(
            f"the checkpoint of step {step} could not be written to {directory}: {error}; earlier checkpoints are "
            "intact, free some space and run the same command to go on from the newest"
        ) from error
    return final


def prune(directory: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints."""
    for path in candidates(directory)[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def candidates(directory: Path) -> list[Path]:
    """Checkpoints, newest first, verified or not."""
    return sorted((p for p in directory.glob(f"{PREFIX}*") if p.is_dir()), reverse=True)


def newest(directory: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a line for each newer one that does not."""
    rejected: list[str] = []
    for path in candidates(directory):
        reason = problem(path)
        if reason is None:
            return path, rejected
        rejected.append(f"{path}: {reason}")
    return None, rejected


def read_state(path: Path) -> dict[str, Any]:
    return json.loads((path / "state.json").read_text())


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restores weights and optimizer state in place."""
    weights = load_file(path / "model.safetensors")
    for name, tensor in _model_tensors(model).items():
        tensor.copy_(weights[name])
    moments = load_file(path / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        prefix = f"{name}/"
        found = {key.removeprefix(prefix): value for key, value in moments.items() if key.startswith(prefix)}
        if found:
            step = found.pop("step")
            optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in found.items()} | {"step": step}


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their first name; tied weights appear once."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
