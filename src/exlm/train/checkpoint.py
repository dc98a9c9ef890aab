"""Checkpoints that are verified before use; damaged ones are passed over.

A checkpoint is a directory `checkpoint-00001000` with `model.safetensors`, `optimizer.safetensors`,
`state.json` and, written last, `manifest.json` with the SHA-256 of every file. These checksums are
needed because neither safetensors nor PyTorch notices a flipped bit in a weight. A checkpoint is
written under a temporary name, synced and renamed. So a crash or a full disk at any moment leaves
the previous checkpoint as it was."""

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from exlm.errors import InputError, note
from exlm.identity import describe_changes, find_differences
from exlm.storage.files import sync, write_text
from exlm.storage.manifest import damage, new_directory, write_manifest
from exlm.storage.run_directories import refuse_other_settings
from exlm.train import distributed

PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run.

    Attributes:
        directory: has all of them.
        identity: settings that must be equal between a checkpoint and a run that goes on from it.
        may_differ: how the names of settings begin that need not be equal.
        changes: which of them were not equal whenever the run was resumed: an entry for each time,
            with the `step`, and in `settings` the values before and then by name. `resume` fills
            it, and checkpoints keep it."""

    directory: Path
    identity: dict[str, Any] = field(default_factory=dict)
    may_differ: tuple[str, ...] = ()
    changes: list[dict[str, Any]] = field(default_factory=list, init=False)

    def save(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], keep: int
    ) -> None:
        """Writes a checkpoint, in the main process, and removes all but the newest `keep`; the
        other processes wait. `state` has what `resume` returns: the `step`, which is the number of
        finished updates, and more. InputError if it cannot be written (disk full); earlier
        checkpoints are then untouched."""
        if distributed.is_main():
            self._write(network, optimizer, state)
            for path in all_checkpoints(self.directory)[keep:]:
                shutil.rmtree(path, ignore_errors=True)
        distributed.barrier()

    def _write(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        path = self.directory / f"{PREFIX}{state['step']:08d}"
        moments = {
            f"{name}/{key}": value.detach()
            for name, parameter in network.named_parameters()
            for key, value in optimizer.state[parameter].items()
        }
        kept = {"identity": self.identity} | ({"changed": self.changes} if self.changes else {})
        content = json.dumps({**state, **kept}, indent=1)
        # The run's lock keeps others away, so these are of a save that was killed.
        for killed_save in self.directory.glob(".partial-*"):
            shutil.rmtree(killed_save, ignore_errors=True)
        try:
            with new_directory(path, overwrite=True) as partial:
                save_file(_network_tensors(network), partial / "model.safetensors")
                save_file(moments, partial / "optimizer.safetensors")
                write_text(partial / "state.json", content)
                write_manifest(partial, list(partial.iterdir()))
            sync(self.directory)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{path} could not be written: {error}; earlier checkpoints are intact, free some "
                "space and run the same command to go on from the newest"
            ) from error

    @torch.no_grad()
    def resume(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Restores weights and optimizer in place from the newest undamaged checkpoint; damaged
        newer ones are renamed. Returns the saved state, including `step`, or None if there is no
        checkpoint. InputError if a setting differs that may not, or if all existing checkpoints are
        damaged."""
        path = _newest_undamaged(self.directory)
        if path is None:
            return None
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        compared = {
            name: value
            for name, value in self.identity.items()
            if not name.startswith(self.may_differ)
        }
        refuse_other_settings(
            f"{path} is a checkpoint of a training",
            state["identity"],
            compared,
            advice="restore the setting, use another output, or (training settings only) add "
            "--resume_anyway true",
        )
        self.changes[:] = state.get("changed", [])
        if differences := find_differences(state["identity"], self.identity):
            change = {"step": state["step"], "settings": differences}
            self.changes.append(change)
            if distributed.is_main():
                note(f"{describe_changes([change])}; a report leaves this run out")
        weights = load_file(path / "model.safetensors")
        for name, tensor in _network_tensors(network).items():
            tensor.copy_(weights[name])
        parameters = dict(network.named_parameters())
        for name_and_key, moment in load_file(path / "optimizer.safetensors").items():
            name, _, key = name_and_key.partition("/")
            parameter = parameters[name]
            optimizer.state[parameter][key] = moment.to(parameter.device)
        return state


def all_checkpoints(directory: Path) -> list[Path]:
    """All checkpoints, also damaged ones, newest first."""
    return sorted((p for p in directory.glob(f"{PREFIX}*") if p.is_dir()), reverse=True)


def _newest_undamaged(directory: Path) -> Path | None:
    """The checkpoint to go on from; damaged ones that are newer are set aside. None without any
    checkpoint; InputError if all are damaged."""
    damaged: list[tuple[Path, str]] = []
    newest = None
    for path in all_checkpoints(directory):
        reason = damage(path)
        if reason is None:
            newest = path
            break
        damaged.append((path, reason))
    # No process may look while another one renames.
    distributed.barrier()
    if damaged and newest is None:
        path, reason = damaged[-1]
        raise InputError(
            f"no checkpoint verifies ({path}: {reason}); delete {directory} to start again"
        )
    if distributed.is_main():
        for path, reason in damaged:
            print(f"warning: {path} is passed over and set aside: {reason}", file=sys.stderr)
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    return newest


def _network_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their first name; tied weights appear once."""
    tensors = [*network.named_parameters(), *network.named_buffers()]
    return {name: tensor.detach() for name, tensor in tensors}
