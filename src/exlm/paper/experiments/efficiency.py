"""What a training step of ExLM costs beside one of the MLM (paper, appendix on training efficiency).

Both models take steps on the same batches of the corpus, alternately, so that whatever else the machine does falls on
both. The ratio decides how many updates MLM++ gets: those that cost what ExLM's cost.
"""

import dataclasses
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from exlm.data.batching import MaskedBatches, SpecialTokens
from exlm.data.corpus import Corpus
from exlm.model.heads import NO_PRIOR, Prior
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.paper.timing import Call, clock, in_fresh_process, peak_memory, seconds
from exlm.pretrain import pretraining_loss, whole
from exlm.pretrained import load_tokenizer
from exlm.recipe import ArchitectureConfig, DataConfig
from exlm.storage import machine
from exlm.train import distributed
from exlm.train.optim import OptimizerConfig, build_optimizer
from exlm.train.precision import autocast, training_products

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

    def ahead(self) -> list[dict[str, Any]]:
        """The batches of the next update, expanded: in training another thread makes them."""
        return [whole(self.model, batch, self.prior) for _, batch in self.batches(self.step)]

    def __call__(self, made: list[dict[str, Any]] | None = None) -> None:
        """One update on batches `made` ahead."""
        device = next(self.model.parameters()).device
        with training_products(device, self.precision):
            for batch in made or self.ahead():
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
            run()
        run.tokens = 0
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in tqdm(range(steps), desc="cost of a step", unit="pair"):
        for name, run in runs.items():
            times[name].append(seconds(partial(run, run.ahead()), device))
    ratios = [a / b for a, b in zip(times["exlm"], times["mlm"], strict=True)]
    quarters = statistics.quantiles(ratios, n=4) if steps > 1 else ratios * 3
    memory = {name: _memory(data, side, precision, seed, device) for name, side in sides.items()}
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


def _memory(data: DataConfig, model: ArchitectureConfig, precision: str, seed: int, device: str) -> int:
    """Peak bytes of a step, weights and optimizer included; resident memory of a CPU needs a process of its own."""
    run: Callable[..., int] = _peak if device == "cuda" else partial(in_fresh_process, _peak)
    return run(data, model, precision, seed, device, torch.get_num_threads())


def _peak(data: DataConfig, model: ArchitectureConfig, precision: str, seed: int, device: str, threads: int) -> int:
    torch.set_num_threads(threads)

    def build() -> Call:
        return Steps(data, model, precision, seed)

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
