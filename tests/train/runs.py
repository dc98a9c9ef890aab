"""Runs of pre-training: to make them with other settings, and to compare what they learned."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from exlm.pretrain.run import pretrain


def pretrain_with(recipe: dict, **changes) -> dict:
    """Pre-trains after a recipe in which some arguments are others."""
    return pretrain(**{**recipe, **changes})


def weights(run: str | Path) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in load_file(Path(run) / "model.safetensors").items()}


def same(left: str | Path, right: str | Path) -> bool:
    """Whether two runs have the same weights."""
    a, b = weights(left), weights(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
