"""Damaged files and failing disks: named and passed over or refused, never used."""

import errno
import io
import os
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from exlm.data.corpus import Corpus
from exlm.errors import InputError
from exlm.train import checkpoint
from tests.soak import work
from tests.soak.work import Test

Damage = Callable[[Path, random.Random], None]  # damages a file


def truncate(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def flip_bit(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def zero(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = draw.randrange(len(content))
    end = min(start + 512, len(content))
    content[start:end] = bytes(end - start)
    path.write_bytes(content)


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


DAMAGES: list[Damage] = [truncate, flip_bit, zero, remove]


def _network(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def _weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _save(directory: Path, step: int) -> list[torch.Tensor]:
    """Writes a checkpoint and returns its weights."""
    model, optimizer = _network(step)
    checkpoint.Checkpoints(directory).save(model, optimizer, {"step": step}, keep=3)
    return _weights(model)


def _resume(directory: Path) -> tuple[int, list[torch.Tensor], str]:
    model, optimizer = _network(99)
    with redirect_stderr(io.StringIO()) as said:
        state = checkpoint.Checkpoints(directory).resume(model, optimizer)
    return (state["step"] if state else 0), _weights(model), said.getvalue()


def _equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def damaged_checkpoint(index: int, directory: Path) -> dict[str, Any]:
    """The newest of two checkpoints is damaged: the older one is loaded, and the damaged one is
    named."""
    draw = random.Random(index)
    older, _ = _save(directory, 1), _save(directory, 2)
    newest = directory / "checkpoint-00000002"
    name = draw.choice(
        ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
    )
    kind = index % (len(DAMAGES) + 2)
    if kind < len(DAMAGES):
        before = (newest / name).read_bytes()
        DAMAGES[kind](newest / name, draw)
        # zeros over zeros
        same = (newest / name).exists() and (newest / name).read_bytes() == before
        how = DAMAGES[kind].__name__
    else:  # a file, or the manifest, of another step
        name = name if kind == len(DAMAGES) else "manifest.json"
        shutil.copy(directory / "checkpoint-00000001" / name, newest / name)
        same, how = False, "of another step"
    step, weights, said = _resume(directory)
    detected = step == 1 and _equal(weights, older) and "checkpoint-00000002" in said
    # A flipped bit in the manifest may change white space or a name that nobody reads; then nothing
    # else is damaged.
    harmless = name == "manifest.json" and step == 2
    return {
        "passed": detected or same or harmless,
        "file": name,
        "damage": how,
        "detected": detected,
        "said": said,
    }


def damaged_corpus(index: int, directory: Path) -> dict[str, Any]:
    """A file of a corpus is damaged: it is refused, with the name of the file, when it is opened or
    verified."""
    draw = random.Random(index)
    shutil.copytree(work.corpus(directory.parent.parent), path := directory / "corpus")
    files = sorted(
        file for file in path.rglob("*") if file.is_file() and file.name != "skipped.csv"
    )
    file = files[index % len(files)]
    before = file.read_bytes()
    if not before:
        return {"passed": True, "file": file.name, "damage": "none: it is empty"}
    damage = DAMAGES[index // len(files) % len(DAMAGES)]
    damage(file, draw)
    same = file.exists() and file.read_bytes() == before
    try:
        for split in ("train", "valid"):
            Corpus(path, split).check_files()
        said = ""
    except InputError as error:
        said = str(error)
    named = bool(said) and (file.name in said or str(path) in said)
    harmless = file.name == "manifest.json" and damage in (flip_bit, zero) and not said
    return {
        "passed": named or same or harmless,
        "file": file.name,
        "damage": damage.__name__,
        "said": said,
    }


class Crash(BaseException):
    """Stands for a machine that stops: nothing is cleaned up after it."""


CALLS = ("fsync", "rename", "replace", "mkdir", "open")


def failing_disk(index: int, directory: Path) -> dict[str, Any]:
    """One call to the file system fails during a save; afterwards the old or the new checkpoint
    loads, whole."""
    old = _save(directory, 1)
    faults = [errno.ENOSPC, errno.EACCES, errno.EIO, None]  # None: the machine stops
    number, fault = divmod(index, len(faults))
    counted, originals = [0], {name: getattr(os, name) for name in CALLS}

    def guarded(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counted[0] += 1
            if counted[0] == number + 1:
                code = faults[fault]
                raise OSError(code, os.strerror(code)) if code else Crash
            return originals[name](*arguments, **options)

        return call

    written, outcome = checkpoint.save_file, "saved"

    def short_write(tensors: Any, path: Path) -> None:
        counted[0] += 1
        written(tensors, path)
        if counted[0] == number + 1:
            os.truncate(path, path.stat().st_size // 2)
            code = faults[fault]
            raise OSError(code, os.strerror(code)) if code else Crash

    with (
        patch.multiple(os, **{name: guarded(name) for name in CALLS}),
        patch.object(checkpoint, "save_file", short_write),
    ):
        try:
            new = _save(directory, 2)
        except InputError as error:
            outcome = str(error)
        except Crash:
            outcome = "crash"
        except OSError as error:  # pragma: no cover
            outcome = f"not one sentence: {error}"
    step, weights, _ = _resume(directory)
    whole = (
        _equal(weights, old)
        if step == 1
        else step == 2 and _equal(weights, new if outcome == "saved" else _new())
    )
    clear = outcome in ("saved", "crash") or "could not be written" in outcome
    return {
        "passed": whole and clear,
        "call": number + 1,
        "calls": counted[0],
        "outcome": outcome,
        "loaded": step,
    }


def _new() -> list[torch.Tensor]:
    return _weights(_network(2)[0])


TESTS = [
    Test(
        "damaged checkpoint",
        "named and set aside; the newest undamaged one is loaded",
        300,
        damaged_checkpoint,
    ),
    Test("damaged corpus", "refused, with the name of the file", 100, damaged_corpus),
    Test(
        "failing disk",
        "whatever call of a save fails, the old or the new checkpoint loads",
        120,
        failing_disk,
    ),
]
