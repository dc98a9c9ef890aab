"""Describes what is on disk and the installation: `exlm info`, `exlm verify`, `exlm doctor`, and a
model's card."""

import os
import platform
import re
import time
from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from jinja2 import Template
from tokenizers import Tokenizer

from exlm.data.corpus import Corpus
from exlm.data.prepare import describe
from exlm.data.tokenization import splits_residues
from exlm.errors import InputError
from exlm.ops import alignment
from exlm.ops.elementwise import triton_works
from exlm.ops.precision import used_precision
from exlm.storage import MANIFEST, machine, plain, problem, read, write_text
from exlm.train.distributed import device
from exlm.train.tracking import read_log

LIBRARIES = (
    "exlm",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pandas",
    "pyarrow",
    "rdkit",
)
WRITTEN = 2**26  # bytes, to measure the disk
PIPELINES = {  # by the end of the name of the model's class; of all others, fill-mask
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}


def info(path: str) -> str:
    """Prints what a corpus, a model or a run is, what it was made from, and its results.

    Args:
        path: directory of a corpus, a model, a pre-training or a fine-tuning, finished or not."""
    if "format_version" in read(Path(path) / MANIFEST):
        manifest = Corpus(path).manifest
        sources = ", ".join(str(source.get("name", source)) for source in manifest["sources"])
        text = (
            f"corpus of {sources}\nSHA-256: {manifest['corpus_hash']}\n{describe(manifest, path)}"
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
    when it was written.

    Args:
        path: a directory; all directories in it that have a manifest are checked.

    InputError (exit status 2) if anything is wrong, or if nothing can be checked."""
    found = {str(file.parent): problem(file.parent) for file in sorted(Path(path).rglob(MANIFEST))}
    if not found:
        raise InputError(
            f"{path} has no {MANIFEST}, so nothing in it can be checked; give what an exlm command wrote"
        )
    for directory, reason in found.items():
        print(f"{directory}: {reason or 'as it was written'}")
    if damaged := sum(map(bool, found.values())):
        advice = "make them again or copy them from elsewhere (a run goes on from its newest undamaged checkpoint)"
        raise InputError(f"{damaged} of {len(found)} directories are damaged; {advice}")


def doctor(directory: str | None = None) -> dict[str, str]:
    """Prints what a report of a bug should have: versions, processor, device, precision, back ends,
    speed of the disk.

    Args:
        directory: where to write 64 MB, and remove them again, to measure the disk; here where
            absent."""
    directory = os.path.abspath(directory or ".")
    installed = {one.name: one.version for one in distributions()}
    facts = {name: installed.get(name, "not installed") for name in LIBRARIES}
    facts |= {"python": platform.python_version(), "system": platform.platform()}
    facts |= {name: str(value) for name, value in machine().items() if name != "torch"}
    facts["precision auto"] = used_precision(device(), "auto")
    facts["alignment on a CPU"] = (
        "C" if alignment.library() else "PyTorch (the compiled one is not installed)"
    )
    if torch.cuda.is_available():
        facts["alignment on a GPU"] = (
            "Triton" if triton_works() else "PyTorch (Triton does not work here)"
        )
    facts["disk"] = f"{_disk_speed(directory):,.0f} MB/s written to {directory}"
    print("\n".join(f"{name:{max(map(len, facts))}}  {value}" for name, value in facts.items()))
    return facts


def run_facts(directory: Path, result: dict[str, Any] | None = None) -> str:
    """What is known about a run, one fact per line: its model, data, state and results. Empty if
    there is no run."""
    config, recipe, saved = (
        read(directory / name) for name in ("config.json", "recipe.yaml", "result.json")
    )
    result, tokenizer = plain(result or saved), directory / "tokenizer.json"
    recipe = result.get("recipe", recipe)
    named = recipe.get("data", {}).get("corpus", [])
    corpora = [named] if isinstance(named, str) else named
    return _render(
        "facts.md",
        config=config,
        recipe=recipe,
        result=result,
        report=read(directory / "results.json") or result,  # of all seeds, or of one
        texts=config | (config.get("task") or {}),
        proteins=tokenizer.is_file() and splits_residues(Tokenizer.from_file(str(tokenizer))),
        weights=read(directory / MANIFEST)
        .get("files", {})
        .get("model.safetensors", {})
        .get("sha256"),
        corpora=[read(Path(path) / MANIFEST) for path in corpora],
        logged=max((record["step"] for record in read_log(directory / "log.jsonl")), default=0),
        trainings=len(list(directory.glob("**/seed-*/result.json"))),
        names=", ".join(map(_name, corpora)),
        name=_name,
    ).strip()


def write_card(directory: Path, result: dict[str, Any] | None = None) -> None:
    """Writes the card of a model, with a `result` that is not saved yet. As no manifest covers it,
    it may be edited."""
    config = read(directory / "config.json")
    texts = config | (config.get("task") or {})
    architecture = (config.get("architectures") or [""])[0]
    head = "".join(re.findall("For.+", architecture))
    text = _render(
        "card.md",
        title=f"{architecture}: {directory.resolve().name}",
        family=config.get("model_type"),
        chemistry=texts.get("molecules"),
        standardize=str(texts.get("standardize", "none")).removeprefix("none"),
        loader=f"AutoModel{head}",
        pipeline=PIPELINES.get(head, "fill-mask"),
        facts=run_facts(directory, result),
    )
    write_text(directory / "README.md", text)


def _render(template: str, **values: Any) -> str:
    return Template((files("exlm") / template).read_text(encoding="utf-8")).render(values)


def _name(path_or_name: str) -> str:
    """The last part of a path, so that a published card says nothing about its author's folders; or
    a hub name."""
    return Path(path_or_name).name if Path(path_or_name).exists() else path_or_name


def _disk_speed(directory: str) -> float:
    """Megabytes per second, from the first byte to the end of the sync."""
    content, begin = os.urandom(WRITTEN), time.perf_counter()
    with NamedTemporaryFile(dir=directory) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return WRITTEN / 1e6 / (time.perf_counter() - begin)
