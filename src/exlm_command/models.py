"""The command `exlm models`."""

from exlm.errors import InputError
from exlm.storage import shipped
from exlm.storage.files import MODEL_CARD, read_or_empty
from exlm.storage.manifest import MANIFEST


def models(name: str | None = None) -> None:
    """Lists the models that come with the package, or prints the card of one of them.

    Their names can be given wherever a command, or Python, takes the directory of a model.

    Args:
        name: the model whose card is printed; by default all are listed."""
    names = shipped.shipped_models()
    if name is None:
        for shipped_name in names:
            manifest = read_or_empty(shipped.SHIPPED / shipped_name / MANIFEST)
            print(f"{shipped_name:20} {manifest.get('summary', '')}")
    elif name in names:
        print((shipped.SHIPPED / name / MODEL_CARD).read_text(encoding="utf-8"), end="")
    else:
        raise InputError(f"there is no model {name}; there are {' and '.join(names) or 'none'}")
