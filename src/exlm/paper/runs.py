"""Finds finished runs on disk. Each becomes a record with checked numbers, and all numbers together
are one data frame, with a row for each run, score and seed."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from exlm.data.batching import share_bounds
from exlm.data.corpus import corpus_name
from exlm.errors import InputError
from exlm.paper.values import EXLM_ONLY, HOURS, MLM, SHARES, VALUES, Cell, title
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.runs import GRID_REPORT
from exlm.tasks.datasets import GLUE, MOLECULENET, file_task

Json = dict[str, Any]
Record = TypeVar("Record")
# The settings of a task that decide what rows there are and what is to be predicted, each with the
# values that leave all as they are.
ROW_SETTINGS: dict[str, list[Any]] = {
    "label_columns": [None],
    "positive": [None],
    "mask_column": [None],
    "train_rows": [None],
    "duplicates": ["keep"],
    "on_invalid": ["skip", "error"],
    "standardize": [None, "none", "canonical"],
}


class ScoreOfRun(NamedTuple):
    """A number of a run in the unit of the tables, with the place of its fine-tuning seed among
    those of the run, and the standard error over tokens, if that was measured."""

    score: str
    value: float
    seed: int = 0
    error: float | None = None


class Comparable(NamedTuple):
    """What comparable runs have in common: settings with their values as JSON, the number of
    updates, and those settings of EXLM_ONLY that the objective uses."""

    settings: frozenset[tuple[str, str]]
    steps: int
    exlm_only: frozenset[tuple[str, Any]]

    def is_part_of(self, other: "Comparable") -> bool:
        """Whether the family of the other has all runs of this one, and more: it is equal, but has
        more settings of EXLM_ONLY."""
        is_equal = (self.settings, self.steps) == (other.settings, other.steps)
        return is_equal and self.exlm_only < other.exlm_only


class Pretraining:
    """A pre-trained model, from the content of its result.json. KeyError, TypeError or ValueError
    if this is damaged."""

    def __init__(self, result: Json, path: Path) -> None:
        recipe = result["recipe"]
        identity = result["identity"]
        data = recipe["data"]
        self.path = path
        self.result = result
        # the first 8 hexadecimal digits of the SHA-256 of its identity
        self.id = _identifier(identity)
        self.seed = int(recipe["seed"])
        self.steps = int(recipe["train"]["steps"])
        self.hours = float(result["training_seconds"]) / 3600
        self.weights: str | None = None  # their SHA-256, if known
        self.parameters = int(result["parameters"])
        self.corpus = corpus_name(data["corpus"])
        self.tokens_per_batch = int(data["tokens_per_batch"])
        # Earlier recipes have other settings, and lack some.
        names = {entry.name for entry in fields(ArchitectureConfig)} & recipe["model"].keys()
        self.model = ArchitectureConfig(**{name: recipe["model"][name] for name in names})
        low, high = share_bounds(data["mask_ratio"])
        self.cell = Cell(
            method=_method(self.model),
            k=self.model.states_per_mask,
            p=(low + high) / 2,
            r=int(data.get("repeat", 1)),
        )
        settings = dict(identity)
        for name in (*EXLM_ONLY, *VALUES["varied"]):
            settings.pop(name, None)
        if low < high:
            # Such runs are compared among themselves, in the cell of their mean share.
            settings["data.mask_ratio"] = (low, high)
        if not (settings and self.corpus):
            raise ValueError("a setting is missing")
        compared = frozenset((key, json.dumps(value)) for key, value in settings.items())
        self.comparable = Comparable(compared, self.steps, _exlm_only(self.model, identity))
        evaluation = _held_out_scores("evaluation", result["evaluation"])
        self.scores = [ScoreOfRun(HOURS, self.hours), *evaluation]
        # the output directory of the `exlm analyze` that made this run
        parents = (parent.parent for parent in path.parents if parent.name == "pretrain")
        self.study = next(parents, None)


class Finetuning:
    """A model fine-tuned on one task with several seeds, or a baseline in its place, from the
    content of its results.json."""

    def __init__(self, result: Json, path: Path) -> None:
        settings = result["settings"]
        data = settings["task"]
        self.path = path
        self.result = result
        self.settings: Json = result["runs"][0]["settings"]  # hyper-parameters (`train`) included
        self.id = _identifier([self.settings, result["seeds"], result["best"]])
        self.task = file_task(data["dataset"])
        # the name of the baseline that was trained in the place of a pre-trained model
        self.baseline: str | None = settings.get("baseline")
        # the last parts of the path of the model that was fine-tuned
        self.model = "/".join(Path(settings.get("model", "")).parts[-3:])
        self.name = f"{title(self.task)} from {self.model}"
        self.from_scratch = bool(settings.get("from_scratch"))
        self.metric = str(result["metric"])
        is_questions = data.get("task_type") == "question_answering"
        self.in_percent = is_questions or self.metric in SHARES
        self.part = "test" if "test" in result else "valid"  # the part whose scores are reported
        self.scores = _task_scores(result, self.task, self.part, is_questions)
        # of its own metric, one for each seed
        self.values = [row.value for row in self.scores if row.score == self.task]
        # Columns that were found stand in the result of a seed; of runs of earlier versions only
        # those that were named are known.
        columns = result["runs"][0].get("label_columns") if self.task not in GLUE else None
        self.rows = _row_settings(
            {**data, "label_columns": columns or data.get("label_columns")}, self.task
        )
        # If these hashes, split and rows differ, scores cannot be compared.
        hashes = settings.get("data_sha256")
        self.data = (json.dumps(hashes), data.get("split"), self.rows)
        # What must be equal to compare: hyper-parameters or their grid, data, and the start.
        grid = result.get("cells")
        training = self.settings["train"] if grid is None else sorted(grid)
        options = {key: data[key] for key in data if key not in ("dataset", "data_dir")}
        start = settings.get("start_from") is not None
        self.compared = json.dumps([training, options, hashes, start], sort_keys=True)

    @property
    def mean(self) -> float:
        return fmean(self.values)


class Runs:
    """Everything that was found on disk."""

    def __init__(self) -> None:
        self.pretrainings: dict[str, Pretraining] = {}  # by id
        # by the id of the pre-training, which is None if the pre-training was not found
        self.finetunings: dict[str | None, list[Finetuning]] = defaultdict(list)
        self.baselines: list[Finetuning] = []
        self.costs: dict[Path, Json] = {}  # contents of efficiency.json, by directory
        self.damaged: dict[Path, str] = {}  # for each unusable file, what is wrong with it
        # all numbers: `source`, the id of the run that has it, and the fields of `ScoreOfRun`
        self.scores = pd.DataFrame()

    def read(self, path: Path, parse: Callable[[Json], Record]) -> Record | None:
        """What `parse` makes of the content of a JSON file; None if there is no file. `damaged`
        notes a file that cannot be used."""
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_finite)
            return parse(content)
        # A damaged file, or one of another program, may raise anything.
        except Exception as error:
            self.damaged[path] = f"{type(error).__name__}: {error}"
            return None


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is found twice counts once. InputError
    if a root is not a directory, or if there is no finished run at all."""
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(f"{root} is not a directory; give directories with runs")
    runs = Runs()
    tunings: dict[str, Finetuning] = {}
    for folder in sorted({Path(folder) for root in roots for folder, _, _ in os.walk(root)}):
        if run := runs.read(folder / "result.json", partial(_pretraining, folder)):
            measured = partial(_held_out_scores, "measured")
            run.scores += runs.read(folder / "measurements.json", measured) or []
            runs.pretrainings.setdefault(run.id, run)
            run.weights = runs.read(folder / "manifest.json", _weight_hash)
        tuning = runs.read(folder / GRID_REPORT, partial(Finetuning, path=folder))
        # no seed has a score if, for example, the data have no labels
        if tuning and tuning.task and tuning.values:
            tunings.setdefault(tuning.id, tuning)
        if cost := runs.read(folder / "efficiency.json", _cost):
            runs.costs[folder] = cost
    if not (runs.pretrainings or tunings or runs.costs):
        raise InputError(
            f"there is no finished run in {', '.join(roots)} ({len(runs.damaged)} damaged); "
            "give outputs of exlm pretrain, finetune or analyze"
        )
    for tuning in tunings.values():
        if tuning.baseline:
            runs.baselines.append(tuning)
        else:
            model = _model_of(tuning, runs.pretrainings.values())
            runs.finetunings[model].append(tuning)
    sources: list[Pretraining | Finetuning] = [*runs.pretrainings.values(), *tunings.values()]
    rows = [(run.id, *score) for run in sources for score in run.scores]
    runs.scores = pd.DataFrame(rows, columns=["source", *ScoreOfRun._fields])
    return runs


def _row_settings(data: Json, task: str) -> str:
    """Those of ROW_SETTINGS that change something, in words. A MoleculeNet set has its columns."""
    usual_columns = MOLECULENET[task].label_columns if task in MOLECULENET else None
    words = []
    for name, usual_values in ROW_SETTINGS.items():
        value = data.get(name, usual_values[0])
        if value not in usual_values and not (name == "label_columns" and value == usual_columns):
            words.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    return ", ".join(words)


def _pretraining(path: Path, result: Json) -> Pretraining | None:
    """None for a result with `scores`: it is one seed of a fine-tuning, see results.json."""
    return None if "scores" in result else Pretraining(result, path)


def _model_of(tuning: Finetuning, pretrainings: Iterable[Pretraining]) -> str | None:
    """The id of the pre-training with the same weights or, if weights are not known, at the same
    path."""
    path = Path(tuning.result["settings"]["model"])
    weights = tuning.result["settings"].get("model_sha256")
    for run in pretrainings:
        if weights and run.weights == weights:
            return run.id
    for run in pretrainings:
        is_unsure = not (weights and run.weights)
        if is_unsure and path in (run.path, Path(run.result["recipe"].get("output", run.path))):
            return run.id
    return None


def _method(model: ArchitectureConfig) -> str:
    """The paper's name for a model with these switches. If the paper does not have the objective,
    its own name."""
    if model.objective == "mlm":
        return MLM
    if model.objective not in ("exlm", "ctc"):
        return model.objective
    lacking = [] if model.has_links else ["Transitions"]
    if model.rotary == "1d":
        lacking.append("2D RoPE")
    without = f" w/o {' and '.join(lacking)}" if lacking else ""
    sparse = " w/ Sparse DAG" if model.dag == "sparse" and model.has_links else ""
    return f"ExLM{without}{sparse}"


def _exlm_only(model: ArchitectureConfig, identity: Json) -> frozenset[tuple[str, Any]]:
    """Those settings of EXLM_ONLY that a model with this objective uses."""
    settings = set()
    for name, usual_value in EXLM_ONLY.items():
        if name == "model.rotary":
            # The ablation of 2D RoPE belongs to runs with either kind of positions.
            is_used = model.rotary != "1d"
        else:
            is_used = model.has_links or (model.expands and name.startswith("model."))
        if is_used:
            value = identity.get(name, usual_value)
            settings.add((name, tuple(value) if isinstance(value, list) else value))
    return frozenset(settings)


def _held_out_scores(section: str, content: Json) -> list[ScoreOfRun]:
    """The scores that values.yaml names in a `section`, if they were measured."""
    # Keys are then such as `entropy/mean`.
    numbers = pd.json_normalize(content, sep="/").iloc[0].to_dict()
    scores = []
    for score, (key, factor, *error_keys) in VALUES[section].items():
        # The entropy is null if every token had a visible copy.
        if numbers.get(key) is not None:
            error = float(numbers[error_keys[0]]) if error_keys else None
            scores.append(ScoreOfRun(score, factor * float(numbers[key]), error=error))
    return scores


def _task_scores(result: Json, task: str, main_split: str, is_questions: bool) -> list[ScoreOfRun]:
    """All metrics on the main split, and the run's own metric on all splits."""
    scores = []
    for seed, run in enumerate(result["runs"]):
        for split, metrics in run["scores"].items():
            for metric, value in metrics.items():
                is_own = metric == result["metric"]
                if not isinstance(value, int | float) or not (split == main_split or is_own):
                    continue
                value *= 100.0 if metric in SHARES and not is_questions else 1.0
                name = metric if split == main_split else split
                scores.append(ScoreOfRun(f"{task} {name}", value, seed))
                if split == main_split and is_own:
                    scores.append(ScoreOfRun(task, value, seed))
    return scores


def _cost(content: Json) -> Json:
    """The content, if it has all that the report shows."""
    numbers = [content[name] for name in ("ratio", "num_states", "mask_ratio", "pairs")]
    numbers += content["ratio_quartiles"]
    for objective in ("mlm", "exlm"):
        measured = content["models"][objective]
        numbers += [measured["seconds_per_step"], measured["tokens_per_second"]]
        numbers.append(measured["peak_memory_bytes"])
    if not all(isinstance(number, int | float) for number in numbers) or not content["clock"]:
        raise ValueError("a number or the clock is missing")
    return content


def _weight_hash(manifest: Json) -> str | None:
    """The SHA-256 of the weights, as `exlm.storage.models.weight_hash` computes it."""
    files = sorted(manifest.get("files", {}).items())
    sums = "".join(entry["sha256"] for name, entry in files if name.endswith(".safetensors"))
    return hashlib.sha256(sums.encode()).hexdigest() if sums else None


def _identifier(identity: Any) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _not_finite(name: str) -> None:
    raise ValueError(f"a number is {name}")
