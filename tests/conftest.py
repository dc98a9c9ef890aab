"""Shared fixtures: a few molecules, a tiny corpus, a tiny model, and the place of the real data."""

import gc
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import rdkit.RDConfig  # noqa: F401
import sklearn  # noqa: F401  these two set variables of the environment when they are first imported
import torch

if not torch.cuda.is_available():  # the interpreter has to be on before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

from transformers import PreTrainedTokenizerFast

from exlm import ExLMConfig
from exlm.data.frames import read_file
from exlm.data.prepare import prepare
from exlm.data.tokenization import SMILES_PATTERN, smiles_tokenizer
from exlm.ops import precision
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.labels import scores
from tests.processors import RoundedProducts

# The libraries hold a million objects that stay: to search these for garbage again and again takes
# a tenth of the time.
gc.freeze()
gc.set_threshold(20_000, 20, 20)
# No file of a test has to survive a power cut: to wait for the disk takes a tenth of the time, too.
os.fsync = lambda handle: None

# variables of the environment that pytest, and PyTorch's compiler on a GPU, set for themselves
OTHERS = ("PYTEST_", "TORCHINDUCTOR_", "TORCH_WARM_POOL", "TRITON_")

MOLECULES = [  # each stays a molecule with an alkyl chain in front
    "CCO",
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "C[C@H](N)C(=O)O",
    "C(Cl)(Cl)Cl",
    "c1ccc2c(c1)cccc2",
    "CC(C)Cc1ccc(cc1)[C@@H](C)C(=O)O",
    "c1ccccc1[N+](=O)[O-]",
    "C(Br)CBr",
    "C(F)(F)c1ccncc1",
    "CS(=O)(=O)N",
    "C1CCCCC1",
    "NCCc1ccc(O)c(O)c1",
    "CC(=O)Nc1ccc(O)cc1",
    "OC[C@H]1OC(O)[C@H](O)[C@@H](O)[C@@H]1O",
]


class Crash(Exception):
    """Stands for a process that ends without a word."""


def crash() -> None:
    raise Crash


def flip_a_bit(path: Path) -> None:
    """As a bad disk does."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def read_frame(path: str | Path, header: bool = True, sheet: str | None = None) -> pd.DataFrame:
    """The rows of a file, also those that must not be used."""
    return read_file(path, header, sheet).frame


def train_smiles_tokenizer(rows: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is every token of the rows."""
    return smiles_tokenizer(
        Counter(token for row in rows for token in re.findall(SMILES_PATTERN, row))
    )


@pytest.fixture(autouse=True)
def _quick_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval at the end of a fine-tuning, which takes longer than to train a tiny model."""
    monkeypatch.setattr(scores, "QUICK_RESAMPLES", 10)
    monkeypatch.setattr(scores, "LEAST_QUICK_RESAMPLES", 10)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def process_settings() -> dict[str, object]:
    """What holds for a whole process and is its user's to decide."""
    return {
        "precision of float32 products": torch.get_float32_matmul_precision(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic CuDNN": torch.backends.cudnn.deterministic,
        "benchmarking of CuDNN": torch.backends.cudnn.benchmark,
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "environment": {
            name: value for name, value in os.environ.items() if not name.startswith(OTHERS)
        },
    }


@pytest.fixture(autouse=True)
def _nothing_left_changed(_seed: None) -> Iterator[None]:
    """The library leaves no process-wide setting changed behind it."""
    before = process_settings()
    yield
    changed = [name for name, value in process_settings().items() if value != before[name]]
    torch.set_float32_matmul_precision(str(before["precision of float32 products"]))
    assert not changed, f"left changed behind the test: {', '.join(changed)}"


@pytest.fixture
def rounding_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[RoundedProducts]:
    """The process allows fast products, on a processor where they have bfloat16 operands."""
    monkeypatch.setattr(
        precision, "_medium_is_exact", cache(precision._medium_is_exact.__wrapped__)
    )
    with RoundedProducts() as mode, precision.matmul_precision("medium"):
        yield mode


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data, or a skip that says how to get them."""
    path = Path(os.environ.get("EXLM_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"real data are not at {path}; set EXLM_DATA")
    return path


@pytest.fixture(scope="session")
def reference() -> Path:
    """The recorded case of the authors' implementation."""
    base = Path(os.environ.get("EXLM_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = base.parent / "reference" / "exlm_tiny_k3.npz"
    if not path.is_file():
        pytest.skip(
            f"the recorded case is not at {path}; set EXLM_DATA to the data folder beside it"
        )
    return path


@pytest.fixture(scope="session")
def smiles_file(tmp_path_factory) -> Path:
    """300 distinct small molecules, alkyl chains hung on a few cores."""
    path = tmp_path_factory.mktemp("smiles") / "molecules.smi"
    lines = [f"{'C' * n}{core}" for n in range(1, 21) for core in MOLECULES]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def corpus(smiles_file) -> Path:
    """A prepared corpus of `smiles_file`."""
    path = smiles_file.parent / "corpus"
    prepare([str(smiles_file)], str(path), held_out=0.1, workers=1)
    return path


@pytest.fixture
def tokenizer(corpus) -> PreTrainedTokenizerFast:
    return load_tokenizer(corpus)


@pytest.fixture
def tiny_config():
    """A function that builds a small configuration with the given switches."""

    def build(**switches) -> ExLMConfig:
        sizes = dict(
            vocab_size=30,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
        )
        return ExLMConfig(
            **{
                **sizes,
                "mask_token_id": 29,
                "num_states": 3,
                "max_position_embeddings": 64,
                **switches,
            }
        )

    return build


@pytest.fixture
def tiny_batch() -> dict[str, torch.Tensor]:
    """Four sequences of different length; one without a mask, one fully masked."""
    rows = [[0, 5, 29, 7, 29, 29, 2], [0, 29, 29, 2], [0, 8, 9, 2], [0, 4, 29, 6, 2]]
    answers = {(0, 2): 6, (0, 4): 8, (0, 5): 9, (1, 1): 10, (1, 2): 11, (3, 2): 5}
    ids = torch.full((4, 7), 1)
    labels = torch.full((4, 7), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    for place, token in answers.items():
        labels[place] = token
    return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": labels}
