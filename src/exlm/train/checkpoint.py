"""Checkpoints that are verified before use; damaged ones are passed over.

A checkpoint is a directory `checkpoint-00001000` with `model.safetensors`, `optimizer.safetensors`,
`state.json` and, written last, `manifest.json` with the SHA-256 of every file. These checksums are
needed because neither safetensors nor PyTorch notices a flipped bit in a weight. A checkpoint is
written under a temporary name, synced and renamed. So a crash or a full disk at any moment leaves
the previous checkpoint as it was."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from exlm.errors import InputError
from exlm.identity import first_difference
from exlm.storage.files import sync, write_text
from exlm.storage.manifest import damage, new_directory, write_manifest
from exlm.train import distributed

PREFIX = "checkpoint-"


def save(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    keep: int,
) -> None:
    """Writes a checkpoint, in the main process, and removes all but the newest `keep`; the other
    processes wait. `state` has what `resume` returns: the `step`, which is the number of finished
    updates, the `identity` of the run, and more. InputError if it cannot be written (disk full);
    earlier checkpoints are then untouched."""
    if distributed.is_main():
        _write(directory, model, optimizer, state)
        for path in candidates(directory)[keep:]:
            shutil.rmtree(path, ignore_errors=True)
    distributed.barrier()


def _write(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    step = state["step"]
    moments = {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    # The run's lock keeps others away, so these are of a save that was killed.
    for killed_save in directory.glob(".partial-*"):
        shutil.rmtree(killed_save, ignore_errors=True)
    try:
        with new_directory(directory / f"{PREFIX}{step:08d}", overwrite=True) as partial:
            save_file(_model_tensors(model), partial / "model.safetensors")
            save_file(moments, partial / "optimizer.safetensors")
            write_text(partial / "state.json", json.dumps(state, indent=1))
            write_manifest(partial, list(partial.iterdir()))
        sync(directory)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"the checkpoint of step {step} could not be written to {directory}: {error}; earlier "
            "checkpoints are intact, free some space and run the same command to go on from the "
            "newest"
        ) from error


def candidates(directory: Path) -> list[Path]:
    """All checkpoints, also damaged ones, newest first."""
    return sorted((p for p in directory.glob(f"{PREFIX}*") if p.is_dir()), reverse=True)


@torch.no_grad()
def resume(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
    may_differ: tuple[str, ...] = (),
) -> dict[str, Any] | None:
    """Restores weights and optimizer in place from the newest undamaged checkpoint; damaged newer
    ones are renamed. Returns the saved state, including `step`, or None if there is no checkpoint.
    InputError if a setting of `identity` differs from the checkpoint's, unless its name begins as
    one of `may_differ`, or if all existing checkpoints are damaged."""
    path = _newest_undamaged(directory)
    if path is None:
        return None
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    compared = {name: value for name, value in identity.items() if not name.startswith(may_differ)}
    if difference := first_difference(state["identity"], compared):
        name, before, now = difference
        raise InputError(
            f"{path} was trained with {name} {before}, this run has {now}; restore it, use "
            "another output, or (training settings only) add --resume_anyway true"
        )
    weights = load_file(path / "model.safetensors")
    for name, tensor in _model_tensors(model).items():
        tensor.copy_(weights[name])
    parameters = dict(model.named_parameters())
    for name_and_key, moment in load_file(path / "optimizer.safetensors").items():
        name, _, key = name_and_key.partition("/")
        parameter = parameters[name]
        optimizer.state[parameter][key] = moment.to(parameter.device)
    return state


def _newest_undamaged(directory: Path) -> Path | None:
    """The checkpoint to go on from; damaged ones that are newer are set aside. None without any
    checkpoint; InputError if all are damaged."""
    damaged: dict[Path, str] = {}
    newest = None
    for path in candidates(directory):
        reason = damage(path)
        if reason is None:
            newest = path
            break
        damaged[path] = reason
    # No process may look while another one renames.
    distributed.barrier()
    if damaged and newest is None:
        path, reason = list(damaged.items())[-1]
        raise InputError(
            f"no checkpoint verifies ({path}: {reason}); delete {directory} to start again"
        )
    if distributed.is_main():
        for path, reason in damaged.items():
            print(f"warning: {path} is passed over and set aside: {reason}", file=sys.stderr)
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    return newest


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their first name; tied weights appear once."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in tensors}
