"""The command line: recipes, overrides, help, exit codes and one-sentence errors."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml

from exlm import ExLMConfig, InputError, __version__
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.paper.analyze import Study
from exlm.storage.models import save_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.config import grid_cells
from exlm_command import main
from exlm_command.commands import COMMANDS, import_function
from exlm_command.doctor import doctor
from exlm_command.parser import build_parser, settings, types_of_options
from tests.conftest import train_smiles_tokenizer

ROOT = Path(__file__).parents[1]
RECIPES = sorted(ROOT.glob("recipes/**/*.yaml"))


def parse(path, *overrides):
    names = yaml.safe_load(path.read_text())
    command = "analyze" if "space" in names else "finetune" if "task" in names else "pretrain"
    parser = build_parser(command)
    words = ["sweep"] if command == "analyze" else []
    parsed = parser.parse_args([*words, "--config", str(path), *overrides])
    return command, parser.instantiate(parsed)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_recipe_parses_and_builds(path):
    command, config = parse(path)
    if command == "pretrain":
        with torch.device("meta"):
            model = ExLMForMaskedLM(config.model.build(train_smiles_tokenizer(["CCO"])))
        assert model.num_parameters() > 1e5
        assert config.train.optimizer.warmup_steps < config.train.steps


def test_standard_input_with_an_ending_is_a_value_and_no_option():
    predicting = settings("predict", ["runs/a", "-.csv", "--output", "b.csv"])
    assert (predicting["model"], predicting["input"]) == ("runs/a", "-.csv")
    assert settings("prepare", ["-.jsonl", "a.csv", "--output", "c"])["inputs"] == [
        "-.jsonl",
        "a.csv",
    ]
    assert settings("fill", ["runs/a", "--file", "-.csv"])["file"] == "-.csv"
    words = ["--model", "runs/a", "--dataset", "-.csv", "--output", "b"]
    assert settings("finetune", words)["task"].dataset == "-.csv"


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_our_own_mlm_has_positions_in_all_features_and_the_papers_in_half(path, tiny_batch):
    """Also when it is made of the recipe of an ExLM: with one seed it is the MLM with ordinary
    rotary positions."""
    command, config = parse(path)
    if command == "finetune":
        pytest.skip("it has no positions of its own")
    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    mlm = replace(config.model, objective="mlm", max_position_embeddings=64, **small)
    mlm = replace(mlm, expanded_layers="all" if mlm.expanded_layers == "all" else 1)
    logits = {}
    for rotary in (mlm.rotary, "1d"):
        torch.manual_seed(0)
        architecture = replace(mlm, rotary=rotary, initializer_range=0.1)
        model = ExLMForMaskedLM(
            ExLMConfig(**vars(architecture), vocab_size=30, mask_token_id=29)
        ).eval()
        logits[rotary] = model(**tiny_batch).logits[tiny_batch["attention_mask"].bool()]
    of_the_paper = path.stem.startswith(("paper", "release")) or path.stem == "analysis-paper"
    assert torch.equal(logits[mlm.rotary], logits["1d"]) == (not of_the_paper)


def test_the_papers_recipes_have_the_papers_size_and_differ_in_the_objective_alone():
    exlm, mlm = (
        parse(ROOT / f"recipes/molecules/paper-{n}.yaml")[1] for n in ("exlm", "smiles-bert")
    )
    tokenizer = train_smiles_tokenizer(["CCO"])
    with torch.device("meta"):
        vanilla = ExLMForMaskedLM(mlm.model.build(tokenizer))
    words = (369 - len(tokenizer)) * (768 + 1)
    assert vanilla.num_parameters() + words == pytest.approx(50.5e6, rel=0.005)
    assert exlm.data == mlm.data and exlm.train == mlm.train
    assert {k for k in vars(exlm.model) if getattr(exlm.model, k) != getattr(mlm.model, k)} == {
        "objective"
    }


@pytest.mark.parametrize("size,parameters", [("base", 128e6), ("large", 361e6)])
def test_the_papers_text_recipes_have_the_papers_size_and_differ_in_the_objective_alone(
    size, parameters
):
    exlm, mlm = (
        parse(ROOT / f"recipes/text/paper-{size}-{name}.yaml")[1] for name in ("exlm", "roberta")
    )
    tokenizer = train_smiles_tokenizer(["CCO"])
    with torch.device("meta"):
        model = ExLMForMaskedLM(exlm.model.build(tokenizer))
    words = (50265 - len(tokenizer)) * (exlm.model.hidden_size + 1)
    assert model.num_parameters() + words == pytest.approx(parameters, rel=0.003)
    assert exlm.data == mlm.data and exlm.train == mlm.train
    assert {k for k in vars(exlm.model) if getattr(exlm.model, k) != getattr(mlm.model, k)} == {
        "objective"
    }


@pytest.mark.parametrize("group,size", [("glue-large", 12), ("glue-small", 64), ("squad2", 32)])
def test_the_papers_grids_have_all_their_cells(group, size):
    _, config = parse(ROOT / f"recipes/text/{group}.yaml")
    assert len(grid_cells(config.train, config.grid)) == size and len(config.seeds) == 5


def test_the_analysis_recipe_has_the_papers_fourteen_models_and_cells_of_equal_corruption():
    command, config = parse(ROOT / "recipes/text/analysis-paper.yaml")
    pairs = config.space.repeated_pairs()

    def models(experiment):
        study = Study("", config.data, config.model, config.train, space=config.space)
        return study.models(experiment)

    assert command == "analyze" and len(pairs) == 14 == len(models("repeated-mlm"))
    assert (0.15, 8) not in pairs and (0.387, 8) not in pairs and (0.789, 8) in pairs
    diagonal = [(0.15, 1), (0.387, 2), (0.622, 4), (0.789, 8)]
    assert set(diagonal) < set(pairs) and all(
        p**r == pytest.approx(0.15, abs=2e-3) for p, r in diagonal
    )
    assert len(models("sweep")) == 8 and set(config.tasks) == {"mnli", "qnli", "qqp", "rte"}
    assert all(settings["train"] == config.train for settings in models("entropy").values())


def test_overrides_replace_recipe_values():
    _, config = parse(
        ROOT / "recipes/molecules/exlm-1M.yaml", "--model.objective=mlm", "--train.steps=700"
    )
    assert config.model.objective == "mlm" and config.train.steps == 700
    assert config.model.hidden_size == 128


def test_lists_may_be_written_without_brackets(capsys):
    for seeds, columns in (("0,1", "a,b"), ("[0, 1]", "[a, b]")):
        options = ["--output", "x", "--model", "y", "--task.dataset", "z", "--seeds", seeds]
        config = printed(capsys, "finetune", *options, f"--task.label_columns={columns}")
        assert config["seeds"] == [0, 1] and config["task"]["label_columns"] == ["a", "b"]


def test_the_values_of_a_list_may_be_typed_one_after_the_other():
    options = ["--label_columns", "a: b", "1", "--seeds", "0", "-1", "2", "--output", "x"]
    given = settings("baseline", ["ecfp-rf", "table.csv", *options])
    assert given["seeds"] == [0, -1, 2] and given["task"].label_columns == ["a: b", "1"]
    assert given["output"] == "x"
    corpora = settings("pretrain", ["--corpus", "a", "b", "--output", "x"])
    assert corpora["data"].corpus == ["a", "b"]
    assert settings("pretrain", ["--corpus", "a,b", "--output", "x"])["data"].corpus == "a,b"


def test_values_without_an_option_keep_their_order_wherever_they_stand():
    filling = settings("fill", ["m", "C[MASK]", "--n_best", "3", "C[MASK]C", "--beam=2", "N[MASK]"])
    assert (filling["model"], filling["n_best"], filling["beam"]) == ("m", 3, 2)
    assert filling["texts"] == ["C[MASK]", "C[MASK]C", "N[MASK]"]
    assert settings("fill", ["m", "--n_best", "1", "C[MASK]"])["texts"] == ["C[MASK]"]
    preparing = settings("prepare", ["a.smi", "--output", "c", "-.csv", "b.smi"])
    assert preparing["inputs"] == ["a.smi", "-.csv", "b.smi"] and preparing["output"] == "c"
    with pytest.raises(InputError, match="^unrecognized arguments: b$"):
        settings("finetune", ["--output", "x", "--model", "y", "--dataset", "z", "b"])


@pytest.mark.parametrize("name", ["log P #1", "1", "yes", "a: b", "null", "IC50 [nM]", "#activity"])
def test_any_name_of_a_column_may_be_given_to_a_list(name):
    def label_columns(*options):
        words = ["ecfp-rf", "table.csv", "--output", "x"]
        return settings("baseline", [*words, *options])["task"].label_columns

    assert label_columns("--label_columns", name) == [name]
    assert label_columns(f"--task.label_columns=a,{name}") == ["a", name]
    assert label_columns("--label_columns", f"[a, {name}]") == ["a", name]
    assert label_columns("--label_columns", f"['{name}', b]") == [name, "b"]
    assert label_columns("--label_columns", "a", "--label_columns+", name) == ["a", name]
    if name != "null":  # which leaves an option out
        assert settings("embed", ["model", "a.csv", "--text_column", name])["text_column"] == name


def test_quotes_keep_commas_and_other_lists_are_yaml():
    tuning = settings(
        "finetune",
        ["--output", "x", "--model", "y", "--dataset", "z", "--seeds", "1,2"]
        + ["--label_columns", '["log P, mol/L", "b"]', "--grid.epochs", "[3, 4]"],
    )
    assert tuning["task"].label_columns == ["log P, mol/L", "b"]
    assert tuning["seeds"] == [1, 2] and tuning["grid"] == {"epochs": [3, 4]}
    training = settings("pretrain", ["--output", "x", "--corpus", "y", "--passes", "1,all"])
    assert training["evaluate"].passes == [1, "all"]


@pytest.mark.parametrize(
    "command, options, message",
    [
        ("fill", "model --n_best x", "n_best is x; it must be int"),
        ("fill", "model --passes x", "passes is x; it must be int or one of 'all'"),
        ("finetune", "--output x --model y --dataset z --seeds 1,x", "seeds is x; it must be int"),
        ("finetune", "--output x --model y --dataset z --epochs x", "train.epochs is x; it must"),
        ("finetune", "--output x --model y", "arguments are required: task.dataset"),
        ("finetune", "--output x --model y --dataset z a", "unrecognized arguments: a"),
    ],
)
def test_a_value_of_another_type_is_told_in_one_sentence(command, options, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        settings(command, options.split())
    assert "\n" not in str(caught.value) and "class" not in str(caught.value)


def printed(capsys, *arguments):
    """The settings of a command, as --print_config shows them."""
    with pytest.raises(SystemExit):
        main([*arguments, "--print_config"])
    return yaml.safe_load(capsys.readouterr().out)


def test_an_option_may_leave_its_sections_out_and_has_one_name_in_both_trainings(capsys):
    options = ["--learning_rate", "0.25", "--warmup_ratio=0.5", "--weight_decay", "0.125"]
    options += ["--output", "x"]
    recipe = ["exlm-1M", "--steps", "100", "--corpus", "somewhere"]
    config = printed(capsys, "pretrain", *recipe, *options)
    assert config["train"]["steps"] == 100
    assert config["data"]["corpus"] == "somewhere" and config["output"] == "x"
    optimizer = config["train"]["optimizer"]
    assert (optimizer["learning_rate"], optimizer["weight_decay"]) == (0.25, 0.125)
    recipe = ["molecules/finetune", "--dataset", "a.csv", "--label_columns", "b,c"]
    tuning = printed(capsys, "finetune", *recipe, *options)
    assert tuning["train"]["learning_rate"] == 0.25
    assert tuning["train"]["warmup_ratio"] == 0.5 and tuning["train"]["weight_decay"] == 0.125
    assert tuning["task"]["dataset"] == "a.csv" and tuning["task"]["label_columns"] == ["b", "c"]


def test_recipes_are_found_by_their_names_anywhere(capsys, monkeypatch, tmp_path):
    text = (ROOT / "recipes/molecules/exlm-1M.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    for name in ("exlm-1M", "molecules/exlm-1M", "recipes/molecules/exlm-1M.yaml"):
        main(["recipes", name])
        assert capsys.readouterr().out == text
    main(["recipes"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(RECIPES)
    first = "pretrain molecules/exlm-1M           A small ExLM for a laptop, about 1M parameters"
    assert first in lines
    assert any(line.startswith("finetune text/finetune-csv ") for line in lines)
    assert any(line.startswith("analyze  text/analysis-paper ") for line in lines)
    Path("exlm-1M").write_text("seed: 7\n")  # a file of one's own comes first
    main(["recipes", "exlm-1M"])
    assert capsys.readouterr().out == "seed: 7\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_the_help_parses(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    calls = []

    def parse_only(name, arguments):
        calls.append(settings(name, arguments))
        return 0, ""

    monkeypatch.setattr("exlm_command._check_paths", lambda *_: None)
    monkeypatch.setattr("exlm_command.parser.run", parse_only)
    main([command, *shlex.split(COMMANDS[command].example)])
    assert command == "recipes" or calls


def fails(capsys, *arguments):
    """Exit status and message of a command that must fail."""
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    "change,message",
    [
        (("--train.stepz", "5"), "no option --train.stepz; did you mean --train.steps?"),
        (
            ("--model.objective", "bert"),
            "objective is 'bert'; it must be one of exlm, mlm, ctc",
        ),
        (("--train.steps", "-5"), "steps"),
        (("--data.mask_ratio", "1.5"), "mask_ratio is 1.5"),
        (("--model.hidden_size", "30"), "hidden_size 30 must be a multiple"),
        (("--data.corpus", "/nowhere"), "/nowhere does not exist"),
    ],
)
def test_bad_settings_are_named_without_a_traceback(capsys, tmp_path, corpus, change, message):
    recipe = RECIPES[[p.stem for p in RECIPES].index("exlm-1M")]
    options = {"--output": tmp_path / "run", "--data.corpus": corpus, change[0]: change[1]}
    status, error = fails(capsys, "pretrain", recipe, *chain.from_iterable(options.items()))
    assert status == 2 and message in error and "Traceback" not in error
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("words", ["0.02,0.6", "0.02 0.6", "[0.02, 0.6]", "(0.02,0.6)"])
def test_a_range_needs_brackets_and_the_message_says_so(words):
    options = ["--output", "x", "--corpus", "y", "--mask_ratio"]
    with pytest.raises(InputError, match=r"need brackets and no spaces: .* \[0.02,0.6\]$"):
        settings("pretrain", [*options, *words.split()])
    assert settings("pretrain", [*options, "[0.02,0.6]"])["data"].mask_ratio == (0.02, 0.6)


def test_a_recipe_of_an_earlier_fine_tuning_is_read(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: m\nstart_from: null\ntask:\n  dataset: x.csv\noutput: o\n")
    assert settings("finetune", ["--config", str(path)])["model"] == "m"


@pytest.mark.parametrize(
    "lines,message",
    [
        ("train:\n  layers: 2\ntrain:\n  epochs: 1", "'train' (lines 4 and 6); join them"),
        ("train: {epochs: 1, epochs: 2}", "'epochs'; join them"),
        ("grid:\n  epochs: [1]\n  'epochs': [2]", "'epochs' (lines 5 and 6); join them"),
        ("train: &same {epochs: 1}\ngrid: [{a: 1}, {a: 1, a: 2}]", "'a'; join them"),
    ],
)
def test_two_entries_of_one_name_are_refused_in_a_recipe(tmp_path, lines, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"model: m\ntask: {{dataset: x.csv}}\noutput: o\n{lines}\n")
    with pytest.raises(InputError, match=re.escape(f"two entries are called {message}")):
        settings("finetune", ["--config", str(path)])


@pytest.mark.parametrize(
    "lines,name,section,where",
    [
        ("train.epochs: 3\ntrain: {layers: 4}", "train.epochs", "train", " (lines 4 and 5)"),
        ("train: {epochs: 4}\ntrain.epochs: 3", "train.epochs", "train", " (lines 4 and 5)"),
        ("train.a.b: 3\ntrain: {a: {c: 4}}", "train.a.b", "train", " (lines 4 and 5)"),
        ("train: {a.b: 3, a: {c: 4}}", "a.b", "a", ""),
    ],
)
def test_an_entry_beside_its_section_is_refused(tmp_path, lines, name, section, where):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"model: m\ntask: {{dataset: x.csv}}\noutput: o\n{lines}\n")
    with pytest.raises(InputError) as raised:
        settings("finetune", ["--config", str(path)])
    assert str(raised.value) == (
        f"the entry '{name}' stands beside its section '{section}'{where}; "
        "write it inside of the section"
    )


def test_entries_with_their_sections_in_their_names_need_no_section(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: m\ntask.dataset: x.csv\ntrain.epochs: 3\ntrain.layers: 2\noutput: o")
    train = settings("finetune", ["--config", str(path)])["train"]
    assert (train.epochs, train.layers) == (3, 2)


def test_two_entries_of_one_name_are_refused_in_an_option():
    options = ["--model", "m", "--dataset", "x.csv", "--output", "o", "--grid"]
    with pytest.raises(InputError, match="two entries are called 'epochs'; join them"):
        settings("finetune", [*options, "{epochs: [1], 'epochs': [2]}"])


def test_what_an_anchor_brings_may_be_replaced(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model: m\ntask: {dataset: x.csv}\noutput: o\n"
        "grid: {<<: {epochs: [1], layers: [2]}, epochs: [3]}\n"
    )
    assert settings("finetune", ["--config", str(path)])["grid"] == {"epochs": [3], "layers": [2]}


@pytest.mark.parametrize(
    "option,value",
    [
        ("--grid={learning_rate: 1.0e-3}", "0.001"),
        ("--grid.learning_rate=1e-3", "1e-3"),
        ("--grid={epochs: [1], learning_rate: x}", "x"),
    ],
)
def test_a_grid_of_one_value_is_named_with_the_list_to_write(option, value):
    with pytest.raises(InputError) as raised:
        settings("finetune", ["--model", "m", "--dataset", "x.csv", "--output", "o", option])
    assert str(raised.value) == (
        f"grid.learning_rate is {value}; it must be a list of values, for example [{value}]"
    )


def test_an_unknown_key_in_a_recipe_is_named(capsys, tmp_path):
    path = tmp_path / "recipe.yaml"
    for lines, hint in (
        (
            "data: {corpus: y, mask_ration: 0.2}",
            "no setting data.mask_ration; did you mean data.mask_ratio?",
        ),
        ("data: {corpus: y}\nsteps: 5", "no setting steps; did you mean train.steps or"),
        (
            "data: {corpus: y}\ntrain: {optimizer: {learning: 1}}",
            "did you mean train.optimizer.learning_rate?",
        ),
    ):
        path.write_text(f"output: x\n{lines}\n")
        status, error = fails(capsys, "pretrain", path)
        assert status == 2 and hint in error
    path.write_text("output: x\ndata: {corpus: y}\nevaluate: {by_masks: [1]}\n")
    message = "this command has no setting evaluate.by_masks, so take it out of the recipe"
    assert message in fails(capsys, "analyze", "efficiency", path)[1]


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("prepare", "/nowhere.smi", "--output", "/tmp/x"), "/nowhere.smi"),
        (
            ("pretrain", "/nowhere.yaml"),
            "there is no recipe /nowhere.yaml; `exlm recipes` lists those of the package",
        ),
        (("pretrain", "exlm-1m"), "or molecules/exlm-1M or"),
        (("finetune", "finetune"), "did you mean molecules/finetune or text/finetune?"),
        (("recipes", "nothing"), "there is no recipe nothing"),
        (("recipes", "exlm-1M", "--all"), "there is no option --all"),
        (("finetune", "--task.txt_column", "x"), "did you mean --task.text_column?"),
        (
            ("analyze", "swep", "molecules/analysis-small"),
            "experiment is swep; it must be one of 'repeated-mlm',",
        ),
        (("report", "runs", "--out", "x"), "there is no option --out; did you mean --output?"),
        (
            ("report", "runs", "--ouptut", "x"),
            "there is no option --ouptut; did you mean --output?",
        ),
        (("pretrain", "--dropout", "0"), "did you mean --model.hidden_dropout_prob or"),
        (("pretrain", "--seeds", "0"), "did you mean --seed?"),
        (
            ("finetune", "--seeds", "0", "--seeds=1,2", "--output", "x"),
            "--seeds is given twice; give its values once: --seeds 0 1,2",
        ),
        (
            ("baseline", "ecfp-rf", "molnet", "--label_columns", "log P", "--label_columns", "y"),
            "give its values once: --task.label_columns 'log P' y",
        ),
        (("finetune", "--seed", "0"), "did you mean --seeds?"),
        (("finetune", "--optimizer.learning_rate", "0"), "did you mean --train.learning_rate?"),
        (("predict", "/nowhere"), "give MODEL and INPUT"),
        (("predict", "/nowhere", "x.csv"), "/nowhere does not exist"),
        (("embed", "/nowhere", "x.csv"), "/nowhere does not exist"),
        (("info", "/nowhere"), "/nowhere does not exist"),
        (("baseline", "ecfp-rf", "no.csv", "--output", "x"), "no.csv does not exist"),
        (
            ("finetune", "--dataset", "bace", "--task.valid", "no.csv"),
            "no.csv does not exist; check the path of --task.valid",
        ),
        # `test` is the name of a column here
        (
            ("finetune", "--label_columns", "test", "log.P", "--dataset", "/nowhere.csv"),
            "/nowhere.csv does not exist; check the path of --dataset",
        ),
        (("fill",), "give MODEL before the options"),
        (("fill", "/nowhere", "C[MASK]"), "/nowhere does not exist"),
        (("dance",), "unknown command 'dance'"),
        (("pretain",), "did you mean pretrain?"),
    ],
)
def test_missing_things_are_named(capsys, arguments, message):
    status, error = fails(capsys, *arguments)
    assert status == 2 and message in error and "Traceback" not in error


@pytest.mark.parametrize("command", COMMANDS)
def test_the_summary_of_a_command_begins_its_docstring(command):
    docstring = " ".join(import_function(command).__doc__.split())
    assert docstring.startswith(COMMANDS[command].summary)


def test_the_general_help_has_a_whole_line_for_every_command(capsys):
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        assert f"  {name:10s} {command.summary}" in lines


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *ROOT.glob("examples/*.*")]


@pytest.mark.parametrize("arguments", (["fill"], ["predict", "run", "a.csv"], ["recipes"]))
def test_the_short_option_for_help_works_everywhere(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "-h"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: exlm {arguments[0]}")


@pytest.mark.parametrize("path", RECIPES + PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_recipes_and_pages_name_commands_that_exist(path):
    begins = r"(?:^(?:# +|\$ |!|    )?|; do |`|\| )"
    for command in re.findall(rf"{begins}exlm ([a-z]\w*)", path.read_text(), re.M):
        assert command in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_option(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0 and text.startswith(f"usage: exlm {command}")
    assert f"example: exlm {command}" in text
    assert all(positional.upper() in text for positional in COMMANDS[command].positionals)
    options = [action for action in build_parser(command)._actions if action.option_strings]
    undescribed = [a.option_strings[0] for a in options if not a.help or a.help.startswith("(")]
    assert not undescribed


WITHOUT_LIBRARY = [
    "--help",
    "dance",
    "predict x",
    "pretrain x.yaml",
    "finetune --model molecules-5M --dataset /nowhere.csv --output x",
    "baseline ecfp-rf /nowhere.csv --output x",
]
WITHOUT_TORCH = [
    "--version",
    "recipes exlm-1M",
    "info CORPUS",
    "info MODEL",
    "predict /nowhere x.csv",
    "fill /nowhere C[MASK]",
    "info /nowhere",
    "info --help",
    "verify MODEL",
    "verify /nowhere",
    "recipes --help",
    "prepare --help",
    "prepare /nowhere.smi --output x",
    "prepare /nowhere.smi --ouptut x",
]


@pytest.fixture(scope="module")
def tiny_model(corpus, tmp_path_factory):
    """The directory of a model that was not trained."""
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    tokenizer = load_tokenizer(corpus)
    config = ExLMConfig(
        vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id, **sizes, num_states=2
    )
    path = tmp_path_factory.mktemp("tiny-model")
    save_model(path, ExLMForMaskedLM(config), tokenizer)
    return path


ONE_AFTER_ANOTHER = """
import contextlib, io, json, os, sys
from importlib import metadata
from exlm_command import main

installed = metadata.distribution  # exlm itself is not, as where its sources are used as they are
metadata.distribution = lambda name: installed(name.replace("exlm", "not installed"))
for words in json.loads(sys.argv[1]):
    sys.argv[1:], text = words, io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        with contextlib.suppress(SystemExit):
            main()
    slow = [name for name in ("exlm", "torch", "transformers") if name in sys.modules]
    print(json.dumps([text.getvalue(), slow, "EXLM_WITHOUT_MODELS" in os.environ]))
"""


@pytest.fixture(scope="module")
def answers(corpus, tiny_model):
    """Of commands that one process runs in this order: what each prints, which of the libraries
    that take seconds are imported by then, and whether processes that it starts lack the models."""
    commands = WITHOUT_LIBRARY + WITHOUT_TORCH
    places = {"CORPUS": str(corpus), "MODEL": str(tiny_model)}
    words = [[places.get(word, word) for word in command.split()] for command in commands]
    process = [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(words)]
    done = subprocess.run(process, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(commands, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("command", WITHOUT_LIBRARY + WITHOUT_TORCH)
def test_what_needs_no_model_does_not_wait_for_pytorch(command, answers):
    """Importing PyTorch and transformers takes seconds."""
    printed, slow, _ = answers[command]
    assert len(printed) > 5 and "Traceback" not in printed
    assert "torch" not in slow
    if command in WITHOUT_LIBRARY:
        assert not slow


def test_a_process_that_the_command_starts_gets_all_models(answers):
    _, slow, without_models = answers["info CORPUS"]
    assert "exlm" in slow and not without_models


def test_a_source_tree_needs_no_installation(monkeypatch, capsys):
    installed = metadata.distribution
    monkeypatch.setattr(
        metadata, "distribution", lambda name: installed(name.replace("exlm", "not installed"))
    )
    doctor()
    assert capsys.readouterr().out.splitlines()[0].split() == ["exlm", __version__]


@pytest.mark.parametrize(
    "moment", ["exlm_command.commands.import_module", "exlm_command.parser.run"]
)
def test_ctrl_c_is_one_line_at_any_moment(capsys, monkeypatch, moment):
    """Also while the command is imported."""

    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, press)
    assert fails(capsys, "info", ".") == (130, "exlm info: interrupted\n")


def test_a_reader_that_has_seen_enough_ends_the_command_quietly():
    """Such as `exlm --help | head -1`: here the reader is gone before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from exlm_command import main; main()", "--help"]
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, "")


def test_the_types_of_options_are_known_to_the_command_line():
    """They are read from attributes of jsonargparse that are not public: if this fails, these have
    changed (`types_of_options`)."""
    types = types_of_options(build_parser("finetune"))
    assert list[int] in get_args(types["seeds"])
    assert list[str] in get_args(types["task.label_columns"])


def test_progress_bars_do_not_fill_a_log():
    code = (
        "import time; from exlm_command import main; main()\n"
        "from tqdm import tqdm\n"
        "for _ in tqdm(range(50)): time.sleep(0.02)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
    )
    assert "50/50" in done.stderr and done.stderr.count("it/s") == 2
