"""The figure of order-prior.md, from order-prior.jsonl.

python docs/results/order_prior.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
# of the models, by the beginning of a run's name: what they are called, and their lines
MODELS = {
    "mlm-1200-s": ("MLM", "k-"),
    "late-k2-st3-e.06-s": ("k = 2, prior, late", "r--"),
    "all-k4-st3-e.06-s": ("k = 4, prior", "g-."),
    "noprior-k4-s": ("k = 4, without prior", "C1:"),
}
SCORES = {
    "accuracy": "accuracy",
    "joint_nll": "joint nll",
    "own_states": "share of tokens on their own mask",
}


def main() -> None:
    lines = (HERE / "order-prior.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), constrained_layout=True)
    for axis, (score, title) in zip(axes, SCORES.items(), strict=True):
        for beginning, (label, style) in MODELS.items():
            for seed in range(3):
                [run] = [run for run in runs if run["name"] == f"{beginning}{seed}"]
                curve = [point for point in run["curve"] if score in point]
                steps = [point["step"] for point in curve]
                values = [point[score] for point in curve]
                axis.plot(steps, values, style, linewidth=1.3, label=None if seed else label)
        axis.set(title=title, xlabel="updates")
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(HERE / "order-prior.png", dpi=140)


if __name__ == "__main__":
    main()
