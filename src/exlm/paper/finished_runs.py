"""From the content of a result file to a row of the frame of all runs. What earlier versions left
out or called otherwise is made equal here to what is written now.

A row has the numbers of its run: tuples of a quantity, the place of the fine-tuning seed among
those of the run, the value in the unit of the tables, and the standard error over tokens or None.
KeyError, TypeError or ValueError: the file is damaged."""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from exlm.data.batching import share_bounds
from exlm.data.corpus import corpus_name
from exlm.identity import DEFAULTS, identity_of
from exlm.paper.display import (
    COLUMN_NAMES,
    HELD_OUT,
    HOURS,
    LISTED,
    METHODS,
    Row,
    percent,
    title,
    yaml_content,
)
from exlm.pretrain.settings import ArchitectureConfig, PriorSchedule
from exlm.tasks.labels.metrics import metric_of
from exlm.tasks.rows.datasets import GLUE, MOLECULENET, file_task

Json = dict[str, Any]  # the content of a file
Number = tuple[str, int, float, float | None]

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


def pretraining_row(path: Path, result: Json) -> Row | None:
    """The row of a pre-trained model, from its result.json. None for a result with `scores`: it is
    one seed of a fine-tuning, see results.json."""
    if "scores" in result:
        return None
    recipe = result["recipe"]
    identity = result["identity"]
    data = {"repeat": 1} | recipe["data"]
    names = {entry.name for entry in fields(ArchitectureConfig)} & recipe["model"].keys()
    model = ArchitectureConfig(**{name: recipe["model"][name] for name in names})
    low, high = share_bounds(data["mask_ratio"])
    settings = {name: identity[name] for name in identity.keys() - _VARIED}
    if low < high:
        # Such runs are compared among themselves, as models with their mean share.
        settings["data.mask_ratio"] = (low, high)
    studies = (parent.parent for parent in path.parents if parent.name == "pretrain")
    hours = float(result["training_seconds"]) / 3600
    numbers = [
        (HOURS, 0, hours, None),
        *held_out_numbers(path, {"evaluation": result["evaluation"]}),
    ]
    values = {quantity: value for quantity, _, value, _ in numbers}
    listed = [f"{title(name)} {values[name]:.2f}" for name in LISTED if name in values]
    identifier = _identifier(identity)
    return {
        "id": identifier,
        "pretraining": identifier,
        "path": path,
        "first_path": Path(recipe.get("output", path)),
        "study": next(studies, None),
        "device": device_of(result),
        "seed": int(recipe["seed"]),
        "steps": int(recipe["train"]["steps"]),
        "hours": hours,
        "parameters": int(result["parameters"]),
        "corpus": corpus_name(data["corpus"]),
        "size": f"{model.num_hidden_layers} layers × {model.hidden_size}",
        "tokens_per_batch": int(data["tokens_per_batch"]),
        "method": method_of(model),
        "k": model.states_per_mask,
        "p": (low + high) / 2,
        "r": int(data["repeat"]),
        "settings": frozenset((name, json.dumps(value)) for name, value in settings.items()),
        "exlm_only": _exlm_only(model, identity),
        "result": ", ".join(listed),
        "numbers": numbers,
    }


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


def held_out_numbers(_: Path, content: Json) -> list[Number]:
    """The numbers on held-out data that a file has."""
    # Keys are then such as `entropy/mean`.
    by_place = pd.json_normalize(content, sep="/").iloc[0].to_dict()
    numbers: list[Number] = []
    for quantity, (_, factor, _, error_place) in HELD_OUT.items():
        # The entropy is null if every token had a visible copy.
        if by_place.get(quantity) is not None:
            value = factor * float(by_place[quantity])
            numbers.append((quantity, 0, value, by_place.get(error_place)))
    return numbers


def scored_row(path: Path, result: Json) -> Row | None:
    """The row of a fine-tuning or a baseline, from its results.json. None if no seed has a
    score, as without labels."""
    settings = result["settings"]
    task_settings = settings["task"]
    first_seed = result["runs"][0]
    # Earlier versions have only the columns that a user named.
    columns = first_seed.get("label_columns") or task_settings.get("label_columns")
    task = file_task(task_settings["dataset"], columns)
    task = f"data set {task}" if task in COLUMN_NAMES else task
    metric = str(result["metric"])
    part = "test" if "test" in result else "valid"  # the reported one
    is_questions = task_settings.get("task_type") == "question_answering"
    in_percent = is_questions or metric_of(metric).is_share
    digits = 1 if in_percent else 3
    numbers = _task_numbers(result, task, part, is_questions)
    scores = [value for quantity, _, value, _ in numbers if quantity == task]
    if not (task and scores):
        return None
    bounds = [_median(result, "interval", part, name) for name in ("low", "high")]
    factor = _factor(metric, is_questions)
    split = task_settings.get("split")
    scored = f"{part} {metric}{', %' if in_percent else ''}, split {split or 'parts'}"
    heading = [f"{title(task)}: {scored}", *_row_settings(task_settings, task, columns)]
    return {
        "id": _identifier([first_seed["settings"], result["seeds"], result["best"]]),
        "path": path,
        "device": device_of(result),
        "task": task,
        "metric": metric,
        "in_percent": in_percent,
        "digits": digits,
        "scores": scores,
        "mean": fmean(scores),
        "result": f"{metric} {fmean(scores):.2f}",
        "interval": " to ".join(f"{factor * x:.{digits}f}" for x in bounds if x is not None),
        "rows": _rows_in_words(result, part),
        "seeds": result["seeds"],
        "departures": settings.get("departures") or [],
        "options": _options(first_seed["settings"]),
        "heading": ", ".join(heading),
        "rows_scored": _rows_scored(result["runs"], part, split),
        "numbers": numbers,
        **_data_and_model(result),
    }


def _data_and_model(result: Json) -> Row:
    """What a row has of the data and of the model that was fine-tuned on them."""
    settings = result["settings"]
    data_sha256 = settings.get("data_sha256")  # of questions one for each part
    checksums = data_sha256.values() if isinstance(data_sha256, dict) else [data_sha256]
    data = tuple(str(checksum or "unknown") for checksum in checksums)
    path = Path(settings.get("model", ""))
    model = "/".join(path.parts[-3:])
    from_scratch = bool(settings.get("from_scratch"))
    baseline = settings.get("baseline")
    if baseline:
        model = title(baseline)
    elif from_scratch:
        model = f"random weights of {model}"
    grid = result.get("cells")
    training = result["runs"][0]["settings"].get("train") if grid is None else sorted(grid)
    starts_later = settings.get("start_from") is not None
    compared = [training, _task_options(settings["task"]), data, starts_later]
    return {
        "data": data,
        "model": model,
        "model_path": path,
        "model_sha256": settings.get("model_sha256"),
        "is_baseline": bool(baseline),
        "from_scratch": from_scratch,
        "best": result["best"] or "one setting",
        "compared": json.dumps(compared, sort_keys=True),
    }


def _options(settings: Json) -> dict[str, str]:
    """The settings that compared runs may differ in, as text, empty where one is null."""
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


def _task_numbers(result: Json, task: str, main_part: str, is_questions: bool) -> list[Number]:
    """All metrics of the main part, and the run's own metric of all parts. The quantity called as
    the task is the run's own metric of the main part."""
    numbers: list[Number] = []
    for seed, run in enumerate(result["runs"]):
        for part, metrics in run["scores"].items():
            for metric, score in metrics.items():
                is_own = metric == result["metric"]
                if not isinstance(score, int | float) or not (part == main_part or is_own):
                    continue
                value = _factor(metric, is_questions) * score
                name = metric if part == main_part else part
                numbers.append((f"{task} {name}", seed, value, None))
                if part == main_part and is_own:
                    numbers.append((task, seed, value, None))
    return numbers


def _factor(metric: str, is_questions: bool) -> float:
    """What a stored score is multiplied by for tables; answers have theirs in percent already."""
    return 100.0 if metric_of(metric).is_share and not is_questions else 1.0


def _rows_in_words(result: Json, part: str) -> str | int:
    """How many rows of a part were scored, and how many of them the training had, too."""
    rows = _median(result, "counts", part, "rows")
    if rows is None:
        return ""
    in_training = 0
    for seed in result["runs"]:
        for entry in ("in_train", "in_earlier_training"):
            in_training = max(in_training, seed.get(entry, {}).get(part) or 0)
    return f"{int(rows)}, {in_training} of them in the training" if in_training else int(rows)


def _median(result: Json, entry: str, part: str, name: str) -> float | None:
    """A median over seeds of an entry about a part; earlier versions have no such entries."""
    summaries = result.get(entry, {}).get(part, {})
    return summaries[name]["median"] if name in summaries else None


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


def _rows_scored(seed_results: list[Json], part: str, split: str | None) -> str:
    """How many rows of a part were scored with each seed. Of equal data and settings, these rows
    differ in two ways: a model leaves out what it cannot read, so that they are fewer; and seeds,
    which are then named, may sample other rows."""
    counts = [seed.get("counts", {}).get(part, {}).get("rows", "unknown") for seed in seed_results]
    if len(set(counts)) == 1:
        counts = counts[:1]
    rows = ", ".join(map(str, counts))
    splits = {seed.get("split_sha256") for seed in seed_results}
    # Without a test part, valid may be sampled of train.
    if split == "random" or (part == "valid" and len(splits) > 1):
        return f"{rows} with seeds {' '.join(str(seed['seed']) for seed in seed_results)}"
    return rows


def cost_row(path: Path, content: Json) -> Row:
    """The cost of a step of ExLM and of the MLM, from the content of efficiency.json: `ratio`, how
    many times the cost of the MLM that of ExLM is, and the `rows` of the table of costs."""
    setting = f"p = {percent(content['mask_ratio'])}, {content['pairs']} pairs"
    group = f"ours: {path}, {setting}, {device_of(content)}"
    layers = content.get("recipe", {}).get("model", {}).get("expanded_layers", "all")
    exlm = f"ExLM, k = {content['num_states']}, expanded layers: {layers}"
    quartiles = "{:.2f}–{:.2f}".format(*content["ratio_quartiles"])
    rows: dict[str, Row] = {
        "mlm": {"model": METHODS["mlm"], "times MLM": 1.0},
        "exlm": {"model": exlm, "times MLM": content["ratio"], "quartiles": quartiles},
    }
    for name, row in rows.items():
        step = content["models"][name]
        row["group"] = group
        row["clock"] = content["clock"]
        row["ms per step"] = 1000 * step["seconds_per_step"]
        row["tokens per second"] = round(step["tokens_per_second"])
        row["memory, GB"] = step["peak_memory_bytes"] / 1e9
    return {"study": path, "ratio": content["ratio"], "rows": list(rows.values())}


def device_of(result: Json) -> str:
    """The GPU or processor that a result was computed on, if the result names it."""
    machine = result.get("machine") or {}
    device = machine.get("device") or "cpu"
    return str((machine.get("processor") if device == "cpu" else device) or "not recorded")


def _identifier(identity: Any) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
