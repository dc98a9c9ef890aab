"""A page or a figure to look inside the model: its states, their transitions and the best fillings of one text.

This is the case study of the paper (section 5, "Case Study", and the appendix "Detailed Case Study") for any model and
any text. `build_case` collects the numbers as plain data, `page` and `figure` show them.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.filling import search as filling
from exlm.filling.figure import draw
from exlm.filling.fill import load_for_filling, parse_lengths
from exlm.filling.molecules import add_drawings, are_smiles
from exlm.filling.page import page
from exlm.filling.search import Graph
from exlm.filling.texts import (
    NO_MASK,
    FillOptions,
    encode,
    filled,
    graphs,
    inserted,
    possible_lengths,
    searched,
    top_words,
    weights,
)
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage import replacing, write_text
from exlm.train import distributed

Case = dict[str, Any]
Piece = tuple[str, int | None]  # text, and the mask it stands for

FIGURES = (".svg", ".png", ".pdf")


def explore(
    model: str,
    text: str,
    output: str = "explore.html",
    n_best: int = 10,
    words: int = 5,
    threshold: float = 0.05,
    tokens: str | None = None,
    free: bool = False,
) -> None:
    """Shows the states of every mask, the transitions between them, and the best joint fillings of one text.

    Args:
        model: a pre-trained model directory.
        text: with the tokenizer's mask token or [MASK] where something is to be filled in.
        output: .html writes one page that needs nothing else: states and words under the mouse, a threshold for the
            edges, fillings to click on, drawn molecules. .svg, .png or .pdf writes a figure of the DAG and the
            transition matrix.
        n_best: fillings (of each length, if there are several).
        words: most probable words that are shown of each state.
        threshold: edges of a smaller transition probability are hidden at first.
        tokens: how many tokens to put in altogether, as 3 or 2-4; sets `free`. One for each mask where absent.
        free: paths as the model was trained, which may skip a mask or stop at several of its states. Otherwise the
            fillings, and the weights of the states, are those of paths with one state in each mask.
    """
    options = FillOptions(n_best, lengths=parse_lengths(tokens), free=free)
    write = _writer(Path(output))
    if words < 1:
        raise InputError(f"words is {words}; it must be at least 1")
    if not 0 <= threshold < 1:
        raise InputError(f"threshold is {threshold}; it must be at least 0 and less than 1")
    network, tokenizer = load_for_filling(model)
    distributed.place(network)
    case = build_case(network, tokenizer, text, options, words) | {"model": model, "threshold": threshold}
    write(case)
    counts = (f"{len(case[name])} {name}" for name in ("states", "edges", "fillings"))
    print(f"{', '.join(counts)}: {output}")


def build_case(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    options: FillOptions | None = None,
    words: int = 5,
) -> Case:
    """What the model says about one text, as JSON can hold it.

    Returns:
        objective, k, free, molecules (whether the text is a SMILES), masks, exact (of the fillings: see `fill`);
        pieces: the text as [string, mask or None], masks being numbered from 0;
        states: in the order of the lattice, the mask (-1 BOS, M EOS), the weight and the top words of each;
        edges: [u, v, probability] of every edge of the DAG; none without transitions (`mlm`, `ctc`);
        fillings: see `fill`, with pieces, the path with BOS and EOS, and of molecules drawing and problem.

    Raises:
        InputError: if there is nothing to fill, or the text is too long or cannot be encoded.
    """
    options = options or FillOptions(n_best=10)
    network.eval()
    (example,), (problem,) = encode(network, tokenizer, [text])
    if problem == NO_MASK:
        raise InputError("there is no mask in the text; write [MASK] where something is to be filled in")
    if problem:
        raise InputError(f"the text cannot be filled: {problem}")
    (graph,) = graphs(network, [example], tokenizer)
    ids = example["input_ids"].tolist()
    record = filled(graph, ids, tokenizer, options, 1)
    if reason := record.get("problem"):
        raise InputError(reason)
    case = {
        "objective": network.config.objective,
        "k": network.config.states_per_mask,
        "free": options.free or options.lengths is not None,
        "exact": record["exact"],
        "masks": graph.masks,
        "pieces": _pieces(ids, [[tokenizer.mask_token_id]] * graph.masks, tokenizer),
        "states": _states(graph, tokenizer, options, words),
        "edges": [] if network.transition is None else _edges(graph),
        "fillings": [_filling(entry, searched(graph, options), ids, tokenizer) for entry in record["fillings"]],
    }
    case["molecules"] = are_smiles(tokenizer, [entry["text"] for entry in case["fillings"]])
    if case["molecules"]:
        add_drawings(case["fillings"])
    return case


def _writer(path: Path) -> Callable[[Case], None]:
    """What writes a case to `path`, by its ending."""
    if path.suffix == ".html":
        return lambda case: write_text(path, page(case))
    if path.suffix not in FIGURES:
        raise InputError(f"cannot write {path}; the name must end in .html, .svg, .png or .pdf")

    def write(case: Case) -> None:
        with replacing(path) as partial:
            draw(case, partial, path.suffix[1:])

    return write


def _states(graph: Graph, tokenizer: PreTrainedTokenizerFast, options: FillOptions, words: int) -> list[Case]:
    paths = searched(graph, options)
    rows = zip(graph.mask.tolist(), weights(paths, possible_lengths(paths, options)).tolist(), strict=True)
    tops = top_words(graph, words)
    ends = (0, len(tops) - 1)  # these emit BOS and EOS, no word
    return [
        {"mask": mask, "weight": weight, "words": [] if u in ends else [[_word(i, tokenizer), p] for i, p in tops[u]]}
        for u, (mask, weight) in enumerate(rows)
    ]


def _edges(graph: Graph) -> list[tuple[int, int, float]]:
    """Every edge u -> v and its probability; those that leave a state sum to 1."""
    start, end = (graph.links > -torch.inf).nonzero(as_tuple=True)
    return list(zip(start.tolist(), end.tolist(), graph.links[start, end].exp().tolist(), strict=True))


def _filling(entry: Case, graph: Graph, ids: list[int], tokenizer: PreTrainedTokenizerFast) -> Case:
    """An entry of `fill` with its most probable path [m + 2] and its text in pieces."""
    vocabulary = tokenizer.get_vocab()
    by_mask = [[vocabulary[token] for token in part] for part in entry["tokens"]]
    path = filling.best_paths(graph, torch.tensor([[token for part in by_mask for token in part]]))
    words = [[_word(token, tokenizer) for token in part] for part in by_mask]
    whole = [0, *path[0].tolist(), len(graph.links) - 1]
    return entry | {"path": whole, "words": words, "pieces": _pieces(ids, by_mask, tokenizer)}


def _pieces(ids: list[int], by_mask: list[list[int]], tokenizer: PreTrainedTokenizerFast) -> list[Piece]:
    """The text cut where masks begin and end; in one piece where the tokenizer's spelling has no such cuts."""
    parts = inserted(ids[1:-1], by_mask, tokenizer.mask_token_id)
    ends = [str(tokenizer.decode([i for part, _ in parts[:n] for i in part])) for n in range(len(parts) + 1)]
    if not all(longer.startswith(shorter) for shorter, longer in pairwise(ends)):
        return [(ends[-1], None)]
    pieces = [(b[len(a) :], mask) for (a, b), (_, mask) in zip(pairwise(ends), parts, strict=True)]
    return [(text, mask) for text, mask in pieces if text or mask is not None]


def _word(token: int, tokenizer: PreTrainedTokenizerFast) -> str:
    """A token as people read it, or as it stands in the vocabulary where that is nothing to see."""
    text = str(tokenizer.decode([token])).strip()
    readable = text and text.isprintable() and "\ufffd" not in text
    return text if readable else str(tokenizer.convert_ids_to_tokens(token))
