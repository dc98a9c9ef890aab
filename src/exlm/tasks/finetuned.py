"""What the output directory of a fine-tuning holds, and how to find the models in it.

`results.json` (REPORT) has the results of all seeds, of a grid those of its best cell CELL (else CELL is ""). Every
`CELL/seed-N` has one model, what this seed gave (RESULT), its predictions and its log.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from exlm.errors import InputError
from exlm.storage import MANIFEST, replacing
from exlm.tasks.metrics import LOWER_IS_BETTER

RESULT, REPORT = "result.json", "results.json"


def rank(score: float | None, metric: str) -> float:
    """A score turned so that higher is better. An undefined one (correlation with a constant, say) is the worst."""
    if score is None or not np.isfinite(score):
        return -np.inf
    return -score if metric in LOWER_IS_BETTER else score


def best_seed(report: dict[str, Any]) -> int:
    """The seed of a report that is best on valid; of equal ones, the first."""
    best = max(report["runs"], key=lambda run: rank(run["scores"]["valid"][report["metric"]], report["metric"]))
    return best["seed"]


def seed_directories(path: str) -> list[Path]:
    """The directories of a fine-tuning's models, one per seed (of the best cell), or `path` itself if it has none."""
    directory = Path(path)
    try:
        report = json.loads((directory / REPORT).read_text())
        found = [directory / report["best"] / f"seed-{seed}" for seed in report["seeds"]]
    except (OSError, ValueError, KeyError):
        found = sorted(directory.glob("seed-*"))
    return [run_dir for run_dir in found if (run_dir / "config.json").is_file()] or [directory]


def best_seed_directory(path: str) -> Path:
    """The directory of the model whose seed is best on valid; `path` itself if it has no directories of seeds."""
    run_dirs = seed_directories(path)
    if len(run_dirs) == 1:
        return run_dirs[0]
    if not (Path(path) / REPORT).is_file():
        raise InputError(f"the fine-tuning in {path} is not finished; run the same command again, then start from it")
    report = json.loads((Path(path) / REPORT).read_text())
    return Path(path) / report["best"] / f"seed-{best_seed(report)}"


def copy_model(source: Path, directory: Path) -> None:
    """Copies the files of the model in `source` to `directory`. The manifest comes last: a copy that was interrupted is
    recognised as damaged, until the same command is run again."""
    for name in (*json.loads((source / MANIFEST).read_text())["files"], MANIFEST):
        with replacing(directory / name) as partial:
            shutil.copyfile(source / name, partial)
