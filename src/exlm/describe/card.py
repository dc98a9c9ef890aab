"""What is known about a run, and the card of a model (`README.md` in its directory)."""

import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from exlm.data.columns import in_one_line
from exlm.data.corpus import hash_of_corpora
from exlm.data.tokenization import ALPHABETS, alphabet_name
from exlm.identity import describe_changes
from exlm.storage.files import (
    GRID_RESULTS,
    MODEL_CARD,
    RECIPE,
    RUN_RESULT,
    TRAINING_LOG,
    name_of_path,
    read_log,
    read_or_empty,
    to_json_types,
    write_text,
)
from exlm.storage.manifest import MANIFEST
from exlm.storage.templates import render

FACTS = Path(__file__).with_name("facts.md")
CARD = Path(__file__).with_name("card.md")
# The pipelines of the Hugging Face hub by the end of the name of a model's class
PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}


def run_facts(directory: Path, result: dict[str, Any] | None = None) -> str:
    """What is known about a run, one fact per line: its model, data, state and results. Empty if
    there is no run. `result` replaces a `result.json` that is not written yet."""
    config = read_or_empty(directory / "config.json")
    result = to_json_types(result or read_or_empty(directory / RUN_RESULT, "recipe"))
    recipe = result.get("recipe") or read_or_empty(directory / RECIPE, "data", "task")
    corpus_paths = recipe.get("data", {}).get("corpus", [])
    if isinstance(corpus_paths, str):
        corpus_paths = [corpus_paths]
    corpora = [read_or_empty(Path(path) / MANIFEST) for path in corpus_paths]
    files = read_or_empty(directory / MANIFEST, "files").get("files", {})
    weights = files.get("model.safetensors") or files.get("model.onnx", {})
    tokenizer = directory / "tokenizer.json"
    alphabet = alphabet_name(Tokenizer.from_file(str(tokenizer))) if tokenizer.is_file() else None
    log = read_log(directory / TRAINING_LOG)
    return render(
        FACTS,
        config=config,
        recipe=recipe,
        result=result,
        # The directory of a seed has the result of this seed alone.
        results=read_or_empty(directory / GRID_RESULTS) or result,
        saved_task=_task_entries(config),
        alphabet=ALPHABETS[alphabet].texts if alphabet else None,
        weights_sha256=weights.get("sha256"),
        corpora=corpora,
        is_other_corpus=_corpus_was_replaced(directory, result, corpora),
        corpus_names=", ".join(map(name_of_path, corpus_paths)),
        last_step=max((line["step"] for line in log), default=0),
        trainings=len(list(directory.glob("**/seed-*/result.json"))),
        changes=describe_changes(result.get("changed", [])),
        name_of=name_of_path,
        in_one_line=in_one_line,
    ).strip()


def write_card(directory: Path, result: dict[str, Any] | None = None) -> None:
    """Writes the card of a model, which may be edited, as no manifest has it. `result` replaces a
    `result.json` that is not written yet."""
    config = read_or_empty(directory / "config.json")
    saved_task = _task_entries(config)
    architecture = (config.get("architectures") or [""])[0]
    head = re.search("For[A-Z].+", architecture)
    head_name = head.group() if head else ""
    standardize = str(saved_task.get("standardize", "none"))
    text = render(
        CARD,
        title=f"{architecture}: {directory.resolve().name}",
        family=config.get("model_type"),
        license=_read_license(directory, is_finetuned="task" in config),
        chemistry=saved_task.get("molecules"),
        standardize="" if standardize == "none" else standardize,
        loader=f"AutoModel{head_name}",
        pipeline=PIPELINES.get(head_name, "fill-mask"),
        facts=run_facts(directory, result),
        seeds=read_or_empty(directory / GRID_RESULTS).get("seeds", []),
    )
    write_text(directory / MODEL_CARD, text)


def _read_license(directory: Path, is_finetuned: bool) -> str | None:
    """The licence of a model's weights, as its recipe names it. The recipe of a fine-tuning is
    beside the folders of its grid cells and seeds."""
    parents = [directory.parent, directory.parent.parent] if is_finetuned else []
    licenses = [read_or_empty(folder / RECIPE).get("license") for folder in [directory, *parents]]
    return next(filter(None, licenses), None)


def _corpus_was_replaced(
    directory: Path, result: dict[str, Any], corpora: list[dict[str, Any]]
) -> bool:
    """Whether the corpora with these manifests are others than the run or its checkpoints recorded;
    False where nothing is recorded, or a corpus is not there."""
    states = [read_or_empty(path) for path in directory.glob("checkpoint-*/state.json")]
    identities = [record.get("identity") or {} for record in (result, *states)]
    hashes = [identity["corpus"] for identity in identities if "corpus" in identity]
    if not hashes or not all("corpus_hash" in manifest for manifest in corpora):
        return False
    return hash_of_corpora(corpora) not in hashes


def _task_entries(config: dict[str, Any]) -> dict[str, Any]:
    """The entries of a model's `config.json`, and on top of them what a fine-tuned model saved of
    its task."""
    task = config.get("task")  # Other libraries may write a string there.
    return config | task if isinstance(task, dict) else config
