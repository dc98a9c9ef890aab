"""What a run and its model are, read from the files in their directory; and the model's card, `README.md`."""

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Template

from .storage import MANIFEST, write_text

LOADERS = {  # class of transformers and pipeline tag, by the end of the model's class
    "ForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "question-answering"),
}


def read(path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """The content of a JSON file, or of a file that `parse` reads; {} if there is none or it is damaged."""
    try:
        return parse(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def run_facts(directory: Path) -> dict[str, str]:
    """What is known about a run: its model, data, state and results, by name. Empty if there is no run."""
    config, recipe = read(directory / "config.json"), read(directory / "recipe.yaml", yaml.safe_load)
    result, report = read(directory / "result.json"), read(directory / "results.json")
    facts = _model(directory, config)
    if "evaluation" in result or ("data" in recipe and "task" not in recipe):
        facts |= _pretraining(directory, recipe, result)
    if "settings" in (report or result):
        facts |= _finetuning(report or result, config.get("task") or {})
    elif "task" in recipe:
        finished = len(list(directory.glob("**/seed-*/result.json")))
        facts["state"] = f"not finished: {finished} trainings are done; run the same command again to go on"
    return facts


def write_card(directory: Path) -> None:
    """Writes the card of the model in `directory`. The manifest does not cover it, so it may be edited."""
    config = read(directory / "config.json")
    architecture = (config.get("architectures") or [""])[0]
    loader, pipeline = next((LOADERS[end] for end in LOADERS if architecture.endswith(end)), ("AutoModel", "fill-mask"))
    values = {"family": config.get("model_type"), "chemistry": _molecules(config), "loader": loader}
    values |= {"pipeline": pipeline, "title": f"{architecture}: {directory.resolve().name}"}
    template = Template((files("exlm") / "card.md").read_text(encoding="utf-8"))
    write_text(directory / "README.md", template.render(values, facts=run_facts(directory)))


def _molecules(config: dict[str, Any]) -> bool | None:
    return (config.get("task") or {}).get("molecules", config.get("molecules"))


def _model(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    if not config:
        return {}
    layers, width, size = (config.get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    facts = {"model": f"{config.get('model_type')}, {layers} layers of width {width}, vocabulary of {size} tokens"}
    if config.get("model_type") == "exlm":
        states = f", {config['num_states']} states per mask" if config["objective"] != "mlm" else ""
        facts["objective of pre-training"] = f"{config['objective']}{states}"
        kinds = {True: "molecules (SMILES)", False: "text", None: "not recorded"}
        facts["texts"] = f"{kinds[_molecules(config)]}, standardize {config.get('standardize', 'none')}"
    weights = read(directory / MANIFEST).get("files", {}).get("model.safetensors", {})
    return facts | ({"SHA-256 of the weights": weights["sha256"]} if weights else {})


def _pretraining(directory: Path, recipe: dict[str, Any], result: dict[str, Any]) -> dict[str, str]:
    recipe = result.get("recipe", recipe)
    data, steps = recipe["data"], recipe["train"]["steps"]
    facts = {"corpus": f"{_name(data['corpus'])}, {100 * data['mask_ratio']:g}% of the tokens masked"}
    if "identity" in result:
        facts["SHA-256 of the corpus"] = result["identity"]["corpus"]
    if counts := read(Path(data["corpus"]) / MANIFEST).get("counts"):
        facts["size of the corpus"] = f"{counts['train_examples']:,} sequences, {counts['train_tokens']:,} tokens"
    facts["recipe"] = f"{steps} updates of at most {data['tokens_per_batch']} tokens, seed {recipe['seed']}"
    if held_out := result.get("evaluation"):
        names = ("accuracy", "perplexity", "joint_perplexity")
        facts["held-out masked tokens"] = _scores({name: held_out.get(name) for name in names})
        return facts | {"state": f"finished in {result['training_seconds']:.0f} s"}
    log = directory / "log.jsonl"
    logged = re.findall(r'^{"step": (\d+)', log.read_text() if log.exists() else "", re.MULTILINE)
    done = max(map(int, logged), default=0)
    return facts | {"state": f"not finished: {done} of {steps} updates are logged; run the same command to go on"}


def _finetuning(result: dict[str, Any], saved: dict[str, Any]) -> dict[str, str]:
    """The facts of one seed (`result.json`) or of all (`results.json`). `saved` is the task in the configuration."""
    settings, first = result["settings"], result.get("runs", [result])[0]
    task = settings["task"] | {name: saved[name] for name in ("task_type", "label_columns") if saved.get(name)}
    labels = f" of {', '.join(task['label_columns'])}" if task.get("label_columns") else ""
    parts = ", ".join(f"{rows} {name}" for name, rows in first.get("split", {}).items())
    facts = {
        "task": f"{task.get('task_type') or 'inferred from the labels'}{labels}",
        "data": f"{_name(task['dataset'])}, split {task.get('split') or 'of the data set'} ({parts})",
        "SHA-256 of the data": settings.get("data_sha256", "not recorded"),
    }
    if "model" in settings:
        facts["fine-tuned from"] = f"{_name(settings['model'])} (SHA-256 {settings.get('model_sha256')})"
    else:
        facts["baseline"] = settings["baseline"]
    if "runs" not in result:
        return facts | {f"{split}, seed {result['seed']}": _scores(found) for split, found in first["scores"].items()}
    for split in ("valid", "test"):
        if found := result.get(split, {}).get(result["metric"]):
            spread = _scores({name: found[name] for name in ("median", "min", "max")})
            facts[split] = f"{result['metric']} of {len(result['seeds'])} seeds: {spread}"
    return facts | {"state": "finished"}


def _scores(found: dict[str, Any]) -> str:
    """Names with numbers; those that are not defined (null in JSON) are left out."""
    return ", ".join(f"{name} {value:.4f}" for name, value in found.items() if isinstance(value, int | float))


def _name(path_or_name: str) -> str:
    """The last part of a path, so that a published card says nothing about its author's folders; or a hub name."""
    return Path(path_or_name).name if Path(path_or_name).exists() else path_or_name
