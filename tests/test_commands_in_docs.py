"""Every `exlm` command of README.md and docs/*.md runs, one after another, in one directory with
tiny data.

Bash reads the blocks, so loops and quotes mean what they mean to a reader. The programs in them are
stand-ins: that of `exlm` writes its arguments down, and the test then runs them in this process,
because to start Python takes seconds.
"""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from examples.public_tables import molecules

from exlm_command import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = {  # programs in the blocks that are not run here, with the reason
    "make": "installs a virtual environment; the other tests do what it does",
    "pip": "installs packages",
    "torchrun": "needs several processes; tests/train/test_pretrain.py runs two",
    "python": "a benchmark takes minutes; tests/test_cost.py covers them",
}

TINY_DATA = ["--tokens_per_batch", "2048", "--tokens_per_micro_batch", "2048"]
TINY_DATA += ["--eval_sequences", "8"]
TINY_MODEL = ["--hidden_size", "16", "--num_hidden_layers", "2", "--num_attention_heads", "2"]
TINY_MODEL += ["--intermediate_size", "16"]
TINY_RUN = ["--train.steps", "2", "--warmup_steps", "1", "--eval_every", "0", "--save_every", "0"]
TINY_RUN += ["--train.precision", "fp32"]
TINY_EXPERIMENT = ["--tasks", "null", "--cost_steps", "1", "--own_processes", "false"]
TINY_EXPERIMENT += ["--space.states", "2", "--space.sweep_mask_ratios", "0.15"]
TINY_EXPERIMENT += ["--space.cells", "[[0.15, 1], [0.387, 2]]"]
TINY = {  # options that make a command take a second, behind those of its line
    "prepare": ["--workers", "1", "--held_out", "0.1"],
    "pretrain": [*TINY_DATA, *TINY_MODEL, *TINY_RUN],
    "finetune": ["--epochs", "1", "--seeds", "0", "--batch_size", "16", "--max_length", "64"],
    "analyze": [*TINY_DATA, *TINY_MODEL, *TINY_RUN, *TINY_EXPERIMENT],
    "fill": ["--n_best", "5"],
    "evaluate": ["--resamples", "10"],
}


def write_files() -> None:
    """The files that the documents speak of."""
    pytest.importorskip("chemicals")
    smiles = [text for text in molecules(600) if len(text) < 60][:300]
    Path("molecules.smi.gz").write_bytes(gzip.compress("\n".join(smiles).encode()))
    Path("molecules-with-masks.smi").write_text("CC(=[MASK])O\nC[MASK]C[MASK]\n")
    residues = "ACDEFGHIKLMNPQRSTVWY"
    proteins = [f">{i}\nM{residues[i:]}{residues[:i]}" for i in range(20)]
    Path("proteins.fasta").write_text("\n".join(proteins))
    table = pd.DataFrame({"smiles": smiles[:60]})
    table.to_csv("new.csv", index=False)
    for name in ("my.csv", "labelled.csv"):
        table.assign(activity=table["smiles"].str.count("C") / 10).to_csv(name, index=False)

    Path("texts").mkdir()
    Path("texts/topics.txt").write_text("\n".join(map(str.strip, prose())))
    sentences = [line for line in prose() if line.count(" ") > 5][:40]
    pairs = pd.DataFrame({"sentence1": sentences, "sentence2": sentences[::-1]})
    labels = [["entailment", "not_entailment"][i % 2] for i in range(len(pairs))]
    Path("glue/RTE").mkdir(parents=True)
    for part in ("train", "dev"):
        rows = pairs.assign(label=labels).rename_axis("index").reset_index()
        rows.to_csv(f"glue/RTE/{part}.tsv", sep="\t", index=False, quoting=3)
    for name in ("train.csv", "valid.csv"):
        table = pairs.set_axis(["premise", "hypothesis"], axis=1).assign(label=labels)
        table.to_csv(name, index=False)
    questions, paragraphs = [], []
    for number, context in enumerate(sentences[:12]):
        question = {"id": str(number), "question": f"What is number {number}?"}
        questions.append({**question, "context": context})
        answers = answer(number, context)
        paragraphs.append({"context": context, "qas": [{**question, **answers}]})
    pd.DataFrame(questions).to_csv("questions.csv", index=False)
    Path("squad2").mkdir()
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        content = json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]})
        Path("squad2", name).write_text(content)


def prose() -> list[str]:
    """Lines of English that come with Python."""
    from pydoc_data.topics import topics

    return [line for name in sorted(topics)[:12] for line in topics[name].splitlines()][:600]


def answer(number: int, context: str) -> dict[str, object]:
    """The first word of the context is the answer to every second question; the others have
    none."""
    impossible = number % 2 == 1
    answers = [] if impossible else [{"text": context.split()[0], "answer_start": 0}]
    return {"is_impossible": impossible, "answers": answers}


def commands(document: Path, folder: Path) -> list[list[str]]:
    """The arguments of every `exlm` command in the document's bash blocks, in order."""
    folder.mkdir()
    log = folder / "log"
    log.touch()
    writes = (
        f'#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done >> {log}\n'
        f'printf "\\n\\0" >> {log}\n'
    )
    for name in ("exlm", *NOT_RUN):
        (folder / name).write_text(writes if name == "exlm" else "#!/bin/sh\n")
        (folder / name).chmod(0o755)
    for block in re.findall(r"^```bash\n(.*?)^```", document.read_text(), re.M | re.S):
        script = f"PATH={folder}; set -eu\n{block}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, f"{document.name}: {done.stderr}\n{block}"
    return [line.split("\0")[:-1] for line in log.read_text().split("\n\0")[:-1]]


def test_every_command_of_the_documents_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_files()
    count = 0
    for document in DOCUMENTS:
        for name, *arguments in commands(document, tmp_path / f"programs-{document.stem}"):
            line = f"{document.name}: exlm {' '.join([name, *arguments])}"
            try:
                main([name, *arguments, *TINY.get(name, [])])
            except SystemExit as stop:
                assert not stop.code, f"{line}\n{capsys.readouterr().err[-2000:]}"
            count += 1
    assert count > 20
    assert Path("report/index.html").is_file() and Path("new-predictions.csv").is_file()
