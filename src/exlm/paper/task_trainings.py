"""Reads finished fine-tunings and baselines: their results.json, a `GridResults`
(exlm/tasks/results.py). What earlier versions left out is made equal here to what is written
now."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from exlm.paper.display import COMPARABLE, DISPLAY, title
from exlm.paper.pretrainings import FinishedRun, Json, Numbers, device_of, short_hash
from exlm.storage.files import read_log
from exlm.tasks.labels.metrics import Metric
from exlm.tasks.labels.scores import goodness, known_metrics
from exlm.tasks.rows.datasets import GLUE, MOLECULENET, file_task


@dataclass(frozen=True)
class TaskScores:
    """The scores of all seeds, in percent if they are shares."""

    metric: str  # the metric that has chosen the hyper-parameters
    values: list[float]  # by this metric, of test data if there are any, else of valid
    numbers: Numbers  # by all metrics, of these data; by `metric`, of other parts
    interval: str  # the bounds of the score, "" where one is not defined or not recorded
    in_percent: bool  # whether `metric` is a share

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def goodness(self) -> float:
        """The mean turned so that higher is better; 0 where nobody knows which way that is."""
        return goodness(self.mean, self.metric) if self.metric in known_metrics() else 0.0

    @property
    def digits(self) -> int:
        """How many digits after the decimal point tables show."""
        return 1 if self.in_percent else 3


@dataclass(frozen=True)
class ScoredRows:
    """Which rows were scored."""

    heading: str  # task, part, metric, and the settings that choose the rows, in words
    data: tuple[str, ...]  # the SHA-256 of the data: one, or of questions one for each part
    sha256: str  # of the rows; of earlier versions that of the data
    count: str  # how many they are, for each seed if the seeds scored other rows
    in_words: str | int  # how many they are, and how many of them the training of each seed had


@dataclass(frozen=True)
class Source:
    """What was trained: a baseline, or a model."""

    title: str
    is_baseline: bool
    path: Path | None  # the directory of the model; None for random weights
    weights_sha256: str | None  # of the model, if it is known


@dataclass(frozen=True, kw_only=True)
class TaskTraining(FinishedRun):
    """A fine-tuning or a baseline with all its seeds."""

    task: str  # the name of its data in tables
    source: Source
    scores: TaskScores
    scored_rows: ScoredRows
    grid_cell: str  # the best hyper-parameters of its grid
    options: dict[str, str]  # its settings as text, "" where one is null
    comparison: str  # what fine-tunings have in common that are compared, in JSON
    departures: list[str]  # how its data differ from the published ones
    split: str  # how many rows each part has, in words; "" if it is not recorded
    files: str  # the SHA-256 of every file, in words; "" if they are not recorded
    pretraining: str | None = None  # the id of the one that made its model, if it was found

    @property
    def result(self) -> str:
        """Its metric and the mean, in words."""
        return f"{self.scores.metric} {self.scores.mean:.2f}"


def read_task_training(path: Path, content: Json) -> TaskTraining:
    """The training in a directory whose results.json has this content. The hours are in the logs of
    its seeds. KeyError, TypeError or ValueError: the file is damaged."""
    settings = content["settings"]
    seed_results: list[Json] = content["runs"]
    seed_settings = seed_results[0]["settings"]
    # Earlier versions have only the columns that a user named.
    columns = seed_results[0].get("label_columns") or settings["task"].get("label_columns")
    data_set = file_task(settings["task"]["dataset"], columns)
    task_settings = settings["task"]
    # The label columns of GLUE differ between its own files and the hub's.
    if data_set not in GLUE:
        task_settings = {**task_settings, "label_columns": columns}
    task = f"data set {data_set}" if data_set in DISPLAY["column_names"] else data_set
    part = "test" if "test" in content else "valid"
    scores = _read_scores(
        content, task, part, task_settings.get("task_type") == "question_answering"
    )
    scored_rows = _read_scored_rows(content, task, part, scores, task_settings)
    split = seed_results[0].get("split") or {}
    # Earlier versions have no files.
    files = seed_results[0].get("file_sha256") or {}
    return TaskTraining(
        id=short_hash([seed_settings, content["seeds"], content["best"]]),
        path=path,
        device=device_of(content),
        seeds=content["seeds"],
        hours=_hours(path / content["best"], seed_results),
        task=task,
        source=_read_source(settings),
        scores=scores,
        scored_rows=scored_rows,
        grid_cell=content["best"] or "one setting",
        options=_options(seed_settings, task_settings),
        comparison=_comparison(content, task_settings, scored_rows.data),
        departures=settings.get("departures") or [],
        split=", ".join(f"{rows} {part}" for part, rows in split.items()),
        files=", ".join(f"{Path(file).name} {checksum}" for file, checksum in files.items()),
    )


def _read_scores(content: Json, task: str, part: str, is_questions: bool) -> TaskScores:
    metric = str(content["metric"])
    factor = _factor(metric, is_questions)
    in_percent = is_questions or factor == 100
    numbers = _numbers(content, task, part, is_questions)
    low = _median(content, "interval", part, "low")
    high = _median(content, "interval", part, "high")
    interval = ""
    if low is not None and high is not None:
        digits = 1 if in_percent else 3
        interval = f"{factor * low:.{digits}f} to {factor * high:.{digits}f}"
    return TaskScores(metric, numbers.get(task, []), numbers, interval, in_percent)


def _numbers(content: Json, task: str, main_part: str, is_questions: bool) -> Numbers:
    """All metrics of the main part, and the run's own metric of all parts. The quantity called as
    the task is the run's own metric of the main part."""
    numbers = defaultdict(list)
    for seed in content["runs"]:
        for part, scores in seed["scores"].items():
            for metric, score in scores.items():
                if not isinstance(score, int | float):
                    continue
                value = _factor(metric, is_questions) * score
                if part == main_part:
                    numbers[f"{task} {metric}"].append(value)
                if metric == content["metric"]:
                    numbers[task if part == main_part else f"{task} {part}"].append(value)
    return dict(numbers)


def _factor(metric: str, is_questions: bool) -> float:
    """What a stored score is multiplied by for tables, where some are in percent, as those of
    answers are already. Counts beside the scores, and metrics of other versions, are not."""
    shown_in_percent = known_metrics().get(metric, Metric()).shown_in_percent
    return 100.0 if shown_in_percent and not is_questions else 1.0


def _read_scored_rows(
    content: Json, task: str, part: str, scores: TaskScores, task_settings: Json
) -> ScoredRows:
    seed_results = content["runs"]
    split = task_settings.get("split")
    unit = ", %" if scores.in_percent else ""
    heading = f"{title(task)}: {part} {scores.metric}{unit}, split {split or 'parts'}"
    heading = ", ".join([heading, *_row_settings(task_settings, task)])
    if scores.metric not in known_metrics():
        heading += ", in no order (this version does not have the metric)"
    checksums = content["settings"].get("data_sha256")
    by_part = checksums if isinstance(checksums, dict) else {"all": checksums}
    data = tuple(checksum or "unknown" for checksum in by_part.values())
    rows = [seed.get("rows_sha256", {}).get(part) for seed in seed_results]
    return ScoredRows(
        heading=heading,
        data=data,
        sha256=" ".join(data if None in rows else dict.fromkeys(rows)),
        count=_count(seed_results, part, split),
        in_words=_rows_in_words(content, part),
    )


def _rows_in_words(content: Json, part: str) -> str | int:
    rows = _median(content, "counts", part, "rows")
    if rows is None:
        return ""
    counts = set()
    for seed in content["runs"]:
        entries = [seed.get(name, {}).get(part) for name in ("in_train", "in_earlier_training")]
        counts.add(max(count or 0 for count in entries))
    if not any(counts):
        return int(rows)
    in_training = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{int(rows)}, {in_training} of them in the training"


def _median(content: Json, entry: str, part: str, name: str) -> float | None:
    """A median over seeds of an entry about a part; earlier versions have no such entries."""
    summary = content.get(entry, {}).get(part, {})
    return summary[name]["median"] if name in summary else None


def _row_settings(task_settings: Json, task: str) -> list[str]:
    """Those settings of a task that choose its rows, without those that are as usual, such as the
    label columns of a MoleculeNet set."""
    usual_columns = MOLECULENET[task].label_columns if task in MOLECULENET else None
    usual_values = COMPARABLE["row_settings"] | {"label_columns": [None, usual_columns]}
    settings = []
    for name, usual in usual_values.items():
        value = task_settings.get(name, usual[0])
        if value not in usual:
            settings.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    return settings


def _count(seed_results: list[Json], part: str, split: str | None) -> str:
    """Of equal data and settings, these rows differ in two ways: a model leaves out what it cannot
    read, so that they are fewer; and seeds, which are then named, may sample other rows."""
    counts = [seed.get("counts", {}).get(part, {}).get("rows", "unknown") for seed in seed_results]
    if len(set(counts)) == 1:
        counts = counts[:1]
    rows = ", ".join(map(str, counts))
    splits = {seed.get("split_sha256") for seed in seed_results}
    # Without a test part, valid may be sampled of train.
    if split == "random" or (part == "valid" and len(splits) > 1):
        return f"{rows} with seeds {' '.join(str(seed['seed']) for seed in seed_results)}"
    return rows


def _hours(grid_cell: Path, seed_results: list[Json]) -> float | str:
    """The hours of all seeds: of the updates as in the logs of the best grid cell, or as a baseline
    wrote them. A baseline was fitted once where seeds have one split and one time."""
    timed = [run for run in seed_results if "seconds" in run]
    fits = {(run.get("split_sha256"), run["seconds"]) for run in timed}
    logs = [read_log(grid_cell / f"seed-{run['seed']}" / "log.jsonl") for run in seed_results]
    updates = [entry["seconds"] for log in logs for entry in log if entry["kind"] == "train"]
    if not fits and not updates:
        return ""
    return (sum(seconds for _, seconds in fits) + sum(updates)) / 3600


def _comparison(content: Json, task_settings: Json, data: tuple[str, ...]) -> str:
    settings = content["settings"]
    cells = content.get("cells")
    # With a grid every training tried the same hyper-parameters, whatever came out best.
    hyper = content["runs"][0]["settings"].get("train") if cells is None else sorted(cells)
    starts_later = settings.get("start_from") is not None
    shared = [hyper, _task_options(task_settings), data, starts_later]
    return json.dumps(shared, sort_keys=True)


def _options(settings: Json, task_settings: Json) -> dict[str, str]:
    options = {f"train.{name}": value for name, value in settings.get("train", {}).items()}
    options |= {f"task.{name}": value for name, value in _task_options(task_settings).items()}
    options["start_from"] = settings.get("start_from")
    if "precision" in settings:  # baselines have none
        options["precision"] = settings["precision"]
    return {name: "" if value is None else str(value) for name, value in options.items()}


def _task_options(task_settings: Json) -> Json:
    """The settings of a task, but for where its data are."""
    places = ("dataset", "data_dir")
    return {name: value for name, value in task_settings.items() if name not in places}


def _read_source(settings: Json) -> Source:
    path = None if settings.get("from_scratch") else Path(settings.get("model", ""))
    name = "/".join(Path(settings.get("model", "")).parts[-3:])
    if settings.get("baseline"):
        name = title(settings["baseline"])
    elif path is None:
        name = f"random weights of {name}"
    return Source(name, bool(settings.get("baseline")), path, settings.get("model_sha256"))
