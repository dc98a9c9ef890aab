"""What a training step of ExLM costs beside one of the MLM (paper, appendix on training efficiency).

Both models take steps on the same batches of the corpus, alternately, so that whatever else the machine does falls on
both. The ratio decides how many updates MLM++ gets: those that cost what ExLM's cost.
"""

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from tqdm import tqdm

from exlm.data.batching import MaskedBatches
from exlm.data.corpus import Corpus
from exlm.model.heads import NO_PRIOR, Prior
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.paper.jobs import in_own_process
from exlm.pretrain import complete_batch, pretraining_loss
from exlm.pretrained import load_tokenizer
from exlm.recipe import ArchitectureConfig, DataConfig, PriorConfig
from exlm.storage import machine, write_json
from exlm.train import distributed
from exlm.train.optim import OptimizerConfig, build_optimizer
from exlm.train.precision import autocast, training_products

Call = Callable[[], object]
WARM_UP = 3  # steps


def measure_cost(output: Path, **settings: Any) -> None:
    """Writes and prints what `compare` finds with these settings."""
    result = compare(**settings)
    write_json(output, result | {"recipe": settings})
    for name, row in result["models"].items():
        print(
            f"  {name:5s} {1e3 * row['seconds_per_step']:9.1f} ms per update ({result['clock']})"
            f" {row['tokens_per_second']:10.0f} tokens/s {row['peak_memory_bytes'] / 2**20:8.0f} MiB at most"
        )
    low, high = result["ratio_quartiles"]
    print(f"  ratio {result['ratio']:.2f} (quartiles {low:.2f} to {high:.2f}); paper, two A100: 1.9")


def compare(
    data: DataConfig, model: ArchitectureConfig, precision: str, steps: int, prior: PriorConfig = PriorConfig()
) -> dict[str, Any]:
    """Time, throughput and peak memory of ExLM as in `model` and of the MLM on the same encoder.

    Args:
        data: corpus, mask ratio and batch.
        model: architecture of ExLM.
        precision: as in training.
        steps: measured updates of each.
        prior: of the links between states; that of a first update is taken.
    """
    device = distributed.device().type
    sides = {name: replace(model, objective=name) for name in ("mlm", "exlm")}
    coming = {name: training(data, side, precision, prior.at(0, steps)) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    tokens = 0
    for step in tqdm(range(WARM_UP + steps), desc="cost of a step", unit="pair"):
        for name in sides:
            call, tokens_of_step = next(coming[name])
            times[name].append(seconds(call, device))
        tokens += tokens_of_step if step >= WARM_UP else 0
    times = {name: taken[WARM_UP:] for name, taken in times.items()}
    ratios = [a / b for a, b in zip(times["exlm"], times["mlm"], strict=True)]
    quarters = statistics.quantiles(ratios, n=4) if steps > 1 else ratios * 3
    # Resident memory of a CPU needs a process of its own; CUDA counts its allocations.
    peak: Callable[..., int] = step_memory if device == "cuda" else partial(in_own_process, step_memory)
    return {
        "machine": machine(),
        "mask_ratio": data.mask_ratio,
        "num_states": model.num_states,
        "pairs": steps,
        "clock": clock(device),
        "models": {
            name: {
                "seconds_per_step": sum(times[name]) / steps,
                "tokens_per_second": tokens / sum(times[name]),
                "peak_memory_bytes": peak(data, side, precision, device),
            }
            for name, side in sides.items()
        },
        "ratio": sum(times["exlm"]) / sum(times["mlm"]),
        "ratio_quartiles": [quarters[0], quarters[2]],
    }


def training(data: DataConfig, model: ArchitectureConfig, precision: str, prior: Prior) -> Iterator[tuple[Call, int]]:
    """The updates of a training, one after the other, and the tokens of each, without copies and expanded states.

    The batches are masked and expanded before an update is called: in training another thread does this.
    """
    torch.manual_seed(0)
    tokenizer = load_tokenizer(data.corpus)
    network = ExLMForMaskedLM(model.build(tokenizer, data.repeat)).train()
    distributed.to_device(network)
    optimizer = build_optimizer(network, OptimizerConfig())
    sizes = (data.tokens_per_batch, data.tokens_per_micro_batch, data.mask_ratio)
    masked = MaskedBatches(Corpus(data.corpus), tokenizer, *sizes, seed=0, repeat=data.repeat)
    for step in itertools.count():
        batches = [complete_batch(network, batch, prior) for _, batch in masked(step)]
        tokens = sum(int(batch["attention_mask"].sum()) // data.repeat for batch in batches)
        yield partial(update, network, optimizer, batches, precision), tokens


def update(network: ExLMForMaskedLM, optimizer: Optimizer, batches: list[dict[str, Any]], precision: str) -> None:
    """One training step: forward and backward passes of all micro-batches, and a step of the optimizer."""
    device = network.device
    with training_products(device, precision):
        for batch in batches:
            with autocast(device, precision):
                total, count, _ = pretraining_loss(network, batch)
            (total / count.clamp(min=1)).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def step_memory(data: DataConfig, model: ArchitectureConfig, precision: str, device: str) -> int:
    """Peak bytes of a step, weights and optimizer included."""

    def steps() -> Call:
        coming = training(data, model, precision, NO_PRIOR)
        return lambda: next(coming)[0]()

    return peak_memory(steps, device)["total"]


def clock(device: str) -> str:
    """What `seconds` reads: with one thread of a CPU its processor time, which other jobs disturb least."""
    if device == "cuda":
        return "GPU time"
    return "processor time of one thread" if torch.get_num_threads() == 1 else "wall time"


def seconds(call: Call, device: str) -> float:
    """Time of one call by the `clock` of the device."""
    if device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = now()
    call()
    return now() - begin


def peak_memory(build: Callable[[], Call], device: str) -> dict[str, int]:
    """Peak bytes of the second call: `total` above what was there before `build`, `step` above what lies there between
    calls (weights, gradients, optimizer). On a CPU this is resident memory; use `in_own_process`."""
    cuda = device == "cuda"

    def allocated(of_cpu: str = "VmRSS") -> int:
        if cuda:
            return torch.cuda.memory_allocated()
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(of_cpu))

    base = allocated()
    call = build()
    call()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before = allocated()
    call()
    peak = torch.cuda.max_memory_allocated() if cuda else allocated("VmHWM")
    return {"total": peak - base, "step": peak - before}
