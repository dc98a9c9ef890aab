"""Fine-tunings of several models with one protocol, on MoleculeNet or GLUE, for the comparisons of
evidence-plan.md.

    python docs/results/finetuned.py models/mlm-s0 --layers 3 4 --rates 3e-4 1e-3 --seeds 0 \\
        --data_dir DATA --output finetuned.jsonl

Mean pooling, 32 rows per update, at most 20 epochs, stopped after 5 without a better score on
valid; scaffold split, or with `--random` a random one for the regressions; no molecule is too
long. (GLUE's test labels are not public: its scores are those on dev, which also chooses the
epoch.) A line of JSON for every model, set, layer, rate and seed of the fine-tuning; what is there
is not done again, and several such commands may run side by side.
"""

import argparse
import json
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from exlm.errors import InputError
from exlm.storage.run_directories import lock
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune

TEXTS = ("rte", "cola", "sts-b", "mrpc", "sst-2")
REGRESSIONS = ("freesolv", "esol", "lipophilicity")
SETS = ("bace", "bbbp", "clintox", "sider", *REGRESSIONS, "tox21", "toxcast", "muv")
LONGEST_MOLECULE = 1024  # tokens; SIDER has one of 914
KEY = ("set", "model", "layers", "rate", "seed")


def scores(job: dict[str, Any], data_dir: str | None, random: bool, folder: Path) -> dict[str, Any]:
    """The job with what the best epoch has on valid and test, and the seconds it took."""
    torch.set_num_threads(1)
    task = TaskConfig(job["set"], data_dir=data_dir)
    if job["set"] not in TEXTS:
        split = "random" if random and job["set"] in REGRESSIONS else "scaffold"
        task = replace(task, split=split, max_length=LONGEST_MOLECULE)
    train = FinetuneConfig(
        epochs=20,
        batch_size=32,
        learning_rate=job["rate"],
        warmup_ratio=0.06,
        dropout=0.1,
        pooler_dropout=0.1,
        pooling="mean",
        layers=job["layers"],
        patience=5,
    )
    start = time.process_time()
    report = finetune(str(folder), job["model"], task, train, [job["seed"]])
    seconds = round(time.process_time() - start)
    [run], metric = report["runs"], report["metric"]
    shutil.rmtree(folder)
    of_part = {part: part_scores[metric] for part, part_scores in run["scores"].items()}
    test = of_part.get("test", of_part["valid"])
    return {**job, "metric": metric, "valid": of_part["valid"], "test": test, "seconds": seconds}


def done(output: Path) -> set[tuple]:
    """The jobs whose lines are in the output."""
    lines = output.read_text().splitlines() if output.exists() else []
    return {tuple(json.loads(line)[name] for name in KEY) for line in lines}


def run_job(job: dict[str, Any], options: argparse.Namespace) -> None:
    """Add the job's line to the output, in a process of its own, unless another command has it."""
    name = "-".join(str(value).replace("/", "-") for value in job.values())
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            lock(options.folder / f"{name}.job"),
            ProcessPoolExecutor(1, get_context("spawn")) as process,
            options.output.open("a") as output,
        ):
            arguments = (job, options.data_dir, options.random, options.folder / name)
            line = process.submit(scores, *arguments).result()
            output.write(json.dumps(line) + "\n")
    except InputError as error:
        print(f"{name} is left out: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", required=True)
    parser.add_argument("--rates", type=float, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sets", nargs="+", default=TEXTS + SETS, choices=TEXTS + SETS)
    parser.add_argument("--random", action="store_true", help="random splits of the regressions")
    parser.add_argument("--data_dir")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("finetuned"))
    options = parser.parse_args()
    jobs = product(options.sets, options.models, options.layers, options.rates, options.seeds)
    for key in jobs:
        if key not in done(options.output):
            run_job(dict(zip(KEY, key, strict=True)), options)


if __name__ == "__main__":
    main()
