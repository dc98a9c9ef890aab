"""The experiments as a user runs them: what is missing is made, what is done is skipped, stopping
costs little."""

import json
import multiprocessing
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
from exlm.describe.on_disk import verify
from exlm.errors import Interrupted, TrainingStopped
from exlm.paper.analyze import DownstreamConfig, Space, Study, analyze
from exlm.paper.find_runs import find_runs
from exlm.paper.jobs import Job, in_own_process, run_jobs
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, EvaluateConfig
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.rows.task_files import file_hashes, resolve
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from tests.paper.fake_runs import editing, efficiency


@pytest.fixture
def recipe(corpus, smiles_file, tmp_path):
    """Keyword arguments of a study of seconds."""
    molecules = smiles_file.read_text().split()[:40]
    table = pd.DataFrame({"smiles": molecules, "long": [int(len(m) > 14) for m in molecules]})
    table["split"] = [
        "valid" if i % 5 == 0 else "test" if i % 5 == 1 else "train" for i in range(40)
    ]
    table.to_csv(tmp_path / "long.csv", index=False)
    task = TaskConfig(str(tmp_path / "long.csv"), label_columns=["long"], split="column:split")
    return {
        "output": str(tmp_path / "study"),
        "data": DataConfig(
            str(corpus), tokens_per_batch=600, tokens_per_micro_batch=600, eval_sequences=20
        ),
        "model": ArchitectureConfig(
            num_states=2,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=512,
        ),
        "train": LoopConfig(
            steps=4, optimizer=OptimizerConfig(1e-3, 1), log_every=1, eval_every=2, save_every=2
        ),
        "space": Space(cells=[(0.15, 1), (0.387, 2)], states=[2], sweep_mask_ratios=[0.15]),
        "tasks": {
            "long": DownstreamConfig(
                task, FinetuneConfig(epochs=1, batch_size=8, learning_rate=1e-3)
            )
        },
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
    assert "job 1 of 4: pre-training" in out and "job 4 of 4: fine-tuning on long" in out
    run = result(recipe, "pretrain", "mlm-p38.7-r2", "seed-0", "result.json")
    assert run["recipe"]["data"]["repeat"] == 2 and run["machine"]["torch"]
    measured = result(recipe, "pretrain", "mlm-p38.7-r2", "seed-0", "measurements.json")
    assert measured["entropy"]["repeat"] == 2 and measured["corruption"][
        "predicted"
    ] == pytest.approx(0.387**2)
    tuned = Path(recipe["output"], "finetune", "mlm-p38.7-r2", "seed-0", "long")
    assert json.loads((tuned / "seed-1" / "config.json").read_text())["repeat"] == 2
    assert "roc_auc" in json.loads((tuned / "results.json").read_text())["test"]


def finish_times(recipe):
    """When each training and measurement was finished, by its path."""
    root = Path(recipe["output"])
    files = [path for name in ("result.json", "measurements.json") for path in root.rglob(name)]
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in files}


def test_experiments_share_runs_and_finished_jobs_are_not_repeated(recipe, capsys):
    analyze("repeated-mlm", **recipe)
    before = finish_times(recipe)
    analyze("sweep", **recipe)
    after = finish_times(recipe)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[1] for name in after.keys() - before.keys()} == {"exlm-p15-k2"}
    case = Path(recipe["output"], "pretrain", "exlm-p15-k2", "seed-0", "case.svg")
    assert case.read_text().count("<svg") == 1
    capsys.readouterr()
    analyze("sweep", **recipe)
    assert finish_times(recipe) == after
    assert capsys.readouterr().out.count("seed-0 is finished already") == 2


def test_what_is_measured_and_drawn_is_recorded_and_not_used_if_it_was_edited(recipe, capsys):
    analyze("sweep", **recipe | {"tasks": None})
    root = Path(recipe["output"], "pretrain")
    run_dir = root / "exlm-p15-k2" / "seed-0"
    capsys.readouterr()
    verify(str(run_dir))
    told = capsys.readouterr().out
    assert "case.svg" not in told and "measurements.json" not in told
    with editing(run_dir / "measurements.json") as content:
        content["entropy"]["mean"] += 1.0
    with pytest.raises(InputError, match="1 of . directories are damaged"):
        verify(str(run_dir))
    assert f"{run_dir}: measurements.json " in capsys.readouterr().out
    runs = find_runs([str(root)])
    assert [row["file"] for row in runs.left_out] == [str(run_dir / "measurements.json")]
    by_path = {run.path: run.numbers for run in runs.pretrainings}
    assert "entropy/mean" not in by_path[run_dir]
    assert "entropy/mean" in by_path[root / "mlm-p15" / "seed-0"]
    # What is scored anew keeps its measurements, as edited as they are.
    settings = Study(**{k: v for k, v in recipe.items() if k != "own_processes"})
    sections = settings.models("sweep")["exlm-p15-k2"] | {"prior": settings.prior, "seed": 0}
    sections["train"] = sections["train"].with_warmup_steps()
    pretrain(str(run_dir), **sections, evaluate=EvaluateConfig([1]))
    with pytest.raises(InputError, match="directories are damaged"):
        verify(str(run_dir))


def test_changed_settings_do_not_pass_for_done(recipe):
    analyze("entropy", **recipe)
    longer = replace(recipe["train"], steps=6)
    with pytest.raises(InputError, match=r"\(train.steps\): 4 instead of 6"):
        analyze("entropy", **recipe | {"train": longer})


def check_cost(cost, folder):
    """Both sides of a step were measured. The runs that the tests of the report make up have the
    schema of what is measured."""
    exlm, mlm = cost["models"]["exlm"], cost["models"]["mlm"]
    assert cost["ratio"] == pytest.approx(exlm["seconds_per_step"] / mlm["seconds_per_step"])
    low, high = cost["ratio_quartiles"]
    assert low <= cost["ratio_median"] <= high
    assert mlm["tokens_per_second"] / exlm["tokens_per_second"] == pytest.approx(cost["ratio"])
    assert exlm["peak_memory_bytes"] > 0 and mlm["peak_memory_bytes"] > 0
    assert cost["machine"]["processor"]
    made_up = Path(folder, "made-up")
    made_up.mkdir()
    efficiency(made_up)
    made_up_cost = json.loads((made_up / "efficiency.json").read_text())
    assert made_up_cost.keys() <= cost.keys()
    assert made_up_cost["models"]["exlm"].keys() == exlm.keys() == mlm.keys()


def test_mlm_plus_plus_gets_the_updates_that_cost_what_exlms_cost(recipe):
    analyze("ablations", **recipe)
    cost = result(recipe, "efficiency.json")
    check_cost(cost, recipe["output"])
    runs = {
        p.parts[-3]: json.loads(p.read_text())
        for p in Path(recipe["output"]).glob("pretrain/*/*/result.json")
    }
    assert len(runs) == 6
    assert runs["mlm-p15-plus-plus"]["recipe"]["train"]["steps"] == max(1, round(4 * cost["ratio"]))
    assert runs["ctc-p15-k2"]["recipe"]["model"]["objective"] == "ctc"
    assert runs["exlm-p15-k2-1d"]["recipe"]["model"]["rotary"] == "1d"
    assert runs["exlm-p15-k2-sparse"]["recipe"]["model"]["dag"] == "sparse"
    measured = Path(recipe["output"], "efficiency.json")
    before = measured.read_bytes()
    analyze("ablations", **recipe)  # the cost is not measured again, since MLM++ was trained by it
    assert measured.read_bytes() == before
    with pytest.raises(InputError, match=r"other settings \(steps\): 2 instead of 3"):
        analyze("efficiency", **recipe | {"cost_steps": 3})


def test_a_signal_reaches_the_training_which_saves_its_state_and_goes_on_later(recipe):
    number = signal.SIGTERM
    run_dir = Path(recipe["output"], "pretrain", "mlm-p15", "seed-0")
    log = run_dir / "log.jsonl"
    longer = replace(recipe["train"], steps=200, eval_every=0, save_every=190)
    settings = recipe | {
        "train": longer,
        "space": Space(cells=[(0.15, 1)]),
        "tasks": None,
        "own_processes": True,
    }

    def interrupt():
        while not (log.exists() and log.stat().st_size):  # the first step is done
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match="interrupted; run the same command to go on") as caught:
        analyze("repeated-mlm", **settings)
    assert caught.value.number == number and signal.getsignal(number) == handler
    steps = int(next(run_dir.glob("checkpoint-*")).name.split("-")[-1])
    assert 0 < steps < 200
    analyze("repeated-mlm", **settings | {"own_processes": False})
    assert (
        result(recipe, "pretrain", "mlm-p15", "seed-0", "result.json")["evaluation"]["step"] == 200
    )


def test_a_process_that_is_killed_counts_as_stopped_and_errors_come_back_as_they_are(monkeypatch):
    forking = multiprocessing.get_context("fork")  # these processes need not import everything anew
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forking)
    with pytest.raises(TrainingStopped, match="its process was killed; often memory ran out"):
        in_own_process(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(InputError, match="/nowhere does not exist"):
        in_own_process(Corpus, "/nowhere")


def write_own_id_and_wait(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def test_a_training_ends_when_the_analysis_is_killed(tmp_path):
    name = tmp_path / "id"
    analysis = multiprocessing.get_context("fork").Process(
        target=in_own_process, args=(write_own_id_and_wait, str(name))
    )
    analysis.start()
    while not (name.exists() and name.read_text()) and analysis.is_alive():
        time.sleep(0.1)
    analysis.kill()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.kill(int(name.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(int(name.read_text()), signal.SIGKILL)
    pytest.fail("the training goes on without the analysis")


def test_what_lacks_its_model_is_passed_over_and_all_others_are_done(tmp_path, capsys):
    def stop():
        raise TrainingStopped("the loss is not finite")

    model = tmp_path / "one" / "a.json"
    last = tmp_path / "c.json"
    jobs = [
        Job("training", model, stop),
        Job("measuring", tmp_path / "b.json", lambda: pytest.fail("the first is needed"), model),
        Job("training", last, last.touch),
    ]
    with pytest.raises(TrainingStopped, match="one: the loss is not finite$"):
        run_jobs(jobs, own_processes=False)
    assert last.exists() and "passed over, since there is no" in capsys.readouterr().out


def test_one_run_that_diverges_does_not_stop_the_others(recipe, capsys):
    wild = replace(recipe["train"], optimizer=OptimizerConfig(1e30, 1))
    with pytest.raises(
        TrainingStopped, match="pretrain/mlm-p15/seed-0: the loss or its gradient is not finite"
    ):
        analyze("repeated-mlm", **recipe | {"train": wild})
    out = capsys.readouterr().out
    assert out.count("stopped: the loss or its gradient") == 2
    assert out.count("passed over, since there is no") == 2
    assert "job 4 of 4" in out


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
    with pytest.raises(InputError, match="the content of its data has changed"):
        analyze("repeated-mlm", **settings)
    prepare([str(tmp_path / "two.smi")], corpus, held_out=0.2, workers=1, overwrite=True)
    with pytest.raises(InputError, match=r"other settings \((tokenizer|corpus)\)"):
        analyze("repeated-mlm", **settings)


@pytest.mark.parametrize(
    "change,message",
    [
        (
            {"seeds": []},
            "ablations has no models; use one of repeated-mlm, .* every list of the recipe",
        ),
        ({"cost_steps": 0}, "cost_steps is 0"),
        (
            {"tasks": {"gone": DownstreamConfig(TaskConfig("gone.csv"))}},
            "No such file or directory: 'gone.csv'",
        ),
        ({"data": DataConfig("/nowhere")}, "/nowhere does not exist"),
        (
            {"model": ArchitectureConfig(num_states=2, max_position_embeddings=8)},
            "exlm-p15-k2: a sequence of .* positions, but model.max_pos",
        ),
    ],
)
def test_what_would_stop_a_later_job_is_said_before_the_first(recipe, change, message):
    with pytest.raises((InputError, OSError), match=message):
        analyze("ablations", **recipe | change)
    assert not Path(recipe["output"]).exists()


@pytest.mark.parametrize(
    "experiment,space,message",
    [
        ("dance", Space(), "dance has no models; use one of repeated-mlm, ablations, "),
        ("sweep", Space(sweep_mask_ratios=[]), "give every list of the recipe a value"),
        ("repeated-mlm", Space(mask_ratios=[15]), "mask_ratio is 15"),
        ("sweep", Space(states=[0]), "num_states is 0"),
    ],
)
def test_an_unknown_experiment_and_impossible_spaces_are_named(recipe, experiment, space, message):
    with pytest.raises(InputError, match=message):
        analyze(experiment, **recipe | {"space": space})


def study_of(recipe):
    return Study(**{name: value for name, value in recipe.items() if name != "own_processes"})


def test_every_ablation_differs_from_exlm_in_one_thing(recipe):
    mlm, exlm, *others = study_of(recipe).models("ablations", cost_ratio=2.0).values()
    for other in others[:-1]:
        changed = vars(other["model"]).items() - vars(exlm["model"]).items()
        assert len(changed) == 1 and other | {"model": exlm["model"]} == exlm
    assert others[-1]["model"] == mlm["model"] and others[-1]["train"].steps == 8


def test_mlm_plus_plus_can_have_an_exact_multiple_of_the_updates(recipe):
    study = study_of(recipe | {"space": Space(plus_plus=3.0)})
    *_, plus_plus = study.models("ablations", cost_ratio=1.9).values()
    assert plus_plus["train"].steps == 3 * recipe["train"].steps
    with pytest.raises(InputError, match="plus_plus"):
        Space(plus_plus=0.0)


def test_files_of_named_data_are_part_of_a_fine_tuning(tmp_path):
    (tmp_path / "rte").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "rte" / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n")
    before = file_hashes(resolve(TaskConfig("rte", data_dir=str(tmp_path)))[0])
    (tmp_path / "rte" / "dev.tsv").write_text("changed")
    after = file_hashes(resolve(TaskConfig("rte", data_dir=str(tmp_path)))[0])
    for files in (before, after):
        assert [Path(name).name for name in files] == ["train.tsv", "dev.tsv"]
    assert [before[name] == after[name] for name in before] == [True, False]
