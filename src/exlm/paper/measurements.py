"""What the experiments measure: of every pre-trained model the entropy of its predictions (paper,
section 3.3), the share of tokens whose copies are all masked (corrupted semantics, section 3.1) and
where masked tokens are emitted; of a training step the cost (appendix on training efficiency).

ExLM and the MLM take steps on the same batches, in turn, so that other work on the machine slows
both alike. The ratio of their costs sets the number of updates of MLM++."""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from exlm.data.batching import IGNORED, MaskedBatches
from exlm.data.corpus import Corpus
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.precision import in_precision, used_precision
from exlm.ops.transition import PriorStrength
from exlm.paper.jobs import in_own_process
from exlm.pretrain.batches import complete_batch
from exlm.pretrain.held_out import HeldOutData, score_held_out
from exlm.pretrain.run import pretraining_loss
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, PriorSchedule
from exlm.storage.files import to_json_types, write_json
from exlm.storage.models import load_model
from exlm.storage.runs import finished_result, machine
from exlm.storage.tokenizers import load_tokenizer
from exlm.train import distributed
from exlm.train.optim import OptimizerConfig, build_optimizer
from exlm.train.update import update

Call = Callable[[], object]
WARM_UP = 3  # pairs of steps that are not timed
# Logits of all states measured at a time. Their entropy takes four times as many numbers in
# float64: 1 GB.
LOGITS = 2**25


def measure_run(run_dir: Path, data: DataConfig, seed: int) -> None:
    """Writes `measurements.json` beside a model pre-trained with `data` and `seed`. In `alignment`,
    `own` is the share of masked tokens that a state of their own mask emits, `by_state` that of
    each state; null without transitions."""
    model, tokenizer = load_model(str(run_dir), ExLMForMaskedLM)
    distributed.place_model(model)
    batches = list(HeldOutData(data, tokenizer, seed).batches())
    alignment = None
    if model.transition is not None:
        scores = score_held_out(model, batches)
        alignment = {"own": scores["own_states"], "by_state": scores["by_state"]}
    settings = {"mask_ratio": data.one_mask_ratio, "repeat": data.repeat}
    result = {
        "entropy": settings | measure_entropy(model, batches),
        "corruption": settings | measure_corruption(batches, data.one_mask_ratio, data.repeat),
        "alignment": alignment,
    }
    write_json(run_dir / "measurements.json", result)


def measure_entropy(model: ExLMForMaskedLM, batches: Iterable[dict[str, Tensor]]) -> dict[str, Any]:
    """Mean, standard deviation and standard error of the entropy, in bits. `tokens` counts the
    tokens measured: those without a visible copy. `states` has the same three numbers for the
    entropy of ExLM's states."""
    model.eval()
    pieces = []
    with in_precision(model.device, "fp32"):
        for batch in tqdm(batches, desc="entropy", unit="batch"):
            pieces += [batch_entropies(model, piece) for piece in in_pieces(model, batch)]
    entropies = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    return {
        **_moments(entropies["mixture"]),
        "tokens": len(entropies["mixture"]),
        "states": _moments(entropies["states"]) if "states" in entropies else None,
    }


def _moments(values: Tensor) -> dict[str, float]:
    """Mean, standard deviation and standard error of numbers [n]; NaN if there are none."""
    std = values.std(correction=0)
    error = std / math.sqrt(len(values))
    return {"mean": float(values.mean()), "std": float(std), "stderr": float(error)}


def in_pieces(model: ExLMForMaskedLM, batch: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The batch, as many sequences at a time as have `LOGITS` logits. One sequence may have
    more."""
    masks = int((batch["labels"] != IGNORED).sum(1).max())
    states = masks * model.config.states_per_mask + 2 * model.config.states_per_boundary
    size = max(1, LOGITS // (states * model.config.vocab_size))
    for pieces in zip(*(values.split(size) for values in batch.values()), strict=True):
        yield dict(zip(batch, pieces, strict=True))


@torch.no_grad()
def batch_entropies(model: ExLMForMaskedLM, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entropies, in bits, of the tokens without a visible copy, as means over their r copies:
    of the `mixture` of a token's states and, for ExLM, the mean of its `states`, each [tokens]. The
    batch has input_ids, attention_mask and labels, each [B, S r], with the copies of a token side
    by side."""
    output = model.lattice_output(model.exlm.expand(**batch))
    lattice = output.lattice
    target_entropies = {"mixture": entropy(model.objective.marginals(output))}  # [B, T]
    if model.transition is not None:
        state_entropies = entropy(model.head(output.states).log_softmax(-1))  # [B, N]
        visits = output.visits.double()  # [B, T, N]
        target_entropies["states"] = (visits @ state_entropies[..., None])[..., 0]
    is_masked = batch["labels"] != IGNORED
    copies_masked = is_masked.unflatten(1, (-1, model.config.repeat))  # [B, S, r]
    result = {}
    for name, values in target_entropies.items():
        input_entropies = torch.zeros(is_masked.shape, dtype=values.dtype)
        # Targets stand in the order of the input.
        input_entropies[is_masked] = values[lattice.target_is_mask].cpu()
        result[name] = input_entropies.view(copies_masked.shape).mean(2)[copies_masked.all(2)]
    return result


def entropy(log_probabilities: Tensor) -> Tensor:
    """The entropies [...], in bits, of distributions [..., V]. A token with probability 0 adds
    nothing."""
    log_probabilities = log_probabilities.double()
    return -(log_probabilities.exp() * log_probabilities.clamp(min=-1e4)).sum(-1) / math.log(2)


def measure_corruption(
    batches: Iterable[dict[str, Tensor]], p: float, repeat: int
) -> dict[str, float]:
    """Corrupted share: mean and standard deviation over sequences, as measured and by the formula
    of the appendix. The formula assumes that copies are masked independently. A sequence of N
    tokens then has expectation p^r and variance p^r (1 - p^r) / N, averaged here over all
    sequences. Training masks a fixed count: its shares vary less."""
    lengths = []
    corrupted = []
    for batch in batches:
        # BOS and EOS are never masked.
        lengths.append(batch["attention_mask"].sum(1) // repeat - 2)
        copies_masked = (batch["labels"] != IGNORED).unflatten(1, (-1, repeat))
        corrupted.append(copies_masked.all(2).sum(1))
    tokens = torch.cat(lengths)
    shares = (torch.cat(corrupted) / tokens).double().numpy()
    expected = p**repeat
    variance = expected * (1 - expected) * float((1 / tokens.double()).mean())
    return {
        "mean": float(shares.mean()),
        "std": float(shares.std()),
        "sequences": len(shares),
        "tokens": int(tokens.sum()),
        "predicted": expected,
        "predicted_std": math.sqrt(variance),
    }


def measure_cost(output: Path, **settings: Any) -> None:
    """Writes the result of `compare`, unless `output` has it; InputError if it was measured with
    other settings."""
    if finished_result(output, "recipe", to_json_types(settings)):
        return
    result = compare(**settings)
    write_json(output, result | {"recipe": settings})
    low, high = result["ratio_quartiles"]
    print(
        f"an update of ExLM costs {result['ratio']:.2f} times one of the MLM "
        f"(quartiles {low:.2f} to {high:.2f})"
    )


def compare(
    data: DataConfig,
    model: ArchitectureConfig,
    precision: str,
    steps: int,
    prior: PriorSchedule = PriorSchedule(),
) -> dict[str, Any]:
    """Time, throughput and peak memory of `steps` updates of ExLM (as in `model`), and of an MLM
    with its encoder."""
    device = distributed.device().type
    updates_of = {}
    for name in ("mlm", "exlm"):
        architecture = replace(model, objective=name)
        strength = prior.at(0, steps)
        updates_of[name] = partial(timed_updates, data, architecture, precision, strength)
    updates = {name: begin() for name, begin in updates_of.items()}
    rows = []
    for _ in tqdm(range(WARM_UP + steps), desc="cost of a step", unit="pair"):
        row: dict[str, float] = {}
        for name, updates_of_model in updates.items():
            update_once, row["tokens"] = next(updates_of_model)
            row[name] = seconds(update_once, device)
        rows.append(row)
    times = pd.DataFrame(rows[WARM_UP:])  # seconds of each pair of steps
    total = times.sum()
    models = {}
    for name, begin in updates_of.items():
        models[name] = {
            "seconds_per_step": times[name].mean(),
            "tokens_per_second": total["tokens"] / total[name],
            "peak_memory_bytes": in_own_process(peak_memory, device, begin),
        }
    clock = "processor time of one thread" if torch.get_num_threads() == 1 else "wall time"
    return {
        "machine": machine(),
        "mask_ratio": data.one_mask_ratio,
        "num_states": model.num_states,
        "pairs": steps,
        "clock": "GPU time" if device == "cuda" else clock,
        "models": models,
        "ratio": total["exlm"] / total["mlm"],
        "ratio_quartiles": (times["exlm"] / times["mlm"]).quantile([0.25, 0.75]).tolist(),
    }


def timed_updates(
    data: DataConfig, model: ArchitectureConfig, precision: str, prior: PriorStrength
) -> Iterator[tuple[Call, int]]:
    """Functions that each do one update, and how many tokens it reads, not counting copies and
    expanded states. Batches are masked and expanded before the function is called: in a real
    training another thread does this."""
    torch.manual_seed(0)
    corpus = Corpus(data.corpus)
    tokenizer = load_tokenizer(corpus.path)
    network = ExLMForMaskedLM(model.build(tokenizer, data.repeat)).train()
    distributed.place_model(network)
    half = used_precision(network.device, precision) == "bf16"
    settings = OptimizerConfig()
    optimizer = build_optimizer(network, settings)
    masked = MaskedBatches(
        corpus,
        tokenizer,
        data.tokens_per_batch,
        data.tokens_per_micro_batch,
        data.mask_ratio,
        seed=0,
        repeat=data.repeat,
        without_padding=network.exlm.removes_padding(autocast=half),
    )
    for step in itertools.count():
        batches = []
        tokens = 0
        for number, batch in masked(step):
            batches.append((number, complete_batch(network.config, batch, prior)))
            tokens += int(batch["attention_mask"].sum()) // data.repeat
        # The seed and the step, both 0, matter to dropout alone.
        update_once = partial(
            update,
            model=network,
            optimizer=optimizer,
            loss=pretraining_loss,
            micro_batches=batches,
            precision=precision,
            clip_norm=settings.clip_norm,
            seed=0,
            step=0,
        )
        yield update_once, tokens


def seconds(call: Call, device: str) -> float:
    """Seconds of one call: GPU time or, on a CPU, wall time. With one CPU thread: processor time,
    which is steadier."""
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


def peak_memory(device: str, begin_updates: Callable[[], Iterator[tuple[Call, int]]]) -> int:
    """By how many bytes two updates of `timed_updates` raise the peak of memory. Call it by
    `in_own_process`: on a CPU it is the resident memory of the whole process."""
    before = 0 if device == "cuda" else resident_memory("VmRSS")
    for update_once, _ in itertools.islice(begin_updates(), 2):
        update_once()
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resident_memory("VmHWM") - before


def resident_memory(name: str) -> int:
    """Bytes of memory that Linux counts for this process: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
