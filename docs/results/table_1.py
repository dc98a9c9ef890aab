"""The tables and the figure of table-1.md: the models of the package, fine-tuned, beside the best
baselines of baselines.md and the paper's own models. The protocol was chosen with the first
command, on the first fine-tuning seed of the MLM; MODELS are models/molecules-5M and
models/molecules-5M-mlm.

    python docs/results/finetuned.py models/molecules-5M-mlm --layers 5 6 --rates 3e-4 1e-3 \\
        --seeds 0 --sets freesolv bace esol --data_dir DATA --output table-1-protocol.jsonl
    python docs/results/finetuned.py MODELS --layers LAYERS --rates RATE --data_dir DATA \\
        --output table-1.jsonl
    python docs/results/table_1.py
"""

import json
from pathlib import Path
from typing import cast

import matplotlib
import pandas as pd
from pages import fill, table

from exlm.paper.display import MAIN_TABLES

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = 4  # in a row of the figure
HERE = Path(__file__).parent
MODELS = {"molecules-5M": "ExLM, 5M", "molecules-5M-mlm": "MLM, 5M"}
PRINTED = ["SMILES-BERT*", "ExLM"]  # the paper's own models, in its table
NAMES = {  # of the data sets, by the columns of baselines.md
    "BACE": "bace",
    "BBBP": "bbbp",
    "Tox21": "tox21",
    "SIDER": "sider",
    "MUV": "muv",
    "ClinTox": "clintox",
    "ToxCast": "toxcast",
    "ESOL": "esol",
    "FreeSolv": "freesolv",
    "Lipophilicity": "lipophilicity",
}


def read(name: str) -> pd.DataFrame:
    """A line for each fine-tuning; the model by its name."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    frame = pd.DataFrame(list(map(json.loads, lines)))
    frame["model"] = frame["model"].map(lambda path: Path(path).name)
    return frame


def best_protocol(frame: pd.DataFrame) -> tuple[int, float]:
    """The number of layers and the rate with the best mean rank on valid over the data sets."""
    error = frame["metric"] == "rmse"
    score = frame["valid"].where(~error, -frame["valid"])
    rank = score.groupby(frame["set"]).rank(ascending=False)
    best = rank.groupby([frame["layers"], frame["rate"]]).mean().idxmin()
    layers, rate = cast(tuple[int, float], best)
    return int(layers), float(rate)


def baseline_rows(name: str) -> tuple[list[str], list[list[str]]]:
    """The columns and the rows of a table of baselines.md."""
    page = (HERE / "baselines.md").read_text(encoding="utf-8")
    part = page.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line
    ]
    return lines[0], lines[2:]


def model_row(frame: pd.DataFrame, model: str, head: list[str], percent: bool) -> list[str]:
    """The mean and the standard deviation over seeds of a model on each data set of the head."""
    scale, digits = (100, 1) if percent else (1, 3)
    row = [f"**{MODELS[model]}**"]
    for name in head[1:]:
        values = (
            scale * frame[(frame["model"] == model) & (frame["set"] == NAMES.get(name))]["test"]
        )
        cell = ""
        if len(values):
            spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else " (1 seed)"
            cell = f"{values.mean():.{digits}f}{spread}"
        row.append(cell)
    return row


def difference_row(frame: pd.DataFrame, head: list[str], percent: bool) -> list[str]:
    """By how much ExLM is better than its MLM on each data set, for each seed of fine-tuning."""
    scale, digits = (100, 1) if percent else (-1, 2)
    row = ["ExLM better by"]
    for name in head[1:]:
        scores = frame[frame["set"] == NAMES[name]].pivot(
            index="seed", columns="model", values="test"
        )
        better = scale * (scores["molecules-5M"] - scores["molecules-5M-mlm"])
        row.append(", ".join(f"{difference:+.{digits}f}" for difference in better))
    return row


def best_row(title: str, rows: list[list[str]], percent: bool) -> list[str]:
    """The best mean of each column with its standard deviation."""
    best = max if percent else min
    columns = list(zip(*rows, strict=True))[1:]
    return [title, *(best(cells, key=lambda cell: float(cell.split()[0])) for cells in columns)]


def printed_row(model: str, head: list[str]) -> list[str]:
    """What the paper prints for one of its own models."""
    printed = MAIN_TABLES["main-molecules"]
    values = dict(zip(printed.columns, printed.paper[model], strict=True))
    return [f"*{model.rstrip('*')}*", *(f"*{values[name]}*" for name in head[1:])]


def parts() -> dict[str, str]:
    """The tables of the page by their names, with the data sets on which the models were tuned."""
    frame = read("table-1.jsonl")
    tables = {}
    for name in ("classification", "regression"):
        percent = name == "classification"
        head, baselines = baseline_rows(name)
        columns = [0, *(i for i, title in enumerate(head) if NAMES.get(title) in set(frame["set"]))]
        head, *baselines = [[row[i] for i in columns] for row in (head, *baselines)]
        fingerprints = [row for row in baselines if row[0].startswith("ECFP4")]
        networks = [row for row in baselines if row not in fingerprints]
        rows = [model_row(frame, model, head, percent) for model in MODELS]
        rows.append(difference_row(frame, head, percent))
        rows.append(best_row("best of three on fingerprints", fingerprints, percent))
        rows.append(best_row("better of two graph networks", networks, percent))
        if percent:
            rows += [printed_row(model, head) for model in PRINTED]
        tables[name] = table(head, rows)
    return tables


def draw(frame: pd.DataFrame) -> None:
    """A panel for each data set: a dot for each model, with an interval of one standard deviation
    over seeds."""
    sets = [name for name, key in NAMES.items() if key in set(frame["set"])]
    rows_of_panels = -(-len(sets) // PANELS)
    figure, axes = plt.subplots(
        rows_of_panels, PANELS, figsize=(8, 2.8 * rows_of_panels), sharey=True, layout="constrained"
    )
    for axis in axes.flat[len(sets) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, sets, strict=False):
        percent = name not in ("ESOL", "FreeSolv", "Lipophilicity")
        head, rows = baseline_rows("classification" if percent else "regression")
        ours = [model_row(frame, model, head, percent) for model in MODELS]
        measured = [*ours, *rows]
        column = head.index(name)
        for height, row in enumerate(reversed(measured)):
            if row[column]:
                mean, _, spread = row[column].replace("\N{NO-BREAK SPACE}", " ").partition(" ")
                error = float(spread.strip("± ")) if "±" in spread else 0.0
                marker = "o" if row in ours else "s"
                colour = "black" if row in ours else "gray"
                axis.errorbar(float(mean), height, xerr=error, fmt=marker, color=colour)
        axis.set(title=name, xlabel="ROC-AUC, %" if percent else "RMSE")
        axis.set_yticks(range(len(measured)), [row[0].strip("*") for row in reversed(measured)])
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "table-1.png", dpi=130)
    plt.close(figure)


def main() -> None:
    print("protocol: {} layers, rate {}".format(*best_protocol(read("table-1-protocol.jsonl"))))
    fill(HERE / "table-1.md", parts())
    draw(read("table-1.jsonl"))


if __name__ == "__main__":
    main()
