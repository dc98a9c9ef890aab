"""Which runs are the same, what an interrupted command leaves, and how a run that stops ends."""

from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import pytest

from exlm import InputError
from exlm.identity import (
    IDENTITY_IF_CHANGED,
    NOT_IDENTITY,
    first_difference,
    identity_of,
)
from exlm.pretrain.settings import ArchitectureConfig, DataConfig
from exlm.storage.files import write_json
from exlm.storage.run_directories import finished_result, resumable_directory
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.labels.scores import score_predictions
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from exlm.upgrades import DEFAULTS
from exlm_command import parser


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    speed: int = field(default=1, metadata=NOT_IDENTITY)


@dataclass(frozen=True)
class Settings:
    folder: str = field(metadata=NOT_IDENTITY)
    inner: Inner = Inner()
    pair: tuple[int, int] = (1, 2)
    newer: bool = field(default=True, metadata=IDENTITY_IF_CHANGED)
    newer_list: list[int] = field(default_factory=list, metadata=IDENTITY_IF_CHANGED)


def test_identity_has_the_settings_that_change_a_result():
    assert identity_of(Settings("x")) == {"inner.rate": 0.1, "pair": [1, 2]}
    assert identity_of(Settings("y", newer=False, newer_list=[3]), "data") == {
        "data.inner.rate": 0.1,
        "data.pair": [1, 2],
        "data.newer": False,
        "data.newer_list": [3],
    }


@pytest.mark.parametrize(
    "config,left_out",
    [
        (
            LoopConfig(),
            {
                "log_every",
                "eval_every",
                "save_every",
                "keep_checkpoints",
                "max_wait",
                "gradient_checkpointing",
                "optimizer",
            },
        ),
        (OptimizerConfig(), {"warmup_ratio"}),
        (DataConfig("corpus"), {"corpus", "tokens_per_micro_batch", "eval_sequences"}),
        (
            TaskConfig("table"),
            {"mask_column", "positive", "duplicates", "header", "sheet", "standardize"},
        ),
        (FinetuneConfig(), {"gradient_checkpointing"}),
        (ArchitectureConfig(), {"state_share"}),
    ],
)
def test_no_other_setting_may_differ_between_runs_that_are_the_same(config, left_out):
    names = {setting.name for setting in fields(config)}
    assert names - left_out == {name for name in identity_of(config) if "." not in name}


def test_a_finished_run_with_other_settings_is_refused_by_name(tmp_path):
    result = tmp_path / "result.json"
    assert finished_result(result, "identity", {"seed": 1}) is None
    write_json(result, {"identity": {"seed": 1}, "score": 0.5})
    assert finished_result(result, "identity", {"seed": 1})["score"] == 0.5
    with pytest.raises(InputError, match=r"\(seed\): 1 instead of 2; choose another output"):
        finished_result(result, "identity", {"seed": 2})
    with pytest.raises(InputError, match=r"\(share\): not recorded instead of 0.5"):
        finished_result(result, "identity", {"seed": 1, "share": 0.5})
    write_json(result, {"identity": {"data_sha256": "ab"}})
    with pytest.raises(InputError, match="the content of its data has changed since; choose"):
        finished_result(result, "identity", {"data_sha256": "cd"})


def test_equal_content_in_another_place_is_no_other_setting(tmp_path):
    names = {"task.dataset": "a.csv", "task.valid": None, "model": "b"}
    elsewhere = {"task.dataset": "/c/a.csv", "task.valid": "/c/v.csv", "model": "/d/b"}
    checksums = {"data_sha256": "ab", "model_sha256": "cd"}
    assert first_difference(names | checksums, elsewhere | checksums) is None
    of_questions = {"data_sha256": {"train": "ab", "valid": "ef"}, "model_sha256": "cd"}
    assert first_difference(names | of_questions, elsewhere | of_questions) is None
    for other in ({"data_sha256": "ff"}, {"model_sha256": "ff"}, {"data_sha256": None}):
        difference = first_difference(names | checksums, elsewhere | checksums | other)
        assert difference and difference[0] in elsewhere
    path = tmp_path / "unfinished"
    with pytest.raises(ZeroDivisionError), resumable_directory(path, names | checksums) as folder:
        (folder / "step").write_text("1")
        raise ZeroDivisionError
    with resumable_directory(path, elsewhere | checksums) as folder:
        assert (folder / "step").exists()


def test_names_of_columns_that_were_recorded_in_pieces_are_the_same_names():
    """Earlier versions recorded `Ki, nM` as the command line had cut it."""
    cut, whole = ({"task": {"label_columns": names}} for names in (["Ki", "nM"], ["Ki, nM"]))
    assert first_difference(cut, whole) is None
    assert first_difference({"task": {"label_columns": ["Ki"]}}, whole) is not None


def test_a_setting_that_was_changed_before_and_is_not_now_differs():
    """Settings with IDENTITY_IF_CHANGED are not recorded with their default."""
    changed, default = identity_of(Settings("x", newer=False)), identity_of(Settings("x"))
    assert first_difference(default, changed) == ("newer", "not recorded", "False")
    first_in_task = first_difference({"task": changed}, {"task": default})
    assert first_in_task == ("task.newer", "False", "the default")
    # what an earlier version recorded beside the settings of today
    assert first_difference(changed, default) is None


def test_every_default_of_a_model_that_is_not_recorded_is_compared():
    """In whatever way a version recorded it."""
    model = ArchitectureConfig()
    left_out = [x for x in fields(model) if x.metadata.get("identity") == "if changed"]
    defaults = {f"model.{x.name}": getattr(model, x.name) for x in left_out}
    assert defaults | {"start": None, "start_from": None} == DEFAULTS
    for name, value in DEFAULTS.items():
        for recorded in ({}, {name: None}, {name: value}):
            assert first_difference(recorded, {}) is None
            before = "not recorded" if value is None else repr(value)
            now = "the default" if value is None else repr(value)
            assert first_difference(recorded, {name: "other"}) == (name, before, "'other'")
            assert first_difference({name: "other"}, recorded) == (name, "'other'", now)


def interrupted(path: Path, settings: dict, *names: str) -> list[str]:
    """Writes files of these names and is interrupted; returns the names that were there before."""
    names_before: list[str] = []
    with pytest.raises(ZeroDivisionError), resumable_directory(path, settings) as folder:
        names_before += sorted(file.name for file in folder.iterdir())
        for name in names:
            (folder / name).touch()
        raise ZeroDivisionError
    return names_before


def test_what_an_interrupted_command_leaves_is_for_the_same_command_alone(tmp_path):
    path = tmp_path / "unfinished"
    assert interrupted(path, {"a": 1}) == [] and not path.exists()
    assert interrupted(path, {"a": 1}, "one") == []
    assert interrupted(path, {"a": 1}, "two") == ["one"]
    assert interrupted(path, {"a": 2}, "three") == []
    with resumable_directory(path, {"a": 2}) as folder:
        assert [file.name for file in folder.iterdir()] == ["three"]
    assert not path.exists()


def test_a_model_whose_outputs_are_no_numbers_ends_with_exit_status_3(monkeypatch):
    def command() -> None:
        score_predictions(LABEL_TYPES["regression"], np.zeros((3, 1)), np.full((3, 1), np.nan))

    monkeypatch.setattr(parser, "import_function", lambda name: command)
    monkeypatch.setattr(parser, "settings", lambda name, arguments: {})
    status, message = parser.run("predict", [])
    assert status == 3 and "3 of 3 predictions are not finite" in message
