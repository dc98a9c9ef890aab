"""What an import of the package brings, in a process of its own, and what it does without."""

import json
import subprocess
import sys

import pytest
from rdkit import Chem

import exlm
from exlm import InputError
from exlm.data.drawing import draw
from exlm_command.commands import COMMANDS

STEPS = """
import json, sys
sys.modules["rdkit.Chem.Draw"] = None  # as if it could not be loaded
import exlm
print(json.dumps(list(sys.modules)))
from exlm import ExLMDataCollator
print(json.dumps(list(sys.modules)))
from exlm_command.commands import COMMANDS, import_function
print(json.dumps([import_function(name).__name__ for name in COMMANDS]))
"""


@pytest.fixture(scope="module")
def steps():
    """The modules that are there after the package and after the collator, and the functions of
    all commands, where RDKit cannot draw."""
    done = subprocess.run([sys.executable, "-c", STEPS], stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_trainer_is_imported_with_the_collator_and_not_before(steps):
    """It takes a seventh of the time in which a command starts; where peft is installed, it imports
    that too."""
    package, collator, _ = steps
    assert "transformers.modeling_utils" in package
    assert not {"transformers.trainer_utils", "peft"} & set(package)
    assert "transformers.trainer_callback" in collator


def test_all_commands_are_there_where_rdkit_cannot_draw(steps):
    """Small containers lack the libraries of X11 that RDKit draws with."""
    assert steps[2] == list(COMMANDS)


def test_a_system_that_cannot_draw_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit.Chem.Draw", None)
    with pytest.raises(InputError, match="install the packages libxrender1 and libxext6"):
        draw(Chem.MolFromSmiles("CCO"), {})


def test_all_names_of_the_package_are_there_and_no_others():
    assert all(hasattr(exlm, name) for name in exlm.__all__)
    assert not hasattr(exlm, "ExLMCollator")
