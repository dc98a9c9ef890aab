"""What is known of a finished run: the content of its result file, with checked numbers."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.batching import share_bounds
from exlm.data.corpus import corpus_name
from exlm.paper.estimates import Number
from exlm.paper.values import (
    EVALUATION,
    EXLM_ONLY,
    HOURS,
    MLM,
    VALUES,
    Cell,
    HeldOutScore,
    percent,
    title,
)
from exlm.pretrain.settings import ArchitectureConfig
from exlm.tasks.labels.metrics import metric_of
from exlm.tasks.rows.datasets import GLUE, MOLECULENET, file_task

Json = dict[str, Any]
# By the title of its column, each cell of a table: a number, a Number, a text, or None if it was
# not run.
TableRow = dict[str, Any]
VARIED = {*EXLM_ONLY, *VALUES["varied"]}


class ScoreOfRun(NamedTuple):
    """A number of a run in the unit of the tables, with the place of its fine-tuning seed among
    those of the run, and the standard error over tokens, if that was measured."""

    name: str
    value: float
    seed: int = 0
    error: float | None = None


class PretrainedRun:
    """A pre-trained model, from the content of its result.json. KeyError, TypeError or ValueError
    if this is damaged."""

    def __init__(self, path: Path, result: Json) -> None:
        recipe = result["recipe"]
        data = recipe["data"]
        identity = result["identity"]
        self.path = path
        # now, and where it was first written
        self.places = {path, Path(recipe.get("output", path))}
        # the output directory of the `exlm analyze` that made this run
        parents = (parent.parent for parent in path.parents if parent.name == "pretrain")
        self.study = next(parents, None)
        self.id = _identifier(identity)
        self.device = _device(result)
        self.seed = int(recipe["seed"])
        self.steps = int(recipe["train"]["steps"])
        self.hours = float(result["training_seconds"]) / 3600
        self.parameters = int(result["parameters"])
        self.corpus = corpus_name(data["corpus"])
        self.tokens_per_batch = int(data["tokens_per_batch"])
        # Earlier recipes have other settings, and lack some.
        names = {entry.name for entry in fields(ArchitectureConfig)} & recipe["model"].keys()
        self.model = ArchitectureConfig(**{name: recipe["model"][name] for name in names})
        low, high = share_bounds(data["mask_ratio"])
        repeat = int(data.get("repeat", 1))
        method = _method(self.model)
        self.cell = Cell(method, self.model.states_per_mask, (low + high) / 2, repeat)
        settings = {key: identity[key] for key in identity.keys() - VARIED}
        if low < high:
            # Such runs are compared among themselves, in the cell of their mean share.
            settings["data.mask_ratio"] = (low, high)
        # What comparable runs have in common, as JSON, and what must not contradict.
        self.settings = frozenset((key, json.dumps(value)) for key, value in settings.items())
        self.exlm_only = _exlm_only(self.model, identity)
        evaluation = held_out_scores(EVALUATION, result["evaluation"])
        self.scores = [ScoreOfRun(HOURS, self.hours), *evaluation]

    def row(self) -> TableRow:
        """Its row in the list of all runs."""
        values = {score.name: score.value for score in self.scores}
        results = [f"{name} {values[name]:.2f}" for name in VALUES["result"] if name in values]
        return {
            "run": self.id,
            "kind": "pre-training",
            "p, %": 100 * self.cell.p,
            "r": self.cell.r,
            "updates": self.steps,
            "seeds": str(self.seed),
            "result": ", ".join(results),
            "hours": Number(self.hours, digits=2),
            "device": self.device,
            "directory": str(self.path),
        }


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


def held_out_scores(places: Mapping[str, HeldOutScore], content: Json) -> list[ScoreOfRun]:
    """Those of the scores with these titles and places that a file has."""
    # Keys are then such as `entropy/mean`.
    numbers = pd.json_normalize(content, sep="/").iloc[0].to_dict()
    scores = []
    for name, place in places.items():
        # The entropy is null if every token had a visible copy.
        if numbers.get(place.key) is not None:
            value = place.factor * float(numbers[place.key])
            error = float(numbers[place.error_key]) if place.error_key else None
            scores.append(ScoreOfRun(name, value, error=error))
    return scores


class TunedRun:
    """A model fine-tuned on one task with several seeds, or a baseline in its place, from the
    content of its results.json.

    Attributes:
        settings: those of the first seed, hyper-parameters (`train`) included.
        best: the best cell of a grid of hyper-parameters.
        departures: how the data differ from the published ones.
        baseline: the name of a baseline; None for a model.
        model_id: the id of the pre-trained model that it started from, if that is known.
        start: the end of the path of this model; empty for a baseline, which has none.
        values: the scores of its own metric, one for each seed.
        rows_identity: hashes of the data, split and rows. If these differ, scores cannot be
            compared.
        compared: what must be equal to compare models: hyper-parameters or their grid, data, and
            whether it started from an earlier fine-tuning."""

    def __init__(self, path: Path, result: Json, model_id: str | None) -> None:
        of_all_seeds = result["settings"]
        of_task = of_all_seeds["task"]
        first_seed = result["runs"][0]
        self.path = path
        self.settings: Json = first_seed["settings"]
        self.id = _identifier([self.settings, result["seeds"], result["best"]])
        self.best = result["best"] or "one setting"
        self.device = _device(result)
        self.seeds: list[int] = result["seeds"]
        self.departures: list[str] = of_all_seeds.get("departures") or []
        # Runs of earlier versions have only the columns that a user named.
        columns = first_seed.get("label_columns") or of_task.get("label_columns")
        self.task = file_task(of_task["dataset"], columns)
        self.baseline: str | None = of_all_seeds.get("baseline")
        self.model_id = model_id
        self.start = "/".join(Path(of_all_seeds.get("model", "")).parts[-3:])
        self.name = f"{title(self.task)} from {self.start}"
        self.from_scratch = bool(of_all_seeds.get("from_scratch"))
        self.metric = str(result["metric"])
        is_questions = of_task.get("task_type") == "question_answering"
        # Metrics of question answering are already stored in percent.
        self.in_percent = is_questions or metric_of(self.metric).is_share
        part = "test" if "test" in result else "valid"  # the part whose scores are reported
        self.scores = _task_scores(result, self.task, part, is_questions)
        self.values = [score.value for score in self.scores if score.name == self.task]
        if self.task in GLUE:  # its column differs between its own files and the hub's
            columns = of_task.get("label_columns")
        rows = _row_settings({**of_task, "label_columns": columns}, self.task)
        data_sha256 = of_all_seeds.get("data_sha256")
        data_hashes = json.dumps(data_sha256)
        self.rows_identity = (data_hashes, of_task.get("split"), *rows)
        # Questions have a checksum for each part.
        checksums = data_sha256.values() if isinstance(data_sha256, dict) else [data_sha256]
        self.data_digits = " ".join((checksum or "unknown")[:8] for checksum in checksums)
        unit = ", %" if self.in_percent else ""
        words = [f"{part} {self.metric}{unit}", f"split {of_task.get('split') or 'parts'}", *rows]
        self.heading = f"{title(self.task)}: {', '.join(words)}"
        grid = result.get("cells")
        training = self.settings["train"] if grid is None else sorted(grid)
        options = {key: of_task[key] for key in of_task if key not in ("dataset", "data_dir")}
        starts_later = of_all_seeds.get("start_from") is not None
        self.compared = json.dumps([training, options, data_hashes, starts_later], sort_keys=True)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def row(self) -> TableRow:
        """Its row in the list of all runs."""
        return {
            "run": self.id,
            "kind": "baseline" if self.baseline else "fine-tuning",
            "seeds": " ".join(map(str, self.seeds)),
            "result": f"{self.metric} {self.mean:.2f}",
            "device": self.device,
            "directory": str(self.path),
        }


def _task_scores(result: Json, task: str, main_split: str, is_questions: bool) -> list[ScoreOfRun]:
    """All metrics on the main split, and the run's own metric on all splits."""
    scores = []
    for seed, run in enumerate(result["runs"]):
        for split, metrics in run["scores"].items():
            for metric, value in metrics.items():
                is_own = metric == result["metric"]
                if not isinstance(value, int | float) or not (split == main_split or is_own):
                    continue
                value *= 100.0 if metric_of(metric).is_share and not is_questions else 1.0
                name = metric if split == main_split else split
                scores.append(ScoreOfRun(f"{task} {name}", value, seed))
                if split == main_split and is_own:
                    scores.append(ScoreOfRun(task, value, seed))
    return scores


def _row_settings(task_settings: Json, task: str) -> list[str]:
    """Those settings of a task that choose its rows, without those that are as usual. A MoleculeNet
    set has its columns."""
    usual_columns = MOLECULENET[task].label_columns if task in MOLECULENET else None
    usual_values = VALUES["row_settings"] | {"label_columns": [None, usual_columns]}
    words = []
    for name, usual in usual_values.items():
        value = task_settings.get(name, usual[0])
        if value not in usual:
            words.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    return words


class Cost:
    """The cost of a step, from the content of efficiency.json."""

    def __init__(self, path: Path, content: Json) -> None:
        self.ratio = float(content["ratio"])
        ratio = percent(content["mask_ratio"])
        layers = content.get("recipe", {}).get("model", {}).get("expanded_layers", "all")
        low, high = content["ratio_quartiles"]
        mlm = content["models"]["mlm"]
        exlm = content["models"]["exlm"]
        group = f"ours: {path}, p = {ratio}, {content['pairs']} pairs, {_device(content)}"
        both = {"group": group, "clock": content["clock"]}
        label = f"ExLM, k = {content['num_states']}, expanded layers: {layers}"
        quartiles = f"{low:.2f}–{high:.2f}"
        # the rows of a table: the MLM, and ExLM
        self.rows: list[TableRow] = [
            both | _cost_columns(mlm, 1.0) | {"model": MLM},
            both | _cost_columns(exlm, self.ratio) | {"model": label, "quartiles": quartiles},
        ]


def _cost_columns(measured: Json, times: float) -> TableRow:
    return {
        "ms per step": 1000 * float(measured["seconds_per_step"]),
        "tokens per second": round(measured["tokens_per_second"]),
        "memory, GB": Number(measured["peak_memory_bytes"] / 1e9, digits=2),
        "times MLM": Number(times, digits=2),
    }


def _device(result: Json) -> str:
    """The GPU or processor that a result was computed on, if the result names it."""
    machine = result.get("machine") or {}
    device = machine.get("device") or "cpu"
    return str((machine.get("processor") if device == "cpu" else device) or "not recorded")


def _identifier(identity: Any) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
