"""Models in directories: Hugging Face format, verified by a manifest of SHA-256 sums."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import LARGE_INTEGER

from exlm.errors import InputError, first_line
from exlm.storage.files import RECIPE, sha256, write_json
from exlm.storage.manifest import MANIFEST, damage, write_manifest
from exlm.storage.shipped import model_path, shipped_models
from exlm.storage.tokenizers import load_tokenizer, save_tokenizer, tokenizer_hash

if TYPE_CHECKING:
    # These import PyTorch, which takes seconds; what is wrong in an input is often said before.
    from transformers import PreTrainedConfig, PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")
LONGEST_TEXT = 512  # in tokens, where nothing else is said

# What the library sentence-transformers reads, by file, so that its vectors are those of
# `ExLMModel.embedding`.
SENTENCE_TRANSFORMERS = Path(__file__).with_name("sentence_transformers.json")


def save_model(
    directory: Path, network: "PreTrainedModel", tokenizer: PreTrainedTokenizerFast, **facts: Any
) -> None:
    """Writes `network` and `tokenizer` so that `AutoModel...from_pretrained(directory)` loads them,
    and the manifest with `facts` in it. `model_max_length` of the saved tokenizer is the longest
    text of the task that the model was tuned for, or LONGEST_TEXT. All files are moved into place
    when they are complete, the manifest last. They get the permissions of any new file (safetensors
    would let the owner alone read the weights)."""
    directory.mkdir(parents=True, exist_ok=True)
    for killed_save in directory.glob(".partial-model-*"):
        shutil.rmtree(killed_save, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-model-") as name:
        partial = Path(name)
        max_length = task_entry(network.config).get("max_length", LONGEST_TEXT)
        network.save_pretrained(partial)
        save_tokenizer(partial, tokenizer, max_length)
        if network.config.model_type == "exlm":
            _write_sentence_transformers(partial, network.config.hidden_size, max_length)
        files = [path for path in partial.rglob("*") if path.is_file()]
        write_manifest(partial, files, tokenizer_hash=tokenizer_hash(tokenizer), **facts)
        permissions = (partial / MANIFEST).stat().st_mode
        for path in [*files, partial / MANIFEST]:
            path.chmod(permissions)
            target = directory / path.relative_to(partial)
            target.parent.mkdir(exist_ok=True)
            path.replace(target)


def longest_text(tokenizer: PreTrainedTokenizerFast) -> int:
    """The longest text, in tokens, that the model of this tokenizer is to read: what is saved with
    it, or else LONGEST_TEXT."""
    length = tokenizer.model_max_length
    return length if length < LARGE_INTEGER else LONGEST_TEXT


def _write_sentence_transformers(directory: Path, width: int, max_length: int) -> None:
    contents = json.loads(SENTENCE_TRANSFORMERS.read_text(encoding="utf-8"))
    contents["1_Pooling/config.json"]["embedding_dimension"] = width
    contents["sentence_bert_config.json"]["max_seq_length"] = max_length
    for name, content in contents.items():
        write_json(directory / name, content)


def weight_files(path: str) -> dict[str, str]:
    """The SHA-256 of every file of weights in a model directory, by its name; {} for a model of a
    hub. Results have it as the entry `weight_files`."""
    directory = Path(model_path(path))
    files = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    return {file.name: sha256(file) for file in files}


def weight_hash(path: str) -> str:
    """What identifies the weights in a model directory: the SHA-256 of those of its files."""
    return join_checksums(weight_files(path).values())


def join_checksums(checksums: Iterable[str]) -> str:
    """The SHA-256 of several checksums, one behind the other."""
    return hashlib.sha256("".join(checksums).encode()).hexdigest()


def check_model(path: str) -> None:
    """Raises InputError if `path` is not a model directory, or if a file in it has changed since it
    was written."""
    directory = Path(model_path(path))
    if not directory.exists():
        names = ", ".join(shipped_models())
        raise InputError(
            f"{path} does not exist; give the output of a finished run, or a model of the package "
            f"({names})"
        )
    if not (directory / "config.json").is_file():
        advice = "give the output of a finished run"
        if any(directory.glob("checkpoint-*")) or (directory / RECIPE).is_file():
            advice = (
                "its run is not finished (the same command goes on with it), or it is a baseline, "
                "of which only predict and evaluate know what to do"
            )
        raise InputError(f"{path} is not a model directory (no config.json); {advice}")
    if (directory / MANIFEST).exists() and (reason := damage(directory)):
        raise InputError(f"the model in {path} is damaged: {reason}; restore it or train again")


def load_model(
    path: str, model_class: type[Model], task_layers: int | None = None
) -> tuple[Model, PreTrainedTokenizerFast]:
    """An ExLM and its tokenizer from a local directory, or of the package by name, verified first
    if it has a manifest. A head that it lacks is random. `task_layers` replaces the
    configuration's unless None. InputError if files are damaged or do not match."""
    check_model(path)
    path = model_path(path)
    from transformers import AutoConfig

    tokenizer = load_tokenizer(path)
    try:
        # Code that comes with a model is never run.
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        _check_config(path, config, tokenizer)
        if task_layers is not None:
            config.task_layers = task_layers
        network = model_class.from_pretrained(path, config=config, use_safetensors=True)
        return network, tokenizer
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise InputError(
            f"the model in {path} cannot be loaded: {first_line(error)}; use another"
        ) from error


def _check_config(
    path: str, config: "PreTrainedConfig", tokenizer: PreTrainedTokenizerFast
) -> None:
    """Raises an error if the model in `path` is no ExLM, if `tokenizer` is not its tokenizer, or if
    `config` asks for more memory than the weights on disk can need."""
    if config.model_type != "exlm":
        raise InputError(
            f"{path} holds a {config.model_type} model; give the directory of an ExLM, MLM or CTC"
        )
    check_tokenizer(path, config, tokenizer)
    largest_table = max(config.vocab_size, config.num_hidden_layers * config.intermediate_size)
    bytes_on_disk = sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))
    if config.hidden_size * largest_table > bytes_on_disk:
        raise ValueError("its config.json claims more weights than its files can hold")


def check_tokenizer(
    name: str, config: "PreTrainedConfig", tokenizer: PreTrainedTokenizerFast
) -> None:
    """InputError if a tokenizer has tokens that the model lacks, or not the mask of an ExLM."""
    mask = config.mask_token_id if config.model_type == "exlm" else tokenizer.mask_token_id
    if len(tokenizer) > config.vocab_size or tokenizer.mask_token_id != mask:
        raise InputError(
            f"{name}: the tokenizer has {len(tokenizer)} tokens and the mask "
            f"{tokenizer.mask_token_id}, the model {config.vocab_size} and {mask}; "
            "they do not belong together, restore one of them"
        )


def task_entry(config: "PreTrainedConfig") -> dict[str, Any]:
    """The entry `task` of a configuration, {} if it is none of ours but, say, a string."""
    task = getattr(config, "task", None)
    return task if isinstance(task, dict) else {}
