"""Which parameters decay, and how the learning rate rises."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from exlm import InputError
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig, build_optimizer, learning_rate

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


def test_a_warm_up_given_as_a_share_stays_a_share():
    optimizer = OptimizerConfig(1.0, warmup_ratio=0.3)
    short = LoopConfig(10, optimizer)
    long = replace(short, steps=100)
    assert short.optimizer == long.optimizer == optimizer
    assert learning_rate(optimizer, 2, 10) == 1.0 and learning_rate(optimizer, 29, 100) == 1.0
    for config, steps in ((short, 3), (long, 30)):
        in_steps = config.with_warmup_steps().optimizer
        assert (in_steps.warmup_steps, in_steps.warmup_ratio) == (steps, None)
    with pytest.raises(InputError, match="11 warmup_steps exceed the 10 steps"):
        LoopConfig(10, OptimizerConfig(warmup_steps=11))


def test_a_share_of_the_steps_is_not_rounded_down_twice():
    """In floating point 0.57 * 100 is 56.99999999999999."""
    shares = range(100)
    assert [OptimizerConfig(warmup_ratio=n / 100).warmup_in(100) for n in shares] == [*shares]
    assert OptimizerConfig(warmup_ratio=0.57).warmup_in(99) == 56


@pytest.mark.parametrize("name", ["weight_decay", "adam_eps", "clip_norm"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_numbers_that_are_negative_or_none_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value}; it must be at least 0"):
        OptimizerConfig(**{name: value})


@pytest.mark.parametrize(
    "make", [lambda: OptimizerConfig(schedule="linear"), lambda: LoopConfig(precision="fp16")]
)
def test_choices_that_there_are_not_are_refused(make):
    with pytest.raises(InputError, match="it must be one of"):
        make()
