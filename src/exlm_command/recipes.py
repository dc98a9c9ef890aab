"""The recipes that come with the package: `exlm recipes`, and a recipe by its name."""

import os
import re
from pathlib import Path

from exlm_command.table import similar

RECIPES = Path(__file__).parents[1] / "exlm" / "recipes"


def recipes(name: str | None = None) -> None:
    """Lists the recipes that come with the package, or prints one of them.

    Args:
        name: the recipe to print, for example molecules/exlm-1M; by default all are listed."""
    if name:
        print(Path(recipe_path(name)).read_text(encoding="utf-8"), end="")
        return
    for short, path in _bundled().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        command = "analyze" if "space:" in lines else "finetune" if "task:" in lines else "pretrain"
        about = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
        print(f"{command:8} {short:27} {re.split('[.:(;] | [(]', about)[0]}")


def _bundled() -> dict[str, Path]:
    """The recipes of the package by their names, for example molecules/exlm-1M."""
    return {
        path.relative_to(RECIPES).with_suffix("").as_posix(): path
        for path in sorted(RECIPES.glob("*/*.yaml"))
    }


class RecipeNotFound(Exception):
    """No recipe, or more than one, has the name."""


def recipe_path(name: str) -> str:
    """The path of the recipe `name`: a file, or a recipe of the package by the last part of its
    name or all of it."""
    # also false, unlike Path.is_file, for a name too long for the file system
    if os.path.isfile(name):
        return name
    bundled, wanted = _bundled(), name.removeprefix("recipes/").removesuffix(".yaml")
    found = [short for short in bundled if f"/{short}".endswith(f"/{wanted}")]
    if len(found) == 1:
        return str(bundled[found[0]])
    meant = " or ".join(found or similar(wanted, bundled))
    hint = f"did you mean {meant}?" if meant else "`exlm recipes` lists those of the package"
    raise RecipeNotFound(f"there is no recipe {name}; {hint}")
