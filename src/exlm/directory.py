"""Model directories: Hugging Face format, with the tokenizer, the resolved recipe and a manifest of SHA-256 sums."""

import hashlib
import json
import math
import tempfile
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from . import files
from .data.tokenization import load_tokenizer, tokenizer_hash
from .errors import InputError, first_line

Model = TypeVar("Model", bound=PreTrainedModel)


def plain(value: Any) -> Any:
    """Dataclasses, tuples, paths and NaN as what YAML and JSON can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return str(value) if isinstance(value, Path) else value


def write_yaml(path: Path, content: Any) -> None:
    files.write_text(path, yaml.safe_dump(plain(content), sort_keys=False))


def write_json(path: Path, content: Any) -> None:
    files.write_text(path, json.dumps(plain(content), indent=1, allow_nan=False))


def save_model(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **facts: Any) -> None:
    """Writes `model` and `tokenizer` so that `AutoModel...from_pretrained(directory)` loads them, and the manifest.

    Everything is written beside its place first; the manifest is replaced last.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as name:
        partial = Path(name)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        files.write_manifest(partial, list(partial.iterdir()), tokenizer_hash=tokenizer_hash(tokenizer), **facts)
        for path in sorted(partial.iterdir(), key=lambda p: p.name == files.MANIFEST):
            path.replace(directory / path.name)


def fingerprint(path: str) -> str:
    """SHA-256 of the weights in a model directory."""
    weights = sorted(Path(path).glob("*.safetensors")) or sorted(Path(path).glob("*.bin"))
    return hashlib.sha256("".join(map(files.sha256, weights)).encode()).hexdigest()


def verify(path: str) -> None:
    """Raises InputError if `path` is not a model directory or a file in it is not what was written."""
    directory = Path(path)
    if not (directory / "config.json").is_file():
        raise InputError(f"{path} is not a model directory (no config.json); give the output of a finished run")
    if (directory / files.MANIFEST).exists() and (reason := files.problem(directory)):
        raise InputError(f"the model in {path} is damaged: {reason}; restore it or train again")


def load_model(
    path: str,
    model_class: type[Model],
    changes: dict[str, Any] | None = None,
    from_scratch: bool = False,
) -> tuple[Model, PreTrainedTokenizerFast]:
    """A model and its tokenizer from a local directory, verified first if it has a manifest.

    Args:
        path: a directory that `from_pretrained` can read.
        model_class: the class to load; heads that the directory lacks are initialised from the global generator.
        changes: settings that replace those of the directory.
        from_scratch: take only the configuration and initialise all weights from the global generator.

    Raises:
        InputError: if it is not a model directory, a file is damaged, or model and tokenizer do not fit.
    """
    verify(path)
    tokenizer = load_tokenizer(path)
    try:
        config = AutoConfig.from_pretrained(path)
        config.update(changes or {})
        _check_fit(path, config, tokenizer)
        model = model_class(config) if from_scratch else model_class.from_pretrained(path, config=config)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the model in {path} cannot be loaded: {first_line(error)}") from error
    return model, tokenizer


def _check_fit(path: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> None:
    if len(tokenizer) > config.vocab_size or tokenizer.mask_token_id != config.mask_token_id:
        raise InputError(
            f"the tokenizer in {path} ({len(tokenizer)} tokens, mask {tokenizer.mask_token_id}) is not the model's "
            f"({config.vocab_size} tokens, mask {config.mask_token_id}); restore the tokenizer files"
        )
