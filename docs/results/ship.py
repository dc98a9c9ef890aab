"""A finished pre-training as a model of the package: weights rounded to bfloat16, which halves the
file, and read as float32.

    python docs/results/ship.py RUN models/NAME "One line that says what it is."

The card, `models/NAME/README.md`, is written by hand.
"""

import sys
from pathlib import Path

import torch

from exlm import ExLMForMaskedLM
from exlm.storage.manifest import MANIFEST, write_manifest
from exlm.storage.models import load_model, save_model
from exlm.storage.tokenizers import tokenizer_hash


def main(run: str, directory: str, summary: str) -> None:
    network, tokenizer = load_model(run, ExLMForMaskedLM)
    network.bfloat16()
    save_model(Path(directory), network, tokenizer)
    network.config.dtype = torch.float32
    network.config.save_pretrained(directory)
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    weights_and_settings = [path for path in files if path.name not in ("README.md", MANIFEST)]
    facts = {"tokenizer_hash": tokenizer_hash(tokenizer), "summary": summary}
    write_manifest(Path(directory), weights_and_settings, **facts)


if __name__ == "__main__":
    main(*sys.argv[1:])
