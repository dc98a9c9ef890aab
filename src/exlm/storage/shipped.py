"""The models that come with the package: `exlm models`, and a model by its name."""

from pathlib import Path

from exlm.errors import InputError
from exlm.storage.files import MODEL_CARD, read_or_empty
from exlm.storage.manifest import MANIFEST

# A link to the folder `models` of the repository, as for the recipes.
MODELS = Path(__file__).parents[1] / "shipped"


def model_path(name: str) -> str:
    """The directory of a model that comes with the package, such as `molecules-5M`, for
    `from_pretrained` and everything else that takes a directory. Any other name, and that of a
    directory here, is returned as it is."""
    shipped = MODELS / name
    is_shipped = name in shipped_models() and not Path(name).exists()
    return str(shipped) if is_shipped else name


def shipped_models() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))


def models(name: str | None = None) -> None:
    """Lists the models that come with the package, or prints the card of one of them.

    Their names can be given wherever a command, or Python, takes the directory of a model.

    Args:
        name: the model whose card is printed; by default all are listed."""
    names = shipped_models()
    if name is None:
        for shipped in names:
            print(f"{shipped:20} {read_or_empty(MODELS / shipped / MANIFEST).get('summary', '')}")
    elif name in names:
        print((MODELS / name / MODEL_CARD).read_text(encoding="utf-8"), end="")
    else:
        raise InputError(f"there is no model {name}; there are {' and '.join(names) or 'none'}")
