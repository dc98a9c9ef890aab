"""What a directory is, read from the files in it: printed by `exlm info`, and in the model's card, `README.md`."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Template
from tokenizers import Tokenizer

from .data.corpus import Corpus
from .data.prepare import describe
from .data.tokenization import splits_residues
from .errors import InputError
from .storage import MANIFEST, read, write_text
from .train.tracking import read_log

PIPELINES = {  # by the end of the name of the model's class
    "ForMaskedLM": "fill-mask",
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
        text = f"corpus of {sources}\nSHA-256: {manifest['corpus_hash']}\n{describe(manifest, path)}"
    else:
        text = run_facts(Path(path))
    if not text:
        raise InputError(f"{path} is neither a corpus nor a model nor a run; give the output of an exlm command")
    print(text)
    return text


def run_facts(directory: Path) -> str:
    """What is known about a run, one fact per line: its model, data, state and results. Empty if there is no run."""
    config, recipe, result = (read(directory / name) for name in ("config.json", "recipe.yaml", "result.json"))
    recipe, tokenizer = result.get("recipe", recipe), directory / "tokenizer.json"
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
        weights=read(directory / MANIFEST).get("files", {}).get("model.safetensors", {}).get("sha256"),
        corpora=[read(Path(path) / MANIFEST) for path in corpora],
        logged=max((record["step"] for record in read_log(directory / "log.jsonl")), default=0),
        trainings=len(list(directory.glob("**/seed-*/result.json"))),
        names=", ".join(map(_name, corpora)),
        name=_name,
    ).strip()


def write_card(directory: Path) -> None:
    """Writes the card of the model in `directory`. The manifest does not cover it, so it may be edited."""
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
        facts=run_facts(directory),
    )
    write_text(directory / "README.md", text)


def _render(template: str, **values: Any) -> str:
    return Template((files("exlm") / template).read_text(encoding="utf-8")).render(values)


def _name(path_or_name: str) -> str:
    """The last part of a path, so that a published card says nothing about its author's folders; or a hub name."""
    return Path(path_or_name).name if Path(path_or_name).exists() else path_or_name
