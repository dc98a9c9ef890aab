"""Scores of point mutations: how much more probable a model finds the residues of a mutant than those of the wild type,
where all mutated positions are masked together."""

import re
from collections import defaultdict

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from exlm.data.columns import check_columns, choose_column
from exlm.data.frames import output_path, read_frame, with_columns, write_frame
from exlm.data.tokenization import RESIDUES, splits_residues
from exlm.errors import InputError
from exlm.filling import search
from exlm.filling.search import Graph
from exlm.filling.texts import all_graphs, encode, load_for_filling
from exlm.train import distributed

MUTATION = re.compile(r"([A-Z])(\d+)([A-Z])")


def score(
    model: str,
    input: str,
    output: str | None = None,
    text_column: str | None = None,
    mutations_column: str = "mutations",
    mutant_column: str = "mutant",
    label_column: str | None = None,
    header: bool = True,
    tokens_per_batch: int = 4096,
    device: str = "auto",
) -> pd.DataFrame:
    """Scores mutations of proteins: the log-odds of the mutant's residues against the wild type's.

    The table gets three columns: `score` is the sum over the mutated positions, each judged by itself; `joint_score`
    judges them together, by the likelihood of `exlm fill` (equal for models without transitions); `problem` says why a
    row has no scores.

    Args:
        model: a pre-trained model of proteins.
        input: a table with a wild type in each row, in any format that `exlm prepare` reads; `-` is standard input.
        output: .csv, .tsv, .parquet or .xlsx file to write; INPUT-MODEL-scores.csv beside the input where absent.
        text_column: column of the wild types; by default that with a usual name, such as sequence.
        mutations_column: column of mutations such as A39V, several as V39A:D40C or V39A,D40C; positions count from 1.
        mutant_column: column of whole mutants as long as the wild types, read if there is no column of mutations.
        label_column: column of measured effects; the Spearman correlations of both scores with it are printed.
        header: whether a table has a header line; without it, its columns are called `column 1`, `column 2`, ...
        tokens_per_batch: how many expanded tokens one forward pass may have.
        device: auto, cpu, cuda or one of several (cuda:1).
    """
    target = output_path(model, input, output, "scores.csv", (".csv", ".tsv", ".parquet", ".xlsx"))
    frame = read_frame(input, header)
    column = choose_column(frame.columns, text_column, input)
    change = mutations_column if mutations_column in frame else mutant_column
    check_columns(frame, input, change, label_column)
    network, tokenizer = load_for_filling(model)
    if not splits_residues(tokenizer.backend_tokenizer):
        raise InputError(
            f"{model} is no model of proteins; give one whose corpus was prepared with --tokenizer protein"
        )
    distributed.to_device(network, device)
    problems = [frame.attrs.get("malformed", {}).get(row, "") for row in range(len(frame))]
    scores = np.full((len(frame), 2), np.nan)
    texts = defaultdict[str, list[tuple[int, list[list[int]]]]](
        list
    )  # rows with the same masked text, and their tokens
    for row in [row for row, problem in enumerate(problems) if not problem]:
        wild, changed = (str(frame[name].iloc[row]).strip().upper().removesuffix("*") for name in (column, change))
        try:
            mutant = mutated(wild, changed) if change == mutations_column else changed
            places = substituted(wild, mutant)
        except InputError as error:
            problems[row] = str(error)
            continue
        if not places:
            scores[row] = 0.0
            continue
        masked = [str(tokenizer.mask_token) if i in places else residue for i, residue in enumerate(wild)]
        tokens = [[tokenizer.convert_tokens_to_ids(text[i]) for i in places] for text in (mutant, wild)]
        texts["".join(masked)].append((row, tokens))
    examples, groups = encode(network, tokenizer, [*texts]), [*texts.values()]
    for example, group in zip(examples, groups, strict=True):
        for row, _ in group:
            problems[row] = example.problem or ""
    for number, graph in all_graphs(network, tokenizer, examples, tokens_per_batch):
        rows, tokens = zip(*groups[number], strict=True)
        scores[[*rows]] = log_odds(graph, torch.tensor(tokens))
    result = with_columns(frame, {"score": scores[:, 0], "joint_score": scores[:, 1], "problem": problems})
    write_frame(result, target)
    done = ~np.isnan(scores[:, 0])
    if not done.any():
        raise InputError(f"{input}: no row can be scored, the first: {problems[0]}")
    print(f"{done.sum()} rows scored, {(~done).sum()} marked in the column problem: {target}")
    if label_column:
        labels = pd.to_numeric(frame[label_column], errors="coerce").to_numpy(float)
        done &= ~np.isnan(labels)
        alike = (f"{spearmanr(values[done], labels[done]).statistic:.4f}" for values in scores.T)
        print(
            "Spearman correlation with {} on {} rows: score {}, joint_score {}".format(label_column, done.sum(), *alike)
        )
    return result


def mutated(wild: str, mutations: str) -> str:
    """The wild type with mutations such as `V39A:D40C`; InputError for one that is not understood or does not fit."""
    residues = list(wild)
    for name in re.split(r"[:,;\s]+", mutations):
        match = MUTATION.fullmatch(name)
        if not match:
            raise InputError(f"{name!r} is no mutation; write V39A, and several as V39A:D40C")
        before, place, after = match[1], int(match[2]), match[3]
        there = residues[place - 1] if 0 < place <= len(residues) else "nothing"
        if there != before:
            raise InputError(f"{name}: at position {place} there is {there}, not {before}")
        residues[place - 1] = after
    return "".join(residues)


def substituted(wild: str, mutant: str) -> list[int]:
    """The places, from 0, where two proteins differ; InputError if these are not pairs of residues."""
    if len(wild) != len(mutant):
        raise InputError(
            f"the wild type has {len(wild)} residues and the mutant {len(mutant)}; only substitutions count"
        )
    if strange := set(mutant) - set(RESIDUES):
        raise InputError(f"the mutant has {min(strange)!r}, which is no residue")
    return [i for i, (before, after) in enumerate(zip(wild, mutant, strict=True)) if before != after]


def log_odds(graph: Graph, tokens: Tensor) -> np.ndarray:
    """Both scores [rows, 2] of `tokens` [rows, 2, masks], those of the mutants and of the wild types at the masks."""
    masks = tokens.shape[2]
    alone = (search.visits(graph, masks)[1:-1] @ graph.probs).log()  # [masks, V]
    singly = alone[torch.arange(masks), tokens].sum(-1)
    jointly = search.log_probability(search.one_per_mask(graph), tokens.flatten(0, 1)).view_as(singly)
    mutant, wild = torch.stack([singly, jointly]).unbind(-1)
    return (mutant - wild).T.numpy()
