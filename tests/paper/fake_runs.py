"""Runs on disk with the files that the commands write, and numbers that are easy to check by
hand."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from exlm.paper.analyze import Space

MACHINE = {"processor": "AMD EPYC 9R14", "device": "cpu", "torch": "2.13.0", "threads": 1}
MODEL = {
    "objective": "exlm",
    "num_states": 4,
    "rotary": "2d",
    "dag": "full",
    "transition": "gated",
    "boundary_states": 1,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@contextmanager
def editing(path: Path) -> Iterator[Any]:
    """The content of a JSON file, which is written with its changes."""
    content = json.loads(path.read_text())
    yield content
    write(path, content)


def pretraining(
    root: Path,
    name: str,
    p: float | list[float] = 0.15,
    r: int = 1,
    steps: int = 100,
    seed: int = 0,
    corpus: str = "corpus/text",
    accuracy: float = 0.25,
    entropy: float | None = None,
    states: float | None = None,
    machine: dict | None = MACHINE,
    rate: float = 1e-3,
    joint: float | None = None,
    passes: dict | None = None,
    by_masks: dict | None = None,
    prior: dict | None = None,
    **model: Any,
) -> Path:
    """One finished pre-training; `entropy` adds measurements, `joint` the joint nll, `passes` that
    in several passes."""
    data = {"corpus": corpus, "mask_ratio": p, "tokens_per_batch": 4096, "repeat": r}
    switches = MODEL | model
    identity = {f"model.{key}": value for key, value in switches.items()}
    identity |= {f"data.{key}": value for key, value in data.items() if key != "corpus"}
    identity |= {
        "corpus": corpus,
        "seed": seed,
        "train.steps": steps,
        "train.optimizer.learning_rate": rate,
    }
    prior = {"order": 0.0, "sticky": 0.0, "decay": None} | (prior or {})
    if switches["objective"] == "exlm":
        identity |= {f"prior.{key}": value for key, value in prior.items()}
    evaluation = {
        "step": steps,
        "accuracy": accuracy,
        "perplexity": 50.0,
    }
    together = {} if joint is None else _together(joint, switches)
    together |= {} if passes is None else {"joint_nll_in_passes": passes}
    together |= {} if by_masks is None else {"nll_by_masks": by_masks}
    result = {
        "parameters": 1_000_000,
        "evaluation": evaluation | together,
        "training_seconds": 7200.0 if switches["objective"] == "exlm" else 3600.0,
        "identity": identity,
        "recipe": {
            "output": str(root / name),
            "data": data,
            "model": switches,
            "train": {"steps": steps},
            "seed": seed,
            "prior": prior,
        },
    }
    write(root / name / "result.json", result | ({"machine": machine} if machine else {}))
    records = [
        record
        for step in range(1, 11)
        for record in (
            {
                "step": step * steps // 10,
                "kind": "train",
                "loss": 3 + 3 * np.mean(p) ** r * math.exp(-step / 3),
            }
            | {"tokens": 40960.0, "seconds": 4.0 + step % 2},
            {
                "step": step * steps // 10,
                "kind": "eval",
                "accuracy": accuracy * step / 10,
                "perplexity": 100.0 / step,
            }
            | together,
        )
    ]
    (root / name / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if entropy is not None:
        _measurements(root / name, p, r, entropy, states)
    return root / name


def _together(joint: float, switches: dict) -> dict:
    """What an evaluation has of a model with the marginal perplexity 50."""
    found = {"nll": math.log(50), "joint_nll": joint, "joint_perplexity": math.exp(joint)}
    if switches["objective"] != "exlm":
        return found
    k = switches["num_states"]
    return found | {"own_states": 0.96, "by_state": [0.96 / k] * k}


def _measurements(directory: Path, p: float, r: int, entropy: float, states: float | None) -> None:
    of_states = None if states is None else {"mean": states, "std": 1.0, "stderr": 0.02}
    mean, variance = (float(moment[0]) for moment in fixed_count_of_masks(p, r, np.array([30])))
    deviation = variance**0.5
    predicted = {"predicted": p**r, "predicted_std": (p**r * (1 - p**r) / 30) ** 0.5}
    measured = {
        "mean": mean + deviation / 500**0.5,
        "std": deviation,
        "sequences": 500,
        "tokens": 15000,
    }
    entropies = {"mean": entropy, "std": 1.5, "stderr": 0.03, "tokens": 2500, "states": of_states}
    content = {
        "entropy": {"mask_ratio": p, "repeat": r} | entropies,
        "corruption": predicted | measured,
    }
    write(directory / "measurements.json", content)


def finetuning(
    root: Path,
    name: str,
    model: Path,
    task: str,
    values: list[float],
    metric: str = "accuracy",
    split: str = "valid",
    other: dict[str, list[float]] | None = None,
    rate: float = 1e-4,
    **settings: Any,
) -> Path:
    """One finished fine-tuning with a value per seed; `other` are further splits, of the same
    metric."""
    qa = {"task_type": "question_answering"} if task == "squad2" else {"task_type": None}
    given = {
        "model": str(model),
        "task": {"dataset": task, "max_length": 128} | qa,
        "from_scratch": False,
    }
    given |= {"start_from": None, "metric": metric, "data_sha256": None, "departures": []}
    given |= settings
    splits = {split: values} | (other or {})
    runs = [
        {
            "seed": i,
            "settings": given | {"train": {"learning_rate": rate}},
            "scores": {name: {metric: v[i]} for name, v in splits.items()},
        }
        for i in range(len(values))
    ]  # fmt: skip
    result = {
        "settings": given,
        "seeds": list(range(len(values))),
        "metric": metric,
        "best": "",
        "runs": runs,
    }
    write(
        root / name / "results.json", result | {name: {} for name in splits} | {"machine": MACHINE}
    )
    for run in runs:
        write(root / name / f"seed-{run['seed']}" / "result.json", run)
    return root / name


def full_grid(root: Path) -> None:
    """Every variant of every experiment for a small text group, two pre-training seeds, three
    fine-tuning seeds."""
    for seed in (0, 1):
        for p, r in Space().repeated_pairs():
            share = p**r
            score = 0.70 - 0.1 * abs(math.log10(share / 0.15)) - 0.02 * p
            name, bits = f"mlm-{p}-{r}-{seed}", 3 + 4 * share
            measured = {
                "accuracy": (1 - share) / 2,
                "entropy": bits,
                "objective": "mlm",
                "joint": math.log(50),
            }
            run = pretraining(root, name, p, r, 100, seed, **measured)
            _tasks(root, name, run, score, seed)
        for p in (0.15, 0.387):
            for k in (2, 4, 8):
                name = f"exlm-{p}-{k}-{seed}"
                bits = {"entropy": 3.4 + 3 * p - k / 20, "states": 2.6 + 3 * p - k / 8}
                bits["joint"] = math.log(50) - 0.1 - 0.01 * seed
                run = pretraining(root, name, p, seed=seed, num_states=k, **bits)
                _tasks(root, name, run, 0.73 - abs(k - 4) / 200 - p / 40, seed)
        for name, score, change in (
            ("rope", 0.72, {"rotary": "1d"}),
            ("ctc", 0.71, {"objective": "ctc"}),
            ("sparse", 0.724, {"dag": "sparse"}),
            ("plus", 0.715, {"objective": "mlm", "steps": 200}),
        ):
            run = pretraining(root, f"{name}-{seed}", seed=seed, **change)
            _tasks(root, f"{name}-{seed}", run, score, seed)
    efficiency(root / "cost")


def _tasks(root: Path, name: str, run: Path, score: float, seed: int) -> None:
    for task, shift in (("rte", -0.1), ("mrpc", 0.0), ("qnli", 0.1)):
        values = [score + shift + 0.004 * seed + 0.003 * i for i in range(3)]
        finetuning(root, f"{name}-{task}", run, task, values)


def efficiency(directory: Path) -> None:
    """As `exlm.paper.cost.compare_costs` gives it."""
    models = {
        "mlm": {
            "seconds_per_step": 0.5,
            "tokens_per_second": 8000.0,
            "peak_memory_bytes": 1_500_000_000,
        },
        "exlm": {
            "seconds_per_step": 0.8,
            "tokens_per_second": 5000.0,
            "peak_memory_bytes": 2_000_000_000,
        },
    }
    content = {
        "machine": MACHINE,
        "mask_ratio": 0.15,
        "num_states": 4,
        "pairs": 20,
        "clock": "wall time",
        "recipe": {"model": {"expanded_layers": "all"}},
    }
    content |= {"models": models, "ratio": 1.6, "ratio_quartiles": [1.55, 1.66]}
    write(directory / "efficiency.json", content)


def fixed_count_of_masks(
    p: float, repeat: int, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Expectation and variance [n] of the share of corrupted tokens in sequences of N = `tokens`
    [n] if p N r copies, rounded up or down at random, are masked. All choices of so many copies are
    equally likely."""
    copies, exact = tokens * repeat, p * tokens * repeat

    def all_masked(count: np.ndarray, chosen: int) -> np.ndarray:
        """P(`chosen` given copies are all among the `count` masked ones) [n]."""
        i = np.arange(chosen)[:, None]
        return (np.maximum(count - i, 0) / np.maximum(copies - i, 1)).prod(0)

    low = np.floor(exact)
    mean, square = np.zeros(len(tokens)), np.zeros(len(tokens))
    for count, weight in ((low, 1 - (exact - low)), (low + 1, exact - low)):
        one, two = all_masked(count, repeat), all_masked(count, 2 * repeat)
        mean += weight * one
        square += weight * (one + (tokens - 1) * two) / tokens
    return mean, np.maximum(square - mean**2, 0)
