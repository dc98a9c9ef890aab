"""The recipes that come with the package: `exlm recipes`, and a recipe by its name."""

import os
import re
from pathlib import Path

from exlm_command.commands import CommandLineError, did_you_mean, find_similar

RECIPES = Path(__file__).parents[1] / "exlm" / "recipes"


def recipes(name: str | None = None) -> None:
    """Lists the recipes that come with the package, or prints one of them.

    Args:
        name: the recipe to print, for example molecules/exlm-1M; by default all are listed."""
    if name:
        print(Path(recipe_path(name)).read_text(encoding="utf-8"), end="")
        return
    for bundled_name, path in _bundled().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        if "space:" in lines:
            command = "analyze"
        elif "task:" in lines:
            command = "finetune"
        else:
            command = "pretrain"
        comment = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
        first_phrase = re.split("[.:(;] | [(]", comment)[0]
        print(f"{command:8} {bundled_name:27} {first_phrase}")


def recipe_path(name: str) -> str:
    """The path of the recipe `name`: a file, or a recipe of the package by its name or the end of
    its name, such as exlm-1M. CommandLineError if there is none, or more than one."""
    # Of a name too long for the file system this is False, where Path.is_file raises an error.
    if os.path.isfile(name):
        return name
    bundled = _bundled()
    short_name = name.removeprefix("recipes/").removesuffix(".yaml")
    matches = [recipe for recipe in bundled if f"/{recipe}".endswith(f"/{short_name}")]
    if len(matches) == 1:
        return str(bundled[matches[0]])
    hint = did_you_mean(matches or find_similar(short_name, bundled))
    advice = "; `exlm recipes` lists those of the package"
    raise CommandLineError(f"there is no recipe {name}{hint or advice}")


def _bundled() -> dict[str, Path]:
    """The recipes of the package by their names, for example molecules/exlm-1M."""
    return {
        path.relative_to(RECIPES).with_suffix("").as_posix(): path
        for path in sorted(RECIPES.glob("*/*.yaml"))
    }
