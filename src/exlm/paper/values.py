"""The report's data files: the numbers that the paper states (values.yaml) and the report's sentences (texts.yaml)."""

from pathlib import Path
from typing import Any

import yaml

from exlm.paper.variants import Space

Values = tuple[float | None, ...]

_FOUND, TEXTS = (
    yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8")) for name in ("values.yaml", "texts.yaml")
)

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


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def texts(kind: str, name: str, /, **words: Any) -> tuple[str, str]:
    """The title and the sentences of a section or a table by its name, with these words filled in."""
    title, sentences = TEXTS[kind][name]
    return title.format(**words), sentences.format(**words)
