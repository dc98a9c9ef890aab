"""What a training step of ExLM costs beside one of the MLM (paper, appendix on training efficiency).

Both models take steps on the same batches of the corpus, alternately, so that whatever else the machine does falls on
both. The ratio decides how many updates MLM++ gets: those that cost what ExLM's cost.
"""

import ctypes
import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from exlm.data.batching import MaskedBatches, SpecialTokens
from exlm.data.corpus import Corpus
from exlm.model.heads import NO_PRIOR, Prior
from exlm.model.modeling_exlm import ExLMForMaskedLM
from exlm.paper.jobs import in_own_process
from exlm.pretrain import ArchitectureConfig, DataConfig, pretraining_loss, whole
from exlm.pretrained import load_tokenizer
from exlm.storage import machine
from exlm.train import distributed
from exlm.train.loop import autocast, training_products
from exlm.train.optim import OptimizerConfig, build_optimizer

Call = Callable[[], object]
WARM_UP = 3  # steps


class Steps:
    """Training steps of one model, one after the other.

    Attributes:
        tokens: in all steps so far, copies and expanded states not counted.
    """

    def __init__(
        self, data: DataConfig, model: ArchitectureConfig, precision: str, seed: int, prior: Prior = NO_PRIOR
    ) -> None:
        corpus, tokenizer = Corpus(data.corpus), load_tokenizer(data.corpus)
        torch.manual_seed(seed)
        self.model = ExLMForMaskedLM(model.build(tokenizer, data.repeat))
        distributed.place(self.model)
        self.model.train()
        self.optimizer = build_optimizer(self.model, OptimizerConfig())
        sizes = (data.tokens_per_batch, data.tokens_per_micro_batch, data.mask_ratio, seed)
        self.batches = MaskedBatches(corpus, SpecialTokens.of(tokenizer), *sizes, repeat=data.repeat)
        self.precision, self.prior, self.step, self.tokens = precision, prior, 0, 0

    def next_batches(self) -> list[dict[str, Any]]:
        """The batches of the next update, expanded: in training another thread makes them."""
        return [whole(self.model, batch, self.prior) for _, batch in self.batches(self.step)]

    def update(self, batches: list[dict[str, Any]]) -> None:
        """Forward and backward passes of all micro-batches, and a step of the optimizer."""
        device = next(self.model.parameters()).device
        with training_products(device, self.precision):
            for batch in batches:
                with autocast(device, self.precision):
                    total, count, _ = pretraining_loss(self.model, batch)
                (total / count.clamp(min=1)).backward()
                self.tokens += int(batch["attention_mask"].sum()) // self.batches.repeat
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1


def compare(
    data: DataConfig, model: ArchitectureConfig, precision: str, seed: int, steps: int, prior: Prior = NO_PRIOR
) -> dict[str, Any]:
    """Time, throughput and peak memory of ExLM as in `model` and of the MLM on the same encoder.

    Args:
        data: corpus, mask ratio and batch.
        model: architecture of ExLM.
        precision: as in training.
        seed: of weights and batches.
        steps: measured steps of each.
        prior: of the links between states.
    """
    device = distributed.device().type
    sides = {name: dataclasses.replace(model, objective=name) for name in ("mlm", "exlm")}
    runs = {name: Steps(data, side, precision, seed, prior) for name, side in sides.items()}
    for run in runs.values():
        for _ in range(WARM_UP):
            run.update(run.next_batches())
        run.tokens = 0
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in tqdm(range(steps), desc="cost of a step", unit="pair"):
        for name, run in runs.items():
            times[name].append(seconds(partial(run.update, run.next_batches()), device))
    ratios = [a / b for a, b in zip(times["exlm"], times["mlm"], strict=True)]
    quarters = statistics.quantiles(ratios, n=4) if steps > 1 else ratios * 3
    # Resident memory of a CPU needs a process of its own; CUDA counts its allocations.
    peak: Callable[..., int] = _peak if device == "cuda" else partial(in_own_process, _peak)
    memory = {name: peak(data, side, precision, seed, device) for name, side in sides.items()}
    return {
        "machine": machine(),
        "mask_ratio": data.mask_ratio,
        "num_states": model.num_states,
        "pairs": steps,
        "clock": clock(device),
        "models": {
            name: {
                "seconds_per_step": sum(times[name]) / steps,
                "tokens_per_second": runs[name].tokens / sum(times[name]),
                "peak_memory_bytes": memory[name],
            }
            for name in runs
        },
        "ratio": sum(times["exlm"]) / sum(times["mlm"]),
        "ratio_quartiles": [quarters[0], quarters[2]],
    }


def _peak(data: DataConfig, model: ArchitectureConfig, precision: str, seed: int, device: str) -> int:
    """Peak bytes of a step, weights and optimizer included."""

    def build() -> Call:
        steps = Steps(data, model, precision, seed)
        return lambda: steps.update(steps.next_batches())

    return peak_memory(build, device)["total"]


def described(result: dict[str, Any]) -> str:
    """The measured cost, for people."""
    lines = [
        f"  {name:5s} {1e3 * row['seconds_per_step']:9.1f} ms per update ({result['clock']})"
        f" {row['tokens_per_second']:10.0f} tokens/s {row['peak_memory_bytes'] / 2**20:8.0f} MiB at most"
        for name, row in result["models"].items()
    ]
    low, high = result["ratio_quartiles"]
    lines.append(f"  ratio {result['ratio']:.2f} (quartiles {low:.2f} to {high:.2f}); paper, two A100: 1.9")
    return "\n".join(lines)


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
    base = torch.cuda.memory_allocated() if cuda else _resident("VmRSS")
    call = build()
    call()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before = torch.cuda.memory_allocated() if cuda else _resident("VmRSS")
    call()
    peak = torch.cuda.max_memory_allocated() if cuda else _resident("VmHWM")
    return {"total": peak - base, "step": peak - before}


def _resident(key: str) -> int:
    """Bytes of memory of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
