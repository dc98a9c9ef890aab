"""Scores of point mutations: how much more probable a model finds the residues of a mutant than
those of the wild type, where all mutated positions are masked together."""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.data.chunks import output_layout, output_path
from exlm.data.columns import MISSING_TEXTS, check_columns, choose_column
from exlm.data.frames import read_file, with_columns, write_frame
from exlm.data.numbers import number_columns
from exlm.data.tabular import TableOptions
from exlm.data.tokenization import alphabet_name
from exlm.errors import InputError
from exlm.filling import search
from exlm.filling.graphs import load_for_filling, read_graphs, tokenize
from exlm.filling.search import Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.tasks.labels.cells import read_numbers
from exlm.train import distributed

WILD_TYPE = ("WT", "_WT", "WILD TYPE", "WILD-TYPE", "WILDTYPE", "P.=", "=")  # as tables write it
# X, B, Z and J stand for several residues
SCORED = frozenset("ACDEFGHIKLMNOPQRSTUVWY")
# codes of three letters, as in p.Val39Ala
RESIDUES = dict(
    ALA="A", ARG="R", ASN="N", ASP="D", CYS="C", GLN="Q", GLU="E", GLY="G", HIS="H", ILE="I",
    LEU="L", LYS="K", MET="M", PHE="F", PRO="P", SER="S", THR="T", TRP="W", TYR="Y", VAL="V",
)  # fmt: skip
RESIDUE_CODE = f"[A-Z]|{'|'.join(RESIDUES)}"
MUTATION = re.compile(rf"(?:P\.)?\(?({RESIDUE_CODE})(-?\d+)({RESIDUE_CODE}|=)\)?")


class Variant(NamedTuple):
    """A row: a wild type and the new residues at its mutated places (from 0, ascending)."""

    wild: str
    changes: dict[int, str]
    problem: str  # why it cannot be scored; "" if it can


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
    without transitions); `problem` says why a row has no scores.

    Args:
        model: a pre-trained model of proteins.
        input: a table of mutations, in any format that `exlm prepare` reads; `-` is standard input.
        output: .csv, .tsv, .parquet or .xlsx file to write; INPUT-MODEL-scores.csv beside the input
            where absent.
        text_column: column of the wild types; by default that with a usual name, such as sequence.
        mutations_column: column of mutations such as A39V or p.Ala39Val, several as V39A:D40C, WT,
            or of whole mutants as long as the wild type; `mutations` or else `mutant` where absent.
        label_column: column of measured effects; the Spearman correlations of both scores with it
            are printed.
        wild_type: the wild type of all rows, or a file with this one sequence, where no column has
            it.
        first_position: the number that mutations give to the first residue of the wild type.
        header: whether a table has a header line; without it, its columns are called `column 1`,
            `column 2`, ...
        sheet: sheet of an .xlsx file; the first where absent.
        device: auto, cpu, cuda or one of several (cuda:1)."""
    target = output_path(model, input, output, "scores.csv", (".csv", ".tsv", ".parquet", ".xlsx"))
    options = TableOptions(header, sheet=sheet)
    table = read_file(input, options)
    frame = table.frame
    network, tokenizer = load_for_filling(model)
    if alphabet_name(tokenizer.backend_tokenizer) != "protein":
        raise InputError(
            f"{model} is no model of proteins; give one of a corpus with the tokenizer protein"
        )
    if not mutations_column:
        has_mutants = "mutant" in frame and "mutations" not in frame
        mutations_column = "mutant" if has_mutants else "mutations"
    check_columns(frame, input, mutations_column, label_column)
    if wild_type is not None:
        wild_types = pd.Series([read_wild_type(wild_type)] * len(frame))
    else:
        wild_types = frame[choose_column(frame.columns, text_column, input)]
    distributed.place_model(network, device)
    cells = zip(wild_types, frame[mutations_column], table.problems_of_rows, strict=True)
    variants = [
        _variant(_clean(wild), str(mutations), first_position, problem)
        for wild, mutations, problem in cells
    ]
    if all(variant.problem for variant in variants):
        raise InputError(f"{input}: no row can be scored, the first: {variants[0].problem}")
    scores, problems = score_variants(network, tokenizer, variants)
    columns = {"score": scores[:, 0], "joint_score": scores[:, 1], "problem": problems}
    result = with_columns(frame, columns)
    layout = output_layout(input, options, target)
    write_frame(result, target, numbers=number_columns(input, frame), layout=layout)
    failed = sum(map(bool, problems))
    print(f"{len(frame) - failed} rows scored, {failed} marked in the column problem: {target}")
    if label_column:
        _print_correlations(frame[label_column], scores)
    return result


def _variant(wild: str, mutations: str, first_position: int, problem: str) -> Variant:
    """The row with these cells, or its `problem`."""
    if not problem:
        try:
            return Variant(wild, substitutions(wild, mutations, first_position), "")
        except InputError as error:
            problem = str(error)
    return Variant(wild, {}, problem)


def read_wild_type(wild_type: str) -> str:
    """A sequence, or the only one of a file. InputError if it has none, or several."""
    if not os.path.exists(wild_type):
        if not re.fullmatch(r"[A-Za-z]+\*?", wild_type):
            raise InputError(f"wild_type {wild_type} is neither a file nor a sequence; correct it")
        return wild_type
    frame = read_file(wild_type).frame
    if len(frame) != 1:
        raise InputError(f"{wild_type} has {len(frame)} sequences; give a file with the wild type")
    return str(frame[choose_column(frame.columns, None, wild_type)].iloc[0])


def _clean(cell: Any) -> str:
    """A cell as capital letters, without the `*` that may end a protein; "" where it is missing."""
    text = "" if cell is None or cell != cell else str(cell).strip()
    return "" if text in MISSING_TEXTS else text.upper().removesuffix("*")


def _print_correlations(cells: pd.Series, scores: np.ndarray) -> None:
    labels = read_numbers(cells).to_numpy(float)
    usable = np.isfinite(labels) & np.isfinite(scores).all(1)
    single = spearmanr(scores[usable, 0], labels[usable]).statistic
    joint = spearmanr(scores[usable, 1], labels[usable]).statistic
    print(
        f"Spearman correlation with {cells.name} ({usable.sum()} of {len(cells)} rows): "
        f"score {single:.4f}, joint_score {joint:.4f}"
    )


def score_variants(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, variants: Sequence[Variant]
) -> tuple[np.ndarray, list[str]]:
    """Both scores of `log_odds` for each variant [variants, 2], and its problem. A variant with a
    problem has NaN scores, one with scores has the problem ""."""
    scores = np.full((len(variants), 2), np.nan)
    problems = [variant.problem for variant in variants]
    # the rows with the same masked text, which one forward pass serves
    rows_of_text = defaultdict[str, list[int]](list)
    for row, variant in enumerate(variants):
        if variant.changes:
            residues = list(variant.wild)
            for place in variant.changes:
                residues[place] = str(tokenizer.mask_token)
            rows_of_text["".join(residues)].append(row)
        # the wild type itself
        elif not variant.problem:
            scores[row] = 0.0
    if not rows_of_text:
        return scores, problems
    masked_texts = tokenize(network, tokenizer, list(rows_of_text))
    groups = list(rows_of_text.values())
    for masked_text, rows in zip(masked_texts, groups, strict=True):
        for row in rows:
            problems[row] = masked_text.problem or ""
    for number, graph in read_graphs(network, tokenizer, masked_texts):
        tokens = [_tokens_at_masks(variants[row], tokenizer) for row in groups[number]]
        scores[groups[number]] = log_odds(graph, torch.tensor(tokens))
    return scores, problems


def _tokens_at_masks(variant: Variant, tokenizer: PreTrainedTokenizerFast) -> list[int | list[int]]:
    """The tokens of the mutant and of the wild type at the mutated places."""
    new = list(variant.changes.values())
    old = [variant.wild[place] for place in variant.changes]
    return [tokenizer.convert_tokens_to_ids(new), tokenizer.convert_tokens_to_ids(old)]


def substitutions(wild: str, mutations: str, first_position: int = 1) -> dict[int, str]:
    """The new residue at every mutated place (from 0, ascending). `mutations` are such as
    `V39A:D40C`, where the first residue has the number `first_position`, a whole mutant, or the
    wild type. InputError if one is not understood or does not fit, or is no substitution of a
    residue."""
    if not wild:
        raise InputError("no wild type")
    mutant = _clean(mutations)
    if len(mutant) == len(wild) and re.fullmatch("[A-Z]+", mutant):
        new_residues = dict(enumerate(mutant))
    elif mutant in WILD_TYPE:
        new_residues = {}
    else:
        new_residues = _parse_mutations(wild, mutations.strip(), first_position)
    # A residue that stays is no mutation, and is not masked.
    changes = {place: new for place, new in sorted(new_residues.items()) if new != wild[place]}
    for place, new in changes.items():
        if not SCORED.issuperset((wild[place], new)):
            raise InputError(
                f"{wild[place]}{place + first_position}{new}: a gap has no score, nor have X, B, Z "
                "and J, which stand for several residues; name two residues"
            )
    return changes


def _parse_mutations(wild: str, mutations: str, first_position: int) -> dict[int, str]:
    """The residues that mutations such as `V39A:D40C` name, by their places from 0."""
    new_residues: dict[int, str] = {}
    # brackets around all of them, p.[Val39Ala;Asp40Cys], say that they are of one allele
    names = re.sub(r"^P\.\[(.*)\]$", r"\1", mutations.upper())
    for name in re.split(r"[:,;/+_|\s]+", names):
        match = MUTATION.fullmatch(name)
        if not match:
            raise InputError(
                f"{mutations[:40]!r} is neither mutations of one allele, such as V39A:D40C, nor a "
                f"mutant with the {len(wild)} residues of the wild type"
            )
        old, position, new = match.groups()
        old = RESIDUES.get(old, old)
        new = RESIDUES.get(new, new)
        place = int(position) - first_position
        residue = "no residue"
        if place in new_residues:
            residue = "another mutation"
        elif 0 <= place < len(wild):
            residue = wild[place]
        if residue != old:
            raise InputError(f"{name}: at position {position} there is {residue}, not {old}")
        new_residues[place] = old if new == "=" else new
    return new_residues


def log_odds(graph: Graph, tokens: Tensor) -> np.ndarray:
    """Both scores [rows, 2] of `tokens` [rows, 2, masks], those of the mutants and of the wild
    types at the masks. The first sums over all paths; the second only over those with one state
    in every mask, as `exlm fill` does in one pass."""
    masks = tokens.shape[2]
    # [masks, V]
    marginals = (search.visits(graph, masks)[1:-1] @ graph.probs).log()
    singly = marginals[torch.arange(masks), tokens].sum(-1)
    jointly = search.log_probability(search.with_one_per_mask(graph), tokens.flatten(0, 1))
    mutant, wild = torch.stack([singly, jointly.view_as(singly)]).unbind(-1)
    return (mutant - wild).T.numpy()
