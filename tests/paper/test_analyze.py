"""The experiments as a user runs them: what is missing is made, what is done is skipped, stopping costs little."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from exlm import InputError
from exlm.data.corpus import Corpus
from exlm.data.prepare import prepare
from exlm.errors import Interrupted, TrainingStopped
from exlm.paper.analyze import DownstreamConfig, analyze
from exlm.paper.jobs import Job, duration, in_own_process, read_records, run_jobs
from exlm.paper.variants import Space, variants
from exlm.recipe import ArchitectureConfig, DataConfig
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig


@pytest.fixture
def recipe(corpus, smiles_file, tmp_path):
    """Keyword arguments of a study of seconds."""
    molecules = smiles_file.read_text().split()[:40]
    table = pd.DataFrame({"smiles": molecules, "long": [int(len(m) > 14) for m in molecules]})
    table["split"] = ["valid" if i % 5 == 0 else "test" if i % 5 == 1 else "train" for i in range(40)]
    table.to_csv(tmp_path / "long.csv", index=False)
    task = TaskConfig(str(tmp_path / "long.csv"), label_columns=["long"], split="column:split")
    return {
        "output": str(tmp_path / "study"),
        "data": DataConfig(str(corpus), tokens_per_batch=600, tokens_per_micro_batch=600, eval_sequences=20),
        "model": ArchitectureConfig(
            num_states=2,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=512,
        ),
        "train": LoopConfig(steps=4, optimizer=OptimizerConfig(1e-3, 1), log_every=1, eval_every=2, save_every=2),
        "space": Space(cells=[(0.15, 1), (0.387, 2)], states=[2], sweep_mask_ratios=[0.15]),
        "tasks": {"long": DownstreamConfig(task, FinetuneConfig(epochs=1, batch_size=8, learning_rate=1e-3))},
        "seeds": [1],
        "cost_steps": 2,
        "case": "CC[MASK]CC[MASK]",
        "own_processes": False,
    }


def result(recipe, *path):
    return json.loads((Path(recipe["output"]).joinpath(*path)).read_text())


def test_the_grid_is_pretrained_measured_and_fine_tuned_with_the_same_repetition(recipe, capsys):
    analyze("repeated-mlm", **recipe)
    out = capsys.readouterr().out
    assert "pre-training" in out and "[6/6] fine-tuning on long" in out
    run = result(recipe, "pretrain", "mlm-p38.7-r2", "seed-0", "result.json")
    assert run["recipe"]["data"]["repeat"] == 2 and run["machine"]["torch"]
    measured = result(recipe, "pretrain", "mlm-p38.7-r2", "seed-0", "measurements.json")
    assert measured["entropy"]["repeat"] == 2 and measured["corruption"]["predicted"] == pytest.approx(0.387**2)
    tuned = Path(recipe["output"], "finetune", "mlm-p38.7-r2", "seed-0", "long")
    assert json.loads((tuned / "seed-1" / "config.json").read_text())["repeat"] == 2
    assert "roc_auc" in json.loads((tuned / "results.json").read_text())["test"]


def finished(recipe):
    """When each training and measurement was finished, by its path."""
    root = Path(recipe["output"])
    files = [path for name in ("result.json", "measurements.json", "results.json") for path in root.rglob(name)]
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in files}


def test_experiments_share_runs_and_finished_jobs_are_not_repeated(recipe, capsys):
    analyze("repeated-mlm", **recipe)
    before = finished(recipe)
    analyze("sweep", **recipe)
    after = finished(recipe)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[1] for name in after.keys() - before.keys()} == {"exlm-p15-k2"}
    case = Path(recipe["output"], "pretrain", "exlm-p15-k2", "seed-0", "case.svg")
    assert case.read_text().count("<svg") == 1
    capsys.readouterr()
    analyze("sweep", **recipe)
    assert finished(recipe) == after and "nothing remains" in capsys.readouterr().out


def test_changed_settings_do_not_pass_for_done(recipe):
    analyze("entropy", **recipe)
    longer = LoopConfig(steps=6, optimizer=OptimizerConfig(1e-3, 1), log_every=1, eval_every=2, save_every=2)
    with pytest.raises(InputError, match=r"\(train.steps\): 4 instead of 6"):
        analyze("entropy", **recipe | {"train": longer})


def test_mlm_plus_plus_gets_the_updates_that_cost_what_exlms_cost(recipe):
    analyze("ablations", **recipe)
    ratio = result(recipe, "efficiency.json")["ratio"]
    runs = {p.parts[-3]: json.loads(p.read_text()) for p in Path(recipe["output"]).glob("pretrain/*/*/result.json")}
    assert len(runs) == 6
    assert runs["mlm-p15-plus-plus"]["recipe"]["train"]["steps"] == max(1, round(4 * ratio))
    assert runs["ctc-p15-k2"]["recipe"]["model"]["objective"] == "ctc"
    assert runs["exlm-p15-k2-1d"]["recipe"]["model"]["rotary"] == "1d"
    assert runs["exlm-p15-k2-sparse"]["recipe"]["model"]["dag"] == "sparse"
    before = (Path(recipe["output"]) / "efficiency.json").read_bytes()
    analyze("ablations", **recipe)
    assert (Path(recipe["output"]) / "efficiency.json").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_training_which_saves_its_state_and_goes_on_later(recipe, number):
    run_dir = Path(recipe["output"], "pretrain", "mlm-p15", "seed-0")
    log = run_dir / "log.jsonl"
    longer = replace(recipe["train"], steps=200, eval_every=0, save_every=190)
    settings = recipe | {"train": longer, "space": Space(cells=[(0.15, 1)]), "tasks": None, "own_processes": True}

    def interrupt():
        while not (log.exists() and log.stat().st_size):  # the first step is done
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match="interrupted after step .* of 200; run the same command to go on") as caught:
        analyze("repeated-mlm", **settings)
    assert caught.value.number == number and signal.getsignal(number) == handler
    steps = int(next(run_dir.glob("checkpoint-*")).name.split("-")[-1])
    assert 0 < steps < 200
    analyze("repeated-mlm", **settings | {"own_processes": False})
    assert result(recipe, "pretrain", "mlm-p15", "seed-0", "result.json")["evaluation"]["step"] == 200


def test_a_process_that_is_killed_counts_as_stopped_and_errors_come_back_as_they_are():
    with pytest.raises(TrainingStopped, match="its process was killed; often because there was not enough memory"):
        in_own_process(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(InputError, match="/nowhere is not a corpus"):
        in_own_process(Corpus, "/nowhere")


def test_a_run_that_diverges_is_passed_over_and_named(tmp_path):
    def diverge():
        raise TrainingStopped("the loss is not finite")

    done = []
    first = Job("a", "first", 1, {}, tmp_path, diverge)
    jobs = [
        first,
        Job("a", "second", 2, {}, tmp_path, lambda: done.append(1)),
        Job("b", "third", 2, {}, tmp_path, lambda: pytest.fail("the first is needed"), first),
    ]
    assert run_jobs(jobs, tmp_path / "jobs", own_processes=False) == ["first: the loss is not finite"]
    assert done and list(read_records(tmp_path / "jobs")) == ["second"]


def test_what_remains_is_estimated_from_finished_jobs_of_its_kind(tmp_path):
    small, large, other = (
        Job(kind, name, work, {}, tmp_path / "result", lambda: None)
        for kind, name, work in (("a", "small", 1), ("a", "large", 10), ("b", "other", 1))
    )
    assert duration([], {}) == "nothing remains"
    assert "time unknown" in duration([small], {})
    known = {"small": {"kind": "a", "work": 1, "seconds": 60.0}}
    assert duration([large], known) == "1 remain, about 10 min"
    assert duration([large, large], known | {"b": {}}) == "2 remain, about 20 min"
    assert duration([large] * 12, known) == "12 remain, about 2.0 h"
    assert duration([large, other], known).endswith("and 1 whose time is unknown yet")
    replace(large, resumes=True).finish(tmp_path)  # a directory was there: done in two goes, its time says nothing
    (tmp_path / "other.json").write_text("{")  # damaged
    records = read_records(tmp_path)
    assert list(records) == ["large"] and not large.done(records)
    assert duration([large], known | records) == "1 remain, about 10 min"
    large.output.touch()
    assert large.done(records) and not replace(large, settings={"steps": 1}).done(records)


def test_an_update_of_exlm_or_of_repeated_tokens_counts_as_longer_than_one_of_the_mlm(recipe):
    space = Space(cells=[(0.15, 1), (0.15, 2)], states=[2, 4], sweep_mask_ratios=[0.15, 0.387])
    models = variants("entropy", recipe["data"], recipe["model"], recipe["train"], space)
    work = {model.name: model.operations() for model in models}
    assert 2 * work["mlm-p15"] < work["mlm-p15-r2"] < 3 * work["mlm-p15"]
    assert work["mlm-p15"] < work["exlm-p15-k2"] < work["exlm-p15-k4"] < work["exlm-p38.7-k4"]


def test_one_run_that_diverges_does_not_stop_the_others(recipe, capsys):
    wild = replace(recipe["train"], optimizer=OptimizerConfig(1e30, 1))
    with pytest.raises(TrainingStopped, match="pretrain/mlm-p15/seed-0: the loss or its gradient is not finite"):
        analyze("repeated-mlm", **recipe | {"train": wild})
    out = capsys.readouterr().out
    assert out.count("stopped: the loss or its gradient") == 2 and out.count("passed over, since pretrain/") == 4
    assert "[6/6]" in out


def test_other_data_at_the_same_place_do_not_pass_for_done(recipe, smiles_file, tmp_path):
    lines = smiles_file.read_text().split()
    for name, part in (("one", lines[:200]), ("two", lines[100:])):
        (tmp_path / f"{name}.smi").write_text("\n".join(part))
    corpus = str(tmp_path / "own")
    settings = recipe | {"data": replace(recipe["data"], corpus=corpus), "case": None}
    prepare([str(tmp_path / "one.smi")], corpus, held_out=0.2, workers=1)
    analyze("repeated-mlm", **settings)
    table = pd.read_csv(tmp_path / "long.csv")
    table.iloc[:-1].to_csv(tmp_path / "long.csv", index=False)
    with pytest.raises(InputError, match="other settings"):
        analyze("repeated-mlm", **settings)
    prepare([str(tmp_path / "two.smi")], corpus, held_out=0.2, workers=1, overwrite=True)
    with pytest.raises(InputError, match=r"other settings \((tokenizer|corpus)\)"):
        analyze("repeated-mlm", **settings)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"seeds": []}, r"seeds is \[\]; give at least one"),
        ({"pretrain_seeds": [1, 1]}, r"pretrain_seeds is \[1, 1\]; give at least one, each once"),
        ({"cost_steps": 0}, "cost_steps is 0"),
        ({"tasks": {"gone": DownstreamConfig(TaskConfig("gone.csv"))}}, "the task file gone.csv does not exist"),
        ({"model": ArchitectureConfig(num_states=2, max_position_embeddings=8)}, "positions but model.max_position"),
    ],
)
def test_what_would_stop_a_later_job_is_said_before_the_first(recipe, change, message):
    with pytest.raises(InputError, match=message):
        analyze("ablations", **recipe | change)
    assert not Path(recipe["output"]).exists()


def test_an_unknown_experiment_and_impossible_spaces_are_named(recipe):
    with pytest.raises(InputError, match="no experiment 'dance'; use one of repeated-mlm"):
        analyze("dance", **recipe)
    with pytest.raises(InputError, match="a mask ratio is 15"):
        Space(mask_ratios=[15])
    with pytest.raises(InputError, match="number of repeats or states is 0"):
        Space(states=[0])
    with pytest.raises(InputError, match="the space is empty"):
        Space(states=[])


def test_every_ablation_differs_from_exlm_in_one_thing(recipe):
    settings = (recipe["data"], recipe["model"], recipe["train"], recipe["space"])
    mlm, exlm, *others = variants("ablations", *settings, cost_ratio=2.0)
    for other in others[:-1]:
        changed = {k for k in vars(exlm.model) if getattr(exlm.model, k) != getattr(other.model, k)}
        assert len(changed) == 1 and other.data == exlm.data and other.train == exlm.train
    assert others[-1].model == mlm.model and others[-1].train.steps == 8
