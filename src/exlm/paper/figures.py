"""The figures of the report: heat maps by mask ratio and repetitions, training curves, and entropy
plots."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from statistics import fmean

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exlm.paper.display import CURVES, DIGITS, DISPLAY, TEXTS, Variant, as_text, percent, title
from exlm.paper.groups import Mean, RunGroup
from exlm.paper.page import ReportFigure
from exlm.paper.pretrainings import Pretraining
from exlm.storage.files import TRAINING_LOG, read_log

POINTS = 100  # of a curve, or up to twice as many; few, so that the files stay small
COLOURS = ["#3b7dd8", "#e07b39", "#2fa36b", "#a05fc4", "#c7a72c", "#d1495b"]
COLOURS += ["#1f9fa6", "#8c5a3c", "#6b7280", "#e377c2"]
# As a decorator, it changes the style inside of a function only.
with_style = matplotlib.rc_context(DISPLAY["style"])


def _save_plot(name: str, group: RunGroup, plot: Figure) -> ReportFigure:
    """Saves a plot as SVG and PNG. Under the style, the same plot always gives the same bytes."""
    svg = io.BytesIO()
    png = io.BytesIO()
    plot.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    plot.savefig(png, format="png", metadata={"Software": None}, dpi=130)
    caption = TEXTS["figures"][name].format(label=group.label)
    return ReportFigure(name, caption, svg.getvalue(), png.getvalue())


@with_style
def repeated_figures(group: RunGroup) -> list[ReportFigure]:
    """The figures of Repeated MLM: heat maps by p and r, and training curves."""
    models = group.repeated_mlms()
    panels = {}
    for quantity in (*group.tasks, "evaluation/accuracy", "corruption/mean", "entropy/mean"):
        if means := group.means.by_model(models, quantity):
            panels[title(quantity)] = means
    labels = {model: f"r = {model.r}" for model in models if model in group.models}
    shown = ["loss", "accuracy", "perplexity"]
    curves = _training_curves("repeated-curves", group, labels, shown)
    if not panels:
        return curves
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    height = 0.72 * len({model.p for model in models}) + 0.95
    plot = Figure(figsize=(4.0 * across, height * down))
    for number, (heading, means) in enumerate(panels.items(), 1):
        axis = plot.add_subplot(down, across, number)
        axis.set_title(heading)
        _heat_map(axis, models, means, DIGITS.get(heading, 1))
    return [_save_plot("repeated-mlm", group, plot), *curves]


def _heat_map(
    axis: Axes, models: Sequence[Variant], means: Mapping[Variant, Mean], digits: int
) -> None:
    """Draws one heat map. A grey square with a dash was not run. An empty grey square is left out,
    since its pʳ is almost 0."""
    ratios = sorted({model.p for model in models})
    repeats = sorted({model.r for model in models})
    values = np.full((len(ratios), len(repeats)), np.nan)
    for model in means:
        values[ratios.index(model.p), repeats.index(model.r)] = means[model][0]
    # Pale colours leave the numbers readable.
    axis.pcolormesh(values, cmap="YlGnBu", alpha=0.5, edgecolor="white", linewidth=1.5)
    axis.set_facecolor("#e3e6e9")
    for model in models:
        x = repeats.index(model.r) + 0.5
        y = ratios.index(model.p) + 0.5
        mean, spread = means.get(model, (None, None))
        text = as_text(mean, spread, digits).replace(" ± ", "\n± ")
        axis.text(x, y, text, ha="center", va="center", fontsize=8.5)
    axis.invert_yaxis()
    axis.set(xlabel="r, repetitions", ylabel="p, mask ratio")
    axis.set_xticks(np.arange(len(repeats)) + 0.5, [str(r) for r in repeats])
    axis.set_yticks(np.arange(len(ratios)) + 0.5, [percent(p) for p in ratios])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


@with_style
def entropy_bars(group: RunGroup) -> list[ReportFigure]:
    """Bars by mask ratio: filled bars are the marginal entropy, hatched bars the one per state."""
    models = group.sweep()
    ratios = sorted({model.p for model in models})
    states = sorted({model.k for model in models})
    series = []
    for k, quantity in product(states, ("entropy/mean", "entropy/states/mean")):
        with_k = [model for model in models if model.k == k]
        if means := group.means.by_model(with_k, quantity):
            series.append((k, quantity, means))
    width = 0.84 / len(series)
    plot = Figure(figsize=(max(4.6, 3.0 + 0.42 * len(series) * len(ratios)), 3.3))
    axis = plot.subplots()
    for i, (k, quantity, means) in enumerate(series):
        colour = COLOURS[states.index(k) % len(COLOURS)]
        is_per_state = quantity == "entropy/states/mean"
        name = "MLM" if k == 1 else f"ExLM, k = {k}"
        shift = (i - (len(series) - 1) / 2) * width
        axis.bar(
            x=[ratios.index(model.p) + shift for model in means],
            height=[mean for mean, _ in means.values()],
            width=0.92 * width,
            yerr=[spread or 0.0 for _, spread in means.values()],
            label=f"{name}, per state" if is_per_state else name,
            color="none" if is_per_state else colour,
            hatch="////" if is_per_state else None,
            edgecolor=colour,
            capsize=2,
        )
    axis.set_xticks(range(len(ratios)), [f"p = {percent(p)}" for p in ratios])
    axis.set(xlim=(-0.5, len(ratios) - 0.5), ylabel="entropy, bits")
    axis.grid(axis="y")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return [_save_plot("entropy", group, plot)]


@with_style
def sweep_curves(group: RunGroup) -> list[ReportFigure]:
    """Training curves of ExLM and the vanilla MLM at the same mask ratios."""
    labels = {model: model.label for model in group.sweep()}
    shown = ["accuracy", "perplexity", "joint_perplexity", "own_states"]
    return _training_curves("sweep-curves", group, labels, shown)


@with_style
def cost_curves(group: RunGroup) -> list[ReportFigure]:
    """Joint perplexity over the hours of training, at the mask ratios that have MLM++."""
    ratios = {model.p for model in group.select("mlm-plus-plus")}
    models = [model for model in group.select("exlm", "mlm", "mlm-plus-plus") if model.p in ratios]
    labels = {model: model.label for model in models}
    return _training_curves("cost-curves", group, labels, ["joint_perplexity"], over_hours=True)


def _training_curves(
    name: str,
    group: RunGroup,
    labels: Mapping[Variant, str],
    shown: Sequence[str],
    over_hours: bool = False,
) -> list[ReportFigure]:
    """Plots logged numbers over updates or hours, with a line called `labels[model]` for each model
    that has logs. There is a row of panels for each mask ratio of several such models, and a column
    for each of the CURVES `shown` that was logged; without a column there is no figure."""
    all_logs = {model: _mean_log(group.runs_of(model), over_hours) for model in labels}
    logs = {model: log for model, log in all_logs.items() if not log.empty}
    models_with_ratio = Counter(model.p for model in logs)
    ratios = sorted(p for p, count in models_with_ratio.items() if count > 1)
    logged = {curve for model in logs if model.p in ratios for curve in logs[model]}
    columns = [curve for curve in shown if curve in logged]
    if not columns:
        return []
    plot = Figure(figsize=(3.7 * len(columns), 2.2 * len(ratios) + 0.3))
    axes = plot.subplots(len(ratios), len(columns), squeeze=False, sharex=True)
    for axis, (p, curve) in zip(axes.flat, product(ratios, columns), strict=True):
        models = [model for model in logs if model.p == p]
        for model, colour in zip(models, cycle(COLOURS), strict=False):
            if curve in logs[model]:
                line = logs[model][curve].dropna()
                line = line[:: max(1, len(line) // POINTS)]
                marker = "o" if len(line) == 1 else None
                axis.plot(line, marker=marker, label=labels[model], color=colour, linewidth=1.4)
        axis.set_title(f"{CURVES[curve]}, p = {percent(p)}")
        axis.set_yscale("log" if curve.endswith("perplexity") else "linear")
        # So 2.5 is not written as 2.5 x 10^0, and 0.99991 not as a distance from 0.9999.
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        if curve == "own_states":
            axis.set_ylim(0, 1.05)
        axis.grid()
    for axis in axes[:, 0]:
        axis.legend()
    for axis in axes[-1]:
        axis.set_xlabel("hours of training" if over_hours else "updates")
    return [_save_plot(name, group, plot)]


def _mean_log(runs: Sequence[Pretraining], over_hours: bool) -> pd.DataFrame:
    """The logs of a model, as means over its seeds: a row per update or hour, a column for each
    of CURVES. A mean is of the updates that all runs with this curve have: with those of a part of
    the runs, it would jump. All updates of a run are taken as equally long."""
    logs = [_read_curves(run) for run in runs]
    means = pd.DataFrame()
    for curve in CURVES:
        curves = [log[curve].dropna() for log in logs if curve in log]
        if curves:
            mean = pd.concat(curves, axis=1, join="inner").mean(axis=1)
            means = means.join(mean.rename(curve), how="outer")
    means = means.dropna(axis=1, how="all")
    if over_hours:
        means.index *= fmean(run.hours / run.steps for run in runs)
    return means


def _read_curves(run: Pretraining) -> pd.DataFrame:
    """The log of a run by update, with a column for each of CURVES that it has. Evaluations of
    another number of held-out sequences than the result's are left out; earlier versions did not
    log the number."""
    same = (None, run.held_out_sequences)
    entries = read_log(run.path / TRAINING_LOG)
    log = pd.DataFrame([entry for entry in entries if entry.get("sequences") in same])
    if log.empty:
        return log
    # A loss is logged under the name of its objective, such as `exlm_loss`.
    losses = log.filter(regex="loss$").mean(axis=1)
    log["loss"] = losses.where(log["kind"] == "train")
    # The last evaluation after an update counts: the model may have been scored anew.
    by_update = log.groupby("step").last()
    return by_update.reindex(columns=list(CURVES)).dropna(axis=1, how="all").astype(float)
