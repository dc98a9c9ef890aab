"""The installation, as a report of a bug should have it: `exlm doctor`."""

from importlib.metadata import version

from exlm.storage.runs import machine

LIBRARIES = ("exlm", "transformers", "rdkit")


def doctor() -> dict[str, str]:
    """Prints what a report of a bug should have: versions, processor, device, threads."""
    facts = {name: version(name) for name in LIBRARIES}
    facts |= {name: str(value) for name, value in machine().items()}
    for name, value in facts.items():
        print(f"{name:12}  {value}")
    return facts
