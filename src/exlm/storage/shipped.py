"""The models that come with the package, by name."""

from pathlib import Path

# A link to the folder `models` of the repository, as for the recipes.
SHIPPED = Path(__file__).parents[1] / "shipped"


def model_path(name: str) -> str:
    """The directory of a model that comes with the package, such as `molecules-5M`, for
    `from_pretrained` and everything else that takes a directory. Any other name, and that of a
    directory here, is returned as it is."""
    is_shipped = name in shipped_models() and not Path(name).exists()
    return str(SHIPPED / name) if is_shipped else name


def shipped_models() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))
