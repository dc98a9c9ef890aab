"""A small complete run on molecules that come with an installed package: `make demo`, or python
examples/demo.py."""

import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from public_tables import melting_points, molecules

from exlm.data.prepare import prepare
from exlm.errors import InputError, Interrupted
from exlm.pretrain.run import pretrain
from exlm.tasks.finetune import FinetuneConfig, TaskConfig, finetune
from exlm.train.tracking import read_log
from exlm_command.parser import settings
from exlm_command.recipes import RECIPES

EXLM, MLM, MLM_SAME_TIME = "ExLM (k = 4)", "MLM, same updates", "MLM, same time"
NAMES = {EXLM: "exlm", MLM: "mlm", MLM_SAME_TIME: "mlm-same-time"}  # of directories
LABEL = "melting_point"
RECIPE = RECIPES / "molecules/demo.yaml"
ABOUT = """38.7% of the tokens are masked. Perplexity: between how many tokens a model is torn at a
mask, each mask judged by itself. Joint perplexity judges all masks of a molecule together, in one
pass of the network: that is what the transitions of ExLM are for. In one pass an MLM has one number
for both. Lower is better."""


def demo(
    output: str = "demo-output", steps: int = 450, epochs: int = 5, seeds: list[int] | None = None
) -> None:
    """Pre-trains ExLM and the vanilla MLM on bundled molecules and fine-tunes them on melting
    points.

    The MLM is trained twice: with as many updates as ExLM, and for as long as ExLM took.

    Args:
        output: directory for everything; run again to resume.
        steps: pre-training updates.
        epochs: fine-tuning epochs.
        seeds: seeds of fine-tuning; 0, 1 and 2 by default.
    """
    started = time.monotonic()
    directory = Path(output)
    corpus = directory / "corpus"
    measured = directory / "melting-points.csv"
    run_dirs = {name: directory / f"pretrain-{key}" for name, key in NAMES.items()}
    _write_molecules(directory / "molecules.smi", measured)
    if not (corpus / "manifest.json").exists():
        prepare([str(directory / "molecules.smi")], str(corpus), held_out=0.1, drop_duplicates=True)

    # On a CPU the training's own processor time counts, because other processes slow the clock on
    # the wall.
    clock = "training_seconds" if torch.cuda.is_available() else "processor_seconds"
    results, seconds = dict[str, dict[str, Any]](), dict[str, float]()
    for name, run_dir in run_dirs.items():
        slower = seconds[EXLM] / seconds[MLM] if name == MLM_SAME_TIME else 1.0
        updates = round(steps * min(max(slower, 1.0), 3.0))
        options = {
            "config": RECIPE,
            "output": run_dir,
            "data.corpus": corpus,
            "train.steps": updates,
        }
        options |= {
            "train.eval_every": max(1, updates // 6),
            "model.objective": "exlm" if name == EXLM else "mlm",
        }
        results[name] = pretrain(
            **settings("pretrain", [f"--{option}={value}" for option, value in options.items()])
        )
        seconds[name] = results[name].get(clock, results[name]["training_seconds"])

    rows = {}
    for name, run_dir in run_dirs.items():
        scores = finetune(
            output=str(directory / f"melting-points-{NAMES[name]}"),
            model=str(run_dir),
            task=TaskConfig(
                str(measured), task_type="regression", label_columns=[LABEL], split="column:split"
            ),
            train=FinetuneConfig(epochs=epochs, batch_size=32, learning_rate=1e-3, pooling="mean"),
            seeds=seeds or [0, 1, 2],
        )["test"]
        held_out = results[name]["evaluation"]
        rows[name] = {
            "updates": f"{held_out['step']}",
            "pre-training": f"{seconds[name]:.0f} s",
            "held-out accuracy": f"{held_out['accuracy']:.3f}",
            "perplexity": f"{held_out['perplexity']:.3f}",
            "joint perplexity": f"{held_out['joint_perplexity']:.3f}",
            "melting point RMSE (°C)": "{mean:.1f} ± {std:.1f}".format(**scores["rmse"]),
            "melting point R2": "{mean:.3f} ± {std:.3f}".format(**scores["r2"]),
        }
    table, figure = _markdown(rows), directory / "training.png"
    (directory / "results.md").write_text(table)
    plot_curves(figure, run_dirs)

    print(f"\n{table}\n{ABOUT}")
    joint = {name: result["evaluation"]["joint_perplexity"] for name, result in results.items()}
    for other in (MLM, MLM_SAME_TIME):
        relation = "lower than" if joint[EXLM] < joint[other] else "not lower than"
        print(
            f"Here ExLM's joint perplexity, {joint[EXLM]:.3f}, is {relation} {joint[other]:.3f} "
            f"({other})."
        )
    print("A toy: minutes on a few thousand molecules, one seed of pre-training.")
    print(
        f"models, predictions, logs: {directory}\ntable: {directory / 'results.md'}\nfigure: "
        f"{figure}"
    )
    print(f"{time.monotonic() - started:.0f} seconds")


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
    the steps."""
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
