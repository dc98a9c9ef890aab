"""The runs behind docs/results/learning.md and order-prior.md: positions, shares of masks, passes,
the order prior.

    python docs/results/learning.py run learning-jobs.jsonl learning.jsonl \\
        --molecules CORPUS --text CORPUS
    python docs/results/learning.py show learning.jsonl \\
        --kinds mlm-full-p387 late-k2-2d-p387 --figure learning.png
    python docs/results/learning.py passes learning.jsonl passes.jsonl \\
        --molecules CORPUS --text CORPUS
    python docs/results/learning.py entropy learning.jsonl entropy.jsonl \\
        --molecules CORPUS --text CORPUS

Linear models and fine-tunings of learning.md (the models are in runs/learning):

    python docs/results/linear_probe.py MODELS --layers 1 2 \\
        --sets bbbp bace esol lipophilicity freesolv --data_dir DATA --output learning-probes.jsonl
    python docs/results/finetuned.py MODELS --layers 2 --rates 1e-3 --seeds 0 --random \\
        --sets freesolv esol bace bbbp clintox --data_dir DATA --output learning-finetuned.jsonl

A job is a line of JSON: name, and what differs from 2 layers of 128 without dropout, 2,048 tokens
per update, 1,200 updates at a rate of 2e-3 (60 of them to reach it), initial weights of 0.06,
rotary base 100, 15% masks. Several `run` may go side by side, and whatever was interrupted goes on;
every model is evaluated on the same 2,000 held-out sequences with 15% and with 38.7% masks, and on
1,000 with exactly 1, 2, 4, 8 and 16 masks.
"""

import argparse
import json
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from exlm import ExLMForMaskedLM
from exlm.data import batching
from exlm.data.masking import mask_tokens
from exlm.errors import InputError
from exlm.paper.measurements import measure_entropy
from exlm.pretrain.held_out import (
    HeldOutData,
    evaluate_by_masks,
    evaluate_in_passes,
    score_held_out,
)
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, EvaluateConfig, PriorSchedule
from exlm.randomness import Purpose, random_bits, uniform
from exlm.storage.files import read_log
from exlm.storage.models import load_model
from exlm.storage.run_directories import lock
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig

NARROW: dict[str, Any] = {
    "num_states": 2,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 1024,
    "initializer_range": 0.06,
    "rotary_base": 100.0,
}
RATIOS = (0.15, 0.387)


def data_of(job: dict[str, Any], corpora: dict[str, str]) -> DataConfig:
    corpus = corpora[job.get("corpus", "molecules")]
    sizes = {
        "tokens_per_batch": job.get("tokens", 2048),
        "repeat": job.get("repeat", 1),
        "eval_sequences": 1000,
    }
    share = job.get("p", 0.15)
    return DataConfig(corpus, tuple(share) if isinstance(share, list) else share, **sizes)


def one_mask_in_a_tenth(**options: Any) -> dict[str, Tensor]:
    """`mask_tokens`, but a tenth of the sequences has one mask, whatever the share of masks."""
    batch = mask_tokens(**options)
    # The last counter sets this draw apart from that of a sequence's share.
    bits = random_bits(
        Purpose.MASK_SHARE, options["seed"], options["epoch"], options["example_numbers"], 1
    )
    few = uniform(bits) < 0.1
    alone = mask_tokens(**{**options, "masks": 1})
    return {
        name: torch.where(torch.from_numpy(few)[:, None], alone[name], batch[name])
        for name in batch
    }


def trained(job: dict[str, Any], corpora: dict[str, str], directory: Path) -> dict[str, Any]:
    """The job with what its model scores, its curve, and the processor time it took (evaluations
    included)."""
    data = data_of(job, corpora)
    steps = job.get("steps", 1200)
    optimizer = OptimizerConfig(
        job.get("lr", 2e-3), job.get("warmup", 60), weight_decay=0.01, clip_norm=1.0
    )
    train = LoopConfig(
        steps, optimizer, log_every=50, eval_every=job.get("eval_every", 0), save_every=500
    )
    torch.set_num_threads(1)
    place, start = directory / job["name"], time.process_time()
    model = ArchitectureConfig(**{**NARROW, **job["model"]})
    masking = one_mask_in_a_tenth if job.get("one_mask_in_a_tenth") else mask_tokens
    with mock.patch.object(batching, "mask_tokens", masking):  # of the updates, not of evaluations
        pretrain(
            str(place),
            data,
            model,
            train,
            seed=job.get("seed", 0),
            prior=PriorSchedule(**job.get("prior", {})),
            evaluate=EvaluateConfig(by_masks=[]),
        )
    seconds = time.process_time() - start
    network, tokenizer = load_model(str(place), ExLMForMaskedLM)
    scores = {}
    for ratio in RATIOS:
        held_out = replace(data, mask_ratio=ratio, eval_sequences=2000)
        scores[str(ratio)] = score_held_out(
            network, list(HeldOutData(held_out, tokenizer, 99).batches())
        )
    counts = EvaluateConfig(sequences=1000)
    by_masks = evaluate_by_masks(network, HeldOutData(data, tokenizer, 99), counts)
    curve = [record for record in read_log(place / "log.jsonl") if record["kind"] == "eval"]
    for path in place.glob("checkpoint-*"):
        shutil.rmtree(path)
    return {**job, "cpu": seconds, "evaluation": scores, **by_masks, "curve": curve}


def run(jobs: Path, results: Path, corpora: dict[str, str], directory: Path) -> None:
    """Every job without a result that no other process is at, each in a process of its own; results
    are lines of JSON.

    A job that was interrupted goes on from its last checkpoint. (A process that has trained many
    models is slower: the library behind the products keeps a kernel for every shape that it ever
    met.)
    """
    directory.mkdir(parents=True, exist_ok=True)
    for line in jobs.read_text().splitlines():
        job = json.loads(line)
        if job["name"] in finished(results):
            continue
        try:
            with (
                lock(directory / f"{job['name']}.job"),
                ProcessPoolExecutor(1, get_context("spawn")) as process,
            ):
                found = process.submit(trained, job, corpora, directory).result()
                with results.open("a") as file:
                    file.write(json.dumps(found) + "\n")
        except InputError as error:
            print(f"{job['name']} is left out: {error}", flush=True)


def entropies(results: Path, output: Path, corpora: dict[str, str], directory: Path) -> None:
    """For every result whose model is still there, the entropy in bits of its predictions of masked
    tokens and of its states, with the share of masks of its training; what `output` has is not
    measured again."""
    for job in map(json.loads, results.read_text().splitlines()):
        place = directory / job["name"]
        if job["name"] in finished(output) or not place.exists():
            continue
        network, tokenizer = load_model(str(place), ExLMForMaskedLM)
        data = replace(data_of(job, corpora), eval_sequences=2000)
        found = measure_entropy(network, HeldOutData(data, tokenizer, 99).batches())
        with output.open("a") as file:
            file.write(json.dumps({"name": job["name"], **found}) + "\n")


def passes(results: Path, output: Path, corpora: dict[str, str], directory: Path) -> None:
    """For every result whose model is still there, the joint nll in 1, 2, 4 and all passes with
    38.7% masks; what `output` has is not measured again."""
    for job in map(json.loads, results.read_text().splitlines()):
        place = directory / job["name"]
        if job["name"] in finished(output) or not place.exists():
            continue
        network, tokenizer = load_model(str(place), ExLMForMaskedLM)
        data = replace(data_of(job, corpora), mask_ratio=RATIOS[1], eval_sequences=1000)
        batches = list(HeldOutData(data, tokenizer, 99).batches())
        scores = evaluate_in_passes(network, batches, [1, 2, 4, "all"])
        with output.open("a") as file:
            file.write(json.dumps({"name": job["name"], **scores}) + "\n")


def finished(results: Path) -> set[str]:
    """Names of the jobs that have a result."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {json.loads(line)["name"] for line in lines}


def cell(values: list[float]) -> str:
    """The mean over seeds of pre-training, and their standard deviation if there are several."""
    mean = f"{np.mean(values):.3f}".lstrip("0")
    return (
        mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.3f}".replace("± 0", "± ")
    )


def table(results: list[dict[str, Any]], kinds: list[str]) -> pd.DataFrame:
    """A row for each kind of model: nll and joint nll with two shares of masks, and nll by the
    number of masks."""
    rows = []
    for kind in kinds or dict.fromkeys(kind_of(result) for result in results):
        seeds = [result for result in results if kind_of(result) == kind]
        row = {"model": kind, "seeds": str(len(seeds))}
        for ratio in map(str, RATIOS):
            for score in ("nll", "joint_nll"):
                of_seeds = [result["evaluation"][ratio][score] for result in seeds]
                row[f"{100 * float(ratio):g}%: {score.replace('_', ' ')}"] = cell(of_seeds)
        for masks in ("1", "4", "16"):
            row[f"{masks} masks: joint nll"] = cell(
                [result["joint_nll_by_masks"][masks] for result in seeds]
            )
        rows.append(row | {"minutes": f"{np.mean([result['cpu'] for result in seeds]) / 60:.1f}"})
    return pd.DataFrame(rows)


def kind_of(result: dict[str, Any]) -> str:
    """The name of a job without its seed."""
    return result["name"].rsplit("-s", 1)[0]


def draw_figure(results: list[dict[str, Any]], kinds: list[str], path: Path) -> None:
    """Joint nll by the number of masks, a line for each kind of model: the mean over seeds, and
    every seed as a dot."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 4), constrained_layout=True)
    styles = ["-o", "--s", ":^", "-.D", "-v", "--P", ":X", "-.*"]
    for kind, style in zip(kinds, styles, strict=False):
        scores = [result["joint_nll_by_masks"] for result in results if kind_of(result) == kind]
        counts = [int(masks) for masks in scores[0]]
        values = np.array([list(of_seed.values()) for of_seed in scores])
        [line] = axis.plot(
            counts, values.mean(0), style, label=f"{kind} ({len(scores)} seeds)", markersize=5
        )
        axis.plot(counts, values.T, ".", color=line.get_color(), alpha=0.35, markersize=4)
    axis.set(xscale="log", xticks=counts, xticklabels=counts)
    axis.set(xlabel="masks in a sequence", ylabel="joint nll, nats per masked token")
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    kinds = (
        ("run", run, "jobs results"),
        ("entropy", entropies, "results output"),
        ("passes", passes, "results output"),
    )
    for name, function, files in kinds:
        command = commands.add_parser(name)
        for file in files.split():
            command.add_argument(file, type=Path)
        command.add_argument("--molecules", required=True)
        command.add_argument("--text", required=True)
        command.add_argument("--out", dest="directory", type=Path, default=Path("runs/learning"))
        command.set_defaults(function=function)
    shower = commands.add_parser("show")
    shower.add_argument("results", type=Path)
    shower.add_argument("--figure", type=Path)
    shower.add_argument("--kinds", nargs="*", default=[])
    options = vars(parser.parse_args())
    if options.pop("command") != "show":
        function, corpora = (
            options.pop("function"),
            {name: options.pop(name) for name in ("molecules", "text")},
        )
        needed = options["jobs" if function is run else "results"]
        if not needed.is_file():
            parser.error(
                f"{needed} does not exist; give a file with a line of JSON for every job or result"
            )
        function(corpora=corpora, **options)
        return
    results = [json.loads(line) for line in options["results"].read_text().splitlines()]
    found = table(results, options["kinds"])
    for cells in (found.columns, ["---"] * len(found.columns), *found.to_numpy()):
        print("| " + " | ".join(map(str, cells)) + " |")
    if options["figure"]:
        draw_figure(results, options["kinds"], options["figure"])


if __name__ == "__main__":
    main()
