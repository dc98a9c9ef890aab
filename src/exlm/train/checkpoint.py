"""Checkpoints that are verified before use; damaged ones are passed over.

A checkpoint is a directory `checkpoint-00001000` with `model.safetensors`, `optimizer.safetensors`,
`state.json` and, written last, `manifest.json` with the SHA-256 of every file. The sums are needed
because neither safetensors nor PyTorch notices a flipped bit in a weight. A checkpoint is written
under a temporary name, synced and renamed. So a crash or a full disk at any moment leaves the
previous checkpoint as it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from exlm.errors import InputError
from exlm.storage.files import new_directory, problem, sync, write_manifest
from exlm.train import distributed

PREFIX = "checkpoint-"


def save(
    directory: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    keep: int,
) -> None:
    """Writes the checkpoint of `step` finished updates and removes all but the newest `keep`.
    InputError if it cannot be written (disk full); earlier checkpoints are then untouched."""
    moments = {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    # of a save that was killed; the run's lock keeps others away
    for unfinished in directory.glob(".partial-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with new_directory(directory / f"{PREFIX}{step:08d}", overwrite=True) as partial:
            save_file(_model_tensors(model), partial / "model.safetensors")
            save_file(moments, partial / "optimizer.safetensors")
            (partial / "state.json").write_text(json.dumps({"step": step, **state}, indent=1))
            write_manifest(partial, list(partial.iterdir()))
        sync(directory)
    except (OSError, SafetensorError) as error:
        failed = f"the checkpoint of step {step} could not be written to {directory}: {error}"
        advice = "earlier checkpoints are intact, free some space and run the same command to go on from the newest"
        raise InputError(f"{failed}; {advice}") from error
    for path in candidates(directory)[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def candidates(directory: Path) -> list[Path]:
    """All checkpoints, also damaged ones, newest first."""
    return sorted((p for p in directory.glob(f"{PREFIX}*") if p.is_dir()), reverse=True)


@torch.no_grad()
def resume(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, Any]
) -> dict[str, Any] | None:
    """Restores weights and optimizer in place from the newest undamaged checkpoint; damaged newer
    ones are renamed. Returns the rest of the saved state, including `step`, or None if there is no
    checkpoint. InputError if a setting of `identity` differs from the checkpoint's, or if all
    existing checkpoints are damaged."""
    damaged, path = dict[Path, str](), None
    for path in candidates(directory):
        if (reason := problem(path)) is None:
            break
        damaged[path] = reason
    distributed.barrier()  # no process may look while another one renames
    if path is None:
        return None
    if path in damaged:
        raise InputError(
            f"no checkpoint verifies ({path}: {damaged[path]}); delete {directory} to start again"
        )
    for other, reason in damaged.items() if distributed.is_main() else ():
        print(f"warning: {other} is passed over and set aside: {reason}", flush=True)
        _set_aside(other)
    state = json.loads((path / "state.json").read_text())
    for name, value in identity.items():
        if (before := state["identity"].get(name)) != value:
            advice = "restore it, use another output, or (training settings only) add --resume_anyway true"
            raise InputError(
                f"{path} was trained with {name} {before!r}, this run has {value!r}; {advice}"
            )
    weights, parameters = load_file(path / "model.safetensors"), dict(model.named_parameters())
    for name, tensor in _model_tensors(model).items():
        tensor.copy_(weights[name])
    for name, moment in load_file(path / "optimizer.safetensors").items():
        name, _, key = name.partition("/")
        optimizer.state[parameters[name]][key] = moment.to(parameters[name].device)
    return state


def _set_aside(path: Path) -> None:
    """Renames a damaged checkpoint to `damaged-NAME`, or to `damaged-NAME-2` and so on if an
    earlier one is there."""
    aside = path.with_name(f"damaged-{path.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"damaged-{path.name}-{number}")
    path.rename(aside)


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their first name; tied weights appear once."""
    return {
        name: tensor.detach()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
