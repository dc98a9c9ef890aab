"""What is on disk: `exlm info` describes a directory, `exlm verify` compares its files with their
checksums."""

from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from exlm.data.columns import listed
from exlm.data.corpus import Corpus, describe_corpus
from exlm.describe.card import run_facts
from exlm.errors import InputError
from exlm.storage.files import MODEL_CARD, read_or_empty
from exlm.storage.manifest import MANIFEST, damage, manifest_entries
from exlm.storage.shipped import model_path


def info(path: str) -> str:
    """Prints what a corpus, a model or a run is, what it was made from, and its results.

    Args:
        path: directory of a corpus, a model, a pre-training or a fine-tuning, finished or not; or
            the name of a model that comes with the package."""
    path = model_path(path)
    if not Path(path).exists():
        raise InputError(f"{path} does not exist; give the output of an exlm command")
    if "format_version" in read_or_empty(Path(path) / MANIFEST):
        manifest = Corpus(path).manifest
        sources = [str(source.get("name", source)) for source in manifest["sources"]]
        text = (
            f"corpus of {', '.join(sources)}\n"
            f"SHA-256: {manifest['corpus_hash']}\n"
            f"{describe_corpus(manifest, path)}"
        )
    else:
        text = run_facts(Path(path))
    if not text:
        raise InputError(
            f"{path} is neither a corpus nor a model nor a run; give the output of an exlm command"
        )
    print(text)
    return text


def verify(path: str) -> None:
    """Compares every file of a corpus, checkpoint, model or run with the SHA-256 that was recorded
    when it was written, and names the files and folders of which none was recorded.

    The card of a model (`README.md`) may be edited, and is not compared.

    Args:
        path: a directory; all directories in it that have a manifest are checked.

    InputError (exit status 2) if a file is damaged, or if nothing can be checked."""
    path = model_path(path)
    if not Path(path).exists():
        raise InputError(f"{path} does not exist; check its path and its name")
    directories = sorted(file.parent for file in Path(path).rglob(MANIFEST))
    if not directories:
        raise InputError(
            f"{path} has no {MANIFEST}, so nothing in it can be checked; "
            "give what an exlm command wrote"
        )
    damages = 0
    for directory in directories:
        description = damage(directory, of_run=True)
        print(f"{directory}: {description or 'as it was written'}")
        damages += description is not None
    if paths := _find_unrecorded(Path(path), directories):
        print(f"not recorded: {listed(paths)} (no {MANIFEST} has them, so they are not compared)")
    if damages:
        raise InputError(
            f"{damages} of {len(directories)} directories are damaged; make them again or copy "
            "them from elsewhere (a run goes on from its newest undamaged checkpoint)"
        )


def _find_unrecorded(path: Path, directories: Iterable[Path]) -> list[Path]:
    """The files below `path` that no manifest in `directories` has, but for cards and hidden files.
    A folder without any recorded file stands for its files."""
    recorded = set[Path]()
    for directory in directories:
        names = [*manifest_entries(directory), MANIFEST, MODEL_CARD]
        recorded.update(directory / name for name in names)
    recorded_folders = {folder for file in recorded for folder in file.parents}
    unrecorded = set[Path]()
    for file in path.rglob("*"):
        is_hidden = any(name.startswith(".") for name in file.relative_to(path).parts)
        if file.is_file() and not is_hidden and file not in recorded:
            upwards = [file, *file.parents]
            *_, highest = takewhile(lambda place: place not in recorded_folders, upwards)
            unrecorded.add(highest.relative_to(path))
    return sorted(unrecorded)
