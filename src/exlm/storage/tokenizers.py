"""Tokenizers in directories and on the Hugging Face hub.

The commands of this library leave out the spaces around a text before they call a tokenizer; other
tools do not. So `save_tokenizer` writes one that leaves them out by itself: if it does not yet do
so, as BERT's does, it gets STRIP as its first step. `load_fast_tokenizer` takes the step away, so
that a tokenizer is the same after any number of saves (`tokenizer_hash`)."""

import hashlib
import json
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from tokenizers import Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError, first_line
from exlm.storage.files import write_text
from exlm.storage.shipped import model_path

# a normalizer, as tokenizer.json has it
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}


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


def load_fast_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A fast tokenizer from a directory or the Hugging Face hub, as it is; InputError if there is
    none."""
    name = model_path(name)
    try:
        check_exists(name)
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


def save_tokenizer(
    directory: Path, tokenizer: PreTrainedTokenizerFast, max_length: int | None = None
) -> None:
    """Writes a tokenizer that leaves out the spaces around a text, and neither cuts nor pads,
    however it was called before. `max_length`, if given, is its `model_max_length`."""
    tokenizer = deepcopy(tokenizer)  # that of the caller stays as it is
    if max_length is not None:
        tokenizer.model_max_length = max_length
    ignores_ends = tokenizer(" C ")["input_ids"] == tokenizer("C")["input_ids"]
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(directory)
    if not ignores_ends:
        definition = _define_with_stripping(tokenizer.backend_tokenizer)
        text = json.dumps(definition, indent=2, ensure_ascii=False)
        write_text(directory / "tokenizer.json", text)


def _define_with_stripping(tokenizer: Tokenizer) -> dict[str, Any]:
    """The definition of the tokenizer, with STRIP as its first step. A normalizer gets each stretch
    between special tokens by itself, and would strip the space after a mask, which belongs to the
    next word. If the tokens are called normalized, it gets the whole text. They are called so
    unless the other steps would change them, as in an alphabet, whose texts have no spaces."""
    definition = json.loads(tokenizer.to_str())
    special_tokens = _special_tokens(definition)
    steps = [step for step in (STRIP, definition["normalizer"]) if step]
    normalizer = tokenizer.normalizer or normalizers.Strip()
    contents = [token["content"] for token in special_tokens]
    if [normalizer.normalize_str(content) for content in contents] == contents:
        for token in special_tokens:
            token["normalized"] = True
    return {**definition, "normalizer": {"type": "Sequence", "normalizers": steps}}


def _without_stripping(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer whose definition got STRIP by `_define_with_stripping`; or this one, if it has
    another origin."""
    definition = json.loads(tokenizer.to_str())
    first_step, *other_steps = (definition["normalizer"] or {}).get("normalizers") or [None]
    if first_step != STRIP or len(other_steps) > 1:
        return tokenizer
    for token in _special_tokens(definition):
        token["normalized"] = False
    definition["normalizer"] = other_steps[0] if other_steps else None
    return Tokenizer.from_str(json.dumps(definition))


def _special_tokens(definition: dict[str, Any]) -> list[dict[str, Any]]:
    return [token for token in definition["added_tokens"] if token["special"]]


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 of the tokenizer's definition without padding and truncation, in hexadecimal."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition["padding"] = definition["truncation"] = None
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def check_exists(name: str) -> None:
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
