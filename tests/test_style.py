"""How the code reads: what a formatter and a type checker do not see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONGEST = 50  # lines of a function, without its docstring


def functions(path):
    """All functions, without those of Triton: a kernel cannot be divided."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not any("triton.jit" in ast.unparse(entry) for entry in node.decorator_list):
            yield node


def lines_without_docstring(function):
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_functions_are_short(path):
    too_long = {
        function.name: lines_without_docstring(function)
        for function in functions(path)
        if lines_without_docstring(function) > LONGEST
    }
    assert not too_long


def test_the_type_check_finds_an_import_of_ours_that_does_not_exist(tmp_path):
    pytest.importorskip("mypy")
    probe = tmp_path / "probe.py"
    probe.write_text("import scipy.stats\nimport exlm.errors\nimport exlm.tasks.no_such_file\n")
    options = ["--config-file=pyproject.toml", "--follow-imports=skip", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, str(probe)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "probe.py:3: error:" in found and "Found 1 error in 1 file" in found
