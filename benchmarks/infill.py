"""Filling parts of held-out molecules: how often the fillings of a model are molecules, and the
right ones.

    python benchmarks/infill.py CORPUS results.jsonl --models molecules-5M molecules-5M-mlm

A line of JSON for every model, task and number of passes; what has a line is not done again. Both
models took 42 minutes together, on one core of an AMD EPYC. The tasks mask tokens of held-out
molecules of the corpus:

span           a run of 6 to 8 tokens
two spans      two runs of 3 tokens, at least 3 apart
ring digits    all digits that open or close a ring
two branches   what stands between the parentheses of two branches, at most 8 tokens each
15%, 38.7%     tokens drawn at random

valid          the share of samples that RDKit reads
unique         of the valid samples, the share of different ones within a molecule
recovered      the share of molecules whose most probable filling, as far as a narrow beam search
               finds it, is the molecule itself
nll            of the masked tokens together, in nats per token (in these passes)
seconds        processor time of the samples, per molecule
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from exlm import ExLMForMaskedLM
from exlm.data.chemistry import molecule_problem, standardize
from exlm.data.corpus import Corpus
from exlm.filling.filler import fill_texts
from exlm.filling.graphs import load_for_filling
from exlm.filling.options import FillOptions
from exlm.model.passes import Passes, nll_in_passes
from exlm.ops.expansion import IGNORED

PASSES: tuple[Passes, ...] = (1, 2, 4, "all")
SAMPLES = 10  # of each molecule
BEAM = 4
BATCH = 50  # molecules in a batch of `nll`

# The places to mask among the tokens of a molecule, or None if the task does not fit it.
ChoosePlaces = Callable[[list[str], np.random.Generator], list[int] | None]


def span(tokens: list[str], generator: np.random.Generator) -> list[int] | None:
    length = int(generator.integers(6, 9))
    if len(tokens) < 2 * length:
        return None
    first = int(generator.integers(0, len(tokens) - length + 1))
    return list(range(first, first + length))


def two_spans(tokens: list[str], generator: np.random.Generator) -> list[int] | None:
    if len(tokens) < 18:
        return None
    first = int(generator.integers(0, len(tokens) - 8))
    second = int(generator.integers(first + 6, len(tokens) - 2))
    return [*range(first, first + 3), *range(second, second + 3)]


def ring_digits(tokens: list[str], generator: np.random.Generator) -> list[int] | None:
    places = [i for i, token in enumerate(tokens) if token.isdigit() or token.startswith("%")]
    return places or None


def two_branches(tokens: list[str], generator: np.random.Generator) -> list[int] | None:
    branches = []
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token == "(":
            opened.append(place)
        elif token == ")":
            first = opened.pop() + 1
            if place - first <= 8:
                branches.append(range(first, place))
    generator.shuffle(branches)
    for i, one in enumerate(branches):
        for other in branches[i + 1 :]:
            if not set(one).intersection(other):
                return sorted([*one, *other])
    return None


def at_random(share: float) -> ChoosePlaces:
    def choose(tokens: list[str], generator: np.random.Generator) -> list[int] | None:
        count = round(share * len(tokens))
        return sorted(generator.choice(len(tokens), count, replace=False).tolist()) or None

    return choose


TASKS: dict[str, ChoosePlaces] = {
    "span": span,
    "two spans": two_spans,
    "ring digits": ring_digits,
    "two branches": two_branches,
    "15%": at_random(0.15),
    "38.7%": at_random(0.387),
}


def masked_molecules(
    corpus: Corpus, tokenizer: PreTrainedTokenizerFast, task: str, count: int
) -> list[tuple[list[int], list[int]]]:
    """The tokens of `count` held-out molecules, with ends, and the places of their masks."""
    generator = np.random.default_rng(list(TASKS).index(task))
    molecules = []
    for row in np.random.default_rng(0).permutation(len(corpus)):
        ids = [tokenizer.bos_token_id, *corpus[int(row)].tolist(), tokenizer.eos_token_id]
        tokens = list(tokenizer.convert_ids_to_tokens(ids[1:-1]))
        places = TASKS[task](tokens, generator)
        if places:
            molecules.append((ids, [place + 1 for place in places]))
        if len(molecules) == count:
            break
    return molecules


def joint_nll(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    molecules: list[tuple[list[int], list[int]]],
    passes: Passes,
) -> float:
    """Nats per masked token of the true tokens."""
    nats = 0.0
    for first in range(0, len(molecules), BATCH):
        batch = molecules[first : first + BATCH]
        width = max(len(ids) for ids, _ in batch)
        input_ids = torch.full((len(batch), width), tokenizer.pad_token_id)
        labels = torch.full_like(input_ids, IGNORED)
        for row, (ids, places) in enumerate(batch):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            labels[row, places] = input_ids[row, places]
            input_ids[row, places] = tokenizer.mask_token_id
        attention_mask = (input_ids != tokenizer.pad_token_id).long()
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        nats += float(nll_in_passes(network, tensors, passes).sum())
    return nats / sum(len(places) for _, places in molecules)


def with_masks(tokenizer: PreTrainedTokenizerFast, ids: list[int], places: list[int]) -> str:
    """The molecule as a string, with a mask at each of the places."""
    tokens = list(tokenizer.convert_ids_to_tokens(ids))
    for place in places:
        tokens[place] = str(tokenizer.mask_token)
    # tokens that spell what is outside the vocabulary begin with a mark
    return "".join(token.removeprefix("##") for token in tokens[1:-1])


def run(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    molecules: list[tuple[list[int], list[int]]],
    passes: Passes,
) -> dict[str, float]:
    """The numbers of a model, for one task and one number of passes."""
    texts = [with_masks(tokenizer, ids, places) for ids, places in molecules]
    truth = [standardize(str(tokenizer.decode(ids[1:-1])), "canonical") for ids, _ in molecules]
    sampling = FillOptions(samples=SAMPLES, passes=passes)
    start = time.process_time()
    sampled = [record.fillings for record in fill_texts(network, tokenizer, texts, sampling)]
    seconds = time.process_time() - start
    valid = 0
    unique = []
    for fillings in sampled:
        texts_of_molecule = [entry.text for entry in fillings]
        molecules_of_row = [
            standardize(text, "canonical")
            for text in texts_of_molecule
            if molecule_problem(text) is None
        ]
        valid += len(molecules_of_row)
        if molecules_of_row:
            unique.append(len(set(molecules_of_row)) / len(molecules_of_row))
    searching = FillOptions(n_best=1, beam=BEAM, passes=passes)
    recovered = 0
    for record, molecule in zip(
        fill_texts(network, tokenizer, texts, searching), truth, strict=True
    ):
        best = record.fillings[0].text
        recovered += standardize(best, "canonical") == molecule
    return {
        "molecules": len(molecules),
        "masks": sum(len(places) for _, places in molecules) / len(molecules),
        "valid": valid / (SAMPLES * len(molecules)),
        "unique": float(np.mean(unique)) if unique else float("nan"),
        "recovered": recovered / len(molecules),
        "nll": joint_nll(network, tokenizer, molecules, passes),
        "seconds": seconds / len(molecules),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("results")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--molecules", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Path(options.results)
    lines = results.read_text().splitlines() if results.exists() else []
    done = [
        [record["model"], record["task"], record["passes"]] for record in map(json.loads, lines)
    ]
    for model in options.models:
        network, tokenizer = load_for_filling(model)
        network.eval()
        held_out = Corpus(options.corpus, "valid")
        for task in TASKS:
            molecules = masked_molecules(held_out, tokenizer, task, options.molecules)
            for passes in PASSES:
                place: list[Any] = [Path(model).name, task, passes]
                if place in done:
                    continue
                names = dict(zip(("model", "task", "passes"), place, strict=True))
                line = json.dumps(names | run(network, tokenizer, molecules, passes))
                with results.open("a") as stream:
                    stream.write(line + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
