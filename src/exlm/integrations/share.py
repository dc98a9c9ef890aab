"""Models to pass on, without the rows that they were trained on."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from exlm.data.columns import listed
from exlm.errors import InputError
from exlm.storage.files import GRID_RESULTS, MODEL_CARD, name_of_path, read_or_empty
from exlm.storage.manifest import MANIFEST, find_change, finish_run, forget_removed, new_directory
from exlm.storage.models import check_model
from exlm.storage.shipped import model_path
from exlm.tasks.results import is_baseline, seed_directories

# The settings of a task whose values are paths, also where no such file is there.
SETTINGS_OF_FILES = ("dataset", "valid", "test", "data_dir", "split")


def share(model: str, directory: str) -> Path:
    """Copies a model without the rows that it was trained on.

    The copy has the files that `manifest.json` lists, and the card (`README.md`). The copy of a
    fine-tuning also has the models of all seeds and `results.json`, so that it predicts the same
    numbers. It names columns, classes and files of the data, but not their folders.

    Args:
        model: output directory of `exlm pretrain` or `exlm finetune`, or of one of its seeds.
        directory: directory to write, which does not exist or is empty.

    Returns the directory."""
    source = Path(model_path(model))
    seeds = seed_directories(str(source))
    if is_baseline(seeds[0]):
        raise InputError(
            f"{model} is a baseline, which is made of the rows that it learned from; "
            "give a pre-training or a fine-tuning"
        )
    folders = {source, *seeds}
    files = {file for folder in folders for file in _files_of_model(folder)}
    if (source / GRID_RESULTS).is_file():
        files.add(source / GRID_RESULTS)
        if problem := find_change(source / GRID_RESULTS):
            raise InputError(f"{source}: {problem}; restore it or train again")
    with new_directory(Path(directory), advice=" or empty it") as copy:
        for file in files:
            target = copy / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        for folder in folders:
            forget_removed(copy / folder.relative_to(source))
        if (copy / GRID_RESULTS).is_file():
            finish_run(copy, GRID_RESULTS, _without_folders(read_or_empty(copy / GRID_RESULTS)))
    size = sum(file.stat().st_size for file in files) / 1e6
    names = ", ".join(sorted({file.name for file in files}))
    print(f"{directory}: {size:.1f} MB, models: {len(folders)}, files: {names}")
    print(f"left out: {listed(_names_left_out(source, files)) or 'nothing'}")
    return Path(directory)


def _files_of_model(folder: Path) -> list[Path]:
    """The files of the model in a folder. InputError if they are damaged, or if no manifest says
    which they are."""
    check_model(str(folder))
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder} has no {MANIFEST}, which says what belongs to the model; copy it by hand"
        )
    names = [*read_or_empty(folder / MANIFEST)["files"], MANIFEST, MODEL_CARD]
    return [folder / name for name in names if (folder / name).is_file()]


def _names_left_out(source: Path, files: set[Path]) -> list[str]:
    """The names of what is not copied if `files` are. A folder of which nothing is copied is named
    in place of its files."""
    copied = {path for file in files for path in (file, *file.parents)}
    left_out = [path for path in source.rglob("*") if path.parent in copied and path not in copied]
    return sorted({path.name for path in left_out if not path.name.startswith(".")})


def _without_folders(content: Any) -> Any:
    """The content of `results.json`, in which the name of a file replaces its path."""
    if isinstance(content, list):
        return [_without_folders(entry) for entry in content]
    if not isinstance(content, dict):
        return name_of_path(content) if isinstance(content, str) else content
    shared = dict[str, Any]()
    for key, value in content.items():
        if key == "file_sha256":
            shared[key] = _name_checksums(value)
        elif key in SETTINGS_OF_FILES and isinstance(value, str):
            shared[key] = _name_of_data(value)
        else:
            shared[key] = _without_folders(value)
    return shared


def _name_of_data(path: str) -> str:
    """The name of a file of data: `file:rows/split.csv` becomes `file:split.csv`. A `column:NAME`
    that says how to split stays."""
    if path.startswith("column:"):
        return path
    prefix = "file:" if path.startswith("file:") else ""
    return prefix + Path(path.removeprefix(prefix)).name


def _name_checksums(checksums: dict[str, str]) -> dict[str, str]:
    """Checksums by the names of files instead of their paths: the second file of a name is called
    `test.csv (2)`."""
    counts = Counter[str]()
    by_name = {}
    for path, checksum in checksums.items():
        name = Path(path).name
        counts[name] += 1
        number = "" if counts[name] == 1 else f" ({counts[name]})"
        by_name[f"{name}{number}"] = checksum
    return by_name
