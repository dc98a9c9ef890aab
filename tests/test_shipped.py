"""Models that come with the package, by name."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

import exlm
from exlm import ExLMForMaskedLM, InputError
from exlm.integrations.sklearn import Embedder
from exlm.storage import shipped
from exlm.storage.models import load_model, save_model
from exlm.storage.shipped import model_path
from exlm.storage.tokenizers import load_tokenizer
from exlm_command import main
from exlm_command.models import models


@pytest.fixture
def name(corpus, tiny_config, tmp_path, monkeypatch):
    """A tiny model in the folder of shipped models."""
    tokenizer = load_tokenizer(corpus)
    config = tiny_config(vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id)
    config.molecules = True
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    save_model(tmp_path / "tiny", ExLMForMaskedLM(config), tokenizer, summary="A tiny model.")
    (tmp_path / "tiny/README.md").write_text("The card.\n")
    return "tiny"


def test_a_name_is_taken_where_a_directory_is(name, tmp_path, capsys):
    for command in (f"fill {name} CC[MASK]", f"info {name}", f"verify {name}"):
        main(command.split())
    assert "C" in capsys.readouterr().out
    vectors = Embedder(name).fit_transform(["CCO"])
    assert (vectors == Embedder(str(tmp_path / "tiny")).fit_transform(["CCO"])).all()
    assert model_path(name) == exlm.model_path(name) == str(tmp_path / "tiny")


def test_a_directory_of_the_same_name_comes_first(name, tmp_path, monkeypatch):
    place = tmp_path / "elsewhere"
    (place / name).mkdir(parents=True)
    monkeypatch.chdir(place)
    assert model_path(name) == name
    with pytest.raises(InputError, match="not a model directory"):
        load_model(name, ExLMForMaskedLM)


def test_models_are_listed_and_their_cards_printed(name, capsys):
    models()
    assert capsys.readouterr().out.split(maxsplit=1) == ["tiny", "A tiny model.\n"]
    models(name)
    assert capsys.readouterr().out == "The card.\n"
    with pytest.raises(InputError, match="there is no model other; there are tiny"):
        models("other")


def test_the_model_of_molecules_fills_reads_and_is_loaded_by_transformers(capsys):
    main(["fill", "molecules-5M", "CC(=O)Oc1ccccc1[MASK](=O)O", "--n_best", "1"])
    assert "CC(=O)Oc1ccccc1C(=O)O" in capsys.readouterr().out
    aspirin, ester, hexane = Embedder("molecules-5M").transform(
        ["CC(=O)Oc1ccccc1C(=O)O", "CC(=O)Oc1ccccc1C(=O)OC", "CCCCCC"]
    )
    assert np.linalg.norm(aspirin - ester) < np.linalg.norm(aspirin - hexane)
    model = AutoModelForMaskedLM.from_pretrained(model_path("molecules-5M"))
    assert model.dtype == torch.float32 and model.num_parameters() == 5_398_017
