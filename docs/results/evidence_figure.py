"""The curves of docs/results/evidence.md: `evidence_page.py` draws them."""

from pathlib import Path

import matplotlib
import numpy as np
from evidence import LINES, NAMES, Record, by_seed, cost


def draw(records: list[Record], path: Path, over_time: bool) -> None:
    """For every line of models, a row: joint nll, nll and the states, over processor time or over
    updates."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {line: [k for k in kinds if by_seed(records, k)] for line, kinds in LINES.items()}
    shown = {line: kinds for line, kinds in shown.items() if kinds}
    figure, axes = plt.subplots(
        len(shown), 3, figsize=(14, 3.4 * len(shown)), constrained_layout=True, squeeze=False
    )
    for (line, kinds), (joint, marginal, states) in zip(shown.items(), axes, strict=True):
        for kind, colour in zip(
            kinds, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False
        ):
            runs = by_seed(records, kind)
            for seed, run in sorted(runs.items()):
                curve = run["curve"]
                x = np.array([point["step"] for point in curve])
                x = x / x[-1] * cost(runs) / 60 if over_time else x
                label = NAMES[kind] if seed == min(runs) else None
                joint.plot(
                    x, [point["joint_nll"] for point in curve], color=colour, alpha=0.8, label=label
                )
                marginal.plot(x, [point["nll"] for point in curve], color=colour, alpha=0.8)
                if "by_state" in curve[0]:
                    states.plot(x, [point["own_states"] for point in curve], color=colour, ls=":")
                    states.plot(
                        x, [point["by_state"] for point in curve], color=colour, alpha=0.7, lw=1
                    )
        joint.set_title(f"{line}\njoint nll")
        marginal.set_title("nll")
        states.set(title="tokens on their own mask (dotted), on each state", ylim=(-0.05, 1.05))
        joint.legend(frameon=False, fontsize=8)
        for axis in (joint, marginal):
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%.2f"))
            axis.yaxis.set_minor_formatter(matplotlib.ticker.FormatStrFormatter("%.2f"))
        for axis in (joint, marginal, states):
            axis.set_xlabel("minutes of one core" if over_time else "updates")
            axis.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=80)
    plt.close(figure)
