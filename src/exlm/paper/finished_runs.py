"""From the content of a result file to a row that says what the report needs of its run. What
earlier versions left out or called otherwise is made equal here to what is written now.

A row has the numbers of its run: tuples of a quantity, the value in the unit of the tables, and the
standard error over tokens or None. KeyError, TypeError or ValueError: the file is damaged."""

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
from exlm.paper.display import DISPLAY, HELD_OUT, METHODS, Model, Row, percent, title, yaml_content
from exlm.pretrain.settings import ArchitectureConfig, PriorSchedule
from exlm.tasks.labels.metrics import is_share
from exlm.tasks.rows.datasets import GLUE, MOLECULENET, file_task

Json = dict[str, Any]  # the content of a file
Number = tuple[str, float, float | None]

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
    data = recipe["data"]
    names = {entry.name for entry in fields(ArchitectureConfig)} & recipe["model"].keys()
    architecture = ArchitectureConfig(**{name: recipe["model"][name] for name in names})
    low, high = share_bounds(data["mask_ratio"])
    settings = {name: identity[name] for name in identity.keys() - _VARIED}
    if low < high:
        # Such runs are compared among themselves, as models with their mean share.
        settings["data.mask_ratio"] = (low, high)
    numbers = held_out_numbers(path, {"evaluation": result["evaluation"]})
    values = {quantity: value for quantity, value, _ in numbers}
    listed = [f"{title(name)} {values[name]:.2f}" for name in DISPLAY["listed"] if name in values]
    studies = (parent.parent for parent in path.parents if parent.name == "pretrain")
    hours = float(result["training_seconds"]) / 3600
    identifier = _identifier(identity)
    return {
        "id": identifier,
        "pretraining": identifier,
        "path": path,
        "first_path": Path(recipe.get("output", path)),
        "study": next(studies, None),
        "device": device_of(result),
        "seed": int(recipe["seed"]),
        "seeds": [int(recipe["seed"])],
        "steps": int(recipe["train"]["steps"]),
        "hours": hours,
        "parameters": int(result["parameters"]),
        "corpus": corpus_name(data["corpus"]),
        "size": f"{architecture.num_hidden_layers} layers × {architecture.hidden_size}",
        "tokens_per_batch": int(data["tokens_per_batch"]),
        "model": Model(
            method=method_of(architecture),
            k=architecture.states_per_mask,
            p=(low + high) / 2,
            r=int(data.get("repeat", 1)),
        ),
        "settings": frozenset((name, json.dumps(value)) for name, value in settings.items()),
        "exlm_only": _exlm_only(architecture, identity),
        "result": ", ".join(listed),
        "numbers": [("training/hours", hours, None), *numbers],
    }


def method_of(architecture: ArchitectureConfig) -> str:
    """A key of METHODS, or the name of an objective that the paper does not have."""
    positions = "-1d" if architecture.rotary == "1d" else ""
    links = "-sparse" if architecture.dag == "sparse" and architecture.has_links else ""
    method = f"{architecture.objective}{positions}{links}"
    return method if method in METHODS else architecture.objective


def _exlm_only(architecture: ArchitectureConfig, identity: Json) -> frozenset[tuple[str, Any]]:
    """Those settings of EXLM_ONLY that a model with this objective uses."""
    settings = set()
    for name, usual_value in EXLM_ONLY.items():
        if name == "model.rotary":
            # The ablation of 2D RoPE belongs to runs with either kind of positions.
            is_used = architecture.rotary != "1d"
        elif name.startswith("model."):
            is_used = architecture.expands
        else:
            is_used = architecture.has_links
        if is_used:
            value = identity.get(name, usual_value)
            settings.add((name, tuple(value) if isinstance(value, list) else value))
    return frozenset(settings)


def held_out_numbers(_: Path, content: Json) -> list[Number]:
    """The numbers on held-out data that a file has."""
    # Keys are then such as `entropy/mean`.
    by_place = pd.json_normalize(content, sep="/").iloc[0].to_dict()
    numbers: list[Number] = []
    for quantity, entry in HELD_OUT.items():
        # The entropy is null if every token had a visible copy.
        if by_place.get(quantity) is not None:
            value = entry.get("factor", 1) * float(by_place[quantity])
            numbers.append((quantity, value, by_place.get(entry.get("error"))))
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
    task = f"data set {task}" if task in DISPLAY["column_names"] else task
    metric = str(result["metric"])
    part = "test" if "test" in result else "valid"  # the reported one
    is_questions = task_settings.get("task_type") == "question_answering"
    in_percent = is_questions or is_share(metric)
    digits = 1 if in_percent else 3
    numbers = _task_numbers(result, task, part, is_questions)
    scores = [value for quantity, value, _ in numbers if quantity == task]
    if not (task and scores):
        return None
    split = task_settings.get("split")
    scored = f"{part} {metric}{', %' if in_percent else ''}, split {split or 'parts'}"
    heading = [f"{title(task)}: {scored}", *_row_settings(task_settings, task, columns)]
    data = _data_checksums(settings)
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
        "interval": _interval(result, part, _factor(metric, is_questions), digits),
        "rows": _rows_in_words(result, part),
        "seeds": result["seeds"],
        "departures": settings.get("departures") or [],
        "options": _options(first_seed["settings"]),
        "heading": ", ".join(heading),
        "data": data,
        "rows_sha256": _rows_checksum(result["runs"], part, data),
        "rows_scored": _rows_scored(result["runs"], part, split),
        "compared": _compared(result, data),
        "is_baseline": bool(settings.get("baseline")),
        "from_scratch": bool(settings.get("from_scratch")),
        "model": _model_in_words(settings),
        "model_path": Path(settings.get("model", "")),
        "model_sha256": settings.get("model_sha256"),
        "best": result["best"] or "one setting",
        "numbers": numbers,
    }


def _data_checksums(settings: Json) -> tuple[str, ...]:
    """The SHA-256 of the data: one, or of questions one for each part."""
    checksums = settings.get("data_sha256")
    by_part = checksums if isinstance(checksums, dict) else {"all": checksums}
    return tuple(checksum or "unknown" for checksum in by_part.values())


def _rows_checksum(seed_results: list[Json], part: str, data: tuple[str, ...]) -> str:
    """The SHA-256 of the rows of a part that were scored, of all seeds if these scored other rows;
    of earlier versions that of the data."""
    checksums = [seed.get("rows_sha256", {}).get(part) for seed in seed_results]
    return " ".join(data if None in checksums else dict.fromkeys(checksums))


def _compared(result: Json, data: tuple[str, ...]) -> str:
    """What fine-tunings have in common that are compared, in JSON."""
    settings = result["settings"]
    grid = result.get("cells")
    training = result["runs"][0]["settings"].get("train") if grid is None else sorted(grid)
    starts_later = settings.get("start_from") is not None
    compared = [training, _task_options(settings["task"]), data, starts_later]
    return json.dumps(compared, sort_keys=True)


def _model_in_words(settings: Json) -> str:
    if settings.get("baseline"):
        return title(settings["baseline"])
    model = "/".join(Path(settings.get("model", "")).parts[-3:])
    return f"random weights of {model}" if settings.get("from_scratch") else model


def _options(settings: Json) -> dict[str, str]:
    """The settings that compared runs may differ in, as text, empty where one is null."""
    options = {f"train.{name}": value for name, value in settings.get("train", {}).items()}
    options |= {f"task.{name}": value for name, value in _task_options(settings["task"]).items()}
    options["start_from"] = settings.get("start_from")
    if "precision" in settings:  # baselines have none
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
    for run in result["runs"]:
        for part, metrics in run["scores"].items():
            for metric, score in metrics.items():
                if not isinstance(score, int | float):
                    continue
                quantities = [f"{task} {metric}"] if part == main_part else []
                if metric == result["metric"]:
                    quantities.append(task if part == main_part else f"{task} {part}")
                value = _factor(metric, is_questions) * score
                numbers += [(quantity, value, None) for quantity in quantities]
    return numbers


def _factor(metric: str, is_questions: bool) -> float:
    """What a stored score is multiplied by for tables; answers have theirs in percent already."""
    return 100.0 if is_share(metric) and not is_questions else 1.0


def _rows_in_words(result: Json, part: str) -> str | int:
    """How many rows of a part were scored, and how many of them the training of each seed had."""
    rows = _median(result, "counts", part, "rows")
    if rows is None:
        return ""
    counts = set()
    for seed in result["runs"]:
        entries = [seed.get(name, {}).get(part) for name in ("in_train", "in_earlier_training")]
        counts.add(max(count or 0 for count in entries))
    if not any(counts):
        return int(rows)
    in_training = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{int(rows)}, {in_training} of them in the training"


def _interval(result: Json, part: str, factor: float, digits: int) -> str:
    """The bounds of the score of a part; "" where one is not defined or not recorded."""
    low, high = (_median(result, "interval", part, name) for name in ("low", "high"))
    if low is None or high is None:
        return ""
    return f"{factor * low:.{digits}f} to {factor * high:.{digits}f}"


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
