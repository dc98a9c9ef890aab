"""The command `exlm doctor`."""

from importlib.metadata import version

from exlm import __version__
from exlm.storage.machine import machine


def doctor() -> dict[str, str]:
    """Prints what a report of a bug should have: versions, processor, device, threads."""
    facts = {"exlm": __version__, **{name: version(name) for name in ("transformers", "rdkit")}}
    facts |= {name: str(value) for name, value in machine().items()}
    for name, value in facts.items():
        print(f"{name:12}  {value}")
    return facts
