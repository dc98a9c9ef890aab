"""The numbers of the paper's tables, and of its figures where the text states them; the file values.yaml has them all."""

from pathlib import Path

import yaml

from exlm.paper.experiments.variants import Space

Values = tuple[float | None, ...]

_FOUND = yaml.safe_load(Path(__file__).with_name("values.yaml").read_text(encoding="utf-8"))

MOLECULE_TASKS: list[str] = _FOUND["molecule_tasks"]
ABLATION_TASKS: list[str] = _FOUND["ablation_tasks"]
OF_THE_PAPER: list[str] = _FOUND["of_the_paper"]
MOLECULES, TEXT, ABLATIONS = (
    {model: tuple(values) for model, values in _FOUND[table].items()} for table in ("molecules", "text", "ablations")
)
SWEEP: dict[tuple[float, int], Values] = {(p, k): tuple(values) for p, k, *values in _FOUND["sweep"]}
REPEATED_MNLI: dict[tuple[float, int], float] = {(p, r): mnli for p, r, mnli in _FOUND["repeated_mnli"]}
GPU_HOURS: dict[str, float] = _FOUND["gpu_hours"]
COST_RATIO: float = _FOUND["cost_ratio"]

RATIOS, REPEATS = Space().mask_ratios, Space().repeats  # the axes of the Repeated MLM experiment
VANISHING = Space().smallest  # shares of corrupted semantics below it are left out
