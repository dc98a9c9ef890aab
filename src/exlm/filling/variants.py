"""Scores of point mutations: how much more probable a model finds the residues of a mutant than
those of the wild type, where all mutated positions are masked together."""

import re
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from exlm.data.columns import check_columns, choose_column
from exlm.data.frames import output_path, read_frame, with_columns, write_frame
from exlm.data.tokenization import splits_residues
from exlm.errors import InputError
from exlm.filling import search
from exlm.filling.search import Graph
from exlm.filling.texts import all_graphs, encode, load_for_filling
from exlm.train import distributed

TOKENS_PER_BATCH = 4096  # expanded ones


def score(
    model: str,
    input: str,
    output: str | None = None,
    text_column: str | None = None,
    mutations_column: str | None = None,
    label_column: str | None = None,
    header: bool = True,
    device: str = "auto",
) -> pd.DataFrame:
    """Scores mutations of proteins: the log-odds of the mutant's residues against the wild type's.

    The table gets three columns: `score` is the sum over the mutated positions, each judged by
    itself; `joint_score` judges them together, by the likelihood of `exlm fill` in one pass (equal
    without transitions); `problem`, why there is none.

    Args:
        model: a pre-trained model of proteins.
        input: a table with a wild type in each row, in any format that `exlm prepare` reads; `-` is
            standard input.
        output: .csv, .tsv, .parquet or .xlsx file to write; INPUT-MODEL-scores.csv beside the input
            where absent.
        text_column: column of the wild types; by default that with a usual name, such as sequence.
        mutations_column: column of mutations such as A39V, several as V39A:D40C (positions count
            from 1), or of whole mutants as long as the wild type; `mutations` or else `mutant`
            where absent.
        label_column: column of measured effects; the Spearman correlations of both scores with it
            are printed.
        header: whether a table has a header line; without it, its columns are called `column 1`,
            `column 2`, ...
        device: auto, cpu, cuda or one of several (cuda:1)."""
    target = output_path(model, input, output, "scores.csv", (".csv", ".tsv", ".parquet", ".xlsx"))
    frame = read_frame(input, header)
    network, tokenizer = load_for_filling(model)
    if not splits_residues(tokenizer.backend_tokenizer):
        raise InputError(
            f"{model} is no model of proteins; give one of a corpus with the tokenizer protein"
        )
    changes = mutations_column or (
        "mutant" if "mutant" in frame and "mutations" not in frame else "mutations"
    )
    check_columns(frame, input, changes, label_column)
    wild_types = frame[choose_column(frame.columns, text_column, input)]
    distributed.to_device(network, device)
    problems = [frame.attrs.get("malformed", {}).get(row, "") for row in range(len(frame))]
    scores = np.full((len(frame), 2), np.nan)
    # the rows with the same masked text, which one forward pass serves
    same = defaultdict[str, list[int]](list)
    # of the mutant and of the wild type, at the masks of each row
    residues = dict[int, list[Any]]()
    for row, cells in enumerate(zip(wild_types, frame[changes], strict=True)):
        wild, change = (str(cell).strip().upper().removesuffix("*") for cell in cells)
        try:
            new = substitutions(wild, change)
        except InputError as error:
            problems[row] = problems[row] or str(error)
        if problems[row]:
            continue
        if not new:  # the wild type itself
            scores[row] = 0.0
            continue
        masked = [
            str(tokenizer.mask_token) if place in new else old for place, old in enumerate(wild)
        ]
        same["".join(masked)].append(row)
        residues[row] = [
            tokenizer.convert_tokens_to_ids(x)
            for x in ([*new.values()], [wild[place] for place in new])
        ]
    if all(problems):
        raise InputError(f"{input}: no row can be scored, the first: {problems[0]}")
    examples, groups = encode(network, tokenizer, [*same]) if same else [], [*same.values()]
    for example, rows in zip(examples, groups, strict=True):
        for row in rows:
            problems[row] = example.problem or ""
    for number, graph in all_graphs(network, tokenizer, examples, TOKENS_PER_BATCH):
        scores[groups[number]] = log_odds(
            graph, torch.tensor([residues[row] for row in groups[number]])
        )
    done = np.array(problems) == ""
    result = with_columns(
        frame, {"score": scores[:, 0], "joint_score": scores[:, 1], "problem": problems}
    )
    write_frame(result, target)
    print(f"{done.sum()} rows scored, {(~done).sum()} marked in the column problem: {target}")
    if label_column:
        labels = pd.to_numeric(frame[label_column], errors="coerce").to_numpy(float)
        done &= ~np.isnan(labels)
        found = [f"{spearmanr(values[done], labels[done]).statistic:.4f}" for values in scores.T]
        print(
            f"Spearman correlation with {label_column} ({done.sum()} rows): score {found[0]}, joint_score {found[1]}"
        )
    return result


def substitutions(wild: str, change: str) -> dict[int, str]:
    """The new residue at every mutated place (from 0, ascending), of mutations such as `V39A:D40C`
    or a whole mutant. InputError if one is not understood or does not fit."""
    if len(change) == len(wild) and re.fullmatch("[A-Z]+", change):
        found = {
            place: new
            for place, (old, new) in enumerate(zip(wild, change, strict=True))
            if old != new
        }
    else:
        found = {}
        for name in re.split(r"[:,;\s]+", change):
            match = re.fullmatch(r"([A-Z])([1-9]\d*)([A-Z])", name)
            if not match:
                what = f"neither a mutation, such as V39A, nor a mutant with the {len(wild)} residues of the wild type"
                raise InputError(f"{name[:40]!r} is {what}")
            place = int(match[2]) - 1
            there = (
                "another mutation" if place in found else wild[place : place + 1] or "no residue"
            )
            if there != match[1]:
                raise InputError(f"{name}: at position {match[2]} there is {there}, not {match[1]}")
            found[place] = match[3]
    return dict(sorted(found.items()))


def log_odds(graph: Graph, tokens: Tensor) -> np.ndarray:
    """Both scores [rows, 2] of `tokens` [rows, 2, masks], those of the mutants and of the wild
    types at the masks."""
    masks = tokens.shape[2]
    alone = (search.visits(graph, masks)[1:-1] @ graph.probs).log()  # [masks, V]
    singly = alone[torch.arange(masks), tokens].sum(-1)
    jointly = search.log_probability(search.one_per_mask(graph), tokens.flatten(0, 1)).view_as(
        singly
    )
    mutant, wild = torch.stack([singly, jointly]).unbind(-1)
    return (mutant - wild).T.numpy()
