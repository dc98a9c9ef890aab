"""The models behind evidence.md: trained, then scored on all held-out sequences, beside the MLM of
equal time.

    python docs/results/pairs.py train pairs-jobs.jsonl pairs.jsonl --molecules CORPUS --text CORPUS
    python docs/results/pairs.py compare pairs.jsonl pairs-differences.jsonl

A job is a line of JSON: name, MLM (the name of the job beside which it is compared, of an ExLM
alone), updates, seed, and what differs from 4 layers of 128 without dropout, 4,096 tokens per
update, a rate of 2e-3, initial weights of 0.06, rotary base 100, a share of masks from 2% to 60%.
Models lie in `--models`, with `sequences.npz`, the joint nll of every held-out sequence. `compare`
needs these files of both models of a pair: it writes the mean difference per masked token and its
standard error over sequences. What has a line is not done again, and what was interrupted goes on.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exlm import ExLMForMaskedLM
from exlm.data.corpus import Corpus
from exlm.data.masking import mask_tokens
from exlm.errors import InputError
from exlm.model.passes import Passes, nll_in_passes
from exlm.ops.expansion import IGNORED
from exlm.ops.precision import in_precision
from exlm.pretrain.held_out import HELD_OUT_EPOCH, HeldOutData, score_held_out
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, EvaluateConfig, PriorSchedule
from exlm.storage.files import read_log
from exlm.storage.models import load_model
from exlm.storage.run_directories import lock
from exlm.train import devices
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig

ARCHITECTURE: dict[str, Any] = {
    "num_states": 2, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 512, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 1024, "initializer_range": 0.06, "rotary": "full",
    "rotary_base": 100.0,
}  # fmt: skip
SHARES = (0.15, 0.387)
PASSES: tuple[Passes, ...] = (1, 2, 4, "all")
MASKS = (1, 2, 4, 8, 16)
SEED = 99  # of the masks of held-out sequences, the same for every model


def data_of(job: dict[str, Any], corpora: dict[str, str]) -> DataConfig:
    share = job.get("p", [0.02, 0.6])
    return DataConfig(
        corpora[job.get("corpus", "molecules")],
        tuple(share) if isinstance(share, list) else share,
        repeat=job.get("repeat", 1),
        tokens_per_batch=job.get("tokens", 4096),
        tokens_per_micro_batch=job.get("micro", 8192),
        eval_sequences=1000,
    )


def train(job: dict[str, Any], corpora: dict[str, str], directory: Path) -> dict[str, Any]:
    """Trains the job's model; the processor time is that of the updates alone."""
    torch.set_num_threads(1)
    optimizer = OptimizerConfig(
        job.get("lr", 2e-3), job.get("warmup", 200), weight_decay=0.01, clip_norm=1.0
    )
    schedule = LoopConfig(
        job["steps"],
        optimizer,
        log_every=50,
        eval_every=job.get("eval_every", 500),
        save_every=job.get("save_every", 500),
    )
    model = ArchitectureConfig(**{**ARCHITECTURE, **job["model"]})
    prior = PriorSchedule(**job.get("prior", {}))
    by_masks = EvaluateConfig(by_masks=[])
    result = pretrain(
        str(directory),
        data_of(job, corpora),
        model,
        schedule,
        seed=job["seed"],
        prior=prior,
        evaluate=by_masks,
    )
    for path in directory.glob("checkpoint-*"):
        shutil.rmtree(path)
    log = read_log(directory / "log.jsonl")
    curve = [
        {name: record[name] for name in ("step", "nll", "joint_nll")}
        for record in log
        if record["kind"] == "eval"
    ]
    return {
        "cpu": result["processor_seconds"],
        "parameters": result["parameters"],
        "machine": result["machine"],
        "curve": curve,
    }


def with_masks(
    data: DataConfig, tokenizer: PreTrainedTokenizerBase, masks: int
) -> Iterator[dict[str, Tensor]]:
    """Held-out sequences of at least 24 tokens with so many masks each: the same sequences for
    every number."""
    corpus = Corpus(data.corpus, "valid")
    rows = np.flatnonzero(corpus.token_counts.astype(int) * data.repeat >= 1.5 * max(MASKS))
    rows = rows[np.argsort(-corpus.token_counts[rows], kind="stable")]
    for first in range(0, len(rows), 128):
        part = rows[first : first + 128]
        yield mask_tokens(
            *corpus.gather(part), part, tokenizer, SEED, HELD_OUT_EPOCH, 0.15, data.repeat, masks
        )


def score(job: dict[str, Any], corpora: dict[str, str], directory: Path) -> dict[str, Any]:
    """Scores of all held-out sequences; the joint nll of each of them goes to `sequences.npz`."""
    torch.set_num_threads(1)
    network, tokenizer = load_model(str(directory), ExLMForMaskedLM)
    device = devices.device("auto")
    network.eval().to(device)
    data = replace(data_of(job, corpora), eval_sequences=0)
    scores: dict[str, Any] = {"evaluation": {}, "joint_nll_in_passes": {}, "seconds_of_passes": {}}
    sequences: dict[str, Any] = {}  # of arrays

    def each(name: str, batches: list[dict[str, Tensor]], passes: Passes) -> float:
        start = time.process_time()
        with in_precision(device, "fp32"):
            nats = torch.cat([nll_in_passes(network, batch, passes) for batch in batches])
        masked = torch.cat([(batch["labels"] != IGNORED).sum(1) for batch in batches])
        sequences[name] = nats.numpy()
        sequences[f"{name} masked"] = masked.numpy()
        scores["seconds_of_passes"][name] = time.process_time() - start
        return float(nats.sum() / masked.sum())

    for share in SHARES:
        at_share = replace(data, mask_ratio=share)
        batches = list(HeldOutData(at_share, tokenizer, SEED).batches())
        scores["evaluation"][str(share)] = score_held_out(network, batches)
        for passes in PASSES if share == SHARES[1] else PASSES[:1]:
            name = f"{share} in {passes}"
            scores["joint_nll_in_passes"][name] = each(name, batches, passes)
    by_masks = {}
    for masks in MASKS:
        batches = list(with_masks(data, tokenizer, masks))
        summed = score_held_out(network, batches)
        each(f"{masks} masks", batches, 1)
        by_masks[str(masks)] = {name: summed[name] for name in ("nll", "joint_nll")}
    np.savez(directory / "sequences.npz", **sequences)
    return {**scores, "by_masks": by_masks}


def trained_and_scored(
    job: dict[str, Any], corpora: dict[str, str], directory: Path
) -> dict[str, Any]:
    return {**job, **train(job, corpora, directory), **score(job, corpora, directory)}


def run(jobs: Path, results: Path, corpora: dict[str, str], models: Path) -> None:
    """Every job without a result that no other process is at, each in a process of its own."""
    models.mkdir(parents=True, exist_ok=True)
    for job in lines_of(jobs):
        if job["name"] in {result["name"] for result in lines_of(results)}:
            continue
        in_a_process(trained_and_scored, job, corpora, models / job["name"], results)


def in_a_process(
    function: Callable[..., dict[str, Any]],
    job: dict[str, Any],
    corpora: dict[str, str],
    directory: Path,
    results: Path,
) -> None:
    try:
        with (
            lock(directory.with_suffix(".job")),
            ProcessPoolExecutor(1, get_context("spawn")) as process,
        ):
            result = process.submit(function, job, corpora, directory).result()
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
    except InputError as error:
        print(f"{job['name']} is left out: {error}", flush=True)


def compare(results: Path, output: Path, models: Path) -> None:
    """For every ExLM whose files and whose MLM's files are there: joint nll of ExLM minus that of
    the MLM."""
    for job in lines_of(results):
        if "mlm" not in job or job["name"] in {line["name"] for line in lines_of(output)}:
            continue
        paths = [models / name / "sequences.npz" for name in (job["name"], job["mlm"])]
        if not all(path.exists() for path in paths):
            continue
        ours, theirs = (np.load(path) for path in paths)
        names = [name for name in ours.files if not name.endswith("masked")]
        differences = {
            name: paired(ours[name] - theirs[name], ours[f"{name} masked"]) for name in names
        }
        line = {"name": job["name"], "mlm": job["mlm"], "differences": differences}
        with output.open("a") as file:
            file.write(json.dumps(line) + "\n")


def paired(difference: np.ndarray, masked: np.ndarray) -> list[float]:
    """The difference per masked token, and its standard error over sequences (of a ratio of
    sums)."""
    mean = difference.sum() / masked.sum()
    residual = difference - mean * masked
    return [float(mean), float(np.sqrt((residual**2).sum()) / masked.sum())]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The records of a file of lines of JSON; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("train", "compare"))
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--molecules", default="corpus/molecules")
    parser.add_argument("--text", default="corpus/text")
    parser.add_argument("--models", type=Path, default=Path("runs/pairs"))
    options = parser.parse_args()
    if options.action == "compare":
        compare(options.input, options.output, options.models)
    else:
        corpora = {"molecules": options.molecules, "text": options.text}
        run(options.input, options.output, corpora, options.models)


if __name__ == "__main__":
    main()
