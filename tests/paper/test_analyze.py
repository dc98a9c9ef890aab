"""The experiments as a user runs them: what is missing is made, what is done is skipped, stopping costs little."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from exlm import InputError
from exlm.data.prepare import prepare
from exlm.errors import Interrupted, TrainingStopped
from exlm.paper.experiments import plan
from exlm.paper.experiments.command import analyze
from exlm.paper.experiments.jobs import Job, Ledger, duration, run_jobs
from exlm.paper.experiments.plan import DownstreamConfig
from exlm.paper.experiments.variants import Base, Space, ablations
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


def test_experiments_share_runs_and_finished_jobs_are_not_repeated(recipe, monkeypatch, capsys):
    analyze("repeated-mlm", **recipe)
    done = []
    pretrain = plan.pretrain
    monkeypatch.setattr(plan, "pretrain", lambda place, **settings: done.append(place) or pretrain(place, **settings))
    analyze("sweep", **recipe)
    assert [place.split("/")[-2] for place in done] == ["exlm-p15-k2"]
    assert (Path(done[0]) / "case.svg").read_text().count("<svg") == 1
    capsys.readouterr()
    monkeypatch.setattr(plan, "finetune", lambda *_, **__: pytest.fail("a finished fine-tuning was started again"))
    analyze("sweep", **recipe)
    assert len(done) == 1 and "nothing remains" in capsys.readouterr().out


def test_changed_settings_do_not_pass_for_done(recipe):
    analyze("entropy", **recipe)
    longer = LoopConfig(steps=6, optimizer=OptimizerConfig(1e-3, 1), log_every=1, eval_every=2, save_every=2)
    with pytest.raises(InputError, match="train.steps 4 instead of 6"):
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


def test_an_interrupted_experiment_goes_on(recipe, monkeypatch):
    measure = plan.measure_run

    def interrupted(*_):
        raise Interrupted(2, "interrupted")

    monkeypatch.setattr(plan, "measure_run", interrupted)
    with pytest.raises(Interrupted):
        analyze("entropy", **recipe)
    monkeypatch.setattr(plan, "measure_run", measure)
    analyze("entropy", **recipe)
    assert len(list(Path(recipe["output"]).glob("pretrain/*/*/measurements.json"))) == 3


def test_a_run_that_diverges_is_passed_over_and_named(tmp_path):
    def diverge():
        raise TrainingStopped("the loss is not finite")

    done = []
    jobs = [
        Job("a", "first", 1, {}, tmp_path, tmp_path, diverge),
        Job("a", "second", 2, {}, tmp_path, tmp_path, lambda: done.append(1)),
        Job("b", "third", 2, {}, tmp_path, tmp_path, lambda: pytest.fail("the first is needed"), "first"),
    ]
    assert run_jobs(jobs, Ledger(tmp_path / "jobs")) == ["first: the loss is not finite"]
    assert done and Ledger(tmp_path / "jobs").read(jobs[0]) is None


def test_what_remains_is_estimated_from_finished_jobs_of_its_kind(tmp_path):
    ledger = Ledger(tmp_path / "jobs")
    small, large, other = (
        Job(kind, name, work, {}, tmp_path, tmp_path, lambda: None)
        for kind, name, work in (
            ("a", "small", 1),
            ("a", "large", 10),
            ("b", "other", 1),
        )
    )
    assert "time unknown" in duration([small], ledger.rates())
    ledger.write(small, 60.0)
    assert duration([large], ledger.rates()) == "1 remain, about 10 min"
    assert duration([large, other], ledger.rates()).endswith("and 1 whose time is unknown yet")
    assert duration([], ledger.rates()) == "nothing remains"
    ledger.write(large, None)  # done in two goes: its time says nothing
    assert duration([large], ledger.rates()) == "1 remain, about 10 min"


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
    with pytest.raises(InputError, match="holds a finished run with (tokenizer|corpus)"):
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
    base = Base(recipe["data"], recipe["model"], recipe["train"], recipe["space"])
    mlm, exlm, *others = ablations(base, 2.0)
    for other in others[:-1]:
        changed = {k for k in vars(exlm.model) if getattr(exlm.model, k) != getattr(other.model, k)}
        assert len(changed) == 1 and other.data == exlm.data and other.train == exlm.train
    assert others[-1].model == mlm.model and others[-1].train.steps == 8
