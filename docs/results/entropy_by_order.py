"""Entropy by the order of the masks: the scores behind analysis.md on the paper's remark that ExLM
is less uncertain of later masks (appendix "Detailed Case Study").

    python docs/results/entropy_by_order.py CORPUS models/molecules-5M models/molecules-5M-mlm

CORPUS is the one that the models were trained on. The first 2,000 held-out molecules with 12 tokens
or more have 8 masks each. Of each mask, from left to right: the entropy of the prediction in which
all other masks are summed out and, of ExLM, the mean entropy of its states, weighted by the
probability that a path visits them. The script writes entropy-by-order.jsonl.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.expansion import IGNORED
from exlm.paper.measurements import batch_entropies
from exlm.pretrain.held_out import HeldOutData
from exlm.pretrain.settings import DataConfig
from exlm.storage.tokenizers import load_tokenizer

HERE = Path(__file__).parent
MASKS = 8
SEQUENCES = 2000


def by_order(model: ExLMForMaskedLM, held_out: HeldOutData) -> dict[str, np.ndarray]:
    """The entropies, in bits, of every mask of every sequence by name: [sequences, MASKS]."""
    lengths = held_out.repeated_token_counts[held_out.order]
    rows = held_out.order[lengths >= 1.5 * MASKS][:SEQUENCES]
    pieces: dict[str, list[np.ndarray]] = {}
    for batch in held_out.batches(rows, MASKS):
        assert ((batch["labels"] != IGNORED).sum(1) == MASKS).all()
        for name, entropies in batch_entropies(model, batch).items():
            pieces.setdefault(name, []).append(entropies.view(-1, MASKS).numpy())
    return {name: np.concatenate(values) for name, values in pieces.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("exlm")
    parser.add_argument("mlm")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    tokenizer = load_tokenizer(arguments.corpus)
    held_out = HeldOutData(DataConfig(arguments.corpus), tokenizer, seed=0)
    lines = []
    for name, path in {"ExLM": arguments.exlm, "MLM": arguments.mlm}.items():
        model = ExLMForMaskedLM.from_pretrained(path).eval()
        for kind, entropies in by_order(model, held_out).items():
            stderr = entropies.std(0) / np.sqrt(len(entropies))
            lines.append(
                {
                    "model": name,
                    "of": kind,
                    "sequences": len(entropies),
                    "bits": entropies.mean(0).round(4).tolist(),
                    "stderr": stderr.round(4).tolist(),
                }
            )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (HERE / "entropy-by-order.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
