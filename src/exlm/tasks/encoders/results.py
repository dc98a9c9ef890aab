"""What a fine-tuning or a baseline leaves: `result.json` of every seed, `results.json` of all, and
the models that they tell of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from exlm.storage.files import GRID_REPORT, read_or_empty
from exlm.tasks.labels.metrics import goodness, summarise

BASELINE_FILE = "baseline.json"  # of a baseline, in the place of a model

NumbersOfParts = dict[str, dict[str, float]]  # by part and name
Statistics = dict[str, dict[str, float]]  # by name (of a metric, say) and statistic (`summarise`)


class SeedScores(TypedDict):
    """What the training of a seed gives. Parts are all but train."""

    scores: NumbersOfParts  # by part and metric
    split: NotRequired[dict[str, int]]  # rows by part
    best_epoch: NotRequired[int]  # of a model: the best on valid
    # the SHA-256 of the weights that a network began with, by `model` and file
    weight_files: NotRequired[dict[str, dict[str, str]]]
    seconds: NotRequired[float]  # of a baseline
    counts: NotRequired[NumbersOfParts]  # by part: rows and, of two classes, positives
    in_train: NotRequired[dict[str, int]]  # by part: rows with a text or molecule of train
    # by part, if the encoder has been fine-tuned before: rows that were in that training; None if
    # it cannot be told
    in_earlier_training: NotRequired[dict[str, int | None]]
    interval: NotRequired[NumbersOfParts]  # of the metric on test, or else valid: low and high
    # of several labels, by part and label: the metric of a label by itself
    labels: NotRequired[NumbersOfParts]
    # by part: equal if the same rows were scored, whatever other rows their files have
    rows_sha256: NotRequired[dict[str, str]]
    label_columns: NotRequired[list[str]]
    left_out: NotRequired[int]  # rows that cannot be used
    split_sha256: NotRequired[str]
    file_sha256: NotRequired[dict[str, str]]  # by path
    rdkit: NotRequired[str]  # its version


class RunResult(SeedScores):
    """`result.json`: what a run, the training of a seed, was and gave."""

    seed: int
    settings: dict[str, Any]  # its identity
    stopped: NotRequired[str]  # why it stopped without a result


class GridReport(TypedDict):
    """`results.json`: what all seeds of the best grid cell gave."""

    settings: dict[str, Any]  # what all runs have in common
    seeds: list[int]
    metric: str
    best: str  # the name of the grid cell, "" without a grid
    valid: Statistics
    test: NotRequired[Statistics]
    mismatched: NotRequired[Statistics]  # a part of MNLI
    runs: list[RunResult]
    machine: dict[str, Any]
    cells: NotRequired[dict[str, dict[str, Statistics]]]  # of every grid cell, by part
    best_seed: int
    counts: NotRequired[dict[str, Statistics]]  # by part, as the next ones
    interval: NotRequired[dict[str, Statistics]]
    labels: NotRequired[dict[str, Statistics]]


def leaves_model(result: RunResult) -> bool:
    """Whether a run has left a model, as neither a baseline nor a training that stopped has."""
    return "best_epoch" in result


def summarise_parts(numbers_of_seeds: Sequence[NumbersOfParts]) -> dict[str, Statistics]:
    """The numbers of all seeds, by those parts that all of them have."""
    first, *others = numbers_of_seeds
    return {
        part: summarise([numbers[part] for numbers in numbers_of_seeds])
        for part in first
        if all(part in numbers for numbers in others)
    }


def best_seed(results: Sequence[RunResult], metric: str) -> int:
    """The seed that is best on valid; of equal ones, the first."""
    best = max(results, key=lambda result: goodness(result["scores"]["valid"][metric], metric))
    return best["seed"]


def seed_directories(path: str) -> list[Path]:
    """The directories of a fine-tuning's models, one per seed (of the best grid cell), or `path`
    itself if it has none."""
    directory = Path(path)
    report = read_or_empty(directory / GRID_REPORT)
    run_dirs = [directory / report["best"] / f"seed-{seed}" for seed in report.get("seeds", ())]
    models = [
        run_dir
        for run_dir in run_dirs or sorted(directory.glob("seed-*"))
        if (run_dir / "config.json").is_file() or is_baseline(run_dir)
    ]
    return models or [directory]


def is_baseline(run_dir: Path) -> bool:
    """Whether a directory has a baseline in the place of a model."""
    return (run_dir / BASELINE_FILE).is_file()


def best_seed_directory(path: str) -> Path:
    """The directory of the model whose seed is best on valid, in the output of a fine-tuning;
    `path` itself if it is that of a seed."""
    report = read_or_empty(Path(path) / GRID_REPORT)
    if not report:
        return Path(path)
    return Path(path) / report["best"] / f"seed-{best_seed(report['runs'], report['metric'])}"
