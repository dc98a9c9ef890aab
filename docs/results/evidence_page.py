"""Fills the tables of docs/results/evidence.md from the results beside it, and draws their curves.

    python docs/results/evidence_page.py

The results are evidence.jsonl and entropy.jsonl of `learning.py`, probes.jsonl of
`linear_probe.py`, and finetuned-grid.jsonl and finetuned.jsonl of `finetuned.py`.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from evidence import (
    ERRORS,
    LINES,
    NAMES,
    PAIRS,
    REPEATED,
    Downstream,
    Record,
    by_seed,
    chosen_with,
    claim,
    cost,
    downstream,
    pair,
    read,
    repeated,
    student,
    table_of,
)
from evidence_figure import draw
from pages import fill, table

HERE = Path(__file__).parent
PARTS = {  # line 9: ExLM with our settings, what differs from it, and the MLM
    "small-k4": "ExLM k = 4, all layers expanded",
    "small-k4-late": "only the last layer expanded",
    "small-k4-not-sticky": "without sticky copies",
    "small-k4-no-prior": "without the prior",
    "small-k4-1d": "without 2D RoPE",
    "small-k4-ctc": "without transitions",
    "small-k4-sparse": "sparse DAG",
    "small-k1": "k = 1",
    "small-k2": "k = 2",
    "small-k8": "k = 8",
    "small-mlm": "MLM",
}
SCORES = ("accuracy", "nll", "joint_nll")
COMPARED = {  # downstream: the name, ExLM and MLM
    "probes": ("linear models on frozen features", "late-k2", "mlm-5750"),
    "pooled": ("linear models, mean and maximum", "late-k2", "mlm-5750"),
    "finetuned": ("fine-tuning, molecules", "late-k2", "mlm-5750"),
    "probes-long": (
        "linear models, 38.7% masks, four times as long",
        "long-late-k2-20000-p387",
        "long-mlm-26400-p387",
    ),
    "probes-text": ("linear models, text", "text-all-k4", "text-mlm-8800"),
    "finetuned-text": ("fine-tuning, text", "text-all-k4", "text-mlm-8800"),
}
METRICS = dict.fromkeys(("rte", "sst-2", "mrpc"), "accuracy") | {
    "cola": "Matthews",
    "sts-b": "Spearman",
}
METRICS |= dict.fromkeys(ERRORS, "RMSE")  # the other sets have ROC-AUC


def markdown(frame: pd.DataFrame) -> str:
    return table(list(frame.columns), frame.to_numpy().tolist())


def line_of(kind: str) -> str:
    return next(line for line, kinds in LINES.items() if kind in kinds)


def spread(values: list[float], digits: int = 3) -> str:
    """Mean, and standard deviation if there are several; a line of a table does not break between
    them."""
    deviation = f"\u00a0±\u00a0{np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"


def summary(records: list[Record], compared: dict[str, Downstream]) -> pd.DataFrame:
    """The first table: every comparison in a row."""
    rows = []
    for exlm, mlm in PAIRS:
        if found := pair(records, exlm, mlm, "joint_nll"):
            differences, several = found.differences, len(found.differences) > 1
            rows.append(
                {
                    "comparison": f"joint nll, {line_of(exlm)}: {NAMES[exlm]}",
                    "ExLM": f"{found.exlm.mean():.3f}",
                    "MLM of equal cost": f"{found.mlm.mean():.3f}",
                    "ExLM better by": f"{differences.mean():+.3f} nats",
                    "95% interval": "{:+.3f} to {:+.3f}".format(*student(differences))
                    if several
                    else "",
                    "seeds": len(differences),
                    "ahead": found.verdict,
                }
            )
    for name, found in compared.items():
        shares = found.table[~found.table.index.isin(ERRORS)]
        score = "score" if "text" in name else f"ROC-AUC of {len(shares)} sets"
        means = shares.mean()
        rows.append(
            {
                "comparison": f"{COMPARED[name][0]}, {len(found.table)} sets",
                "ExLM": f"{means['ExLM']:.3f} (mean {score}), ahead in {found.wins}",
                "MLM of equal cost": (
                    f"{means['MLM']:.3f}, ahead in {len(found.table) - found.wins}"
                ),
                "ExLM better by": f"{found.mean:+.2f} s.d." if found.seeds > 1 else "",
                "95% interval": f"{found.low:+.2f} to {found.high:+.2f}" if found.seeds > 1 else "",
                "seeds": found.seeds,
                "ahead": found.verdict,
            }
        )
    return pd.DataFrame(rows)


def model(runs: dict[int, Record], ratio: str, entropies: dict[str, Record]) -> Record:
    """A row of one kind of model: mean ± standard deviation over seeds, evaluated with this share
    of masks."""
    scores = [run["evaluation"][ratio] for run in runs.values()]
    row: Record = {"seeds": len(scores)}
    row |= {name.replace("_", " "): spread([found[name] for found in scores]) for name in SCORES}
    own = [found["own_states"] for found in scores if "own_states" in found]
    states = np.mean([found["by_state"] for found in scores], axis=0) if own else []
    row |= {
        "own mask": f"{np.mean(own):.2f}" if own else "",
        "states": " ".join(f"{share:.2f}" for share in states),
    }
    bits = [entropies[run["name"]] for run in runs.values() if run["name"] in entropies]
    single = (
        f" ({np.mean([found['states']['mean'] for found in bits]):.2f})" if bits and own else ""
    )
    row["entropy, bits"] = (
        f"{np.mean([found['mean'] for found in bits]):.2f}{single}" if bits else ""
    )
    return row | {"processor seconds": f"{cost(runs):,.0f}"}


def models(records: list[Record], entropies: dict[str, Record]) -> pd.DataFrame:
    """The models of lines 1 to 7, with the mask ratio of their training."""
    rows = []
    for line, kinds in LINES.items():
        ratio = "0.387" if "38.7%" in line else "0.15"
        for kind in kinds:
            if runs := by_seed(records, kind):
                rows.append({"model": f"{line}: {NAMES[kind]}"} | model(runs, ratio, entropies))
    return pd.DataFrame(rows)


def parts(records: list[Record], entropies: dict[str, Record]) -> pd.DataFrame:
    """The models of line 9, and by how much the joint nll of each seed is worse than that of the
    first kind."""
    rows, full = [], by_seed(records, next(iter(PARTS)))
    for kind, name in PARTS.items():
        if runs := by_seed(records, kind):
            losses = [
                _joint(runs[seed]) - _joint(full[seed])
                for seed in sorted(runs.keys() & full.keys())
            ]
            row = {"model": name, "joint nll worse by": " ".join(f"{loss:+.3f}" for loss in losses)}
            rows.append(row | model(runs, "0.387", entropies))
    # there are as many as differences, and the table is wide
    return pd.DataFrame(rows).drop(columns="seeds")


def _joint(run: Record) -> float:
    return run["evaluation"]["0.387"]["joint_nll"]


def repetitions(probes: list[Record]) -> str:
    """The mean score of the linear models of line 8, and what the plan's rule says of it."""
    scores, rows = repeated(probes), []
    for kind, (share, copies) in REPEATED.items():
        row: Record = {
            "masks": f"{share:.1%}",
            "copies": copies,
            "without a visible copy": f"{share**copies:.1%}",
        }
        row |= {"mean score": spread(list(scores[kind]), 2)}
        rows.append(row | {"by seed": " ".join(f"{value:+.2f}" for value in scores[kind])})
    return (
        f"{markdown(pd.DataFrame(rows))}\n\nRange of the mean score along 62.2% masks, where "
        "corruption falls: "
        f"{_by_seed(scores['corruption'])}; along 15% corruption, where the share of masks rises: "
        f"{_by_seed(scores['masks'])} (by seed). By the rule of the plan the claim is "
        f"**{claim(scores)}**."
    )


def _by_seed(values: pd.Series) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def pairs(records: list[Record]) -> pd.DataFrame:
    """The paired differences by seed in both scores, evaluated with both shares of masks."""
    rows = []
    for exlm, mlm in PAIRS:
        row: Record = {"ExLM": f"{line_of(exlm)}: {NAMES[exlm]}", "MLM": NAMES[mlm]}
        for score, ratio in product(("joint_nll", "nll"), ("0.15", "0.387")):
            if found := pair(records, exlm, mlm, score, ratio):
                row["cost, ExLM / MLM"] = f"{found.cost:.2f}"
                shown = " ".join(f"{value:+.3f}" for value in found.differences)
                row[f"{score.replace('_', ' ')} with {100 * float(ratio):g}% masks"] = shown
        if len(row) > 2:
            rows.append(row)
    return pd.DataFrame(rows)


def sets(found: Downstream) -> str:
    """The table of a comparison downstream, and what it says in all."""
    scores = found.table
    shown = pd.DataFrame(
        {"set": scores.index, "score": [METRICS.get(name, "ROC-AUC") for name in scores.index]}
    )
    for name, deviation in (("ExLM", "s.d."), ("MLM", "s.d. of MLM")):
        both = zip(scores[name], scores[deviation], strict=True)
        shown[name] = [
            f"{value:.3f}" + (f" ± {error:.3f}" if found.seeds > 1 else "") for value, error in both
        ]
    shown["ExLM better by"] = [f"{value:+.3f}" for value in scores["difference"]]
    wins = f"ExLM is ahead in {found.wins} of {len(scores)} sets (sign test p = {found.p:.2f})."
    chosen = f"Chosen with the MLM's runs on valid: {found.choice}."
    if found.seeds == 1:
        return f"{markdown(shown)}\n\n{chosen} One seed of pre-training; {wins}"
    scaled = scores.filter(like="in s.d.")
    shown["in s.d. of the MLM, by seed"] = [
        " ".join(f"{value:+.1f}" for value in row) for row in scaled.to_numpy()
    ]
    return (
        f"{markdown(shown)}\n\n{chosen} Mean over sets and seeds {found.mean:+.2f} s.d. (95% "
        "bootstrap interval "
        f"{found.low:+.2f} to {found.high:+.2f}); {wins}"
    )


def kinds(results: list[Record]) -> set[str]:
    """The kinds of models that have a result downstream."""
    return {Path(record["model"]).name.rpartition("-s")[0] for record in results}


def main() -> None:
    records = read(HERE / "evidence.jsonl")
    probes, grid, finetuned = (
        read(HERE / f"{name}.jsonl") for name in ("probes", "finetuned-grid", "finetuned")
    )
    mean, pooled = (
        [record for record in probes if record["pooling"] == name] for name in ("mean", "mean_max")
    )
    results = dict.fromkeys(("probes", "probes-long", "probes-text"), (mean, mean)) | {
        "pooled": (pooled, pooled)
    }
    compared = {}
    for name, (_, exlm, mlm) in COMPARED.items():
        tried, chosen = results.get(name, (finetuned, grid))
        if {exlm, mlm} <= kinds(tried):
            # text is fine-tuned with the choice of molecules
            chooses = mlm if mlm in kinds(chosen) else "mlm-5750"
            compared[name] = downstream(tried, exlm, mlm, chosen_with(table_of(chosen, chooses)))
    entropies = {record["name"]: record for record in read(HERE / "entropy.jsonl")}
    frames = {
        "first": summary(records, compared),
        "pairs": pairs(records),
        "models": models(records, entropies),
    }
    frames |= {"parts": parts(records, entropies)} if by_seed(records, next(iter(PARTS))) else {}
    shown = {name: markdown(frame) for name, frame in frames.items()}
    if kinds(mean) >= REPEATED.keys():
        shown["repeated"] = repetitions(mean)
    fill(HERE / "evidence.md", shown | {name: sets(found) for name, found in compared.items()})
    draw(records, HERE / "evidence.png", over_time=True)
    draw(records, HERE / "evidence-updates.png", over_time=False)


if __name__ == "__main__":
    main()
