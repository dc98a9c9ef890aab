"""The curves of docs/results/evidence.md: `evidence_page.py` draws them."""

from pathlib import Path

import matplotlib
import numpy as np
from evidence import LINES, NAMES, Record, by_seed, cost


def draw(records: list[Record], path: Path) -> None:
    """For every line of models: joint nll over updates and over processor time, and the states over updates."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {line: [k for k in kinds if by_seed(records, k)] for line, kinds in LINES.items()}
    shown = {line: kinds for line, kinds in shown.items() if kinds}
    figure, axes = plt.subplots(len(shown), 3, figsize=(14, 3.6 * len(shown)), constrained_layout=True, squeeze=False)
    for (line, kinds), (updates, time, states) in zip(shown.items(), axes, strict=True):
        for kind, colour in zip(kinds, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False):
            runs = by_seed(records, kind)
            for seed, run in sorted(runs.items()):
                steps = np.array([point["step"] for point in run["curve"]])
                losses = [point["joint_nll"] for point in run["curve"]]
                label = NAMES[kind] if seed == min(runs) else None
                updates.plot(steps, losses, color=colour, alpha=0.8, label=label)
                time.plot(steps / steps[-1] * cost(runs) / 60, losses, color=colour, alpha=0.8)
                if "by_state" in run["curve"][0]:
                    states.plot(steps, [point["own_states"] for point in run["curve"]], color=colour, ls=":")
                    states.plot(steps, [max(point["by_state"]) for point in run["curve"]], color=colour, alpha=0.8)
        updates.set(title=f"{line}\njoint nll over updates", xlabel="updates")
        time.set(title="over processor time", xlabel="minutes of one core")
        states.set(title="tokens on their own mask (dotted), on one state", xlabel="updates", ylim=(0, 1.05))
        updates.legend(frameon=False, fontsize=8)
        for axis in (updates, time):
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%.2f"))
            axis.yaxis.set_minor_formatter(matplotlib.ticker.FormatStrFormatter("%.2f"))
        for axis in (updates, time, states):
            axis.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=110)
    plt.close(figure)
