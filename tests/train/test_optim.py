"""Which parameters decay."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from exlm.train.optim import OptimizerConfig, build_optimizer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "decay,shrunk", [("matrices", {"0.weight"}), ("all", {"0.weight", "0.bias", "1.weight"})]
)
def test_without_a_gradient_a_step_shrinks_what_decays_and_nothing_else(decay, shrunk):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4, bias=False))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_optimizer(
        model, OptimizerConfig(learning_rate=0.1, weight_decay=0.5, decay=decay)
    )
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if name in shrunk else 1.0))


@pytest.mark.parametrize(
    "recipe", [p for name in ("paper", "release") for p in ROOT.glob(f"recipes/*/{name}-*.yaml")]
)
def test_recipes_of_the_paper_and_of_the_release_decay_everything(recipe):
    assert yaml.safe_load(recipe.read_text())["train"]["optimizer"]["decay"] == "all"
