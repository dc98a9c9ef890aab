"""The alignment back ends beside a plain loop with autograd, forward and backward.

    python benchmarks/alignment.py [--shapes 16x20x40,8x79x316] [--pairs 3] [--device cuda]
    python benchmarks/alignment.py --growth      how times grow with targets, states and sequences

Every back end is first checked against the loop in float64. Times are the smallest of the
repetitions: processor time of one core, or of CUDA events. What counts is the ratio, measured side
by side in one run.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cost import alignment_visits
from exlm.ops import alignment
from exlm.ops.fused import triton_works
from timing import Call, arguments, interleaved, record, summary

Lattice = tuple[Tensor, Tensor, Tensor, Tensor]
Function = Callable[..., Tensor]
# numbers that the plain loop keeps for its backward pass; beyond, it is left out
LARGEST_LOOP = 2e9
SHAPES = {
    "cpu": "16x20x40,8x79x316,64x79x316,4x200x800",
    "cuda": "16x20x40,8x79x316,64x79x316,4x200x800,8x512x2048",
}
# What grows, from a base of (sequences, targets, states).
GROWTH = {
    "targets": [(8, targets, 320) for targets in (5, 10, 20, 40, 80)],
    "states": [(8, 20, states) for states in (80, 160, 320, 640)],
    "sequences": [(batch, 40, 160) for batch in (4, 8, 16, 32, 64)],
}


def random_lattice(
    batch: int, targets: int, states: int, spread: float = 1.0, device: str = "cpu"
) -> Lattice:
    """Emissions within 10 `spread` nats, transitions a softmax over all later states, full
    lengths."""
    generator = torch.Generator().manual_seed(0)
    emission = -10 * spread * torch.rand(batch, targets, states, generator=generator)
    edges = torch.ones(states, states).triu(1).bool()
    scores = torch.randn(batch, states, states, generator=generator).masked_fill(~edges, -torch.inf)
    transition = torch.where(edges, scores.log_softmax(-1), -torch.inf)
    lengths = torch.full((batch,), targets), torch.full((batch,), states)
    return emission.to(device), transition.to(device), lengths[0].to(device), lengths[1].to(device)


def double(lattice: Lattice) -> Lattice:
    return lattice[0].double(), lattice[1].double(), lattice[2], lattice[3]


def plain_loop(
    emission: Tensor, transition: Tensor, target_lengths: Tensor, state_lengths: Tensor
) -> Tensor:
    """What one would write first: logsumexp over predecessors, one target after another, full
    lengths only."""
    floor = transition.clamp(min=-1e30)  # the gradient of logsumexp over a row of -inf is NaN
    alpha = torch.full_like(emission[:, 0], -1e30)
    alpha[:, 0] = emission[:, 0, 0]
    for i in range(1, emission.shape[1]):
        alpha = torch.logsumexp(alpha[:, :, None] + floor, 1) + emission[:, i]
    return alpha[:, -1]


def gradients(function: Function, lattice: Lattice) -> tuple[Tensor, Tensor, Tensor]:
    """Value and both gradients."""
    emission, transition = (x.detach().clone().requires_grad_() for x in lattice[:2])
    value = function(emission, transition, *lattice[2:])
    value.sum().backward()
    assert emission.grad is not None and transition.grad is not None
    return value.detach(), emission.grad, transition.grad


def backends(device: str) -> dict[str, Function]:
    """Those that can be measured here."""
    compiled, works = (
        ("c", alignment.compiled_library()) if device == "cpu" else ("triton", triton_works())
    )
    names = ["torch", *([compiled] if works else [])]
    return {name: partial(alignment.log_likelihood, backend=name) for name in names}


def times(
    functions: dict[str, tuple[Function, Lattice]], device: str, pairs: int
) -> dict[str, dict[str, float]]:
    calls: dict[str, Call] = {name: partial(gradients, *both) for name, both in functions.items()}
    return {
        name: summary(values)
        for name, values in interleaved(calls, device, pairs, warmup=1).items()
    }


def compare(shape: tuple[int, int, int], device: str, pairs: int) -> dict[str, dict[str, float]]:
    """Seconds of the loop, of every back end, of `torch` in float64, and of the last back end on
    hostile emissions."""
    ours = backends(device)
    small, reference = random_lattice(2, *shape[1:], device=device), plain_loop
    if 2 * shape[1] * shape[2] ** 2 > LARGEST_LOOP:
        reference = ours["torch"]
    truth = gradients(reference, double(small))
    for function in ours.values():
        for value, exact in zip(gradients(function, small), truth, strict=True):
            torch.testing.assert_close(value.double(), exact, rtol=1e-4, atol=1e-4)
    lattice = random_lattice(*shape, device=device)
    slow = {"torch64": (ours["torch"], double(lattice)), "torch": (ours["torch"], lattice)}
    if shape[0] * shape[1] * shape[2] ** 2 <= LARGEST_LOOP:
        slow["loop"] = (plain_loop, lattice)
    fastest = list(ours)[-1]
    hostile = random_lattice(*shape, spread=40.0, device=device)
    result = times(slow, device, 1 if device == "cpu" else pairs)
    return result | times(
        {fastest: (ours[fastest], lattice), "hostile": (ours[fastest], hostile)}, device, pairs
    )


def row(shape: str, seconds: dict[str, dict[str, float]], fast: str) -> str:
    best = {name: values["min"] for name, values in seconds.items()}

    def milliseconds(name: str) -> str:
        return f"{1e3 * best[name]:8.2f}ms" if name in best else f"{'-':>10}"

    def ratio(a: str, b: str, width: int, digits: int = 1) -> str:
        return (
            f"{best[a] / best[b]:{width}.{digits}f}"
            if a in best and b in best
            else f"{'-':>{width}}"
        )

    cells = [milliseconds(name) for name in ("loop", "torch", fast)]
    cells += [ratio("loop", "torch", 11), ratio("loop", fast, 11), ratio("hostile", fast, 22, 2)]
    return " ".join([f"{shape:>14}", *cells, milliseconds("torch64")])


def growth(axis: str, name: str, function: Function, device: str, pairs: int) -> dict[str, object]:
    """Times along one axis, and the exponent of a power law fitted to them, beside that of the
    visited edges."""
    column = {"sequences": 0, "targets": 1, "states": 2}[axis]
    shapes = GROWTH[axis]
    seconds = [
        times({name: (function, random_lattice(*shape, device=device))}, device, pairs)[name]["min"]
        for shape in shapes
    ]
    sizes = [shape[column] for shape in shapes]

    def exponent(values: list[float]) -> float:
        return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])

    visits = [float(alignment_visits(*shape)) for shape in shapes]
    measured, counted = exponent(seconds), exponent(visits)
    line = ", ".join(
        f"{size}: {1e3 * value:.2f} ms" for size, value in zip(sizes, seconds, strict=True)
    )
    print(
        f"{axis:>10} {name:>7} {line}; exponent {measured:.2f}, of the visited edges {counted:.2f}",
        flush=True,
    )
    return {
        "axis": axis,
        "backend": name,
        "shapes": shapes,
        "sizes": sizes,
        "seconds": seconds,
        "visits": visits,
        "exponent": measured,
        "exponent_of_visits": counted,
    }


def main() -> None:
    parser = arguments(__doc__, pairs=3)
    parser.add_argument("--shapes", help="sequences x targets x states, separated by commas")
    parser.add_argument(
        "--growth", action="store_true", help="growth tables instead of the comparison"
    )
    options = parser.parse_args()
    device = options.device
    torch.set_num_threads(options.threads)
    if options.growth:
        for axis in GROWTH:
            for name, function in backends(device).items():
                record(
                    options.output,
                    "alignment-growth",
                    device,
                    **growth(axis, name, function, device, options.pairs),
                )
        return
    fast = list(backends(device))[-1]
    print(
        f"{'shape':>14} {'loop':>10} {'torch':>10} {fast:>10} {'loop/torch':>11} "
        f"{'loop/' + fast:>11} "
        f"{fast + ' hostile/typical':>22} {'torch f64':>10}"
    )
    for shape in (options.shapes or SHAPES[device]).split(","):
        batch, targets, states = (int(size) for size in shape.split("x"))
        seconds = compare((batch, targets, states), device, options.pairs)
        print(row(shape, seconds, fast), flush=True)
        record(
            options.output,
            "alignment",
            device,
            shape=[batch, targets, states],
            fastest=fast,
            seconds=seconds,
        )


if __name__ == "__main__":
    main()
