"""A finished fine-tuning or baseline, as the report reads it from its results.json (`GridResults`
in exlm/tasks/results.py). What earlier versions left out is made equal here to what is written
now."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from exlm.paper.display import COMPARABLE, DISPLAY, title
from exlm.paper.pretrainings import Json, Numbers, device_of, short_hash
from exlm.storage.files import read_log
from exlm.tasks.labels.metrics import Metric
from exlm.tasks.labels.scores import goodness, known_metrics
from exlm.tasks.rows.datasets import GLUE, MOLECULENET, file_task


class TaskTraining:
    """A fine-tuning or a baseline with all its seeds. KeyError, TypeError or ValueError: the file
    is damaged.

    Attributes:
        id: the first digits of the hash of its settings and seeds.
        grid_cell: the best hyper-parameters of its grid.
        task: what the report calls its data.
        numbers: of the reported part (test, or else valid) all metrics, of the others its `metric`.
        scores: those numbers that are called as the task.
        interval: the bounds of the score, "" where one is not defined or not recorded.
        rows: how many rows were scored, and how many of them the training of each seed had.
        departures: how its data differ from the published ones.
        heading: what was scored: task, part, metric, and the settings that choose the rows.
        data: the SHA-256 of its data: one, or of questions one for each part.
        rows_sha256: that of the rows that were scored; of earlier versions that of the data.
        rows_scored: how many these are, for each seed if the seeds scored other rows.
        comparison: what fine-tunings have in common that are compared, in JSON.
        split, files: how many rows each part has, and the SHA-256 of every file, in words; "" if
            they are not recorded.
        hours: of all seeds: of training, or of fitting a baseline; "" if they are not recorded.
        options: its settings as text, "" where one is null.
        source: the baseline, or the model that it began with, in words.
        model_path, model_sha256: the directory of that (None: random weights), and its weights.
        pretraining: the id of the pre-training that made it, if it was found."""

    pretraining: str | None = None

    def __init__(self, path: Path, content: Json, logs: list[list[Json]]) -> None:
        settings = content["settings"]
        task_settings = settings["task"]
        seed_results: list[Json] = content["runs"]
        seed_settings = seed_results[0]["settings"]
        self.id = short_hash([seed_settings, content["seeds"], content["best"]])
        self.path = path
        self.device = device_of(content)
        self.seeds: list[int] = content["seeds"]
        self.grid_cell = content["best"] or "one setting"

        # The task and its scores
        # Earlier versions have only the columns that a user named.
        columns = seed_results[0].get("label_columns") or task_settings.get("label_columns")
        part = "test" if "test" in content else "valid"
        is_questions = task_settings.get("task_type") == "question_answering"
        task = file_task(task_settings["dataset"], columns)
        task_settings = _with_label_columns(task_settings, task, columns)
        self.task = f"data set {task}" if task in DISPLAY["column_names"] else task
        self.metric = str(content["metric"])
        factor = _factor(self.metric, is_questions)
        self.in_percent = is_questions or factor == 100
        self.digits = 1 if self.in_percent else 3
        self.numbers = _numbers(content, self.task, part, is_questions)
        self.scores = self.numbers.get(self.task, [])
        self.interval = _interval(content, part, factor, self.digits)

        # The rows that were scored, and what decides whether scores are compared
        split = task_settings.get("split")
        self.heading = self._heading(part, split, task_settings)
        self.rows = _rows_in_words(content, part)
        self.rows_scored = _rows_scored(seed_results, part, split)
        self.departures: list[str] = settings.get("departures") or []
        checksums = settings.get("data_sha256")
        by_part = checksums if isinstance(checksums, dict) else {"all": checksums}
        self.data = tuple(checksum or "unknown" for checksum in by_part.values())
        rows = [seed.get("rows_sha256", {}).get(part) for seed in seed_results]
        self.rows_sha256 = " ".join(self.data if None in rows else dict.fromkeys(rows))
        self.split, self.files = _data_in_words(seed_results[0])
        self.comparison = _comparison(content, task_settings, self.data)
        self.options = _options(seed_settings, task_settings)
        self.hours = _hours(seed_results, logs)

        # The model
        self.is_baseline = bool(settings.get("baseline"))
        self.source = _source(settings)
        self.model_path = None if settings.get("from_scratch") else Path(settings.get("model", ""))
        self.model_sha256: str | None = settings.get("model_sha256")

    def _heading(self, part: str, split: str | None, task_settings: Json) -> str:
        unit = ", %" if self.in_percent else ""
        heading = f"{title(self.task)}: {part} {self.metric}{unit}, split {split or 'parts'}"
        heading = ", ".join([heading, *_row_settings(task_settings, self.task)])
        if self.metric not in known_metrics():
            heading += ", in no order (this version does not have the metric)"
        return heading

    @classmethod
    def read(cls, path: Path, content: Json) -> "TaskTraining":
        """The training in a directory whose results.json has this content. It also reads the logs
        of the seeds there."""
        seed_dirs = [path / content["best"] / f"seed-{run['seed']}" for run in content["runs"]]
        return cls(path, content, [read_log(folder / "log.jsonl") for folder in seed_dirs])

    @property
    def mean(self) -> float:
        """The mean of its scores."""
        return fmean(self.scores)

    @property
    def goodness(self) -> float:
        """The mean turned so that higher is better; 0 where nobody knows which way that is."""
        return goodness(self.mean, self.metric) if self.metric in known_metrics() else 0.0

    @property
    def result(self) -> str:
        """Its metric and the mean, in words."""
        return f"{self.metric} {self.mean:.2f}"


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
    """What a stored score is multiplied by for tables, where shares are in percent, as those of
    answers are already. Counts beside the scores, and metrics of other versions, are no shares."""
    is_share = known_metrics().get(metric, Metric()).is_share
    return 100.0 if is_share and not is_questions else 1.0


def _interval(content: Json, part: str, factor: float, digits: int) -> str:
    low, high = (_median(content, "interval", part, name) for name in ("low", "high"))
    if low is None or high is None:
        return ""
    return f"{factor * low:.{digits}f} to {factor * high:.{digits}f}"


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


def _data_in_words(seed_result: Json) -> tuple[str, str]:
    """The rows of every part, and the SHA-256 of every file; earlier versions have no files."""
    parts = [f"{rows} {part}" for part, rows in (seed_result.get("split") or {}).items()]
    checksums = (seed_result.get("file_sha256") or {}).items()
    files = [f"{Path(file).name} {checksum}" for file, checksum in checksums]
    return ", ".join(parts), ", ".join(files)


def _median(content: Json, entry: str, part: str, name: str) -> float | None:
    """A median over seeds of an entry about a part; earlier versions have no such entries."""
    summary = content.get(entry, {}).get(part, {})
    return summary[name]["median"] if name in summary else None


def _with_label_columns(task_settings: Json, task: str, columns: list[str] | None) -> Json:
    """The settings of a task with its label columns, also if these were found and not named. Those
    of GLUE stay as they are, as they differ between its own files and the hub's."""
    return task_settings if task in GLUE else {**task_settings, "label_columns": columns}


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


def _rows_scored(seed_results: list[Json], part: str, split: str | None) -> str:
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


def _hours(seed_results: list[Json], logs: list[list[Json]]) -> float | str:
    """The hours of all seeds: of the updates as in their `logs`, or as a baseline wrote them. A
    baseline was fitted once where seeds have one split and one time."""
    timed = [run for run in seed_results if "seconds" in run]
    fits = {(run.get("split_sha256"), run["seconds"]) for run in timed}
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


def _source(settings: Json) -> str:
    if settings.get("baseline"):
        return title(settings["baseline"])
    model = "/".join(Path(settings.get("model", "")).parts[-3:])
    return f"random weights of {model}" if settings.get("from_scratch") else model
