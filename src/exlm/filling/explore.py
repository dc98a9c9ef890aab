"""A look inside the model: its states, their transitions and the best fillings of one text, as a page or a figure.

This is the paper's case study (section 5 and the appendix "Detailed Case Study") for any model and any text.
`build_case` collects the numbers as plain data, `drawing` shows them.
"""

import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import to_rgb
from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import are_molecules, molecule_problem
from exlm.data.tokenization import SMILES_PATTERN
from exlm.errors import InputError
from exlm.filling import drawing, search, texts
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.train import distributed

Segment = tuple[str, int | None]  # of a text, and the mask it stands for

MOLECULE = 360, 240  # pixels
ATOM = re.compile(r"\[[^\]]+\]|Br?|Cl?|[NOSPFIbcnosp*]")


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
    options = texts.FillOptions(n_best, tokens=tokens, free=free)
    if Path(output).suffix not in (".html", ".svg", ".png", ".pdf"):
        raise InputError(f"cannot write {output}; the name must end in .html, .svg, .png or .pdf")
    if words < 1:
        raise InputError(f"words is {words}; it must be at least 1")
    if not 0 <= threshold < 1:
        raise InputError(f"threshold is {threshold}; it must be at least 0 and less than 1")
    network, tokenizer = texts.load_for_filling(model)
    distributed.to_device(network)
    case = build_case(network, tokenizer, text, options, words) | {"model": model, "threshold": threshold}
    drawing.write(case, Path(output))
    print(", ".join(f"{len(case[name])} {name}" for name in ("states", "edges", "fillings")) + f": {output}")


def build_case(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    options: texts.FillOptions | None = None,
    words: int = 5,
) -> drawing.Case:
    """What the model says about one text, as JSON can hold it.

    Returns:
        objective, k, free, molecules (whether the text is a SMILES), masks, exact (of the fillings: see `fill`);
        pieces: the text as [string, mask or None], masks being numbered from 0;
        states: in the order of the lattice, the mask (-1 BOS, M EOS), the weight and the top words of each;
        edges: [u, v, probability] of every edge of the DAG; none without transitions (`mlm`, `ctc`);
        fillings: see `fill`, with pieces, words, the most probable path from BOS to EOS, and of molecules drawing and
            problem.

    Raises InputError if there is nothing to fill, or the text is too long or cannot be encoded.
    """
    options = options or texts.FillOptions(n_best=10)
    network.eval()
    (example,) = texts.encode(network, tokenizer, [text])
    if example.problem == texts.NO_MASK:
        raise InputError("there is no mask in the text; write [MASK] where something is to be filled in")
    if example.problem:
        raise InputError(f"the text cannot be filled: {example.problem}")
    (graph,) = texts.graphs(network, [example], tokenizer)
    record = texts.fill_graph(graph, example.ids, tokenizer, options)
    if "problem" in record:
        raise InputError(record["problem"])
    paths, lengths = texts.searched(graph, options)
    states = texts.describe_states(paths, lengths, words, partial(_word, tokenizer))
    states[0]["words"] = states[-1]["words"] = []  # these emit BOS and EOS, no word
    start, stop = (graph.links > -torch.inf).nonzero(as_tuple=True)
    edges = zip(start.tolist(), stop.tolist(), graph.links[start, stop].exp().tolist(), strict=True)
    splitting = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"] or {}
    smiles_tokens = splitting.get("pattern") == {"Regex": SMILES_PATTERN}
    molecules = smiles_tokens or are_molecules([entry["text"] for entry in record["fillings"]])
    vocabulary = tokenizer.get_vocab()
    for entry in record["fillings"]:
        by_mask = [[vocabulary[token] for token in tokens] for tokens in entry["tokens"]]
        path = search.best_paths(paths, torch.tensor([[token for tokens in by_mask for token in tokens]]))[0]
        entry["path"] = [0, *path.tolist(), len(states) - 1]
        entry["words"] = [[_word(tokenizer, token) for token in tokens] for tokens in by_mask]
        entry["pieces"] = _segments(example.ids, by_mask, tokenizer)
        if molecules:
            with rdBase.BlockLogs():
                entry["problem"] = molecule_problem(entry["text"])
                entry["drawing"] = draw_molecule(entry["text"], entry["pieces"])
    return {
        "objective": network.config.objective,
        "k": network.config.states_per_mask,
        "free": options.free,
        "exact": record["exact"],
        "masks": graph.masks,
        "pieces": _segments(example.ids, [[tokenizer.mask_token_id]] * graph.masks, tokenizer),
        "states": states,
        "edges": [] if network.transition is None else list(edges),
        "fillings": record["fillings"],
        "molecules": molecules,
    }


def _segments(ids: list[int], by_mask: list[list[int]], tokenizer: PreTrainedTokenizerFast) -> list[Segment]:
    """The text cut where masks begin and end, or whole if its decoding joins characters across such a cut."""
    at = [i for i, token in enumerate(ids) if token == tokenizer.mask_token_id]
    segments: list[tuple[list[int], int | None]] = [(ids[1 : at[0]], None)]
    for mask, (start, end) in enumerate(pairwise([*at, len(ids) - 1])):
        segments += [(by_mask[mask], mask), (ids[start + 1 : end], None)]
    beginnings = accumulate((tokens for tokens, _ in segments), initial=[])
    decoded = [str(tokenizer.decode(tokens)) for tokens in beginnings]
    if not all(longer.startswith(shorter) for shorter, longer in pairwise(decoded)):
        return [(decoded[-1], None)]
    cut = [(b[len(a) :], mask) for (a, b), (_, mask) in zip(pairwise(decoded), segments, strict=True)]
    return [(text, mask) for text, mask in cut if text or mask is not None]


def _word(tokenizer: PreTrainedTokenizerFast, token: int) -> str:
    """A token as people read it, or as it stands in the vocabulary where that is nothing to see."""
    text = str(tokenizer.decode([token])).strip()
    readable = text and text.isprintable() and "\ufffd" not in text
    return text if readable else str(tokenizer.convert_ids_to_tokens(token))


def draw_molecule(smiles: str, segments: Sequence[Segment]) -> str | None:
    """The molecule as SVG, or None where RDKit finds none or no atom. Atoms of a mask are marked in its colour.

    `segments` are the SMILES cut where masks begin and end.
    """
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    tokens = [(token, mask) for text, mask in segments for token in re.findall(SMILES_PATTERN, text)]
    masks = [mask for token, mask in tokens if ATOM.fullmatch(token)]  # in the order of the SMILES, which is RDKit's
    if len(masks) != molecule.GetNumAtoms():
        masks = []  # RDKit took atoms away: nobody knows which is which
    tints = [tuple((value + 1) / 2 for value in to_rgb(tint)) for tint in drawing.TINTS]  # light, for a letter on top
    marked = {atom: tints[mask % 2] for atom, mask in enumerate(masks) if mask is not None}
    canvas = rdMolDraw2D.MolDraw2DSVG(*MOLECULE)
    options: Any = canvas.drawOptions()
    options.clearBackground, options.padding = False, 0.08
    rdMolDraw2D.PrepareAndDrawMolecule(
        canvas, molecule, highlightAtoms=list(marked), highlightAtomColors=marked, highlightBonds=[]
    )
    canvas.FinishDrawing()
    return canvas.GetDrawingText()
