"""Fine-tunings of several models with one protocol, on MoleculeNet or GLUE, for the comparisons of
evidence-plan.md.

    python docs/results/finetuned.py models/mlm-s0 --layers 3 4 --rates 3e-4 1e-3 --seeds 0
    --data_dir DATA \
        --output finetuned.jsonl

Mean pooling, 32 rows per update, at most 20 epochs, stopped after 5 without a better score on
valid; scaffold split, or random for the regressions. (GLUE's test labels are not public: its scores
are those on dev, which also chooses the epoch.) A line of JSON for every model, set, layer, rate
and seed of the fine-tuning; what is there is not done again, and several such commands may run side
by side.
"""

import argparse
import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from exlm.errors import InputError
from exlm.storage.runs import lock
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune

TEXTS = ("rte", "cola", "sts-b", "mrpc", "sst-2")
SETS = ("bbbp", "bace", "clintox", "sider", "tox21", "esol", "lipophilicity", "freesolv")
RANDOM = ("esol", "lipophilicity", "freesolv")  # sets with a random split
KEY = ("set", "model", "layers", "rate", "seed")


def scores(job: dict[str, Any], data_dir: str | None, folder: Path) -> dict[str, Any]:
    """The job with what the best epoch has on valid and test."""
    torch.set_num_threads(1)
    split = (
        {} if job["set"] in TEXTS else {"split": "random" if job["set"] in RANDOM else "scaffold"}
    )
    task = TaskConfig(job["set"], data_dir=data_dir, **split)
    train = FinetuneConfig(20, 32, job["rate"], 0.06, 0.1, 0.1, "mean", job["layers"], patience=5)
    report = finetune(str(folder), job["model"], task, train, [job["seed"]])
    [run], metric = report["runs"], report["metric"]
    shutil.rmtree(folder)
    found = {"test": run["scores"]["valid"]} | run["scores"]
    return {**job, "metric": metric, **{part: found[part][metric] for part in ("valid", "test")}}


def done(output: Path) -> set[tuple]:
    lines = output.read_text().splitlines() if output.exists() else []
    return {tuple(json.loads(line)[name] for name in KEY) for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", required=True)
    parser.add_argument("--rates", type=float, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS + TEXTS)
    parser.add_argument("--data_dir")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("finetuned"))
    options = parser.parse_args()
    for key in product(options.sets, options.models, options.layers, options.rates, options.seeds):
        if key in done(options.output):
            continue
        job, name = (
            dict(zip(KEY, key, strict=True)),
            "-".join(str(part).replace("/", "-") for part in key),
        )
        options.folder.mkdir(parents=True, exist_ok=True)
        try:
            with (
                lock(options.folder / f"{name}.job"),
                ProcessPoolExecutor(1, get_context("spawn")) as process,
                options.output.open("a") as file,
            ):
                found = process.submit(
                    scores, job, options.data_dir, options.folder / name
                ).result()
                file.write(json.dumps(found) + "\n")
        except InputError as error:
            print(f"{name} is left out: {error}", flush=True)


if __name__ == "__main__":
    main()
