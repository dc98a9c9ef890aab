"""Small containers lack the libraries of X11 that RDKit draws with."""

import subprocess
import sys

import pytest
from rdkit import Chem

from exlm.data.drawing import draw
from exlm.errors import InputError

IMPORTS_OF_ALL_COMMANDS = """
import sys
sys.modules["rdkit.Chem.Draw"] = None  # as if it could not be loaded
from exlm_command.commands import COMMANDS, import_function
for name in COMMANDS:
    import_function(name)
"""


def test_all_commands_are_there_where_rdkit_cannot_draw():
    subprocess.run([sys.executable, "-c", IMPORTS_OF_ALL_COMMANDS], check=True, timeout=300)


def test_a_system_that_cannot_draw_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit.Chem.Draw", None)
    with pytest.raises(InputError, match="install the packages libxrender1 and libxext6"):
        draw(Chem.MolFromSmiles("CCO"), {})
