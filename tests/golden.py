"""The losses of 50 updates on molecules, text and proteins, recorded in `golden.json` for every
platform.

    python -m tests.golden

adds this platform, or records it anew. That is right after a change that was meant to change the
numbers, and wrong whenever `tests/test_golden.py` fails without one.
"""

import hashlib
import json
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from exlm.data.prepare import prepare
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, PriorSchedule
from exlm.storage.files import read_log
from exlm.storage.machine import machine
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig

FILE = Path(__file__).with_name("golden.json")
STEPS = 50
RINGS = (
    "O",
    "C(=O)O",
    "c1ccccc1",
    "[N+](=O)[O-]",
    "CBr",
    "C1CCCCC1",
    "C(F)(F)F",
    "c1ccncc1",
    "S(=O)(=O)N",
)
WORDS = [
    "the",
    "a",
    "small",
    "old",
    "river",
    "house",
    "bird",
    "sees",
    "crosses",
    "near",
    "under",
    "quiet",
    "green",
    "and",
    "then",
    "slowly",
    "again",
]
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def _digits(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


ROWS = {
    "molecules": (".smi", [f"{'C' * (1 + i // 9)}{RINGS[i % 9]}" for i in range(180)]),
    "text": (
        ".txt",
        [" ".join(WORDS[d % len(WORDS)] for d in _digits(i)[: 8 + i % 9]) for i in range(180)],
    ),
    "proteins": (
        ".fasta",
        [
            f">p{i}\nM{''.join(RESIDUES[d % 20] for d in _digits(i)[: 12 + i % 20])}"
            for i in range(180)
        ],
    ),
}
TOKENIZERS = {"molecules": "smiles", "text": "bpe", "proteins": "protein"}


def platform_name() -> str:
    """What the last digits depend on: processor, instructions, PyTorch, and whether the alignment
    is compiled."""
    processor = machine()["processor"].split(",")[0]
    compiled = "compiled" if find_spec("exlm.ops._alignment") else "not compiled"
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{processor}, {instructions}, torch {torch.__version__}, {compiled}"


def losses(domain: str) -> list[float]:
    """The loss of every update of a tiny ExLM, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as name:
            return _losses(domain, Path(name))
    finally:
        torch.set_num_threads(threads)


def _losses(domain: str, directory: Path) -> list[float]:
    suffix, rows = ROWS[domain]
    source = directory / f"rows{suffix}"
    source.write_text("\n".join(rows) + "\n")
    options = {
        "tokenizer": TOKENIZERS[domain],
        "vocabulary_size": 300,
        "held_out": 0.1,
        "workers": 1,
    }
    prepare([str(source)], str(directory / "corpus"), **options)
    pretrain(
        str(directory / "run"),
        DataConfig(
            str(directory / "corpus"),
            tokens_per_batch=400,
            tokens_per_micro_batch=200,
            eval_sequences=1,
        ),
        ArchitectureConfig(
            num_states=2,
            expanded_layers=1,
            copy_embedding=0.06,
            initializer_range=0.06,
            rotary_base=100.0,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=128,
        ),  # fmt: skip
        LoopConfig(STEPS, OptimizerConfig(1e-3, 5), precision="fp32", log_every=1, save_every=0),
        prior=PriorSchedule(10.0, 3.0),
    )
    return [
        record["exlm_loss"]
        for record in read_log(directory / "run/log.jsonl")
        if record["kind"] == "train"
    ]


if __name__ == "__main__":
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    recorded[platform_name()] = {domain: losses(domain) for domain in ROWS}
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{platform_name()}: recorded in {FILE}")
