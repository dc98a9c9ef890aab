"""A small complete run on molecules that come with an installed package: `make demo`, or python
examples/demo.py."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from public_tables import melting_points, molecules
from sklearn.linear_model import RidgeCV
from sklearn.metrics import root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from exlm.data.prepare import prepare
from exlm.errors import InputError, Interrupted
from exlm.filling.fill import fill
from exlm.integrations.sklearn import Embedder
from exlm.pretrain.run import pretrain
from exlm.tasks.finetune import FinetuneConfig, TaskConfig, finetune
from exlm.train.tracking import read_log
from exlm_command.parser import settings
from exlm_command.recipes import RECIPES

EXLM, MLM, SHIPPED = "ExLM (k = 2)", "MLM, equal time", "molecules-5M"
LABEL = "melting_point"
MLM_UPDATES = 1.6  # an update of ExLM costs so much as that of the MLM, at this size
RECIPE = RECIPES / "molecules/demo.yaml"
ACID = "CC(=O)Oc1ccccc1C(=O)O"  # aspirin
MASKED = "CC(=O)Oc1ccccc1[MASK](=O)O"
ABOUT = """Perplexity: between how many tokens a model is torn at a mask; 2% to 60% of the tokens
are masked. Joint: all masks of a molecule together, in one pass of the network. The error (RMSE) of
melting points is that of a linear model on frozen vectors. Lower is better everywhere. What to take
from it: after a minute of training both are toys, and molecules-5M, trained for two hours, is what
to begin with."""


def demo(output: str = "demo-output", steps: int = 450, epochs: int = 5) -> None:
    """Pre-trains ExLM and, for as long, the vanilla MLM on bundled molecules; fills a mask, and
    predicts melting points. Then the same with the model that comes with the package.

    Args:
        output: directory for everything; run again to resume.
        steps: pre-training updates of ExLM.
        epochs: fine-tuning epochs.
    """
    started = time.monotonic()
    directory = Path(output)
    corpus = directory / "corpus"
    measured = directory / "melting-points.csv"
    _write_molecules(directory / "molecules.smi", measured)
    if not (corpus / "manifest.json").exists():
        prepare([str(directory / "molecules.smi")], str(corpus), held_out=0.1, drop_duplicates=True)

    models = {EXLM: directory / "pretrain-exlm", MLM: directory / "pretrain-mlm"}
    exlm = _pretrain(corpus, models[EXLM], "exlm", steps)
    mlm = _pretrain(corpus, models[MLM], "mlm", round(MLM_UPDATES * steps))
    finetune(
        output=str(directory / "melting-points"),
        model=str(models[EXLM]),
        task=TaskConfig(
            str(measured), task_type="regression", label_columns=[LABEL], split="column:split"
        ),
        train=FinetuneConfig(epochs=epochs, batch_size=32, learning_rate=1e-3, pooling="mean"),
        seeds=[0],
    )
    rows = {
        EXLM: _row(exlm, _error_of_linear_model(str(models[EXLM]), measured)),
        MLM: _row(mlm, _error_of_linear_model(str(models[MLM]), measured)),
        SHIPPED: _row(None, _error_of_linear_model(SHIPPED, measured)),
    }
    table, figure = _markdown(rows), directory / "training.png"
    (directory / "results.md").write_text(table)
    plot_curves(figure, models)

    print(f"\nAspirin without an atom, filled by the ExLM of this demo ({ACID} is right):")
    fill(str(models[EXLM]), [MASKED], n_best=3)
    print(f"and by {SHIPPED}:")
    fill(SHIPPED, [MASKED], n_best=3)
    predicted = pd.read_csv(directory / "melting-points/seed-0/predictions.csv")
    columns = ["smiles", LABEL, f"predicted {LABEL}"]
    print("\nMelting points of three test molecules, measured and predicted by the tuned ExLM:")
    test_rows = predicted[predicted["exlm split"] == "test"]
    print(test_rows[columns].head(3).to_string(index=False, float_format="{:.0f}".format))
    print("\nThe molecules most similar to aspirin among those of the table, by its vectors:")
    print("\n".join(_most_similar(pd.read_csv(measured)["smiles"].tolist())))
    print(f"\n{table}\n{ABOUT}\n")
    print(f"models, predictions, logs: {directory}\ntable: {directory / 'results.md'}")
    print(f"figure: {figure}\n{time.monotonic() - started:.0f} seconds")


def _pretrain(corpus: Path, output: Path, objective: str, updates: int) -> dict[str, Any]:
    """The result of a pre-training by the demo's recipe."""
    options = {
        "config": RECIPE,
        "output": output,
        "data.corpus": corpus,
        "train.steps": updates,
        "train.eval_every": max(1, updates // 6),
        "model.objective": objective,
    }
    arguments = [f"--{option}={value}" for option, value in options.items()]
    return pretrain(**settings("pretrain", arguments))


def _row(result: dict[str, Any] | None, rmse: float) -> dict[str, str]:
    """A row of the table; of the model that comes with the package only what the demo measured."""
    row = {"updates": "", "pre-training": "two hours", "perplexity": "", "joint perplexity": ""}
    if result is not None:
        # On a CPU the training's own processor time counts, because other processes slow the
        # clock on the wall.
        seconds = result.get("processor_seconds") or result["training_seconds"]
        held_out = result["evaluation"]
        row = {
            "updates": f"{held_out['step']}",
            "pre-training": f"{seconds:.0f} s",
            "perplexity": f"{held_out['perplexity']:.2f}",
            "joint perplexity": f"{held_out['joint_perplexity']:.2f}",
        }
    return {**row, "melting points, RMSE (°C)": f"{rmse:.1f}"}


def _error_of_linear_model(model: str, measured: Path) -> float:
    """The RMSE, on the test rows, of ridge regression from a model's vectors to melting points."""
    table = pd.read_csv(measured)
    is_test = table["split"] == "test"
    vectors = Embedder(model).transform(table["smiles"])
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 4, 9)))
    ridge.fit(vectors[~is_test], table[LABEL][~is_test])
    return root_mean_squared_error(table[LABEL][is_test], ridge.predict(vectors[is_test]))


def _most_similar(molecules_of_table: list[str], count: int = 3) -> list[str]:
    """The molecules whose vectors have the largest cosine to aspirin's."""
    vectors = Embedder(SHIPPED).transform([ACID, *molecules_of_table])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors[1:] @ vectors[0]
    best = [i for i in np.argsort(-cosines) if molecules_of_table[i] != ACID][:count]
    return [f"  {cosines[i]:.3f}  {molecules_of_table[i]}" for i in best]


def _write_molecules(unlabelled: Path, measured: Path) -> None:
    """SMILES without labels, and a table of melting points of which a fifth is for the test."""
    unlabelled.parent.mkdir(parents=True, exist_ok=True)
    unlabelled.write_text("\n".join(molecules(6000)) + "\n")
    table = melting_points(1500)
    table["split"] = ["test" if row % 5 == 0 else "train" for row in table.index]
    table.to_csv(measured, index=False)


def _markdown(rows: dict[str, dict[str, str]]) -> str:
    """A Markdown table; all cells of a column have the same width."""
    lines = [
        ["", *next(iter(rows.values()))],
        *([name, *row.values()] for name, row in rows.items()),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)


def plot_curves(path: Path, runs: dict[str, Path]) -> None:
    """Held-out accuracy, marginal and joint perplexity of the masked tokens of several runs over
    the updates."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    logs = {
        name: pd.DataFrame(read_log(run / "log.jsonl")).query("kind == 'eval'")
        for name, run in runs.items()
    }
    for axis, score in zip(axes, ("accuracy", "perplexity", "joint_perplexity"), strict=True):
        for name, log in logs.items():
            axis.plot(log["step"], log[score], label=name, marker=".")
        axis.set(title=f"held-out {score.replace('_', ' ')}", xlabel="updates")
        axis.grid(alpha=0.3)
    for axis in axes[1:]:
        axis.set_yscale("log")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    try:
        auto_cli(demo)
    except (InputError, Interrupted) as error:
        raise SystemExit(f"demo: {error}") from None
