"""The tables of analysis.md, from the runs that are kept in `runs`.

docs/results/analysis.sh molecules
docs/results/analysis.sh keep runs/analysis/molecules docs/results/runs/molecules
python docs/results/analysis.py
"""

import json
from pathlib import Path
from statistics import fmean, stdev

from pages import fill, table

HERE = Path(__file__).parent
RUNS = HERE / "runs" / "molecules"
MODELS = {
    "mlm-p15": "MLM",
    "mlm-p15-plus-plus": "MLM of equal cost",
    "exlm-p15-k2": "k = 2",
    "exlm-p15-k4": "k = 4",
    "exlm-p15-k8": "k = 8",
    "exlm-p15-k4-1d": "k = 4 without 2D RoPE",
    "ctc-p15-k4": "k = 4 without transitions",
    "exlm-p15-k4-sparse": "k = 4, sparse DAG",
    "mlm-p38.7": "MLM, 38.7% masks",
    "exlm-p38.7-k2": "k = 2",
    "exlm-p38.7-k4": "k = 4",
    "exlm-p38.7-k8": "k = 8",
}
DIGITS = {
    "joint nll": 3,
    "entropy": 2,
    "entropy per state": 2,
    "tasks": 1,
}
HEAD = ["", "joint nll", "entropy, bits", "per state", "tasks"]
SEEDS = range(3)


def read(model: str, seed: int) -> dict[str, float]:
    """The scores of one pre-training. ROC-AUC (%) is the mean over fine-tuning seeds, `tasks` the
    mean of BBBP and ClinTox."""
    run = RUNS / "pretrain" / model / f"seed-{seed}"
    evaluation = json.loads((run / "result.json").read_text())["evaluation"]
    entropy = json.loads((run / "measurements.json").read_text())["entropy"]
    scores = {
        "joint nll": evaluation["joint_nll"],
        "entropy": entropy["mean"],
        "entropy per state": (entropy["states"] or entropy)["mean"],  # an MLM has one state
    }
    for task in ("bbbp", "clintox"):
        tuned = RUNS / "finetune" / model / f"seed-{seed}" / task / "results.json"
        if tuned.exists():
            scores[task] = 100 * json.loads(tuned.read_text())["test"]["roc_auc"]["mean"]
    if "clintox" in scores:
        scores["tasks"] = fmean((scores["bbbp"], scores["clintox"]))
    return scores


def cell(model: str, score: str, digits: int) -> str:
    values = [read(model, seed)[score] for seed in SEEDS]
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def scores() -> str:
    """Every score of every model, as mean and standard deviation over pre-training seeds."""
    rows = [
        [name, *(cell(model, score, digits) for score, digits in DIGITS.items())]
        for model, name in MODELS.items()
    ]
    return table(HEAD, rows)


def parts() -> dict[str, str]:
    return {"scores": scores()}


if __name__ == "__main__":
    fill(HERE / "analysis.md", parts())
