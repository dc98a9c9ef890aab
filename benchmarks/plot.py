"""The figures of docs/performance.md, from the results of `run.py`.

    python benchmarks/plot.py results.jsonl [more.jsonl] --output docs/performance

Of several results of the same measurement, the last one counts.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Record = dict[str, Any]
COLOURS = {
    "exlm": "#c0392b",
    "mlm": "#2f6db5",
    "bert": "#c3c9d1",
    "roberta": "#a4acb7",
    "modernbert": "#858f9c",
    "loop": "#a4acb7",
    "torch": "#e0a030",
    "c": "#c0392b",
    "triton": "#c0392b",
}
NAMES = {
    "exlm": "ExLM",
    "mlm": "MLM (ours)",
    "bert": "BERT",
    "roberta": "RoBERTa",
    "modernbert": "ModernBERT",
    "loop": "plain loop, autograd",
    "torch": "PyTorch",
    "c": "C",
    "triton": "Triton",
}
KINDS = ("cpu", "cuda")


def read(paths: list[Path]) -> list[Record]:
    """All results in order."""
    return [
        json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()
    ]


def select(
    records: list[Record], benchmark: str, key: Callable[[Record], object], **wanted: Any
) -> list[Record]:
    """The results of a benchmark, the last one for every key and kind of device."""
    chosen: dict[str, Record] = {}
    for record in records:
        if record["benchmark"] == benchmark and all(
            record.get(name) == value for name, value in wanted.items()
        ):
            chosen[f"{record['kind']} {key(record)}"] = record
    return list(chosen.values())


def place(record: Record) -> str:
    """Where it ran."""
    if record["kind"] == "cuda":
        return "one GPU"
    return "one core" if record["threads"] == 1 else f"{record['threads']} threads"


def settings(record: Record) -> str:
    """Preset, precision and k of a step, the layers of a late expansion, and what differs from the
    usual."""
    first = next(iter(record["settings"].values()))
    notes = [first["precision"], *(["compiled"] if first["compile"] else [])]
    notes += [f"dropout {first['dropout']:g}"] if first["dropout"] else []
    notes += [f"k = {record['shape']['num_states']}"] if record["comparison"] == "exlm" else []
    notes += [f"late {late}"] if (late := record["shape"].get("expanded_layers")) else []
    return f"{record['preset']}\n{', '.join(notes)}"


def draw_steps(records: list[Record]) -> Figure | None:
    """ExLM step over MLM step as bars, with the ratio of the counted operations as a mark."""
    chosen = select(records, "step", settings, comparison="exlm")
    if not chosen:
        return None
    chosen.sort(key=lambda record: KINDS.index(record["kind"]))
    figure, axis = plt.subplots(figsize=(1.6 + 1.25 * len(chosen), 3.6), constrained_layout=True)
    for x, record in enumerate(chosen):
        measured = record["ratio"]["exlm"]["median"]
        by_operations = record["bound_of_chunks"]
        axis.bar(
            x, measured, 0.55, color="#e39a92", label="measured, median of pairs" if not x else None
        )
        axis.plot(
            [x - 0.38, x + 0.38],
            [by_operations] * 2,
            color="#222",
            label="by operations" if not x else None,
        )
        axis.annotate(
            f"{measured:.2f}",
            (x, max(measured, by_operations)),
            (0, 4),
            textcoords="offset points",
            ha="center",
        )
        axis.annotate(
            f"{by_operations:.2f}",
            (x, by_operations),
            (0, -13),
            textcoords="offset points",
            ha="center",
            color="#222",
        )
    names = [f"{settings(record)}\n{place(record)}" for record in chosen]
    axis.set_xticks(range(len(chosen)), names, fontsize=8)
    axis.set(
        ylabel="time, ExLM step / MLM step",
        ylim=(0, 1.25 * max(r["ratio"]["exlm"]["median"] for r in chosen)),
    )
    axis.axhline(1, color="#888", linewidth=0.8, linestyle=":")
    axis.legend(loc="upper left", ncols=2)
    return figure


def draw_alignment(records: list[Record]) -> Figure | None:
    """Milliseconds of every back end, one group of bars per shape."""
    chosen = select(records, "alignment", lambda record: record["shape"])
    kinds = list(dict.fromkeys(record["kind"] for record in chosen))
    if not chosen:
        return None
    figure, axes = plt.subplots(
        1, len(kinds), figsize=(5.6 * len(kinds), 3.6), squeeze=False, constrained_layout=True
    )
    for axis, kind in zip(axes[0], kinds, strict=True):
        group = [record for record in chosen if record["kind"] == kind]
        backends = [
            name
            for name in ("loop", "torch", "c", "triton")
            if any(name in r["seconds"] for r in group)
        ]
        for offset, name in enumerate(backends):
            shift = (offset - (len(backends) - 1) / 2) * 0.26
            places = [x + shift for x, r in enumerate(group) if name in r["seconds"]]
            heights = [1e3 * r["seconds"][name]["min"] for r in group if name in r["seconds"]]
            bars = axis.bar(places, heights, 0.24, color=COLOURS[name], label=NAMES[name])
            axis.bar_label(
                bars,
                [f"{height:.{2 if height < 10 else 0}f}" for height in heights],
                fontsize=7,
                padding=1,
            )
        axis.set_xticks(
            range(len(group)), ["x".join(map(str, record["shape"])) for record in group]
        )
        axis.set_yscale("log")
        axis.set_ylim(top=4 * axis.get_ylim()[1])
        axis.set(
            title=place(group[0]),
            xlabel="sequences x targets x states",
            ylabel="ms, forward and backward",
        )
        axis.legend(loc="upper left", ncols=3)
    return figure


def draw_growth(records: list[Record]) -> Figure | None:
    """Times along each axis, with the fitted exponents; dotted, the edges that the recursion
    visits."""
    chosen = select(records, "alignment-growth", lambda record: (record["axis"], record["backend"]))
    kinds = list(dict.fromkeys(record["kind"] for record in chosen))
    if not chosen:
        return None
    figure, axes = plt.subplots(
        len(kinds),
        3,
        figsize=(11, 3.2 * len(kinds)),
        squeeze=False,
        constrained_layout=True,
        sharey="row",
    )
    for row, kind in zip(axes, kinds, strict=True):
        for axis, name in zip(row, ("targets", "states", "sequences"), strict=True):
            group = [
                record for record in chosen if record["kind"] == kind and record["axis"] == name
            ]
            for record in group:
                draw_power_law(axis, record)
            axis.set(title=f"{place(group[0])}: {name}", xlabel=name, xscale="log", yscale="log")
            axis.set_xticks(group[0]["sizes"], [str(size) for size in group[0]["sizes"]])
            axis.minorticks_off()
            axis.legend(fontsize=8)
        row[0].set_ylabel("ms, forward and backward")
    return figure


def draw_power_law(axis: Axes, record: Record) -> None:
    milliseconds = [1e3 * value for value in record["seconds"]]
    scale = milliseconds[-1] / record["visits"][-1]
    label = f"{NAMES[record['backend']]}, exponent {record['exponent']:.2f}"
    colour = COLOURS[record["backend"]]
    axis.plot(record["sizes"], milliseconds, marker="o", markersize=4, color=colour, label=label)
    counted = f"visited edges, {record['exponent_of_visits']:.2f}"
    known = axis.get_legend_handles_labels()[1]
    axis.plot(
        record["sizes"],
        [scale * value for value in record["visits"]],
        ":",
        color="#888",
        label=None if counted in known else counted,
    )


def draw_peers(records: list[Record]) -> Figure | None:
    """Tokens per second of this library's MLM and of models of the same size in transformers."""
    chosen = [
        record
        for name in ("peers", "defaults")
        for record in select(records, "step", settings, comparison=name)
    ]
    rows = [
        group
        for kind in KINDS
        if (group := [record for record in chosen if record["kind"] == kind])
    ]
    if not rows:
        return None
    width = max(map(len, rows))
    figure, axes = plt.subplots(
        len(rows),
        width,
        figsize=(0.8 + 2.3 * width, 3.4 * len(rows)),
        squeeze=False,
        constrained_layout=True,
    )
    for i, axis in enumerate(axes.flat):
        row, column = divmod(i, width)
        if column >= len(rows[row]):
            axis.set_axis_off()
            continue
        record = rows[row][column]
        rates = {name: rate / 1e3 for name, rate in record["tokens_per_second"].items()}
        bars = axis.bar(
            [NAMES[n] for n in rates], list(rates.values()), 0.7, color=[COLOURS[n] for n in rates]
        )
        axis.bar_label(bars, [f"{rate:.3g}" for rate in rates.values()], fontsize=8)
        defaults = record["comparison"] == "defaults"
        title = f"{record['preset']}\neach with its defaults" if defaults else settings(record)
        axis.set_title(f"{title}, {place(record)}", fontsize=9)
        axis.tick_params(axis="x", rotation=40)
        axis.margins(y=0.12)
    for axis in axes[:, 0]:
        axis.set_ylabel("thousand tokens per second")
    return figure


FIGURES: dict[str, Callable[[list[Record]], Figure | None]] = {
    "steps": draw_steps,
    "alignment": draw_alignment,
    "growth": draw_growth,
    "peers": draw_peers,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("docs/performance"))
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    options = parser.parse_args()
    plt.rcParams.update(
        {
            "svg.hashsalt": "exlm",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "font.size": 9,
            "axes.axisbelow": True,
        }
    )
    options.output.mkdir(parents=True, exist_ok=True)
    records = read(options.results)
    for name, draw in FIGURES.items():
        figure = draw(records)
        if figure is not None:
            path = options.output / f"performance-{name}.{options.format}"
            figure.savefig(
                path, dpi=130, metadata={"Date": None} if options.format == "svg" else None
            )
            print(path)


if __name__ == "__main__":
    main()
