"""Models and tokenizers in directories: Hugging Face format, verified by a manifest of SHA-256
sums."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import LARGE_INTEGER

from exlm.errors import InputError, first_line
from exlm.storage.files import sha256, write_json, write_text
from exlm.storage.manifest import MANIFEST, damage, write_manifest
from exlm.storage.shipped import model_path, shipped_models

if TYPE_CHECKING:
    # These import PyTorch, which takes seconds; what is wrong in an input is often said before.
    from transformers import PreTrainedConfig, PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")
LONGEST_TEXT = 512  # in tokens, where nothing else is said
# a normalizer, as tokenizer.json has it
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}

# What the library sentence-transformers reads, by file, so that its vectors are those of
# `ExLMModel.embedding`.
SENTENCE_TRANSFORMERS = resources.files("exlm.storage") / "sentence_transformers.json"


def save_model(
    directory: Path, model: "PreTrainedModel", tokenizer: PreTrainedTokenizerFast, **facts: Any
) -> None:
    """Writes `model` and `tokenizer` so that `AutoModel...from_pretrained(directory)` loads them,
    and the manifest with `facts` in it. `model_max_length` of the tokenizer becomes the longest
    text of the task that the model was tuned for, or LONGEST_TEXT. All files are moved into place
    when they are complete, the manifest last. They get the permissions of any new file (safetensors
    would let the owner alone read the weights)."""
    directory.mkdir(parents=True, exist_ok=True)
    for killed_save in directory.glob(".partial-model-*"):
        shutil.rmtree(killed_save, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-model-") as name:
        partial = Path(name)
        task = getattr(model.config, "task", None) or {}
        tokenizer.model_max_length = task.get("max_length", LONGEST_TEXT)
        with without_reports():
            model.save_pretrained(partial)
        save_tokenizer(partial, tokenizer)
        if model.config.model_type == "exlm":
            width = model.config.hidden_size
            _write_sentence_transformers(partial, width, tokenizer.model_max_length)
        files = [path for path in partial.rglob("*") if path.is_file()]
        write_manifest(partial, files, tokenizer_hash=tokenizer_hash(tokenizer), **facts)
        permissions = (partial / MANIFEST).stat().st_mode
        for path in [*files, partial / MANIFEST]:
            target = directory / path.relative_to(partial)
            target.parent.mkdir(exist_ok=True)
            path.chmod(permissions)
            path.replace(target)


def save_tokenizer(directory: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes a tokenizer for other tools, which give it texts as they are: it leaves out the spaces
    around a text, as the commands of this library do before they call one, and it neither cuts nor
    pads, however it was called before. `load_fast_tokenizer` takes the first back."""
    ignores_ends = tokenizer(" C ")["input_ids"] == tokenizer("C")["input_ids"]
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(directory)
    if ignores_ends:
        return
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    steps = [step for step in (STRIP, definition["normalizer"]) if step]
    definition["normalizer"] = {"type": "Sequence", "normalizers": steps}
    # A normalizer gets the pieces between the tokens that are not called normalized. All are, so
    # that it gets the whole text: the space behind a mask belongs to the next word. Only those of
    # an alphabet are not, which would get capital letters.
    if not _capitalizes(tokenizer.backend_tokenizer, tokenizer.all_special_tokens):
        for token in definition["added_tokens"]:
            token["normalized"] |= token["special"]
    write_text(directory / "tokenizer.json", json.dumps(definition, indent=2, ensure_ascii=False))


def _capitalizes(tokenizer: Tokenizer, words: list[str]) -> bool:
    """Whether the normalizer changes the case of these words and no more."""
    if tokenizer.normalizer is None:
        return False
    normalized = [tokenizer.normalizer.normalize_str(word) for word in words]
    return normalized != words and normalized == [word.upper() for word in words]


def _without_stripping(tokenizer: Tokenizer) -> Tokenizer:
    """Takes back what `save_tokenizer` changed, so that this is the tokenizer of the corpus again
    (`tokenizer_hash`)."""
    definition = json.loads(tokenizer.to_str())
    special_tokens = [token for token in definition["added_tokens"] if token["special"]]
    first, *others = (definition["normalizer"] or {}).get("normalizers") or [None]
    strips = first == STRIP and len(others) < 2
    are_normalized = all(token["normalized"] for token in special_tokens)
    names = [token["content"] for token in special_tokens]
    if not strips or not (are_normalized or _capitalizes(tokenizer, names)):
        return tokenizer
    definition["normalizer"] = others[0] if others else None
    for token in special_tokens:
        token["normalized"] = False
    return Tokenizer.from_str(json.dumps(definition))


def longest_text(tokenizer: PreTrainedTokenizerFast) -> int:
    """The longest text, in tokens, that the model of this tokenizer is to read: what is saved with
    it; LONGEST_TEXT for models of earlier versions, which saved nothing."""
    length = tokenizer.model_max_length
    return length if length < LARGE_INTEGER else LONGEST_TEXT


def _write_sentence_transformers(directory: Path, width: int, max_length: int) -> None:
    contents = json.loads(SENTENCE_TRANSFORMERS.read_text(encoding="utf-8"))
    contents["1_Pooling/config.json"]["embedding_dimension"] = width
    contents["sentence_bert_config.json"]["max_seq_length"] = max_length
    for name, content in contents.items():
        write_json(directory / name, content)


def weight_hash(path: str) -> str:
    """SHA-256 of the weights in a model directory."""
    directory = Path(model_path(path))
    weights = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    return hashlib.sha256("".join(map(sha256, weights)).encode()).hexdigest()


def verify(path: str) -> None:
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
        if any(directory.glob("checkpoint-*")) or (directory / "recipe.yaml").is_file():
            advice = (
                "its run is not finished (the same command goes on with it), or it is a baseline, "
                "of which only predict and evaluate know what to do"
            )
        raise InputError(f"{path} is not a model directory (no config.json); {advice}")
    if (directory / MANIFEST).exists() and (reason := damage(directory)):
        raise InputError(f"the model in {path} is damaged: {reason}; restore it or train again")


@contextmanager
def without_reports() -> Iterator[None]:
    """Inside, transformers neither reports a new head, which is as it should be, nor shows a bar
    for the moment in which weights of this library are read or written."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    had_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def load_model(
    path: str, model_class: type[Model], read_layers: int | None = None
) -> tuple[Model, PreTrainedTokenizerFast]:
    """An ExLM and its tokenizer from a local directory, or of the package by name, verified first
    if it has a manifest. A head that it lacks is random. `read_layers` replaces the
    configuration's unless None. InputError if files are damaged or do not match."""
    verify(path)
    path = model_path(path)
    from transformers import AutoConfig

    tokenizer = load_tokenizer(path)
    try:
        # Code that comes with a model is never run.
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        _check_model(path, config, tokenizer)
        if read_layers is not None:
            config.task_layers = read_layers
        with without_reports():
            model = model_class.from_pretrained(path, config=config, use_safetensors=True)
        return model, tokenizer
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise InputError(
            f"the model in {path} cannot be loaded: {first_line(error)}; use another"
        ) from error


def _check_model(path: str, config: "PreTrainedConfig", tokenizer: PreTrainedTokenizerFast) -> None:
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


def load_tokenizer(path_or_name: str | Path) -> PreTrainedTokenizerFast:
    """A fast tokenizer from a directory or the Hugging Face hub, with `bos`, `eos`, `pad` and
    `mask` tokens. `cls` and `sep` serve for missing `bos` and `eos` (as for BERT). InputError
    without such a tokenizer or another token."""
    tokenizer = load_fast_tokenizer(str(path_or_name))
    tokenizer.bos_token = tokenizer.bos_token or tokenizer.cls_token
    tokenizer.eos_token = tokenizer.eos_token or tokenizer.sep_token
    required = ("bos", "eos", "pad", "mask")
    missing = [name for name in required if getattr(tokenizer, f"{name}_token_id") is None]
    if missing:
        raise InputError(
            f"the tokenizer {path_or_name} has no {' and no '.join(missing)} token; "
            "add it with tokenizer.add_special_tokens and save the tokenizer again"
        )
    return tokenizer


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 of the tokenizer's definition without padding and truncation, in hexadecimal."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition["padding"] = definition["truncation"] = None
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def load_fast_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A fast tokenizer from a directory or the Hugging Face hub, as it is; InputError if there is
    none."""
    name = model_path(name)
    try:
        check_name(name)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    # Damaged tokenizers raise anything, even a bare Exception.
    except Exception as error:
        raise InputError(
            f"no tokenizer could be loaded from {name} ({first_line(error).rstrip('.')}); "
            "give a directory saved with save_pretrained, or a hub name"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(
            f"the tokenizer {name} has no fast version (tokenizer.json); "
            "convert it to a fast one first"
        )
    tokenizer._tokenizer = _without_stripping(tokenizer.backend_tokenizer)
    return tokenizer


def check_name(name: str) -> None:
    """OSError unless `name` is a path that exists, or a model that the Hugging Face hub or its
    local cache has. The hub is asked once and for a few seconds. Without a network, transformers
    would try again for half a minute."""
    if Path(name).exists():
        return
    files = ("config.json", "tokenizer_config.json", "tokenizer.json")
    try:
        if not any(isinstance(try_to_load_from_cache(name, file), str) for file in files):
            # A repository may hold a tokenizer alone.
            with suppress(EntryNotFoundError):
                get_hf_file_metadata(hf_hub_url(name, files[0]), timeout=5)
    # The hub may not allow the name, not be reached, not have the model or not let us read it.
    except Exception as error:
        raise OSError(
            f"no such directory, and not found on the hub: {first_line(error)}"
        ) from error
