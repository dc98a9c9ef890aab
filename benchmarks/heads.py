"""From hidden states to the loss: prediction head, transition matrix and alignment; and the memory
this takes.

    python benchmarks/heads.py loss        beside the same on all expanded positions in plain
    PyTorch, same features python benchmarks/heads.py memory      peak memory of an ExLM and an MLM
    step with 50,265 tokens python benchmarks/heads.py emission    time and peak memory of the
    emission alone (--large: a whole batch of text)

The dense algorithm computes logits and gated links for every position of the expanded sequence,
although only lattice states can be on a path, and differentiates the recursion step by step. Loss
and feature gradients of both sides are compared before they are timed.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cost import Shape, vocabulary_product
from exlm import ExLMForMaskedLM
from exlm.ops.emission import emission
from exlm.ops.expansion import Lattice
from models import PRESETS, Contender, as_trained, build_model, random_batch
from step import measure_memory
from timing import Call, arguments, in_own_process, interleaved, peak_memory, ratio, record, summary

SHAPES = {
    "molecules": PRESETS["molecules"],
    "text": Shape(2, 512, 0.15, 4, 256, 4, 4, 1024, 4000),
}
IMPOSSIBLE = -1e30  # the gradient of logsumexp over a row of -inf is NaN
Loss = Callable[[ExLMForMaskedLM, Tensor, Lattice], Tensor]


def states_loss(model: ExLMForMaskedLM, hidden: Tensor, lattice: Lattice) -> Tensor:
    """This library: lattice states only, analytic gradient."""
    index = lattice.state_index[..., None].expand(-1, -1, hidden.shape[-1])
    output = model.lattice_output(lattice, hidden.gather(1, index))
    return model.objective.loss(output).total


def dense_loss(model: ExLMForMaskedLM, hidden: Tensor, lattice: Lattice) -> Tensor:
    """All expanded positions; sequences must be equally long."""
    head = model.head
    logits = head.decoder(head.norm(F.gelu(head.dense(hidden))))
    columns = lattice.targets[:, None].expand(-1, hidden.shape[1], -1)
    emitted = logits.log_softmax(-1).gather(2, columns).transpose(1, 2)
    links = dense_links(model, hidden, lattice)
    alpha = torch.full_like(emitted[:, 0], IMPOSSIBLE)
    alpha[:, 0] = emitted[:, 0, 0]
    for i in range(1, emitted.shape[1]):
        alpha = torch.logsumexp(alpha[:, :, None] + links, 1) + emitted[:, i]
    return (-alpha[:, -1] / lattice.target_lengths).sum()


def dense_links(model: ExLMForMaskedLM, hidden: Tensor, lattice: Lattice) -> Tensor:
    """Gated links [B, L, L] by way of [B, L, L, H]."""
    head = model.transition
    assert head is not None
    length = hidden.shape[1]
    features = torch.cat([hidden, head.positions.weight[:length].expand(len(hidden), -1, -1)], -1)
    query, key = (
        linear(features).unflatten(-1, (head.heads, -1)) for linear in (head.query, head.key)
    )
    scores = torch.einsum("bihd,bjhd->bijh", query, key) / query.shape[-1] ** 0.5
    state = torch.zeros_like(lattice.attention_mask).scatter(1, lattice.state_index, True)
    later = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
    edges = state[:, :, None] & state[:, None] & later
    scores = scores.masked_fill(~edges[..., None], IMPOSSIBLE).log_softmax(2)
    links = scores + head.gate(features).log_softmax(-1)[:, :, None]
    return links.logsumexp(-1).masked_fill(~edges, IMPOSSIBLE)


def loss_call(shape: Shape, loss: Loss, device: str) -> Callable[[], tuple[Tensor, Tensor]]:
    """Forward and backward of a loss on random features; gives the loss and the gradient of the
    features."""
    model = build_model(dataclasses.replace(shape, layers=1), Contender("exlm", "fp32"), device)
    assert isinstance(model, ExLMForMaskedLM)
    batch = {name: tensor.to(device) for name, tensor in random_batch(shape).items()}
    lattice = model.exlm.expand(**batch)
    generator = torch.Generator().manual_seed(1)
    features = (
        torch.randn(shape.batch, shape.expanded, shape.hidden, generator=generator)
        .to(device)
        .requires_grad_()
    )

    def call() -> tuple[Tensor, Tensor]:
        model.zero_grad(set_to_none=True)
        features.grad = None
        with as_trained(device, "fp32"):
            value = loss(model, features, lattice)
            value.backward()
        assert features.grad is not None
        return value.detach(), features.grad

    return call


def memory(build: Callable[..., Call], *values: object) -> dict[str, int]:
    """Peak memory of what `build(*values)` returns; the last value is the device."""
    return in_own_process(peak_memory, partial(build, *values), str(values[-1]))


def compare_losses(name: str, shape: Shape, device: str, pairs: int) -> dict[str, object]:
    sides: dict[str, Loss] = {"states": states_loss, "dense": dense_loss}
    calls = {side: loss_call(shape, loss, device) for side, loss in sides.items()}
    (value, gradient), (dense_value, dense_gradient) = calls["states"](), calls["dense"]()
    torch.testing.assert_close(value, dense_value, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(
        gradient, dense_gradient, rtol=1e-3, atol=1e-3 * dense_gradient.abs().max().item()
    )
    times = interleaved(dict(calls), device, pairs, warmup=1)
    peaks = {side: memory(loss_call, shape, loss, device) for side, loss in sides.items()}
    relative = ratio(times["dense"], times["states"])
    milliseconds = {side: 1e3 * min(values) for side, values in times.items()}
    print(
        f"{name:>12}: dense {milliseconds['dense']:.1f} ms, states {milliseconds['states']:.1f} "
        "ms, "
        f"ratio {relative['min']:.2f} {relative['median']:.2f}; memory of the loss "
        f"{peaks['dense']['step'] / 2**20:.0f} MiB and {peaks['states']['step'] / 2**20:.0f} MiB; "
        f"losses {value:.4f} "
        f"{dense_value:.4f}, largest difference of gradients "
        f"{(gradient - dense_gradient).abs().max():.1e}"
    )
    seconds = {side: summary(values) for side, values in times.items()}
    return {
        "preset": name,
        "shape": dataclasses.asdict(shape),
        "seconds": seconds,
        "ratio": relative,
        "memory": peaks,
    }


def step_memory(shape: Shape, device: str) -> dict[str, object]:
    """Of whole steps; the ratio is ExLM to MLM."""
    peaks = {name: measure_memory(shape, Contender(name), device) for name in ("mlm", "exlm")}
    relative = {kind: peaks["exlm"][kind] / peaks["mlm"][kind] for kind in ("total", "step")}
    for kind, factor in relative.items():
        exlm, mlm = (peaks[name][kind] / 2**20 for name in ("exlm", "mlm"))
        print(f"{kind:>12}: ExLM {exlm:.0f} MiB, MLM {mlm:.0f} MiB, ratio {factor:.2f}")
    return {"shape": dataclasses.asdict(shape), "memory": peaks, "ratio": relative}


def emission_call(shape: Shape, device: str) -> Call:
    """Forward and backward of the emission alone, with the bfloat16 operands of training."""
    torch.manual_seed(0)
    hidden = torch.randn(shape.batch, shape.states, shape.hidden, device=device, requires_grad=True)
    weight = nn.Parameter(0.02 * torch.randn(shape.vocabulary, shape.hidden, device=device))
    bias = nn.Parameter(torch.zeros(shape.vocabulary, device=device))
    targets = torch.randint(shape.vocabulary, (shape.batch, shape.targets), device=device)

    def call() -> None:
        hidden.grad = weight.grad = bias.grad = None
        with as_trained(device, "bf16"):
            emission(hidden.to(torch.bfloat16), weight, bias, targets).sum().backward()

    return call


def measure_emission(shape: Shape, device: str, pairs: int) -> dict[str, object]:
    peak = memory(emission_call, shape, device)
    times = interleaved({"emission": emission_call(shape, device)}, device, pairs, warmup=1)
    cost = vocabulary_product(shape, shape.states)
    logits = cost.saved - vocabulary_product(shape, shape.states, keep_logits=False).saved
    best = min(times["emission"])
    print(
        f"{'emission':>12}: {1e3 * best:.1f} ms, {3 * cost.flops / best / 1e9:.0f} GFLOP/s if "
        "nothing is made twice, "
        f"peak {peak['step'] / 2**20:.0f} MiB where all logits are {logits / 2**20:.0f} MiB"
    )
    seconds = summary(times["emission"])
    return {
        "shape": dataclasses.asdict(shape),
        "seconds": seconds,
        "memory": peak,
        "logits_bytes": logits,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("loss", "memory", "emission"))
    parser.add_argument(
        "--batch", type=int, default=4, help="sequences of text for memory and emission"
    )
    parser.add_argument(
        "--layers", type=int, default=2, help="of the model whose memory is measured"
    )
    parser.add_argument("--large", action="store_true", help="64 sequences for emission")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    text = dataclasses.replace(PRESETS["text-base-512"], batch=options.batch, layers=options.layers)
    if options.what == "loss":
        results = [
            compare_losses(name, shape, options.device, options.pairs)
            for name, shape in SHAPES.items()
        ]
    elif options.what == "memory":
        results = [step_memory(text, options.device)]
    else:
        text = dataclasses.replace(text, batch=64) if options.large else text
        results = [measure_emission(text, options.device, options.pairs)]
    for result in results:
        record(options.output, f"heads-{options.what}", options.device, **result)


if __name__ == "__main__":
    main()
