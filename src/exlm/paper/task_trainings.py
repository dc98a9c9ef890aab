"""Reads finished fine-tunings and baselines: their results.json, a `GridResults`
(exlm/tasks/results.py)."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from exlm.paper.display import DISPLAY, ROW_SETTINGS, title
from exlm.paper.pretrainings import FinishedRun, Json, Numbers, name_device, short_hash
from exlm.storage.files import TRAINING_LOG, read_log
from exlm.tasks.labels.metrics import Metric
from exlm.tasks.labels.scores import find_metrics, goodness
from exlm.tasks.rows.datasets import GLUE, MOLECULENET, file_task
from exlm.upgrades import upgrade_grid_results


@dataclass(frozen=True)
class TaskScores:
    """The scores of all seeds, in percent if they are shares."""

    metric_name: str  # of the metric that has chosen the hyper-parameters
    metric: Metric | None  # None if this version does not have it
    values: list[float]  # by this metric, of the main part: test or, without one, valid
    numbers: Numbers  # by all metrics, of the main part; by this metric, of the other parts
    interval: str  # the bounds of the score, "" where one is not defined or not recorded

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def goodness(self) -> float:
        """The mean turned so that higher is better; 0 where nobody knows which way that is."""
        return goodness(self.mean, self.metric) if self.metric else 0.0

    @property
    def in_percent(self) -> bool:
        """Whether the scores are shares."""
        return self.metric is not None and self.metric.best is not None

    @property
    def digits(self) -> int:
        """How many digits after the decimal point tables show."""
        return (self.metric or Metric()).digits


@dataclass(frozen=True)
class ScoredRows:
    """Which rows were scored. Scores of runs are comparable if these rows are equal."""

    heading: str  # task, part, metric, and the settings that choose the rows, in words
    data_sha256: tuple[str, ...]  # one of a table, or of questions one for each part
    rows_sha256: str  # of the rows that were scored, if it is recorded, else of the data
    count: str  # the number of rows, for each seed if the seeds scored other rows
    count_with_seen: str | int  # the number, and how many of the rows the training had, in words


@dataclass(frozen=True, kw_only=True)
class TaskTraining(FinishedRun):
    """A fine-tuning or a baseline with all its seeds."""

    task: str  # the name of its data in tables
    learner: str  # what learned it: the name of a model, or the title of a baseline
    is_baseline: bool
    model_path: Path | None  # the directory of the model; None for random weights
    weights_sha256: str | None  # of the model, if it is known
    scores: TaskScores
    scored_rows: ScoredRows
    grid_cell: str  # the best hyper-parameters of its grid
    options: dict[str, str]  # its settings as text, "" where one is null
    comparison_key: str  # what must be equal in fine-tunings that are compared, in JSON
    departures: list[str]  # how its data differ from the published ones
    split: str  # how many rows each part has, in words; "" if it is not recorded
    files: str  # the SHA-256 of every file, in words; "" if they are not recorded
    pretraining_id: str | None = None  # the `training_id` of its model, if that was found

    @property
    def result(self) -> str:
        """Its metric and the mean, in words."""
        return f"{self.scores.metric_name} {self.scores.mean:.2f}"


def read_task_training(path: Path, content: Json) -> TaskTraining:
    """The training in a directory whose results.json has this content. The hours are in the logs of
    its seeds. KeyError, TypeError or ValueError: the file is damaged."""
    results = upgrade_grid_results(content)
    settings = results["settings"]
    task_settings = settings["task"]
    first_result = results["runs"][0]
    seed_settings = first_result["settings"]
    columns = first_result["label_columns"]
    data_set = file_task(task_settings["dataset"], columns)
    # The label columns of GLUE differ between its own files and the hub's.
    if data_set not in GLUE:
        task_settings = {**task_settings, "label_columns": columns}
    task = f"data set {data_set}" if data_set in DISPLAY["column_names"] else data_set
    main_part = "test" if "test" in results else "valid"
    inferred_type = settings.get("inferred", {}).get("task.task_type")
    metrics = find_metrics(task_settings["task_type"] or inferred_type)
    scores = _read_scores(results, task, main_part, metrics)
    scored_rows = _read_scored_rows(results, task, main_part, scores, task_settings)
    split = [f"{rows} {part}" for part, rows in first_result["split"].items()]
    files = [f"{Path(file).name} {sha256}" for file, sha256 in first_result["file_sha256"].items()]
    return TaskTraining(
        id=short_hash([seed_settings, results["seeds"], results["best"]]),
        path=path,
        device=name_device(results),
        seeds=results["seeds"],
        hours=_sum_hours(path / results["best"], results["runs"]),
        task=task,
        learner=_name_learner(settings),
        is_baseline="baseline" in settings,
        model_path=None if settings.get("from_scratch") else Path(settings.get("model", "")),
        weights_sha256=settings.get("model_sha256"),
        scores=scores,
        scored_rows=scored_rows,
        grid_cell=results["best"] or "one setting",
        options=_collect_options(seed_settings, task_settings),
        comparison_key=_make_comparison_key(results, task_settings, scored_rows.data_sha256),
        departures=settings["departures"],
        split=", ".join(split),
        files=", ".join(files),
    )


def _read_scores(
    results: Json, task: str, main_part: str, metrics: Mapping[str, Metric]
) -> TaskScores:
    metric = metrics.get(str(results["metric"]))
    numbers = _collect_numbers(results, task, main_part, metrics)
    bounds = [_read_median(results, "interval", main_part, name) for name in ("low", "high")]
    form = metric or Metric()
    texts = [f"{form.factor * bound:.{form.digits}f}" for bound in bounds if bound is not None]
    return TaskScores(
        metric_name=str(results["metric"]),
        metric=metric,
        values=numbers.get(task, []),
        numbers=numbers,
        interval=" to ".join(texts) if len(texts) == 2 else "",
    )


def _collect_numbers(
    results: Json, task: str, main_part: str, metrics: Mapping[str, Metric]
) -> Numbers:
    """The numbers of all seeds by quantity (display.py): all metrics of the main part, and the
    run's metric of all parts. Scores by a metric that this version lacks stay as they are."""
    numbers = defaultdict(list)
    for seed_result in results["runs"]:
        for part, scores in seed_result["scores"].items():
            for metric, score in scores.items():
                if not isinstance(score, int | float):
                    continue
                value = metrics.get(metric, Metric()).factor * score
                if part == main_part:
                    numbers[f"{task} {metric}"].append(value)
                if metric == results["metric"]:
                    numbers[task if part == main_part else f"{task} {part}"].append(value)
    return dict(numbers)


def _read_scored_rows(
    results: Json, task: str, part: str, scores: TaskScores, task_settings: Json
) -> ScoredRows:
    seed_results = results["runs"]
    split = task_settings.get("split")
    unit = ", %" if scores.in_percent else ""
    heading = f"{title(task)}: {part} {scores.metric_name}{unit}, split {split or 'parts'}"
    heading = ", ".join([heading, *_describe_row_settings(task_settings, task)])
    if scores.metric is None:
        heading += ", in no order (this version does not have the metric)"
    data = results["settings"]["data_sha256"]
    checksums = data.values() if isinstance(data, dict) else [data]
    data_sha256 = tuple(checksum or "unknown" for checksum in checksums)
    rows_sha256 = [seed_result["rows_sha256"].get(part) for seed_result in seed_results]
    return ScoredRows(
        heading=heading,
        data_sha256=data_sha256,
        rows_sha256=" ".join(data_sha256 if None in rows_sha256 else dict.fromkeys(rows_sha256)),
        count=_describe_count(seed_results, part, split),
        count_with_seen=_describe_seen(results, part),
    )


def _describe_seen(results: Json, part: str) -> str | int:
    """How many rows there are, and how many of them the training had: a number if it had none, or
    `224, 15 to 18 of them in the training` if seeds differ; "" if nothing is recorded."""
    rows = _read_median(results, "counts", part, "rows")
    if rows is None:
        return ""
    counts = set()
    for seed_result in results["runs"]:
        seen = seed_result["in_train"].get(part)
        seen_earlier = seed_result["in_earlier_training"].get(part)
        counts.add(max(seen or 0, seen_earlier or 0))
    if not any(counts):
        return int(rows)
    in_training = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{int(rows)}, {in_training} of them in the training"


def _read_median(results: Json, entry: str, part: str, name: str) -> float | None:
    """The median over seeds of a number in an entry about a part; None if it is not there."""
    summary = results[entry].get(part, {})
    return summary[name]["median"] if name in summary else None


def _describe_row_settings(task_settings: Json, task: str) -> list[str]:
    """The settings of a task that choose its rows, in words. Usual values are left out, such as the
    label columns of a MoleculeNet set."""
    usual_columns = MOLECULENET[task].label_columns if task in MOLECULENET else None
    usual_values = ROW_SETTINGS | {"label_columns": [None, usual_columns]}
    settings = []
    for name, usual in usual_values.items():
        value = task_settings.get(name, usual[0])
        if value not in usual:
            settings.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    return settings


def _describe_count(seed_results: list[Json], part: str, split: str | None) -> str:
    """How many rows of a part were scored: `113`, `113, 112` if seeds differ, or with the seeds, if
    these may have sampled other rows."""
    counts = [result["counts"].get(part, {}).get("rows", "unknown") for result in seed_results]
    rows = ", ".join(map(str, counts[:1] if len(set(counts)) == 1 else counts))
    splits = {result["split_sha256"] for result in seed_results}
    # Without a test part, valid may be sampled of train.
    if split == "random" or (part == "valid" and len(splits) > 1):
        return f"{rows} with seeds {' '.join(str(result['seed']) for result in seed_results)}"
    return rows


def _sum_hours(grid_cell: Path, seed_results: list[Json]) -> float | str:
    """The hours of all seeds: of a model the hours of its updates, by the logs in the directory of
    the grid cell; of a baseline the hours in its results. A baseline was fitted once for several
    seeds if they have the same split and the same time. "" if there are no times."""
    fits = set()
    seconds_of_updates = []
    for result in seed_results:
        if "seconds" in result:
            fits.add((result["split_sha256"], result["seconds"]))
        for entry in read_log(grid_cell / f"seed-{result['seed']}" / TRAINING_LOG):
            if entry["kind"] == "train":
                seconds_of_updates.append(entry["seconds"])
    if not fits and not seconds_of_updates:
        return ""
    return (sum(seconds for _, seconds in fits) + sum(seconds_of_updates)) / 3600


def _make_comparison_key(results: Json, task_settings: Json, data_sha256: tuple[str, ...]) -> str:
    cells = results.get("cells")
    # Trainings with the same grid are compared, whatever grid cell came out best.
    hyper = results["runs"][0]["settings"].get("train") if cells is None else sorted(cells)
    is_second = results["settings"].get("start_from") is not None  # after another fine-tuning
    shared = [hyper, _task_options(task_settings), data_sha256, is_second]
    return json.dumps(shared, sort_keys=True)


def _collect_options(seed_settings: Json, task_settings: Json) -> dict[str, str]:
    options = {f"train.{name}": value for name, value in seed_settings.get("train", {}).items()}
    options |= {f"task.{name}": value for name, value in _task_options(task_settings).items()}
    options["start_from"] = seed_settings.get("start_from")
    if "precision" in seed_settings:  # baselines have none
        options["precision"] = seed_settings["precision"]
    return {name: "" if value is None else str(value) for name, value in options.items()}


def _task_options(task_settings: Json) -> Json:
    """The settings of a task, but for where its data are."""
    places = ("dataset", "data_dir")
    return {name: value for name, value in task_settings.items() if name not in places}


def _name_learner(settings: Json) -> str:
    if "baseline" in settings:
        return title(settings["baseline"])
    name = "/".join(Path(settings["model"]).parts[-3:])
    return f"random weights of {name}" if settings["from_scratch"] else name
