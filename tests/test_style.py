"""How the code reads: what a formatter and a type checker do not see."""

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))
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
