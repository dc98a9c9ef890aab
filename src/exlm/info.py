"""Says in plain lines what a directory is: a corpus, a model or a run."""

from pathlib import Path

from .card import read, run_facts
from .data.corpus import Corpus
from .data.prepare import describe
from .errors import InputError
from .storage import MANIFEST


def info(path: str) -> str:
    """Prints what a corpus, a model or a run is, what it was made from, and its results.

    Args:
        path: directory of a corpus, a model, a pre-training or a fine-tuning, finished or not.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise InputError(f"{path} is no directory; give that of a corpus, a model or a run")
    if "format_version" in read(directory / MANIFEST):
        manifest = Corpus(path).manifest
        sources = ", ".join(str(source.get("name", source)) for source in manifest["sources"])
        lines = [f"corpus of {sources}", f"SHA-256: {manifest['corpus_hash']}", describe(manifest, path)]
    else:
        lines = [f"{name}: {value}" for name, value in run_facts(directory).items()]
    if not lines:
        raise InputError(f"{path} is neither a corpus nor a model nor a run; give the output of an exlm command")
    text = "\n".join(lines)
    print(text)
    return text
