"""Makes what `tests/test_stored.py` loads: a tiny corpus, and a model that was trained on it.

    python -m tests.stored.make 2

Run this with every version of exlm whose files differ from those of the version before, with the
next number. Commit the new folder, and never change an older one.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from exlm import ExLMForMaskedLM
from exlm.data.corpus import Corpus
from exlm.data.prepare import prepare
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, PriorSchedule
from exlm.storage.manifest import MANIFEST
from exlm.storage.models import load_model
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig

FOLDER = Path(__file__).parent
TEXT = "C<mask>O"
LINES = [
    f"{'C' * n}{core}"
    for n in range(1, 6)
    for core in ("C(=O)O", "N", "c1ccccc1", "[N+](=O)[O-]", "CBr")
]


def recorded(folder: Path) -> dict[str, Any]:
    """What the files of `folder` mean: the tokens of every example, and the model's logits of a
    text."""
    corpora = {split: Corpus(folder / "corpus", split) for split in ("train", "valid")}
    tokens = {}
    for split, corpus in corpora.items():
        corpus.check_files()
        ids, lengths = corpus.gather(torch.arange(len(corpus)).numpy())
        tokens[split] = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
    model, tokenizer = load_model(str(folder / "model"), ExLMForMaskedLM)
    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.inference_mode():
        logits = model.eval()(**inputs).logits
    return {
        "tokens": tokens,
        "input_ids": inputs["input_ids"].tolist(),
        "logits": logits.double().numpy().round(8).tolist(),
    }


def make(folder: Path) -> None:
    """Writes `folder`, which must not exist: a corpus, a model in float32, and `recorded.json`."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as name:
        rows, run = Path(name, "rows.smi"), Path(name, "run")
        rows.write_text("\n".join(LINES) + "\n")
        prepare([str(rows)], str(folder / "corpus"), held_out=0.2, workers=1)
        pretrain(
            str(run),
            DataConfig(str(folder / "corpus"), tokens_per_batch=200, tokens_per_micro_batch=200),
            ArchitectureConfig(
                num_states=2,
                expanded_layers=1,
                copy_embedding=0.06,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=32,
            ),  # fmt: skip
            LoopConfig(20, OptimizerConfig(1e-2, 2), precision="fp32"),
            prior=PriorSchedule(10.0, 3.0),
        )
        for file in [*json.loads((run / MANIFEST).read_text())["files"], MANIFEST]:
            (folder / "model" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / file, folder / "model" / file)
    (folder / "recorded.json").write_text(json.dumps(recorded(folder)) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version")
    make(FOLDER / parser.parse_args().version)
