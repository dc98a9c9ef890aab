"""docs/results: the scripts that train and probe still run with the package as it is."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "results"))
import learning  # noqa: E402  (it lies beside the results, not in the package)
import linear_probe  # noqa: E402
import pairs  # noqa: E402

from exlm.data.corpus import Corpus  # noqa: E402
from exlm.storage.models import load_tokenizer  # noqa: E402

SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
JOB = {"name": "small-s0", "steps": 2, "warmup": 1, "seed": 0, "p": 0.387, "eval_every": 1}
JOB |= {"prior": {"order": 10.0, "sticky": 3.0}, "model": {**SMALL, "expanded_layers": 1}}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """The scripts give a process of their own one thread."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_pair_is_trained_and_probed(corpus, smiles_file, tmp_path):
    result = pairs.train(JOB, {"molecules": str(corpus)}, tmp_path / "model")
    assert [point["step"] for point in result["curve"]] == [1, 2]
    assert all(0 < point["joint_nll"] < 10 for point in result["curve"])
    molecules = smiles_file.read_text().split()
    rows = [f"{molecule},{len(molecule) / 10}" for molecule in molecules[:100]]
    (tmp_path / "freesolv.csv").write_text("\n".join(["smiles,freesolv", *rows]))
    models, layers = [str(tmp_path / "model")], [1, 4]
    done = {("freesolv", models[0], 4, "mean_max")}
    [probe] = linear_probe.lines("freesolv", models, layers, "mean_max", str(tmp_path), done)
    assert probe["layers"] == 1 and 0 < probe["test"] < 1  # labels are lengths, up to 5


def test_a_job_of_learning_is_trained_and_scored(corpus, tmp_path):
    job = {**JOB, "one_mask_in_a_tenth": True}
    result = learning.trained(job, {"molecules": str(corpus)}, tmp_path)
    assert [point["step"] for point in result["curve"]] == [1, 2]
    assert set(result["evaluation"]) == {"0.15", "0.387"}
    assert not list((tmp_path / "small-s0").glob("checkpoint-*"))


def test_a_tenth_of_the_sequences_has_one_mask_whatever_their_shares(corpus):
    source, examples = Corpus(str(corpus), "train"), np.arange(200)
    tokens, token_counts = source.gather(examples)
    batch = learning.one_mask_in_a_tenth(
        token_ids=tokens,
        token_counts=token_counts,
        example_numbers=examples,
        tokenizer=load_tokenizer(str(corpus)),
        seed=0,
        epoch=0,
        ratio=(0.5, 0.9),
    )
    masks = (batch["labels"] != -100).sum(1)
    long = torch.from_numpy(token_counts >= 8)
    assert 0.05 < (masks[long] == 1).float().mean() < 0.16
    assert (masks[long & (masks != 1)] >= 4).all()
