"""A start from weights: what is taken, what is drawn, what is refused, and that it is worth it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import exlm.pretrain.run
from exlm import ExLMForMaskedLM, ExLMForSequenceClassification, InputError
from exlm.data.batching import MaskedBatches
from exlm.data.corpus import Corpus
from exlm.data.prepare import prepare
from exlm.describe.on_disk import info
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, EvaluateConfig
from exlm.pretrain.start import start_hash, take_weights
from exlm.storage.files import to_json_types
from exlm.storage.models import save_model
from exlm.storage.shipped import model_path
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from tests.conftest import MOLECULES, flip_a_bit, train_smiles_tokenizer
from tests.train.runs import pretrain_with, same, weights

SIZES = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    initializer_range=0.3,
)


def drawn(tokenizer, head=ExLMForMaskedLM, seed=0, **switches):
    """A model as a seed draws it, with biases that are not all 0."""
    torch.manual_seed(seed)
    config = ArchitectureConfig(**SIZES | {"max_position_embeddings": 64} | switches).build(
        tokenizer
    )
    model = head(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    return model


def test_rows_of_tokens_follow_their_spelling(tmp_path):
    """Other numbers of the same tokens change nothing; tokens that the start lacks stay as they
    were drawn."""
    old = train_smiles_tokenizer(MOLECULES)
    new = train_smiles_tokenizer(["[Se]", "[Na+]", *MOLECULES[:5]])
    start, network, untouched = drawn(old, seed=1), drawn(new, seed=2), drawn(new, seed=2)
    save_model(tmp_path / "start", start, old)
    line = take_weights(network, new, str(tmp_path / "start"))
    common = sorted(set(old.get_vocab()) & set(new.get_vocab()))
    ours, theirs = (tokenizer.convert_tokens_to_ids(common) for tokenizer in (new, old))
    assert ours != theirs and 8 < len(common) < min(len(old), len(new))
    assert f"rows of weights taken: embeddings {len(common)} of {len(new)}, " in line
    text = "CC(=O)C<mask>C"
    left = network(**new(text, return_tensors="pt"), output_hidden_states=True)
    right = start(**old(text, return_tensors="pt"), output_hidden_states=True)
    assert torch.equal(left.hidden_states[-1], right.hidden_states[-1])
    torch.testing.assert_close(left.logits[0, :3, ours], right.logits[0, :3, theirs])
    for token in ("[Se]", "[Na+]"):
        number = new.convert_tokens_to_ids(token)
        assert token not in common
        for name in ("exlm.embeddings.weight", "head.decoder.bias"):
            row, drawn_row = network.state_dict()[name], untouched.state_dict()[name]
            assert torch.equal(row[number], drawn_row[number])


CASES = {
    "mlm to exlm": (
        {"objective": "mlm"},
        {"num_states": 4, "copy_embedding": 0.5},
        "copies 0 of 5, .* transition 0 of",
        ("exlm.copies.", "transition."),
    ),
    "exlm to mlm": (
        {"num_states": 3},
        {"objective": "mlm"},
        r"layers (\d+) of \1, .*head (\d+) of \2$",
        (),
    ),
    "late expansion": (
        {"copy_embedding": 0.5, "num_states": 4},
        {"copy_embedding": 0.5, "num_states": 4, "expanded_layers": 1},
        r"copies 5 of 5, .* transition (\d+) of \1$",
        (),
    ),
    "other transition": (
        {},
        {"transition": "single"},
        r"head (\d+) of \1, .*transition 0 of",
        ("transition.",),
    ),
    "more layers": (
        {},
        {"num_hidden_layers": 3},
        "layers 1152 of 1728, ",
        ("exlm.layers.2.",),
    ),
    "fewer layers": ({"num_hidden_layers": 3}, {}, "layers 1152 of 1152, ", ()),
    "other positions": (
        {"rotary": "1d"},
        {"rotary_base": 100.0},
        "; rotary is 2d but was 1d; rotary_base is 100.0 but was 10000.0",
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_fits_is_taken_and_what_is_new_is_drawn(case, tokenizer, tmp_path):
    before, now, words, new = CASES[case]
    start = drawn(tokenizer, seed=1, **before)
    network, untouched = drawn(tokenizer, seed=2, **now), drawn(tokenizer, seed=2, **now)
    save_model(tmp_path / "start", start, tokenizer)
    assert re.search(words, take_weights(network, tokenizer, str(tmp_path / "start")))
    weights, draws = start.state_dict(), untouched.state_dict()
    for name, tensor in network.state_dict().items():
        expected = draws if name.startswith(new) else weights
        assert torch.equal(tensor, expected[name]), name


def test_tables_of_states_and_positions_are_taken_as_far_as_they_go(tokenizer, tmp_path):
    start = drawn(tokenizer, seed=1, num_states=2, copy_embedding=0.5, max_position_embeddings=40)
    network, untouched = (
        drawn(tokenizer, seed=2, num_states=4, copy_embedding=0.5) for _ in range(2)
    )
    save_model(tmp_path / "start", start, tokenizer)
    line = take_weights(network, tokenizer, str(tmp_path / "start"))
    assert "copies 3 of 5, " in line
    # row 0 of copies is nothing
    for name, rows in (("exlm.copies.weight", 3), ("transition.positions.weight", 40)):
        table = network.state_dict()[name]
        assert torch.equal(table[:rows], start.state_dict()[name])
        assert torch.equal(table[rows:], untouched.state_dict()[name][rows:])


@pytest.fixture
def recipe(corpus, tmp_path):
    optimizer = OptimizerConfig(2e-3, 2)
    return {
        "output": str(tmp_path / "run"),
        "data": DataConfig(
            str(corpus), tokens_per_batch=600, tokens_per_micro_batch=600, eval_sequences=30
        ),
        "model": ArchitectureConfig(**SIZES, num_states=2, max_position_embeddings=128),
        "train": LoopConfig(6, optimizer, precision="fp32", log_every=2, save_every=2),
        "seed": 3,
    }


@pytest.fixture
def start(tokenizer, tmp_path) -> str:
    """An untrained model without transition, with one layer more."""
    save_model(
        tmp_path / "start",
        drawn(tokenizer, seed=9, objective="mlm", num_hidden_layers=3),
        tokenizer,
    )
    return str(tmp_path / "start")


def test_wrong_starts_are_explained(recipe, start, tokenizer, tmp_path):
    save_model(tmp_path / "tuned", drawn(tokenizer, ExLMForSequenceClassification), tokenizer)
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    save_model(
        tmp_path / "bert",
        BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)),
        tokenizer,
    )
    wide = replace(recipe["model"], hidden_size=64)
    for changes, message in (
        ({"start_from": str(tmp_path / "gone")}, "start_from is .*gone, which is no directory"),
        ({"start_from": str(tmp_path)}, "is not a model directory"),
        (
            {"start_from": str(tmp_path / "bert")},
            "holds a bert model; give the directory of an ExLM, MLM or CTC",
        ),
        (
            {"start_from": str(tmp_path / "tuned")},
            "holds ExLMForSequenceClassification; give the pre-trained model",
        ),
        (
            {"start_from": start, "model": wide},
            "hidden_size is 64, but 32 in the start .*; set model.hidden_size to 32",
        ),
    ):
        with pytest.raises(InputError, match=message):
            pretrain_with(recipe, **changes)
        assert not Path(recipe["output"], "recipe.yaml").exists()
    flip_a_bit(Path(start, "model.safetensors"))
    with pytest.raises(InputError, match="model.safetensors does not match its SHA-256"):
        pretrain(**recipe, start_from=start)


def test_a_start_may_be_a_model_that_comes_with_the_package():
    assert start_hash("molecules-5M") == start_hash(model_path("molecules-5M"))


def test_the_start_is_part_of_what_a_run_is(recipe, start, tmp_path, capsys):
    plain_run = tmp_path / "plain"
    without = pretrain_with(recipe, output=str(plain_run))
    result = pretrain(**recipe, start_from=start)
    assert f"start from {start}: rows of weights taken: " in capsys.readouterr().out
    assert "start" not in without["identity"] and not same(plain_run, recipe["output"])
    checksum = result["weight_files"]["model.safetensors"]
    assert f"- started from: start (SHA-256 of model.safetensors {checksum})" in info(
        recipe["output"]
    )
    pretrain(**recipe, start_from=start)
    assert "is finished already" in capsys.readouterr().out
    other = tmp_path / "other"
    shutil.copytree(plain_run, other)
    for output, given, refused in (
        (recipe["output"], None, "'.*' instead of the default"),
        (recipe["output"], str(other), "'.*' instead of '.*'"),
        (str(plain_run), start, "not recorded instead of"),
    ):
        with pytest.raises(InputError, match=rf"other settings \(start\): {refused}"):
            pretrain_with(recipe, output=output, start_from=given)


def test_a_resumed_run_does_not_read_its_start_again(recipe, start, tmp_path, monkeypatch):
    pretrain_with(recipe, output=str(tmp_path / "whole"), start_from=start)
    original = MaskedBatches.__call__

    def crash(self, step):
        if step == 4:
            raise ZeroDivisionError
        return original(self, step)

    monkeypatch.setattr(MaskedBatches, "__call__", crash)
    with pytest.raises(ZeroDivisionError):
        pretrain(**recipe, start_from=start)
    monkeypatch.undo()
    message = r"checkpoint.*other settings \(start\): '.*' instead of the default"
    with pytest.raises(InputError, match=message):
        pretrain(**recipe, resume_anyway=True)
    moved = Path(start).rename(tmp_path / "moved")
    with pytest.raises(
        InputError, match="which is no directory; .* keep it until the run is finished"
    ):
        pretrain(**recipe, start_from=start)
    monkeypatch.setattr(exlm.pretrain.run, "take_weights", None)
    pretrain(**recipe, start_from=str(moved))  # what counts is what is in it
    assert same(recipe["output"], tmp_path / "whole")


def test_a_finished_run_needs_its_start_no_more(recipe, start, tmp_path):
    result = pretrain(**recipe, start_from=start)
    moved = Path(start).rename(tmp_path / "moved")
    assert pretrain(**recipe, start_from=start) == to_json_types(result)
    scored = pretrain(**recipe, start_from=start, evaluate=EvaluateConfig([1]))
    assert scored["evaluation"]["nll_by_masks"].keys() == {"1"}
    with pytest.raises(InputError, match=r"other settings \(start\): '.*' instead of '.*'"):
        pretrain(**recipe, start_from=recipe["output"])
    flip_a_bit(Path(recipe["output"], "model.safetensors"))
    with pytest.raises(InputError, match="which is no directory"):
        pretrain(**recipe, start_from=start)
    moved.rename(start)
    assert pretrain(**recipe, start_from=start)["identity"] == result["identity"]


def test_held_out_sequences_that_the_start_was_trained_on_are_counted(
    recipe, corpus, smiles_file, tmp_path, capsys
):
    first = pretrain(**recipe)
    assert "held_out_in_start" not in first
    other = tmp_path / "other"
    prepare([str(smiles_file)], str(other), tokenizer=str(corpus), held_out=0.5, seed=7, workers=1)
    held_out, trained_on = Corpus(other, "valid"), Corpus(corpus, "train")
    known = {tuple(tokens) for tokens in trained_on}
    leaked = sum(tuple(tokens) in known for tokens in held_out)
    assert 0 < leaked < len(held_out)
    data = replace(recipe["data"], corpus=str(other))
    changes = {"start_from": recipe["output"], "output": str(tmp_path / "more")}
    assert pretrain_with(recipe, **changes, data=data)["held_out_in_start"] == leaked
    sentence = f"{leaked} of the {len(held_out)} held-out sequences of other are training sequences"
    assert f"note: {sentence} of the start" in capsys.readouterr().err
    assert f"- {leaked} of the held-out sequences are training sequences of the start" in (
        info(changes["output"])
    )
    # On the same corpus, nothing is held out that was trained on before.
    again = pretrain_with(recipe, **changes | {"output": str(tmp_path / "again")})
    assert "held_out_in_start" not in again
    # A corpus that is another one now than then tells nothing.
    moved = shutil.copytree(recipe["output"], tmp_path / "moved")
    content = json.loads((moved / "result.json").read_text())
    content["recipe"]["data"]["corpus"] = str(tmp_path / "gone")
    (moved / "result.json").write_text(json.dumps(content))
    changes = {"start_from": str(moved), "output": str(tmp_path / "unknown")}
    assert "held_out_in_start" not in pretrain_with(recipe, **changes, data=data)


def test_a_finished_run_says_how_to_go_on_and_more_steps_are_a_new_run(recipe, tmp_path, capsys):
    first, longer = recipe["output"], {"train": replace(recipe["train"], steps=8)}
    pretrain(**recipe)
    advice = rf"\(train.steps\): 6 instead of 8; choose .* add --start_from {first} to go on"
    with pytest.raises(InputError, match=advice):
        pretrain_with(recipe, **longer)
    before = weights(first)
    result = pretrain_with(recipe, **longer, output=str(tmp_path / "more"), start_from=first)
    assert f"start from {first}: rows of weights taken: " in capsys.readouterr().out
    assert result["evaluation"]["step"] == 8 and result["identity"]["start"]
    after = weights(first)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_links_that_tie_nothing_are_said_at_the_end(recipe, capsys):
    """One state for each mask without a choice of paths: joint and marginal nll are equal."""
    sentence = "the links between states tie no masks together: joint nll"
    result = pretrain_with(recipe, model=replace(recipe["model"], num_states=1))
    assert result["evaluation"]["nll"] - result["evaluation"]["joint_nll"] < 0.001
    assert sentence in capsys.readouterr().out
    result["evaluation"]["joint_nll"] = result["evaluation"]["nll"] - 0.1
    assert sentence not in exlm.pretrain.run._describe(result, has_links=True)
    result["evaluation"]["joint_nll"] = result["evaluation"]["nll"]
    assert sentence not in exlm.pretrain.run._describe(result, has_links=False)


def test_a_start_saves_most_of_the_training(recipe, tmp_path):
    """The start was trained with another objective and other masks."""
    general = replace(recipe["model"], initializer_range=0.1, objective="mlm")
    longer = replace(recipe["train"], steps=80, save_every=0)
    data = replace(recipe["data"], mask_ratio=0.3)
    pretrain(str(tmp_path / "general"), data, general, longer, seed=1)
    recipe |= {"model": replace(general, objective="exlm"), "train": replace(longer, steps=10)}
    scratch = pretrain(**recipe)["evaluation"]["nll"]
    started = pretrain_with(
        recipe, output=str(tmp_path / "started"), start_from=str(tmp_path / "general")
    )
    assert started["evaluation"]["nll"] < scratch - 0.5
