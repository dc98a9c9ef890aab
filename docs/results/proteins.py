"""Makes the labelled tables of proteins.md from the shared data, and its tables from the results.

    python docs/results/proteins.py data DATA FOLDER
    python docs/results/proteins.py tables RUNS

`data` writes structure.csv, signal.csv and variants.csv; `tables` prints what proteins.md shows,
from the runs of proteins-jobs.sh.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

SEEDS, MODELS = (0, 1, 2), {"mlm": "MLM", "exlm": "ExLM, k = 2"}
STRUCTURE, SIGNAL = (
    {"train": 600, "valid": 100, "test": 364},
    {"train": 3000, "valid": 500, "test": 2000},
)
WILD = "VDGV"  # the residues of GB1 at the four sites


def data(source: Path, folder: Path) -> None:
    """Random parts of the published parts, because the runs are small."""
    structure = pd.read_csv(source / "secondary_structure.csv.gz", dtype=str)
    signal = pd.read_csv(source / "signal_peptide.csv.gz", dtype=str).drop_duplicates("sequence")
    signal["split"] = signal["partition"].map({"0": "test", "1": "valid", "2": "train"})
    for name, frame, sizes in (("structure", structure, STRUCTURE), ("signal", signal, SIGNAL)):
        parts = [
            frame[frame["split"] == part].sample(size, random_state=0)
            for part, size in sizes.items()
        ]
        columns = (
            ["sequence", "label", "mask", "split"]
            if name == "structure"
            else ["sequence", "label", "split"]
        )
        pd.concat(parts)[columns].to_csv(folder / f"{name}.csv", index=False)
    variants = pd.read_csv(source / "gb1_fitness.csv.gz")
    wild = variants.loc[variants["mutated_residues"] == WILD, "sequence"].iloc[0]
    table = pd.DataFrame(
        {"sequence": wild, "mutant": variants["sequence"], "label": variants["label"]}
    )
    table.to_csv(folder / "variants.csv", index=False)


def spread(values: list[float], digits: int = 3) -> str:
    """Mean and standard deviation over the seeds."""
    return (
        f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"
        if len(values) > 1
        else "not run"
    )


def tables(runs: Path) -> None:
    """Prints the tables in Markdown."""
    print("| | updates | minutes | accuracy | perplexity | joint perplexity | own mask |")
    print("| --- " * 7 + "|")
    for name, title in MODELS.items():
        found = [json.loads((runs / f"{name}-s{seed}/result.json").read_text()) for seed in SEEDS]
        values = {
            key: [run["evaluation"].get(key, np.nan) for run in found]
            for key in found[0]["evaluation"]
        }
        cells = [spread(values[key], 3) for key in ("accuracy", "perplexity", "joint_perplexity")]
        own = "" if name == "mlm" else spread(values["own_states"])
        minutes = spread([run["training_seconds"] / 60 for run in found], 1)
        print(
            f"| {title} | {found[0]['recipe']['train']['steps']} | {minutes} | {' | '.join(cells)} "
            f"| {own} |"
        )
    print()
    for task, metrics in {
        "structure": ("accuracy", "macro_f1"),
        "signal": ("accuracy", "matthews"),
    }.items():
        for name, title in {**MODELS, "scratch": "not pre-trained"}.items():
            files = [runs / f"{task}-{name}-s{seed}/results.json" for seed in SEEDS]
            found = [
                json.loads(file.read_text())["runs"][0]["scores"]["test"]
                for file in files
                if file.exists()
            ]
            shown = [metric for metric in metrics if found and metric in found[0]]
            print(
                f"| {task} | {title} | "
                + " | ".join(f"{m} {spread([run[m] for run in found])}" for m in shown)
                + " |"
            )
    print()
    for name, title in MODELS.items():
        files = [runs / f"variants-{name}-s{seed}.csv" for seed in SEEDS]
        frames = [pd.read_csv(file) for file in files if file.exists()]
        for column in ("score", "joint_score"):
            known = [frame.dropna(subset=[column]) for frame in frames]
            print(
                f"| {title} | {column} | "
                f"{spread([spearmanr(k[column], k['label']).statistic for k in known])} |"
            )


if __name__ == "__main__":
    if sys.argv[1] == "data":
        data(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        tables(Path(sys.argv[2]))
