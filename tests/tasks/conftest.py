"""Models that are trained once for all tests of this folder."""

import json

import pandas as pd
import pytest
import torch

from exlm.data.tokenization import train_text_tokenizer
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.config import TaskConfig
from exlm.tasks.finetune import finetune
from tests.tasks.tiny_models import LINES, pairs, questions, save_family
from tests.tasks.tuned_models import COLUMNS, FAST, SIZES


@pytest.fixture(scope="session")
def molecules(smiles_file, corpus, tmp_path_factory):
    """A folder with a pre-trained model of molecules and table.csv, which has labels of every
    kind."""
    folder = tmp_path_factory.mktemp("molecules")
    texts = smiles_file.read_text().split()[:120]
    frame = pd.DataFrame({"smiles": texts})
    frame["nitrogen"] = [int("n" in text.lower()) for text in texts]
    frame["ring"] = [int("1" in text) for text in texts]
    frame["element"] = [
        "nitrogen" if "N" in text else "oxygen" if "O" in text else "neither" for text in texts
    ]
    frame["weight"] = [1000.0 + 12.5 * len(text) for text in texts]
    frame["carbons"] = [text.lower().count("c") for text in texts]
    frame.to_csv(folder / "table.csv", index=False)
    tokenizer = load_tokenizer(corpus)
    torch.manual_seed(2)
    save_model(
        folder / "model", ExLMForMaskedLM(ArchitectureConfig(**SIZES).build(tokenizer)), tokenizer
    )
    return folder


@pytest.fixture(scope="session")
def tuned(molecules):
    """A function that fine-tunes on a type of task with two seeds, once, and returns the output
    directory."""

    def run(task_type):
        output = molecules / task_type
        task = TaskConfig(
            str(molecules / "table.csv"),
            label_columns=COLUMNS[task_type],
            task_type=task_type,
            split="random",
        )
        if not output.exists():
            finetune(str(output), str(molecules / "model"), task, FAST, [0, 1])
        return output

    return run


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder with a pre-trained model of text, a table of pairs, and questions."""
    folder = tmp_path_factory.mktemp("texts")
    tokenizer = train_text_tokenizer("bpe", LINES, 300)
    torch.manual_seed(3)
    save_model(
        folder / "model", ExLMForMaskedLM(ArchitectureConfig(**SIZES).build(tokenizer)), tokenizer
    )
    for shift, name in enumerate(("train", "valid")):
        pairs(shift, 24).to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.json").write_text(json.dumps(questions(shift)))
    return folder


@pytest.fixture(scope="session")
def answering(texts):
    """The output directory of two seeds that answer the questions of `texts`."""
    task = TaskConfig(str(texts / "train.json"), str(texts / "valid.json"), max_length=60, stride=8)
    output = texts / "questions"
    finetune(str(output), str(texts / "model"), task, FAST, [0, 1])
    return output


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    return save_family(tmp_path_factory.mktemp("bert"), "bert")
