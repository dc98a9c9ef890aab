"""The runs behind docs/results/learning.md: does a small ExLM learn, and beside which MLM?

    python docs/results/learning.py run learning-jobs.jsonl learning.jsonl --molecules CORPUS --text CORPUS
    python docs/results/learning.py show learning.jsonl --figure learning.png --kinds mlm all-k4
    python docs/results/learning.py entropy learning.jsonl entropy.jsonl --molecules CORPUS --text CORPUS

A job is a line of JSON: name, and what differs from 2 layers of 128 without dropout, 2,048 tokens per update, 1,200
updates at a rate of 2e-3, initial weights of 0.06, rotary base 100, 15% masks. Several `run` may go side by side, and
whatever was interrupted goes on; every model is evaluated on the same 2,000 held-out sequences with 15% and with 38.7%
masks.
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

import matplotlib
import pandas as pd
import torch

from exlm import ExLMForMaskedLM
from exlm.errors import InputError
from exlm.paper.measurements import measure_entropy
from exlm.pretrain import evaluate_by_masks, held_out_batches, pretrain, score_held_out
from exlm.pretrained import load_model
from exlm.recipe import ArchitectureConfig, DataConfig, EvaluateConfig, PriorConfig
from exlm.storage import lock
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from exlm.train.tracking import read_log

NARROW: dict[str, Any] = {
    "num_states": 2,
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 1024,
    "initializer_range": 0.06, "rotary_base": 100.0,
}  # fmt: skip
RATIOS = (0.15, 0.387)


def data_of(job: dict[str, Any], corpora: dict[str, str]) -> DataConfig:
    corpus = corpora[job.get("corpus", "molecules")]
    sizes = {"tokens_per_batch": job.get("tokens", 2048), "repeat": job.get("repeat", 1), "eval_sequences": 1000}
    share = job.get("p", 0.15)
    return DataConfig(corpus, tuple(share) if isinstance(share, list) else share, **sizes)


def trained(job: dict[str, Any], corpora: dict[str, str], directory: Path) -> dict[str, Any]:
    """The job with what its model scores, its curve, and the processor time it took (evaluations included)."""
    data = data_of(job, corpora)
    steps = job.get("steps", 1200)
    optimizer = OptimizerConfig(job.get("lr", 2e-3), 60, weight_decay=0.01, clip_norm=1.0)
    train = LoopConfig(steps, optimizer, log_every=50, eval_every=job.get("eval_every", 0), save_every=500)
    torch.set_num_threads(1)
    place, start = directory / job["name"], time.process_time()
    model = ArchitectureConfig(**{**NARROW, **job["model"]})
    nothing_more = EvaluateConfig(by_masks=[])
    pretrain(str(place), data, model, train, job.get("seed", 0), PriorConfig(**job.get("prior", {})), nothing_more)
    seconds = time.process_time() - start
    network, tokenizer = load_model(str(place), ExLMForMaskedLM)
    scores = {}
    for ratio in RATIOS:
        held_out = replace(data, mask_ratio=ratio, eval_sequences=2000)
        scores[str(ratio)] = score_held_out(network, list(held_out_batches(held_out, tokenizer, 99, 0, 1)))
    counts = EvaluateConfig(sequences=1000)
    by_masks = evaluate_by_masks(network, tokenizer, data, counts, seed=99)
    curve = [record for record in read_log(place / "log.jsonl") if record["kind"] == "eval"]
    for path in place.glob("checkpoint-*"):
        shutil.rmtree(path)
    return {**job, "cpu": seconds, "evaluation": scores, **by_masks, "curve": curve}


def run(jobs: Path, results: Path, corpora: dict[str, str], directory: Path) -> None:
    """Every job without a result that no other process is at, each in a process of its own; results are lines of JSON.

    A job that was interrupted goes on from its last checkpoint. (A process that has trained many models is slower: the
    library behind the products keeps a kernel for every shape that it ever met.)
    """
    directory.mkdir(parents=True, exist_ok=True)
    for line in jobs.read_text().splitlines():
        job = json.loads(line)
        if job["name"] in finished(results):
            continue
        try:
            with lock(directory / f"{job['name']}.job"), ProcessPoolExecutor(1, get_context("spawn")) as process:
                found = process.submit(trained, job, corpora, directory).result()
                with results.open("a") as file:
                    file.write(json.dumps(found) + "\n")
        except InputError as error:
            print(f"{job['name']} is left out: {error}", flush=True)


def entropies(results: Path, output: Path, corpora: dict[str, str], directory: Path) -> None:
    """For every result whose model is still there, the entropy in bits of its predictions of masked tokens and of its
    states, with the share of masks of its training; what `output` has is not measured again."""
    for job in map(json.loads, results.read_text().splitlines()):
        place = directory / job["name"]
        if job["name"] in finished(output) or not place.exists():
            continue
        network, tokenizer = load_model(str(place), ExLMForMaskedLM)
        data = replace(data_of(job, corpora), eval_sequences=2000)
        found = measure_entropy(network, held_out_batches(data, tokenizer, 99, 0, 1))
        with output.open("a") as file:
            file.write(json.dumps({"name": job["name"], **found}) + "\n")


def finished(results: Path) -> set[str]:
    """Names of the jobs that have a result."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {json.loads(line)["name"] for line in lines}


def table(results: list[dict[str, Any]]) -> pd.DataFrame:
    """Mean over seeds of every kind of model, the spread of the joint nll beside it."""
    rows = []
    for found in results:
        kind, seed = found["name"].rsplit("-s", 1)
        row: dict[str, Any] = {"model": kind, "seed": int(seed)}
        for ratio in RATIOS:
            scores, share = found["evaluation"][str(ratio)], f"{100 * ratio:g}%"
            row |= {f"{share} {name}": scores[name] for name in ("accuracy", "nll", "joint_nll")}
            row |= {f"{share} own": scores.get("own_states", 1.0)}
        states = found["evaluation"]["0.15"].get("by_state", [])
        rows.append(row | {"states": " ".join(f"{share:.2f}" for share in states)})
    frame = pd.DataFrame(rows)
    numbers = [name for name in frame if name not in ("model", "seed", "states")]
    grouped = frame.groupby("model", sort=False)
    result = grouped[numbers].mean().round(3)
    for ratio in RATIOS:
        name = f"{100 * ratio:g}% joint_nll"
        result[f"{name} s.d."] = grouped[name].std().round(3)
    return result.assign(seeds=grouped.size(), states=grouped["states"].first())


def draw(results: list[dict[str, Any]], kinds: list[str], path: Path) -> None:
    """Accuracy, joint nll and own-mask share over updates, a line per seed."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), constrained_layout=True)
    colours = dict(zip(kinds, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    titles = {"accuracy": "held-out accuracy", "joint_nll": "joint nll (nats per masked token)"}
    titles["own_states"] = "share on states of the own mask"
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        named = set()
        for found in results:
            kind = found["name"].rsplit("-s", 1)[0]
            if kind in colours and name in found["curve"][0]:
                label = None if kind in named else kind
                steps = [record["step"] for record in found["curve"]]
                axis.plot(steps, [r[name] for r in found["curve"]], color=colours[kind], label=label, alpha=0.8)
                named.add(kind)
        axis.set(title=title, xlabel="updates")
        axis.grid(alpha=0.3)
    axes[2].set_ylim(0, 1.05)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function, files in (("run", run, "jobs results"), ("entropy", entropies, "results output")):
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
        function, corpora = options.pop("function"), {name: options.pop(name) for name in ("molecules", "text")}
        needed = options["jobs" if function is run else "results"]
        if not needed.is_file():
            parser.error(f"{needed} does not exist; give a file with a line of JSON for every job or result")
        function(corpora=corpora, **options)
        return
    results = [json.loads(line) for line in options["results"].read_text().splitlines()]
    found = table(results).reset_index()
    for cells in (found.columns, ["---"] * len(found.columns), *found.to_numpy()):
        print("| " + " | ".join(map(str, cells)) + " |")
    if options["figure"]:
        draw(results, options["kinds"], options["figure"])


if __name__ == "__main__":
    main()
