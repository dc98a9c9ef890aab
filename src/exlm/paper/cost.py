"""The cost of a training step (appendix on training efficiency). ExLM and the MLM take steps on the
same batches, in turn, so that other work on the machine slows both alike. The ratio of their costs
sets the number of updates of MLM++."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from exlm.data.corpus import Corpus
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.precision import Precision
from exlm.paper.display import METHODS, Row, percent
from exlm.paper.jobs import in_own_process
from exlm.paper.pretrainings import name_device
from exlm.pretrain.batches import complete_batches, make_masked_batches
from exlm.pretrain.run import pretraining_loss
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, PriorSchedule, Recipe
from exlm.storage.files import to_json_types, write_json
from exlm.storage.machine import machine
from exlm.storage.run_directories import finished_result
from exlm.storage.tokenizers import load_tokenizer
from exlm.train import devices
from exlm.train.loop import LoopConfig
from exlm.train.optim import build_optimizer
from exlm.train.update import update

STEP_COST = "efficiency.json"
Call = Callable[[], object]
WARM_UP = 3  # pairs of steps that are not timed


def measure_cost(output: Path, **settings: Any) -> None:
    """Writes the result of `compare_costs` into the file `output`, unless it is there; InputError
    if it was measured with other settings."""
    if finished_result(output, "recipe", to_json_types(settings)):
        return
    result = compare_costs(**settings)
    write_json(output, result | {"recipe": settings})
    low, high = result["ratio_quartiles"]
    print(
        f"all timed updates of ExLM together cost {result['ratio']:.2f} times those of the MLM "
        f"(of single pairs of updates {result['ratio_median']:.2f} in the median, quartiles "
        f"{low:.2f} to {high:.2f})"
    )


def compare_costs(
    data: DataConfig,
    model: ArchitectureConfig,
    precision: Precision,
    steps: int,
    prior: PriorSchedule = PriorSchedule(),
) -> dict[str, Any]:
    """Time, throughput and peak memory of `steps` updates of ExLM (as in `model`), and of as many
    updates of an MLM with the same encoder."""
    device = devices.device().type
    train = LoopConfig(precision=precision)
    recipes = {
        name: Recipe("", data, replace(model, objective=name), prior, train)
        for name in ("mlm", "exlm")
    }
    trainings = {name: prepare_updates(recipe) for name, recipe in recipes.items()}
    pairs = []
    for _ in tqdm(range(WARM_UP + steps), desc="cost of a step", unit="pair"):
        pair: dict[str, float] = {}  # the seconds of both models, and the tokens of the batch
        for name, training in trainings.items():
            update_once, pair["tokens"] = next(training)
            pair[name] = time_call(update_once, device)
        pairs.append(pair)
    times = pd.DataFrame(pairs[WARM_UP:])
    total = times.sum()
    low, median, high = (times["exlm"] / times["mlm"]).quantile([0.25, 0.5, 0.75])
    models = {}
    for name, recipe in recipes.items():
        models[name] = {
            "seconds_per_step": times[name].mean(),
            "tokens_per_second": total["tokens"] / total[name],
            "peak_memory_bytes": in_own_process(measure_peak_memory, device, recipe),
        }
    clock = "processor time of one thread" if torch.get_num_threads() == 1 else "wall time"
    return {
        "machine": machine(device),
        "mask_ratio": data.one_mask_ratio,
        "num_states": model.num_states,
        "pairs": steps,
        "clock": "GPU time" if device == "cuda" else clock,
        "models": models,
        "ratio": total["exlm"] / total["mlm"],
        "ratio_median": median,
        "ratio_quartiles": [low, high],
    }


def prepare_updates(recipe: Recipe) -> Iterator[tuple[Call, int]]:
    """For each update of a pre-training a function that does it, and how many tokens it reads,
    without copies and expanded states. The batches are masked and expanded before the function is
    called: in a real training another thread does this."""
    torch.manual_seed(recipe.seed)
    repeat = recipe.data.repeat
    corpus = Corpus(recipe.data.corpus)
    tokenizer = load_tokenizer(corpus.path)
    network = ExLMForMaskedLM(recipe.model.build(tokenizer, repeat)).train()
    devices.place_model(network)
    optimizer = build_optimizer(network, recipe.train.optimizer)
    masked_batches = make_masked_batches(recipe, corpus, tokenizer, network)
    for step in itertools.count():
        batches = complete_batches(masked_batches, network.config, recipe, step)
        tokens = sum(int(batch["attention_mask"].sum()) for _, batch in batches) // repeat
        update_once = partial(
            update,
            network=network,
            optimizer=optimizer,
            loss=pretraining_loss,
            micro_batches=batches,
            precision=recipe.train.precision,
            clip_norm=recipe.train.optimizer.clip_norm,
            seed=recipe.seed,
            step=step,
        )
        yield update_once, tokens


def time_call(call: Call, device: str) -> float:
    """The seconds of one call: GPU time or, on a CPU, wall time. One CPU thread has processor time,
    which is steadier."""
    if device == "cuda":
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
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


def measure_peak_memory(device: str, recipe: Recipe) -> int:
    """By how many bytes the first two updates of a training raise the peak of memory. Call it by
    `in_own_process`: on a CPU the resident memory of the whole process is measured."""
    before = 0 if device == "cuda" else read_resident_memory("VmRSS")
    for update_once, _ in itertools.islice(prepare_updates(recipe), 2):
        update_once()
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return read_resident_memory("VmHWM") - before


def read_resident_memory(name: str) -> int:
    """Bytes of memory that Linux counts for this process: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@dataclass(frozen=True)
class StepCost:
    """What a step of ExLM and of the MLM costs, as `measure_cost` wrote it."""

    study_path: Path  # the directory of the analysis
    ratio: float  # the cost of ExLM, divided by the cost of the MLM
    rows: list[Row]  # of the table of costs


def read_step_cost(study_path: Path, content: dict[str, Any]) -> StepCost:
    """The cost in a directory whose efficiency.json has this content."""
    setting = f"p = {percent(content['mask_ratio'])}, {content['pairs']} pairs"
    layers = content["recipe"]["model"]["expanded_layers"]
    ratio = content["ratio"]
    low, high = content["ratio_quartiles"]
    exlm = f"ExLM, k = {content['num_states']}, expanded layers: {layers}"
    rows: list[Row] = []
    for name, title, times_mlm, quartiles in (
        ("mlm", METHODS["mlm"], 1.0, ""),
        ("exlm", exlm, ratio, f"{low:.2f}–{high:.2f}"),
    ):
        step = content["models"][name]
        row = {
            "group": f"ours: {study_path}, {setting}, {name_device(content)}",
            "model": title,
            "ms per step": 1000 * step["seconds_per_step"],
            "tokens per second": round(step["tokens_per_second"]),
            "memory, GB": step["peak_memory_bytes"] / 1e9,
            "times MLM": times_mlm,
            "quartiles": quartiles,
            "clock": content["clock"],
        }
        rows.append(row)
    return StepCost(study_path, ratio, rows)
