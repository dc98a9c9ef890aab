"""The alignment back ends beside a plain loop with autograd, one core, forward and backward.

    python benchmarks/alignment.py [--shapes 16x20x40,8x79x316] [--repeats 3]

Every back end is first checked against the loop in float64. Times are processor time, the smallest of the
repetitions; what counts is the ratio, measured side by side in one run.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from exlm.ops import alignment

Lattice = tuple[Tensor, Tensor, Tensor, Tensor]


def random_lattice(batch: int, targets: int, states: int, spread: float = 1.0) -> Lattice:
    """Emissions within 10 `spread` nats, transitions a softmax over all later states, full lengths."""
    generator = torch.Generator().manual_seed(0)
    emission = -10 * spread * torch.rand(batch, targets, states, generator=generator)
    edges = torch.ones(states, states).triu(1).bool()
    scores = torch.randn(batch, states, states, generator=generator).masked_fill(~edges, -torch.inf)
    transition = torch.where(edges, scores.log_softmax(-1), -torch.inf)
    return emission, transition, torch.full((batch,), targets), torch.full((batch,), states)


def plain_loop(emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor) -> Tensor:
    """What one would write first: logsumexp over predecessors, one target after another, full lengths only."""
    floor = transition.clamp(min=-1e30)  # the gradient of logsumexp over a row of -inf is NaN
    alpha = torch.full_like(emission[:, 0], -1e30)
    alpha[:, 0] = emission[:, 0, 0]
    for i in range(1, emission.shape[1]):
        alpha = torch.logsumexp(alpha[:, :, None] + floor, 1) + emission[:, i]
    return alpha[:, -1]


def gradients(function: Callable[..., Tensor], lattice: Lattice) -> tuple[Tensor, Tensor, Tensor]:
    """Value and both gradients."""
    emission, transition = (x.detach().clone().requires_grad_() for x in lattice[:2])
    value = function(emission, transition, *lattice[2:])
    value.sum().backward()
    assert emission.grad is not None and transition.grad is not None
    return value.detach(), emission.grad, transition.grad


def milliseconds(function: Callable[..., Tensor], lattice: Lattice, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.process_time()
        gradients(function, lattice)
        best = min(best, time.process_time() - start)
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", default="16x20x40,8x79x316,64x79x316,4x200x800", help="sequences x targets x states"
    )
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{'shape':>14} {'loop':>10} {'torch':>10} {'c':>10} {'loop/torch':>11} {'loop/c':>8} {'c hostile/typical':>18}"
    )
    for shape in arguments.shapes.split(","):
        sizes = [int(n) for n in shape.split("x")]
        lattice, hostile = random_lattice(*sizes), random_lattice(*sizes, spread=40.0)
        small = random_lattice(2, *sizes[1:])
        truth = gradients(plain_loop, (small[0].double(), small[1].double(), *small[2:]))
        times = {"loop": milliseconds(plain_loop, lattice, 1)}
        for name in ("torch", "c"):
            function = lambda *x, name=name: alignment.log_likelihood(*x, backend=name)  # noqa: E731
            for ours, exact in zip(gradients(function, small), truth, strict=True):
                torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)
            times[name] = milliseconds(function, lattice, arguments.repeats if name == "c" else 1)
        ratio = milliseconds(function, hostile, arguments.repeats) / times["c"]
        cells = [f"{times[name]:8.1f}ms" for name in ("loop", "torch", "c")]
        speedups = f"{times['loop'] / times['torch']:11.1f} {times['loop'] / times['c']:8.1f}"
        print(f"{shape:>14} {' '.join(cells)} {speedups} {ratio:18.2f}", flush=True)


if __name__ == "__main__":
    main()
