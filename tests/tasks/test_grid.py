"""Grids of hyper-parameters times seeds: what is run, what is kept, what is reported."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from exlm import InputError
from exlm.errors import OutOfMemory
from exlm.storage.manifest import write_manifest
from exlm.storage.run_directories import PROGRESS
from exlm.tasks.config import FinetuneConfig, TaskConfig, grid_cells
from exlm.tasks.encoders import training
from exlm.tasks.finetune import finetune
from exlm.tasks.grid import Grid
from exlm.tasks.labels.metrics import Metric
from exlm.tasks.predict import predict
from exlm.tasks.results import best_seed_directory, seed_directories
from tests.tasks.tiny_models import pairs, predicted, save_family

SETTINGS = {"model": "a model"}
BASE = FinetuneConfig(epochs=1, batch_size=8, learning_rate=1e-3, patience=0, precision="fp32")
RATES = {"learning_rate": [1e-3, 2e-3, 3e-3]}


class Training:
    """Stands in for a task: scores by learning rate and seed, and a file of weights."""

    config, summary, reported_rows = TaskConfig("a table"), "rows", pd.DataFrame()
    identity, departures = {}, []
    metrics = {"accuracy": Metric(), "rmse": Metric(is_error=True)}

    def __init__(self, score, stop_at: int | None = None, metric: str = "accuracy") -> None:
        self.score, self.stop_at, self.calls, self.metric = score, stop_at, [], metric

    def check_and_announce(self, seed):
        pass

    def train_seed(self, place, hyper, seed):
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append((hyper.learning_rate, hyper.batch_size, seed))
        place.mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "config.json"):
            (place / name).write_text(f"{seed} {hyper.learning_rate}")
        write_manifest(place, [place / name for name in ("model.safetensors", "config.json")])
        return {
            "best_epoch": 1,
            "scores": {"valid": self.score(hyper.learning_rate, seed), "test": {self.metric: 0.5}},
        }


def run_grid(directory, task, cells, seeds, settings=SETTINGS):
    return Grid(directory, task, task.train_seed, cells, list(seeds), settings).run(
        {"task": task.config}
    )


def weights(directory) -> list[str]:
    """The runs that still have a model."""
    return sorted(
        str(path.parent.relative_to(directory)) for path in directory.rglob("seed-*/*.safetensors")
    )


def accuracy(rate: float, seed: int) -> dict[str, float]:
    return {"accuracy": {1e-3: 0.5, 2e-3: 0.7, 3e-3: 0.6}[rate] + seed / 100}


# Cells


def test_cells_are_all_combinations_by_name():
    found = grid_cells(
        BASE, {"learning_rate": [1e-5, 2e-5], "batch_size": [16, 32], "pooling": ["mean"]}
    )
    assert list(found) == [
        f"learning_rate={rate},batch_size={size},pooling=mean"
        for rate in ("1e-05", "2e-05")
        for size in (16, 32)
    ]
    cell = found["learning_rate=2e-05,batch_size=16,pooling=mean"]
    assert cell == replace(BASE, learning_rate=2e-5, batch_size=16, pooling="mean")


def test_null_stands_for_the_default():
    cells = grid_cells(BASE, {"layers": [1, None]})
    assert [cell.layers for cell in cells.values()] == [1, None]


def test_without_a_grid_there_is_one_cell_without_name():
    assert grid_cells(BASE, {}) == {"": BASE}


@pytest.mark.parametrize(
    "grid,message",
    [
        ({"rate": [1]}, "'rate', which is no hyper-parameter; use epochs,"),
        ({"learning_rate": []}, "learning_rate must be a list"),
        ({"learning_rate": 1e-5}, "learning_rate must be a list"),
        ({"learning_rate": ["fast"]}, "learning_rate has 'fast'; use float or null or int"),
        ({"learning_rate": [-1.0]}, "learning_rate is -1.0; it must be positive"),
        ({"learning_rate": [1e-4, 2e-4, 1e-4]}, "learning_rate has 0.0001 2 times; give it once"),
        ({"layers": [0]}, "layers is 0; it must be at least 1"),
        ({"clip_norm": [-1.0]}, "clip_norm is -1.0; it must be at least 0"),
        ({"weight_decay": [float("nan")]}, "weight_decay is nan; it must be at least 0"),
        ({"batch_size": [16.5]}, "16.5; use int or null"),
        ({"pooling": ["last"]}, "pooling has 'last'; use first or mean"),
        ({"pooling": [None]}, "None; use first or mean"),
    ],
)
def test_a_grid_that_cannot_be_run(grid, message):
    with pytest.raises(InputError, match=message):
        grid_cells(BASE, grid)


# Runs


def test_every_cell_runs_once_with_every_seed(tmp_path):
    training = Training(accuracy)
    grid = {"learning_rate": [1e-3, 2e-3], "batch_size": [4, 8]}
    report = run_grid(tmp_path, training, grid_cells(BASE, grid), [0, 1, 2])
    expected = [
        (rate, size, seed) for rate in (1e-3, 2e-3) for size in (4, 8) for seed in (0, 1, 2)
    ]
    assert training.calls == expected
    assert list(report["cells"]) == list(grid_cells(BASE, grid))


@pytest.mark.parametrize("done", range(7))
def test_an_interrupted_grid_goes_on(tmp_path, done):
    grid, seeds = grid_cells(BASE, {"learning_rate": [1e-3, 2e-3, 3e-3]}), [0, 1]
    whole = run_grid(tmp_path / "whole", Training(accuracy), grid, seeds)
    first, second = Training(accuracy, stop_at=done), Training(accuracy)
    if done < 6:
        with pytest.raises(KeyboardInterrupt):
            run_grid(tmp_path / "cut", first, grid, seeds)
        assert not (tmp_path / "cut/results.json").exists()
    else:
        run_grid(tmp_path / "cut", first, grid, seeds)
    assert run_grid(tmp_path / "cut", second, grid, seeds) == whole
    assert first.calls + second.calls == [
        (rate, 8, seed) for rate in RATES["learning_rate"] for seed in seeds
    ]
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_an_unfinished_run_with_other_settings_is_not_thrown_away(tmp_path):
    def stop(place, hyper, seed):
        (place / training.UNFINISHED / PROGRESS / "step").write_text("1")
        raise KeyboardInterrupt

    stopped = Training(accuracy)
    stopped.train_seed = stop
    with pytest.raises(KeyboardInterrupt):
        run_grid(tmp_path, stopped, {"": BASE}, [0])
    cell = {"": replace(BASE, learning_rate=2e-3)}
    with pytest.raises(InputError, match=r"unfinished .*train.learning_rate.*: 0.001 instead of"):
        run_grid(tmp_path, Training(accuracy), cell, [0])
    cell = {"": replace(BASE, learning_rate=1e-3)}
    assert run_grid(tmp_path, Training(accuracy), cell, [0])["seeds"] == [0]


def test_a_metric_whose_best_is_not_known_trains_nothing(tmp_path):
    training = Training(accuracy, metric="distance")
    with pytest.raises(InputError, match="no metric 'distance'"):
        run_grid(tmp_path / "out", training, grid_cells(BASE, RATES), [0])
    assert not training.calls and not (tmp_path / "out").exists()


def test_finished_runs_with_other_settings_are_not_mixed_in(tmp_path):
    run_grid(tmp_path, Training(accuracy), grid_cells(BASE, RATES), [0], {"model": "a"})
    with pytest.raises(InputError, match=r"other settings \(model\)"):
        run_grid(tmp_path, Training(accuracy), grid_cells(BASE, RATES), [0], {"model": "b"})
    with pytest.raises(InputError, match=r"other settings \(train\."):
        run_grid(
            tmp_path,
            Training(accuracy),
            grid_cells(replace(BASE, epochs=2), RATES),
            [0],
            {"model": "a"},
        )


@pytest.mark.parametrize(
    "metric,best", [("accuracy", "learning_rate=0.002"), ("rmse", "learning_rate=0.001")]
)
def test_the_best_cell_has_the_best_median_on_valid(tmp_path, metric, best):
    # means say otherwise
    values = {1e-3: [0.1, 0.2, 0.99], 2e-3: [0.7, 0.71, 0.0], 3e-3: [0.3, 0.69, 0.9]}
    training = Training(lambda rate, seed: {metric: values[rate][seed]}, metric=metric)
    report = run_grid(tmp_path, training, grid_cells(BASE, RATES), [0, 1, 2])
    assert report["best"] == best
    rate = float(best.split("=")[1])
    assert [run["scores"]["valid"][metric] for run in report["runs"]] == values[rate]
    assert report["valid"] == report["cells"][best]["valid"]
    assert weights(tmp_path) == [f"{best}/seed-{seed}" for seed in range(3)]
    assert seed_directories(str(tmp_path)) == [
        tmp_path / best / f"seed-{seed}" for seed in range(3)
    ]
    seed = (np.argmin if metric == "rmse" else np.argmax)(values[rate])
    assert (
        best_seed_directory(str(tmp_path)) == tmp_path / best / f"seed-{seed}"
        and report["best_seed"] == seed
    )
    assert (tmp_path / "model.safetensors").read_text() == f"{seed} {rate}"
    results = json.loads((tmp_path / "results.json").read_text())
    del results["best_seed"]  # as the first versions wrote it
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert best_seed_directory(str(tmp_path)) == tmp_path / best / f"seed-{seed}"


def contents(directory) -> dict[str, bytes]:
    """What every file in a directory holds."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_finished_grid_keeps_its_card_and_its_machine(tmp_path, monkeypatch):
    """NaN is null in the file. The copy of the model is made again where it is damaged or gone."""

    def score(rate, seed):
        return {"accuracy": rate, "matthews": math.nan}

    cells = grid_cells(BASE, RATES)
    first = run_grid(tmp_path, Training(score), cells, [0, 1])
    (tmp_path / "README.md").write_text("my own words")
    before = contents(tmp_path)
    (tmp_path / "model.safetensors").write_text("damaged")
    (tmp_path / "config.json").unlink()
    monkeypatch.setattr("exlm.tasks.grid.machine", lambda device: {"processor": "another"})
    again = run_grid(tmp_path, Training(score, stop_at=0), cells, [0, 1])
    assert contents(tmp_path) == before and again["machine"] == first["machine"]
    (tmp_path / "README.md").unlink()
    run_grid(tmp_path, Training(score, stop_at=0), cells, [0, 1])
    assert "fine-tuned from: a model" in (tmp_path / "README.md").read_text()


def test_a_card_is_written_anew_if_results_or_the_licence_change(tmp_path, monkeypatch):
    grid = tmp_path, Training(accuracy), grid_cells(BASE, {})
    run_grid(*grid, [0])
    card = tmp_path / "README.md"
    card.write_text("my own words")
    monkeypatch.setattr("exlm.tasks.grid.machine", lambda device: {"processor": "another"})
    assert run_grid(*grid, [0, 1])["machine"] == {"processor": "another"}
    assert "accuracy of 2 seeds" in card.read_text()
    card.write_text("my own words")
    directory, training, cells = grid
    runs = Grid(directory, training, training.train_seed, cells, [0, 1], SETTINGS)
    runs.run({"task": training.config, "license": "mit"})
    assert "accuracy of 2 seeds" in card.read_text()


@pytest.mark.parametrize("device,told", [("cpu", "cpu"), ("auto", "a GPU"), ("cuda", "a GPU")])
def test_the_machine_of_a_run_is_the_device_that_it_used(tmp_path, monkeypatch, device, told):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    training = Training(accuracy)
    cells = grid_cells(BASE, {})
    runs = Grid(tmp_path, training, training.train_seed, cells, [0], SETTINGS, device)
    assert runs.run({"task": training.config})["machine"]["device"] == told


def test_more_cells_and_more_seeds_can_be_added(tmp_path):
    run_grid(tmp_path, Training(accuracy), grid_cells(BASE, {"learning_rate": [1e-3]}), [0])
    training = Training(accuracy)
    report = run_grid(tmp_path, training, grid_cells(BASE, RATES), [0, 1])
    assert (1e-3, 8, 0) not in training.calls and len(training.calls) == 5
    assert report["best"] == "learning_rate=0.002" and len(report["runs"]) == 2


def test_a_cell_that_becomes_the_best_gets_its_models_back(tmp_path):
    values = {1e-3: [0.5, 0.9], 2e-3: [0.6, 0.1], 3e-3: [0.0, 0.0]}
    training = Training(lambda rate, seed: {"accuracy": values[rate][seed]})
    run_grid(tmp_path, training, grid_cells(BASE, RATES), [0])
    assert weights(tmp_path) == ["learning_rate=0.002/seed-0"]
    report = run_grid(tmp_path, training, grid_cells(BASE, RATES), [0, 1])
    assert report["best"] == "learning_rate=0.001"
    assert seed_directories(str(tmp_path)) == [
        tmp_path / f"learning_rate=0.001/seed-{seed}" for seed in (0, 1)
    ]
    assert weights(tmp_path) == ["learning_rate=0.001/seed-0", "learning_rate=0.001/seed-1"]


def test_the_seeds_of_the_result_are_members(tmp_path):
    run_grid(tmp_path, Training(accuracy), grid_cells(BASE, {"learning_rate": [1e-3]}), [10, 2])
    assert seed_directories(str(tmp_path)) == [
        tmp_path / f"learning_rate=0.001/seed-{seed}" for seed in (10, 2)
    ]


@pytest.mark.parametrize(
    ("first", "first_seeds", "second", "second_seeds", "message"),
    [
        (RATES, [0, 1], RATES, [1], "holds results of the seeds 0; add these to seeds, or choose"),
        (RATES, [0], {}, [0], "of the grid cell learning_rate=0.001; add this to the grid, or"),
        (RATES, [0], {"learning_rate": [3e-3]}, [0, 1], "of the grid cell learning_rate=0.001;"),
        ({}, [0], RATES, [0], "holds results without a grid; choose another output"),
    ],
)
def test_what_would_leave_out_finished_runs_is_refused_and_changes_nothing(
    tmp_path, first, first_seeds, second, second_seeds, message
):
    run_grid(tmp_path, Training(accuracy), grid_cells(BASE, first), first_seeds)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        run_grid(tmp_path, Training(accuracy), grid_cells(BASE, second), second_seeds)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_report_sums_up_five_seeds(tmp_path):
    values = [0.5, 0.9, 0.6, 0.8, 0.55]
    training = Training(lambda rate, seed: {"accuracy": values[seed]})
    run_grid(tmp_path, training, grid_cells(BASE, {}), range(5))
    summary = json.loads((tmp_path / "results.json").read_text())["valid"]["accuracy"]
    spread = {"mean": np.mean(values), "std": np.std(values, ddof=1)}
    assert summary == pytest.approx(spread | {"median": 0.6, "min": 0.5, "max": 0.9})


def test_scores_that_are_not_defined_do_not_stop_a_grid(tmp_path):
    def score(rate, seed):
        return {"accuracy": math.nan if rate < 2e-3 else rate, "f1": math.nan}

    for _ in range(2):  # and can be read back
        report = run_grid(tmp_path, Training(score), grid_cells(BASE, RATES), [0, 1])
        assert report["best"] == "learning_rate=0.003"
        assert weights(tmp_path) == ["learning_rate=0.003/seed-0", "learning_rate=0.003/seed-1"]
    written = json.loads((tmp_path / "results.json").read_text())
    assert (
        written["valid"]["f1"]["median"] is None and written["valid"]["accuracy"]["median"] == 3e-3
    )


def test_a_lack_of_memory_is_no_result_of_a_cell(tmp_path):
    """It says nothing of the cell, which is trained when the same command runs again."""

    def score(rate, seed):
        if rate == 2e-3 and not (tmp_path / "more memory").exists():
            raise OutOfMemory("out of memory")
        return {"accuracy": rate}

    grid = tmp_path / "grid", Training(score), grid_cells(BASE, RATES), [0]
    with pytest.raises(OutOfMemory):
        run_grid(*grid)
    (tmp_path / "more memory").touch()
    report = run_grid(*grid)
    assert report["best"] == "learning_rate=0.003" and len(report["cells"]) == len(
        RATES["learning_rate"]
    )


# A real one


@pytest.fixture
def real(tmp_path):
    """A function that fine-tunes a tiny model over a grid."""
    model = save_family(tmp_path / "model", "bert")
    for shift, name in enumerate(("train", "valid")):
        pairs(shift, 12).to_csv(tmp_path / f"{name}.csv", index=False)
    task = TaskConfig(
        str(tmp_path / "train.csv"), str(tmp_path / "valid.csv"), pair_column="second"
    )

    def run(output, rates=(1e-3, 1e-2)):
        return finetune(
            str(tmp_path / output),
            str(model),
            task,
            BASE,
            [0, 1],
            grid={"learning_rate": list(rates)},
        )

    return run


def test_a_real_grid_resumes_and_its_best_cell_predicts(real, tmp_path, monkeypatch):
    whole = real("whole")
    original, calls = training.fit, []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(training, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        real("cut")
    again = real("cut")
    assert len(calls) == 3 + 2  # two runs were finished, the third began again
    for name in ("best", "valid", "cells", "runs"):
        assert again[name] == whole[name]
    frame = predicted(str(tmp_path / "cut"), str(tmp_path / "valid.csv"), str(tmp_path / "p.csv"))
    places = [tmp_path / "cut" / again["best"] / f"seed-{seed}/predictions.csv" for seed in (0, 1)]
    runs = [pd.read_csv(place).query("split == 'valid'")["predicted label"] for place in places]
    np.testing.assert_allclose(frame["predicted label"], np.mean(runs, 0), atol=1e-4)
    assert len(weights(tmp_path / "cut")) == 2


def test_a_cell_that_lost_is_no_model(real, tmp_path):
    report = real("out")
    lost = next(name for name in report["cells"] if name != report["best"])
    with pytest.raises(InputError):
        predict(str(tmp_path / "out" / lost / "seed-0"), str(tmp_path / "valid.csv"))
    assert (tmp_path / "out" / lost / "seed-0/predictions.csv").exists()


def test_a_finished_fine_tuning_that_is_repeated_changes_no_file(real, tmp_path):
    real("out")
    (tmp_path / "out/README.md").write_text("my own words")
    before = contents(tmp_path / "out")
    real("out")
    assert contents(tmp_path / "out") == before


def test_a_grid_of_one_cell_is_reported(real, capsys):
    report = real("one", [1e-3])
    assert report["best"] == "learning_rate=0.001" and "cells" not in report
    assert "valid roc_auc" in capsys.readouterr().out
