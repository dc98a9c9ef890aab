"""What a fine-tuning or a baseline leaves on disk, and how its models are found there.

Two files have results. The `result.json` of every seed is a `SeedResult`. The `results.json` of the
whole grid is a `GridResults`, and has these entries:

| entry                                | what it is                                              |
| ------------------------------------ | ------------------------------------------------------- |
| `settings`, `seeds`, `metric`        | what was asked for, or inferred from the data           |
| `machine`                            | where the last command ran that changed these results   |
| `best`                               | the name of the best grid cell, "" without a grid       |
| `best_seed`                          | its best seed on valid                                  |
| `runs`                               | the `SeedResult` of each of its seeds                   |
| `valid`, `test`, `mismatched` (MNLI) | statistics of its scores over the seeds, by metric      |
| `counts`, `interval`, `labels`       | statistics of these entries of its seeds, by part       |
| `cells`                              | statistics of the scores of every grid cell, if several |
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

from exlm.storage.files import GRID_RESULTS, read_or_empty
from exlm.tasks.labels.metrics import Metric, summarise
from exlm.tasks.labels.scores import find_metrics, goodness

BASELINE_FILE = "baseline.json"  # of a baseline, in the place of a model
IDENTITY_ENTRY: Final = "settings"  # the entry of both files that has the identity of runs

GridResults = dict[str, Any]  # `results.json` of a grid
Statistics = dict[str, dict[str, float]]  # by name (of a metric, say) and statistic


class SeedResult(TypedDict, total=False):
    """`result.json` of a seed, or some of its entries. Dictionaries are by part, where nothing else
    is said; only `split` has the part train."""

    seed: int
    settings: dict[str, Any]  # by name: the identity of the run
    stopped: str  # why there are no scores
    best_epoch: int  # of a model
    # `model`: of a model, the SHA-256 by name of the files that it began with
    weight_files: dict[str, dict[str, str]]
    seconds: float  # of a baseline
    split: dict[str, int]  # rows
    split_sha256: str
    file_sha256: dict[str, str]  # by path
    left_out: int  # rows that cannot be used
    label_columns: list[str]
    rdkit: str  # its version
    scores: dict[str, dict[str, float]]  # by part and metric
    # `rows`, of two classes `positives`, and of several labels the rows that have the rarest and
    # the most frequent one, `fewest_of_a_label` and `most_of_a_label`
    counts: dict[str, dict[str, float]]
    rows_sha256: dict[str, str]  # equal if the rows scored are
    # the bootstrap interval of the metric: `low`, `high` (NaN if too few samples of rows can be
    # used), and how many can be, `resamples`; of test, or else valid
    interval: dict[str, dict[str, float]]
    in_train: dict[str, int]  # rows with a text of train
    labels: dict[str, dict[str, float]]  # of several labels the metric of each by itself
    # rows with a text of the training of an encoder that was fine-tuned before; None: not known
    in_earlier_training: dict[str, int | None]


def leaves_model(result: SeedResult) -> bool:
    """Whether a run has left a model, as neither a baseline nor a training that stopped has."""
    return "best_epoch" in result


def summarise_parts(
    numbers_of_seeds: Sequence[dict[str, dict[str, float]]],
) -> dict[str, Statistics]:
    """The numbers of all seeds, by part and name, summarised for the parts that all seeds have."""
    first, *others = numbers_of_seeds
    return {
        part: summarise([numbers[part] for numbers in numbers_of_seeds])
        for part in first
        if all(part in numbers for numbers in others)
    }


def best_seed(results: Sequence[SeedResult], name: str, metrics: Mapping[str, Metric]) -> int:
    """The seed that is best on valid by the metric of this name; of equal ones, the first."""
    metric = metrics[name]
    best = max(results, key=lambda result: goodness(result["scores"]["valid"][name], metric))
    return best["seed"]


def seed_directories(path: str) -> list[Path]:
    """The directories of a fine-tuning's models, one per seed (of the best grid cell), or `path`
    itself if it has none."""
    directory = Path(path)
    grid_results = read_or_empty(directory / GRID_RESULTS)
    run_dirs = sorted(directory.glob("seed-*"))
    if grid_results.get("seeds"):
        cell_dir = directory / grid_results["best"]
        run_dirs = [cell_dir / f"seed-{seed}" for seed in grid_results["seeds"]]
    models = [
        run_dir
        for run_dir in run_dirs
        if (run_dir / "config.json").is_file() or is_baseline(run_dir)
    ]
    return models or [directory]


def is_baseline(run_dir: Path) -> bool:
    """Whether a directory has a baseline in the place of a model."""
    return (run_dir / BASELINE_FILE).is_file()


def best_seed_directory(path: str) -> Path:
    """The directory of the model whose seed is best on valid, in the output of a fine-tuning;
    `path` itself if it is the directory of a seed."""
    grid_results = read_or_empty(Path(path) / GRID_RESULTS)
    if not grid_results:
        return Path(path)
    seed = grid_results.get("best_seed")
    if seed is None:  # the first versions did not write it
        metrics = find_metrics(grid_results["settings"]["task"].get("task_type"))
        seed = best_seed(grid_results["runs"], grid_results["metric"], metrics)
    return Path(path) / grid_results["best"] / f"seed-{seed}"
