"""Which rooms of the package may import which (`docs/architecture.md`)."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ANYWHERE = {"errors", "identity", "randomness", "storage", "upgrades"}
ALLOWED = {  # what a room may import; the modules of the root count as rooms
    "errors": set(),
    "upgrades": set(),
    "identity": {"upgrades"},
    "randomness": set(),
    "storage": {"errors", "identity", "upgrades"},
    "ops": set(),
    "model": {"ops", "errors", "identity"},
    "data": {"ops"} | ANYWHERE,
    "train": {"ops"} | ANYWHERE,
    "describe": {"data"} | ANYWHERE,
    "pretrain": {"describe", "data", "train", "model", "ops"} | ANYWHERE,
    "tasks": {"describe", "data", "train", "model", "ops"} | ANYWHERE,
    "filling": {"tasks", "data", "train", "model", "ops"} | ANYWHERE,
    "paper": {"pretrain", "tasks", "filling", "data", "train", "model", "ops"} | ANYWHERE,
    "integrations": {"tasks", "data", "train", "model", "ops"} | ANYWHERE,
}
TASK_FOLDERS = {  # which other folders a folder of the room `tasks` may import
    "labels": set(),
    "encoders": {"labels"},
    "rows": {"encoders", "labels"},
    "tables": {"rows", "encoders", "labels"},
    "questions": {"tables", "rows", "encoders", "labels"},
    "baselines": {"tables", "rows", "encoders", "labels"},
}


def imported_names(path, package):
    """The first word behind `package` of every import from it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        inside = [name for name in names if name.startswith(f"{package}.")]
        yield from (name.removeprefix(f"{package}.").split(".")[0] for name in inside)


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_down_only(room):
    place = ROOT / "src/exlm" / room
    for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
        for target in imported_names(path, "exlm"):
            assert target in ALLOWED[room] | {room, "__version__"}, f"{path} imports {target}"


@pytest.mark.parametrize("folder", TASK_FOLDERS)
def test_imports_of_tasks_go_down_only(folder):
    not_allowed = set(TASK_FOLDERS) - TASK_FOLDERS[folder] - {folder}
    for path in (ROOT / "src/exlm/tasks" / folder).glob("*.py"):
        imported = set(imported_names(path, "exlm.tasks"))
        assert not imported & not_allowed, path
        # These files are at the bottom, the other files of the root are on top.
        assert imported <= set(TASK_FOLDERS) | {"config", "results", "task"}, path


def test_every_room_has_its_rule():
    rooms = {path.stem for path in (ROOT / "src/exlm").iterdir() if path.suffix in ("", ".py")}
    assert rooms - {"__init__", "__main__", "__pycache__", "recipes", "shipped"} == set(ALLOWED)
    folders = {path.parent.name for path in (ROOT / "src/exlm/tasks").glob("*/*.py")}
    assert folders == set(TASK_FOLDERS)


def test_ops_import_torch_alone():
    for path in (ROOT / "src/exlm/ops").glob("*.py"):
        gpu = {"triton"} if path.name in ("alignment_triton.py", "fused.py") else set()
        outside = {"torch", *sys.stdlib_module_names} | gpu
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module]
            inside = [module for module in modules if not module.startswith("exlm.ops")]
            assert all(module.split(".")[0] in outside for module in inside), path.name
