"""Training steps side by side: forward, backward and fused AdamW on the same batch.

    python benchmarks/step.py exlm --preset molecules       ExLM beside MLM, with the bound of the
    cost model python benchmarks/step.py peers --preset molecules      MLM beside transformers'
    models of the same size python benchmarks/step.py defaults --preset molecules   MLM and RoBERTa,
    each with its own default settings

Before anything is timed, losses and gradients are checked (`models.check`). Tokens are those of the
input, before expansion.
"""

import dataclasses
from argparse import Namespace
from functools import partial
from typing import Any, get_args

import torch

from cost import Cost, Objective, Shape, parts, ratio_bound, step_flops
from exlm.ops.emission import CHUNK
from models import PEERS, PRESETS, Contender, check, training_step
from timing import Call, arguments, in_own_process, interleaved, peak_memory, ratio, record, summary

# steps of one measurement on CUDA, so that the host prepares one while the GPU computes another
QUEUED = 5


def contenders(shape: Shape, options: Namespace) -> list[Contender]:
    """What a comparison puts side by side; the first is the base of the ratios."""
    again = options.gradient_checkpointing
    ours = Contender(
        "mlm", options.precision, options.dropout, compile=options.compile, again=again
    )
    if options.comparison == "exlm":
        return [ours, dataclasses.replace(ours, name="exlm")]
    if options.comparison == "peers":
        peers = [dataclasses.replace(ours, name=name) for name in PEERS]
        return [ours, *(faster_attention(shape, peer, options.device) for peer in peers)]
    return [Contender("mlm", "auto", 0.1), Contender("roberta", "plain", 0.1)]


def faster_attention(shape: Shape, peer: Contender, device: str) -> Contender:
    """The peer with the implementation of attention that is faster here."""
    both = {name: dataclasses.replace(peer, attention=name) for name in ("sdpa", "eager")}
    steps: dict[str, Call] = {name: training_step(shape, one, device) for name, one in both.items()}
    times = interleaved(steps, device, pairs=2, warmup=1)
    return both[min(times, key=lambda name: min(times[name]))]


def shape_of(preset: str, options: Namespace) -> Shape:
    """The preset, with sizes changed on the command line."""
    names = ("batch", "layers", "num_states", "expanded_layers")
    changes = {name: value for name in names if (value := getattr(options, name)) is not None}
    return dataclasses.replace(PRESETS[preset], **changes, unequal_masks=options.unequal_masks)


def measure_memory(shape: Shape, contender: Contender, device: str) -> dict[str, int]:
    """Peak memory of a step."""
    return in_own_process(peak_memory, partial(training_step, shape, contender, device), device)


def compare(preset: str, options: Namespace) -> dict[str, Any]:
    """Checks, memory and times of all contenders, as plain values."""
    shape, device = shape_of(preset, options), options.device
    sides = {side.name: side for side in contenders(shape, options)}
    checked = {name: check(shape, side, device) for name, side in sides.items()}
    peaks = {
        name: measure_memory(shape, side, device)
        for name, side in sides.items()
        if not options.no_memory
    }
    steps: dict[str, Call] = {
        name: training_step(shape, side, device) for name, side in sides.items()
    }
    times = interleaved(steps, device, options.pairs, queued=QUEUED)
    base = next(iter(times))
    tokens = shape.batch * shape.length
    result: dict[str, Any] = {
        "comparison": options.comparison,
        "preset": preset,
        "shape": dataclasses.asdict(shape),
        "settings": {name: dataclasses.asdict(side) for name, side in sides.items()},
        "seconds": {name: summary(values) for name, values in times.items()},
        "tokens_per_second": {
            name: tokens / summary(values)["median"] for name, values in times.items()
        },
        "ratio": {name: ratio(values, times[base]) for name, values in times.items()},
        "memory": peaks,
        "parameters": {name: values["parameters"] for name, values in checked.items()},
        "loss": {name: values["loss"] for name, values in checked.items()},
    }
    if options.comparison == "exlm":
        result |= {
            "bound": ratio_bound(shape),
            "bound_of_chunks": ratio_bound(shape, chunk=CHUNK[device]),
        }
        result["forward"] = {
            name: forward_cost(shape, name, CHUNK[device]) for name in get_args(Objective)
        }
    if device == "cuda":
        result["flop_utilisation"] = {
            name: step_flops(shape, name) / summary(times[name])["median"] / options.peak_flops
            for name in get_args(Objective)
            if name in times
        }
    return result


def forward_cost(shape: Shape, name: Objective, chunk: int) -> dict[str, float]:
    """Operations, and bytes moved and kept, of a forward pass by the cost model."""
    return dataclasses.asdict(sum(parts(shape, name, chunk=chunk).values(), Cost()))


def show(result: dict[str, Any]) -> None:
    settings = next(iter(result["settings"].values()))
    print(
        f"{result['comparison']}, {result['preset']}, {settings['precision']}, dropout "
        f"{settings['dropout']}"
    )
    for name, times in result["seconds"].items():
        peak = result["memory"].get(name, {}).get("total", 0) / 2**20
        cells = (
            f"{1e3 * times['min']:9.1f} {1e3 * times['median']:9.1f} ms "
            f"{result['tokens_per_second'][name]:10.0f}/s"
        )
        relative = f"{result['ratio'][name]['min']:7.3f} {result['ratio'][name]['median']:7.3f}"
        utilisation = result.get("flop_utilisation", {}).get(name)
        print(
            f"{name:>12} {cells} {relative} {peak:8.0f} MiB "
            f"{result['parameters'][name] / 1e6:8.2f}M"
            f" loss {result['loss'][name]:.3f} {result['settings'][name]['attention']:>6}"
            + (f" utilisation {utilisation:.3f}" if utilisation else "")
        )
    if "bound" in result:
        print(
            f"{'bound':>12} {result['bound']:.3f}, {result['bound_of_chunks']:.3f} with logits "
            "made again"
        )
        for name, cost in result["forward"].items():
            cells = f"{cost['flops'] / 1e9:.1f} GFLOP, {cost['traffic'] / 2**20:.0f} MiB moved"
            measured = result["memory"].get(name, {}).get("step", 0) / 2**20
            print(
                f"{name:>12} forward {cells}, {cost['saved'] / 2**20:.0f} MiB kept; step measured "
                f"{measured:.0f} MiB"
            )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("comparison", choices=("exlm", "peers", "defaults"))
    parser.add_argument("--preset", nargs="+", default=["molecules"], choices=PRESETS)
    parser.add_argument("--batch", type=int, help="sequences, instead of the preset's")
    parser.add_argument("--layers", type=int, help="instead of the preset's")
    parser.add_argument("--num-states", type=int, help="states per mask, instead of the preset's")
    parser.add_argument(
        "--expanded-layers", type=int, help="the last layers that read states, instead of all"
    )
    parser.add_argument("--precision", default="bf16", choices=("auto", "bf16", "fp32"))
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument(
        "--unequal-masks", action="store_true", help="rows with padding, as in training"
    )
    parser.add_argument("--compile", action="store_true", help="layers through torch.compile")
    parser.add_argument(
        "--gradient-checkpointing", action="store_true", help="compute the layers again"
    )
    parser.add_argument("--no-memory", action="store_true", help="skip peak memory")
    parser.add_argument(
        "--peak-flops", type=float, default=790e12, help="operations per second of the GPU"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for preset in options.preset:
        result = compare(preset, options)
        show(result)
        record(options.output, "step", options.device, **result)


if __name__ == "__main__":
    main()
