"""Model directories: what they hold."""

from pathlib import Path

import pytest

from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import check_model, load_model, save_model
from tests.conftest import MOLECULES, train_smiles_tokenizer


@pytest.fixture
def masked_lm(tmp_path) -> Path:
    """A saved model of molecules."""
    tokenizer = train_smiles_tokenizer(MOLECULES)
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    save_model(
        tmp_path / "model", ExLMForMaskedLM(ArchitectureConfig(**sizes).build(tokenizer)), tokenizer
    )
    return tmp_path / "model"


def test_what_a_killed_save_left_is_removed_by_the_next(masked_lm):
    left = masked_lm / ".partial-model-killed"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    network, tokenizer = load_model(str(masked_lm), ExLMForMaskedLM)
    save_model(masked_lm, network, tokenizer)
    assert not list(masked_lm.glob(".partial-*"))
    check_model(str(masked_lm))


def test_whoever_may_read_a_new_file_may_read_a_model(masked_lm, tmp_path):
    (tmp_path / "new").touch()
    expected = (tmp_path / "new").stat().st_mode
    modes = {path.name: path.stat().st_mode for path in masked_lm.rglob("*") if path.is_file()}
    assert "model.safetensors" in modes and set(modes.values()) == {expected}
