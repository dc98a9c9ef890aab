"""Checkpoints that either verify or are passed over.

A checkpoint is a directory `checkpoint-00001000` with `model.safetensors`, `optimizer.safetensors`, `state.json`
and, written last, `manifest.json` with the SHA-256 of every file: neither safetensors nor PyTorch notices a flipped
bit in a weight. It is written under a temporary name, synced and renamed, so that a crash or a full disk at any
moment leaves the previous checkpoint as it was.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import InputError
from ..storage import problem, sync, write_manifest

PREFIX = "checkpoint-"


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
        sync(directory)
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


def newest(directory: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that verifies, and what is wrong with each newer one."""
    rejected: dict[Path, str] = {}
    for path in candidates(directory):
        reason = problem(path)
        if reason is None:
            return path, rejected
        rejected[path] = reason
    return None, rejected


def set_aside(path: Path) -> None:
    """Renames a damaged checkpoint, so that it neither counts as one nor is lost."""
    path.rename(path.with_name(f"damaged-{path.name}"))


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
            optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in found.items()}


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
