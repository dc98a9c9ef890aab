"""What is known of a finished run: the content of its result file, with checked numbers."""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.batching import share_bounds
from exlm.data.corpus import corpus_name
from exlm.identity import DEFAULTS, identity_of
from exlm.paper.display import COLUMN_NAMES, HELD_OUT, HOURS, title, yaml_content
from exlm.paper.variants import Variant
from exlm.pretrain.settings import ArchitectureConfig, PriorSchedule
from exlm.tasks.labels.metrics import metric_of
from exlm.tasks.rows.datasets import GLUE, MOLECULENET, task_of

Json = dict[str, Any]  # the content of a file, which an earlier version may have written

_COMPARABLE = yaml_content("comparable.yaml")
_USUAL_VALUES = {
    **identity_of(ArchitectureConfig(), "model"),
    **identity_of(PriorSchedule(), "prior"),
    **DEFAULTS,
    "transition_warmup": 0,
}
# Settings that an MLM does not have, with their usual values.
EXLM_ONLY: dict[str, Any] = {name: _USUAL_VALUES[name] for name in _COMPARABLE["exlm_only"]}
_VARIED = {*EXLM_ONLY, *_COMPARABLE["varied"]}
_ROW_SETTINGS: dict[str, list[Any]] = _COMPARABLE["row_settings"]


class RunValue(NamedTuple):
    """A quantity of a run and its value in the unit of the tables, with the place of its
    fine-tuning seed among those of the run, and the standard error over tokens, if it is known."""

    quantity: str
    value: float
    seed: int = 0
    error: float | None = None


class PretrainedRun:
    """A pre-trained model, from the content of its result.json. KeyError, TypeError or ValueError
    if this is damaged.

    Attributes:
        places: its directory, now and where it was first written.
        study: the output directory of the `exlm analyze` that made it, if one did.
        settings: the settings that comparable runs have in common, as names and JSON.
        exlm_only: those settings of EXLM_ONLY that it uses, with its values."""

    def __init__(self, path: Path, result: Json) -> None:
        recipe = result["recipe"]
        data = recipe["data"]
        identity = result["identity"]
        self.path = path
        self.places = {path, Path(recipe.get("output", path))}
        studies = (parent.parent for parent in path.parents if parent.name == "pretrain")
        self.study = next(studies, None)
        self.id = _identifier(identity)
        self.device = device_of(result)
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
        method = method_of(self.model)
        self.variant = Variant(method, self.model.states_per_mask, (low + high) / 2, repeat)
        settings = {name: identity[name] for name in identity.keys() - _VARIED}
        if low < high:
            # Such runs are compared among themselves, as variants of their mean share.
            settings["data.mask_ratio"] = (low, high)
        self.settings = frozenset((name, json.dumps(value)) for name, value in settings.items())
        self.exlm_only = _exlm_only(self.model, identity)
        evaluation = held_out_values({"evaluation": result["evaluation"]})
        self.values = [RunValue(HOURS, self.hours), *evaluation]


def method_of(model: ArchitectureConfig) -> str:
    """The method of a model, a key of METHODS, or an objective that the paper does not have."""
    if model.objective not in ("exlm", "ctc"):
        return model.objective
    positions = "-1d" if model.rotary == "1d" else ""
    links = "-sparse" if model.dag == "sparse" and model.has_links else ""
    return f"{model.objective}{positions}{links}"


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


def held_out_values(content: Json) -> list[RunValue]:
    """The values on held-out data that a file has."""
    # Keys are then such as `entropy/mean`.
    numbers = pd.json_normalize(content, sep="/").iloc[0].to_dict()
    values = []
    for place, quantity in HELD_OUT.items():
        # The entropy is null if every token had a visible copy.
        if numbers.get(place) is not None:
            value = quantity.factor * float(numbers[place])
            error = float(numbers[quantity.error_place]) if quantity.error_place else None
            values.append(RunValue(place, value, error=error))
    return values


class ScoredRun:
    """Scores on one task with several seeds, from the content of a results.json; what a fine-tuning
    and a baseline have in common.

    Attributes:
        model: what tables call the model or the baseline.
        model_id: the id of the pre-training that it started from, if that is known.
        options: the settings that compared runs may differ in, as text, empty where one is null:
            hyper-parameters, options of the task, precision, and the fine-tuning that it started
            from.
        task: the name of the task, which no column of a table has.
        values: all its values; the quantity called as the task is the metric of the reported part.
        scores: these values of the metric, one for each seed.
        rows: how many rows were scored, as the median over seeds.
        interval: of the metric over rows, as medians over seeds; empty if it is not known.
        heading: the task, part, metric and split, and the unusual ones of those settings that
            choose rows and labels. Only scores with the same heading and checksums are compared.
        checksums: those of the data; questions have one for each part.
        rows_scored: how many rows were scored, for headings. With the same heading and checksums,
            runs whose text here is equal were scored on the same rows."""

    model: str
    model_id: str | None = None

    def __init__(self, path: Path, result: Json) -> None:
        settings = result["settings"]
        task_settings = settings["task"]
        first_seed = result["runs"][0]
        self.path = path
        self.options = _options(first_seed["settings"])
        self.id = _identifier([first_seed["settings"], result["seeds"], result["best"]])
        self.device = device_of(result)
        self.seeds: list[int] = result["seeds"]
        # Runs of earlier versions have only the columns that a user named.
        columns = first_seed.get("label_columns") or task_settings.get("label_columns")
        task = task_of(task_settings["dataset"])
        self.task = f"data set {task}" if task in COLUMN_NAMES else task
        self.metric = str(result["metric"])
        is_questions = task_settings.get("task_type") == "question_answering"
        self.in_percent = is_questions or metric_of(self.metric).is_share
        part = "test" if "test" in result else "valid"  # the reported one
        self.values = _task_values(result, self.task, part, is_questions)
        self.scores = [entry.value for entry in self.values if entry.quantity == self.task]
        rows = _medians(result, "counts", part).get("rows")
        self.rows = None if rows is None else int(rows)
        self.digits = 1 if self.in_percent else 3  # after the decimal point
        factor = _factor(self.metric, is_questions)
        bounds = _medians(result, "interval", part).values()
        numbers = [f"{factor * bound:.{self.digits}f}" for bound in bounds if bound is not None]
        self.interval = " to ".join(numbers)
        split = task_settings.get("split")
        unit = ", %" if self.in_percent else ""
        scored = f"{part} {self.metric}{unit}, split {split or 'parts'}"
        row_settings = _row_settings(task_settings, self.task, columns)
        self.heading = ", ".join([f"{title(self.task)}: {scored}", *row_settings])
        data_sha256 = settings.get("data_sha256")
        checksums = data_sha256.values() if isinstance(data_sha256, dict) else [data_sha256]
        self.checksums = [str(checksum or "unknown") for checksum in checksums]
        self.rows_scored = _rows_scored(result["runs"], part, split)

    @property
    def mean(self) -> float:
        """The mean score over seeds."""
        return fmean(self.scores)


class FineTuning(ScoredRun):
    """A model fine-tuned on one task with several seeds.

    Attributes:
        best: the best hyper-parameters of a grid.
        compared: what must be equal to compare models: hyper-parameters or their grid, data, and
            whether it started from an earlier fine-tuning."""

    def __init__(self, path: Path, result: Json, model_id: str | None) -> None:
        super().__init__(path, result)
        settings = result["settings"]
        self.model_id = model_id
        self.from_scratch = bool(settings.get("from_scratch"))
        start = "/".join(Path(settings.get("model", "")).parts[-3:])
        self.model = f"random weights of {start}" if self.from_scratch else start
        self.best = result["best"] or "one setting"
        grid = result.get("cells")
        training = result["runs"][0]["settings"]["train"] if grid is None else sorted(grid)
        task_options = _task_options(settings["task"])
        starts_later = settings.get("start_from") is not None
        compared = [training, task_options, self.checksums, starts_later]
        self.compared = json.dumps(compared, sort_keys=True)


class Baseline(ScoredRun):
    """A baseline trained on one task with several seeds."""

    def __init__(self, path: Path, result: Json) -> None:
        super().__init__(path, result)
        self.model = title(result["settings"]["baseline"])


def _options(settings: Json) -> dict[str, str]:
    """The `options` of a run; without `start_from`, it started from no fine-tuning."""
    options = {f"train.{name}": value for name, value in settings.get("train", {}).items()}
    for name, value in _task_options(settings["task"]).items():
        options[f"task.{name}"] = value
    options["start_from"] = settings.get("start_from")
    if "precision" in settings:
        options["precision"] = settings["precision"]
    return {name: "" if value is None else str(value) for name, value in options.items()}


def _task_options(task_settings: Json) -> Json:
    """The settings of a task, but for where its data are."""
    places = ("dataset", "data_dir")
    return {name: value for name, value in task_settings.items() if name not in places}


def _task_values(result: Json, task: str, main_part: str, is_questions: bool) -> list[RunValue]:
    """All metrics of the main part, and the run's own metric of all parts."""
    values = []
    for seed, run in enumerate(result["runs"]):
        for part, metrics in run["scores"].items():
            for metric, value in metrics.items():
                is_own = metric == result["metric"]
                if not isinstance(value, int | float) or not (part == main_part or is_own):
                    continue
                value *= _factor(metric, is_questions)
                name = metric if part == main_part else part
                values.append(RunValue(f"{task} {name}", value, seed))
                if part == main_part and is_own:
                    values.append(RunValue(task, value, seed))
    return values


def _factor(metric: str, is_questions: bool) -> float:
    """What a stored score is multiplied by for tables; answers have theirs in percent already."""
    return 100.0 if metric_of(metric).is_share and not is_questions else 1.0


def _medians(result: Json, entry: str, part: str) -> dict[str, float | None]:
    """The medians over seeds of an entry about a part; earlier versions have no such entries."""
    summaries = result.get(entry, {}).get(part, {})
    return {name: summary["median"] for name, summary in summaries.items()}


def _row_settings(task_settings: Json, task: str, columns: list[str] | None) -> list[str]:
    """Those settings of a task that choose its rows, without those that are as usual, such as the
    label columns of a MoleculeNet set or of GLUE, which differ between its own files and the
    hub's."""
    usual_columns = MOLECULENET[task].label_columns if task in MOLECULENET else None
    usual_values = _ROW_SETTINGS | {"label_columns": [None, usual_columns]}
    if task not in GLUE:
        task_settings = {**task_settings, "label_columns": columns}
    settings = []
    for name, usual in usual_values.items():
        value = task_settings.get(name, usual[0])
        if value not in usual:
            settings.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    return settings


def _rows_scored(results: list[Json], part: str, split: str | None) -> str:
    """How many rows of a part were scored with each seed. Of equal data and settings, these rows
    differ in two ways: a model leaves out what it cannot read, so that they are fewer; and seeds,
    which are then named, may sample other rows."""
    counts = [result.get("counts", {}).get(part, {}).get("rows", "unknown") for result in results]
    if len(set(counts)) == 1:
        counts = counts[:1]
    rows = ", ".join(map(str, counts))
    splits = {result.get("split_sha256") for result in results}
    # Without a test part, valid may be sampled of train.
    if split == "random" or (part == "valid" and len(splits) > 1):
        return f"{rows} with seeds {' '.join(str(result['seed']) for result in results)}"
    return rows


class StepCost(NamedTuple):
    """What a training step of a model takes, as efficiency.json has it."""

    seconds_per_step: float
    tokens_per_second: float
    peak_memory_bytes: float


def _step_cost(content: Json) -> StepCost:
    return StepCost(*(float(content[name]) for name in StepCost._fields))


class Cost:
    """The cost of a step of ExLM and of the MLM, from the content of efficiency.json.

    Attributes:
        ratio: how many times the cost of the MLM that of ExLM is.
        quartiles: the lower and the upper quartile of this ratio, over pairs of steps."""

    def __init__(self, path: Path, content: Json) -> None:
        self.path = path
        self.device = device_of(content)
        self.mask_ratio = float(content["mask_ratio"])
        self.num_states = int(content["num_states"])
        recipe = content.get("recipe", {})
        self.expanded_layers = recipe.get("model", {}).get("expanded_layers", "all")
        self.pairs = int(content["pairs"])
        self.clock = str(content["clock"])
        self.mlm = _step_cost(content["models"]["mlm"])
        self.exlm = _step_cost(content["models"]["exlm"])
        self.ratio = float(content["ratio"])
        low, high = content["ratio_quartiles"]
        self.quartiles = (float(low), float(high))


def device_of(result: Json) -> str:
    """The GPU or processor that a result was computed on, if the result names it."""
    machine = result.get("machine") or {}
    device = machine.get("device") or "cpu"
    return str((machine.get("processor") if device == "cpu" else device) or "not recorded")


def _identifier(identity: Any) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
