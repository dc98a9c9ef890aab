"""`exlm score`: how much more probable a model finds the residues of a mutant than the residues of
the wild type, where all mutated positions are masked together."""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.data.columns import check_columns, choose_column
from exlm.data.decimals import find_possible_thousands
from exlm.data.frames import read_file
from exlm.data.open_files import is_standard_input
from exlm.data.output_files import output_layout, output_path
from exlm.data.tokenization import alphabet_name
from exlm.data.writing import add_columns, added_name, check_cells, write_frame
from exlm.errors import InputError
from exlm.filling import graph_search
from exlm.filling.graph_search import Graph
from exlm.filling.graphs import graphs_of_texts, load_for_filling, tokenize
from exlm.filling.mutations import Misfit, clean_sequence, new_residues
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.tasks.labels.cells import read_numbers
from exlm.train import devices


class Mutant(NamedTuple):
    """A row of the table."""

    wild: str
    changes: dict[int, str]  # the new residues at the mutated places, from 0, ascending
    problem: str = ""  # why it cannot be scored; "" if it can
    fits: bool = True  # whether its mutations replace residues that the wild type has


def score(
    model: str,
    input: str,
    output: str | None = None,
    text_column: str | None = None,
    mutations_column: str | None = None,
    label_column: str | None = None,
    wild_type: str | None = None,
    first_position: int = 1,
    header: bool = True,
    sheet: str | None = None,
    device: str = "auto",
) -> pd.DataFrame:
    """Scores mutations of proteins: the log-odds of the mutant's residues against the wild type's.

    The table gets three columns: `score` is the sum over the mutated positions, each judged by
    itself; `joint_score` judges them together, by the likelihood of `exlm fill` in one pass (equal
    for a model without links); `problem` says why a row has no scores. A table of which most
    mutations do not fit their wild types is refused.

    Args:
        model: a pre-trained model of proteins.
        input: a table of mutations, in any format that `exlm prepare` reads; `-.csv`, `-.tsv`,
            ... are standard input.
        output: .csv, .tsv, .parquet or .xlsx file to write; INPUT-MODEL-scores.csv beside the input
            where absent.
        text_column: column of the wild types; by default the column with a usual name, such as
            sequence.
        mutations_column: column of mutations such as A39V or p.Ala39Val, several as V39A:D40C, WT,
            or of whole mutants as long as the wild type; `mutations` or else `mutant` where absent.
        label_column: column of measured effects, whose Spearman correlations are printed.
        wild_type: the wild type of all rows, or a file with it, where no column has it.
        first_position: the number that mutations give to the first residue of the wild type.
        header: whether a table has a header line; else its columns are `column 1`, `column 2`, ...
        sheet: sheet of an .xlsx file; the first where absent.
        device: auto, cpu, cuda or one of several (cuda:1)."""
    target = output_path(model, input, output, "scores.csv", (".csv", ".tsv", ".parquet", ".xlsx"))
    table = read_file(input, header, sheet)
    frame = table.frame
    check_cells(frame, target)
    network, tokenizer = load_for_filling(model)
    if alphabet_name(tokenizer.backend_tokenizer) != "protein":
        raise InputError(f"{model} is no model of proteins; give one with the tokenizer protein")
    if mutations_column is None:
        has_mutants = "mutant" in frame and "mutations" not in frame
        mutations_column = "mutant" if has_mutants else "mutations"
    check_columns(frame, input, mutations_column, label_column)
    if wild_type is not None:
        wild_types = pd.Series([read_wild_type(wild_type)] * len(frame), name="wild_type")
    else:
        wild_types = frame[choose_column(frame, text_column, input)]
    rows = zip(wild_types, frame[mutations_column], table.problems_of_rows, strict=True)
    mutants = [
        _read_mutant(wild, mutations, problem, first_position) for wild, mutations, problem in rows
    ]
    _refuse_if_most_do_not_fit(mutants, f"{input}, column {wild_types.name}")
    if all(mutant.problem for mutant in mutants):
        raise InputError(f"{input}: no row can be scored, the first: {mutants[0].problem}")
    devices.place_model(network, device)
    scores, problems = score_mutants(network, tokenizer, mutants)
    columns = {"score": scores[:, 0], "joint_score": scores[:, 1], "problem": problems}
    result = add_columns(frame, columns, input, "exlm score")
    label_columns = [label_column] if label_column else []
    layout = output_layout(input, header, target, label_columns, sheet)
    write_frame(result, target, layout=layout)
    failed = sum(map(bool, problems))
    marked = f"{failed} marked in the column {added_name(result, 'problem')}"
    print(f"{len(frame) - failed} rows scored, {marked}: {target}")
    if label_column:
        may_be_thousands = find_possible_thousands(frame[[label_column]], frame, table.separators)
        labels = frame[label_column].mask(may_be_thousands[label_column])
        _print_correlations(labels, scores, [added_name(result, name) for name in columns])
    return result


def _read_mutant(wild_cell: object, mutations: object, problem: str, first_position: int) -> Mutant:
    """The row with these cells, or with its `problem`."""
    wild = clean_sequence(wild_cell)
    if problem:
        return Mutant(wild, {}, problem)
    try:
        return Mutant(wild, new_residues(wild, mutations, first_position))
    except InputError as error:
        return Mutant(wild, {}, str(error), fits=not isinstance(error, Misfit))


def _refuse_if_most_do_not_fit(mutants: list[Mutant], where: str) -> None:
    misfits = [mutant for mutant in mutants if not mutant.fits]
    count = len(misfits) + sum(bool(mutant.changes) for mutant in mutants)
    if 2 * len(misfits) > count:
        raise InputError(
            f"{where}: {len(misfits)} of {count} rows with mutations do not fit their wild type, "
            f"as row {mutants.index(misfits[0]) + 1}: {misfits[0].problem}; the numbering may be "
            "shifted (set first_position), or these are no wild types (set wild_type or "
            "text_column)"
        )


def read_wild_type(wild_type: str) -> str:
    """A sequence, or the only one of a file. InputError if it has none, or several."""
    if not (is_standard_input(wild_type) or os.path.exists(wild_type)):
        if not re.fullmatch(r"[A-Za-z]+\*?", wild_type):
            raise InputError(f"wild_type {wild_type} is neither a file nor a sequence; correct it")
        return wild_type
    frame = read_file(wild_type).frame
    if len(frame) != 1:
        raise InputError(f"{wild_type} has {len(frame)} sequences; give a file with the wild type")
    return str(frame[choose_column(frame, None, wild_type)].iloc[0])


def _print_correlations(cells: pd.Series, scores: np.ndarray, titles: Sequence[str]) -> None:
    labels = read_numbers(cells).to_numpy(float)
    usable = np.isfinite(labels) & np.isfinite(scores).all(1)
    columns = [labels[usable], *scores[usable].T]
    of_rows = f"{cells.name} ({usable.sum()} of {len(cells)} rows)"
    if not np.isfinite(labels).any():
        print(f"no correlation: the column {cells.name} has no numbers; name one with label_column")
    elif min(len(np.unique(column)) for column in columns) < 2:
        print(f"no correlation with {of_rows}: it needs rows that differ in it and in their scores")
    else:
        single, joint = (spearmanr(column, columns[0]).statistic for column in columns[1:])
        print(
            f"Spearman correlation with {of_rows}: "
            f"{titles[0]} {single:.4f}, {titles[1]} {joint:.4f}"
        )


def score_mutants(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, mutants: Sequence[Mutant]
) -> tuple[np.ndarray, list[str]]:
    """Both scores of `log_odds` for each mutant [mutants, 2], NaN where it has a problem, and the
    problems, "" where it has scores."""
    scores = np.full((len(mutants), 2), np.nan)
    problems = [mutant.problem for mutant in mutants]
    # the numbers of the rows with the same masked text, which one forward pass serves
    rows_by_text = defaultdict[str, list[int]](list)
    for row, mutant in enumerate(mutants):
        if mutant.changes:
            residues = list(mutant.wild)
            for place in mutant.changes:
                residues[place] = str(tokenizer.mask_token)
            rows_by_text["".join(residues)].append(row)
        # the wild type itself
        elif not mutant.problem:
            scores[row] = 0.0
    if not rows_by_text:
        return scores, problems
    masked_texts = tokenize(network, tokenizer, list(rows_by_text))
    row_groups = list(rows_by_text.values())  # in the order of the masked texts
    for masked_text, rows in zip(masked_texts, row_groups, strict=True):
        for row in rows:
            problems[row] = masked_text.problem or ""
    for number, graph in graphs_of_texts(network, tokenizer, masked_texts):
        rows = row_groups[number]
        token_ids = []  # of the new residues and the old ones
        for row in rows:
            changes = mutants[row].changes
            old = [mutants[row].wild[place] for place in changes]
            token_ids.append(tokenizer.convert_tokens_to_ids([*changes.values(), *old]))
        scores[rows] = log_odds(graph, torch.tensor(token_ids).unflatten(1, (2, -1)))
    return scores, problems


def log_odds(graph: Graph, token_ids: Tensor) -> np.ndarray:
    """Both scores [rows, 2] of `token_ids` [rows, 2, masks], the tokens of the mutants and of the
    wild types at the masks. The first score sums over all paths, the second over the paths with one
    state in every mask alone, as `exlm fill` does in one pass."""
    masks = torch.arange(token_ids.shape[2])
    log_marginals = graph_search.marginals(graph).log()  # [masks, V]
    singly = log_marginals[masks, token_ids].sum(-1)  # [rows, 2], as `jointly`
    one_per_mask = graph_search.with_one_per_mask(graph)
    jointly = graph_search.log_probability(one_per_mask, token_ids.flatten(0, 1))
    mutant, wild = torch.stack([singly, jointly.view_as(singly)]).unbind(-1)
    return (mutant - wild).T.numpy()
