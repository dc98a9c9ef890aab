"""Shows how a model fills one text: its states, their transitions and the best fillings, as the
paper's case study. `build_case` collects the numbers as plain data, the *case*. `page` and `figure`
show it. Scripts inside the page draw it in the browser (`layout.js`, `draw.js`, `events.js`)."""

import re
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import matplotlib
import torch
from jinja2 import Environment, FileSystemLoader, select_autoescape
from matplotlib.colors import to_hex, to_rgba
from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem
from exlm.data.tokenization import SMILES_PATTERN
from exlm.errors import InputError, optional
from exlm.filling import search, texts
from exlm.filling.texts import FillOptions
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.files import replacing
from exlm.train import distributed

Case = dict[str, Any]
# a part of a text, and the mask that it fills (None: outside the masks)
Segment = tuple[str, int | None]

# as in the paper: two for the masks, in turn; one for BOS and EOS
TINTS, END_TINT = ("#BF9000", "#C55A11"), "#7F7F7F"
CONVERTERS = {
    ".pdf": lambda vl, svg: vl.svg_to_pdf(svg),
    ".png": lambda vl, svg: vl.svg_to_png(svg, scale=2),
}
HEAT = matplotlib.colormaps["YlOrBr"]
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(["html", "svg"])
)


def explore(
    model: str,
    text: str,
    output: str = "explore.html",
    words: int = 5,
    threshold: float = 0.05,
    n_best: int = 10,
    **options: Any,
) -> None:
    """Shows the states of every mask, the transitions between them, and the best joint fillings of
    one text.

    Args:
        model: a pre-trained model directory.
        text: a text in which the tokenizer's mask token, or [MASK], marks every place to fill.
        output: .html writes one page that needs no other file. The mouse shows states and their
            words, a slider hides weak edges, fillings can be clicked on, and molecules are drawn.
            .svg, .pdf and .png write a figure of the DAG and the transition matrix; the last two
            need pip install 'exlm[figures]'.
        words: how many words to show of each state, the most probable ones.
        threshold: edges with a smaller transition probability are hidden at first.
        n_best: how many fillings to show (of each length, if there are several lengths).
        options: the other settings of `FillOptions`."""
    chosen, path = FillOptions(n_best=n_best, **options), Path(output)
    if path.suffix not in (".html", ".svg", *CONVERTERS):
        raise InputError(f"cannot write {output}; the name must end in .html, .svg, .pdf or .png")
    converters = (
        optional("vl_convert", "figures", f"writing {output}")
        if path.suffix in CONVERTERS
        else None
    )
    if chosen.passes != 1:
        raise InputError(
            f"passes is {chosen.passes}, but explore shows the states of one pass; leave passes out"
        )
    if words < 1 or not 0 <= threshold < 1:
        raise InputError(
            f"words is {words} and threshold is {threshold}; give at least 1 word, and 0 <= threshold < 1"
        )
    network, tokenizer = texts.load_for_filling(model)
    distributed.to_device(network)
    case = build_case(network, tokenizer, text, chosen, words) | {
        "model": model,
        "threshold": threshold,
    }
    drawing = page(case) if path.suffix == ".html" else figure(case)
    with replacing(path) as partial:
        partial.write_bytes(
            CONVERTERS[path.suffix](converters, drawing) if converters else drawing.encode()
        )
    print(
        ", ".join(f"{len(case[name])} {name}" for name in ("states", "edges", "fillings"))
        + f": {output}"
    )


def build_case(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    options: FillOptions | None = None,
    words: int = 5,
) -> Case:
    """Collects what the model says about one text, in a form that JSON can store.

    Returns:
        objective, k, free, molecules (whether the text is a SMILES), masks (their number M), exact
        (as in `fill`); segments: the text in parts [string, mask or None]; masks are numbered from
        0; states: for each state, in the order of the lattice, its mask (-1 for BOS, M for EOS),
        weight and top words; edges: [u, v, probability] for every edge of the DAG; `mlm` and `ctc`
        have no transitions, so the list is empty; fillings: as in `fill`, and segments, the best
        path from BOS to EOS, a molecule's drawing and its problem.

    Raises InputError if the text has no mask, is too long or cannot be encoded."""

    def spell(token: int) -> str:
        text = str(tokenizer.decode([token])).strip()
        return text if text and text.isprintable() else str(tokenizer.convert_ids_to_tokens(token))

    options = options or FillOptions(n_best=10)
    network.eval()
    (example,) = texts.encode(network, tokenizer, [text])
    if example.problem:
        raise InputError(f"the text cannot be filled: {example.problem}")
    (graph,) = texts.graphs(network, [example], tokenizer)
    record = texts.fill_graph(graph, example.ids, tokenizer, options)
    if "problem" in record:
        raise InputError(record["problem"])
    described = texts.describe_states(graph, options, words, spell)
    states = [
        {"mask": mask} | state for mask, state in zip(graph.mask.tolist(), described, strict=True)
    ]
    # the first state emits BOS and the last one EOS, never a word
    states[0]["words"] = states[-1]["words"] = []
    start, stop = (graph.links > -torch.inf).nonzero(as_tuple=True)
    edges = zip(start.tolist(), stop.tolist(), graph.links[start, stop].exp().tolist(), strict=True)
    fillings = record["fillings"]
    molecules = texts.fills_molecules(network, tokenizer, [text])
    (paths, _), vocabulary = texts.searched(graph, options), tokenizer.get_vocab()
    for entry in fillings:
        by_mask = [[vocabulary[token] for token in tokens] for tokens in entry["tokens"]]
        path = search.best_paths(paths, torch.tensor([list(chain(*by_mask))]))[0]
        entry["path"] = [0, *path.tolist(), len(states) - 1]
        entry["segments"] = _segments(example.ids, by_mask, tokenizer)
        if molecules:
            with rdBase.BlockLogs():
                entry["problem"] = molecule_problem(entry["text"])
                entry["drawing"] = draw_molecule(entry["text"], entry["segments"])
    case = {
        "objective": network.config.objective,
        "k": network.config.states_per_mask,
        "masks": graph.masks,
    }
    case |= {"free": options.free, "exact": record["exact"], "molecules": molecules}
    case["segments"] = _segments(example.ids, [[tokenizer.mask_token_id]] * graph.masks, tokenizer)
    return case | {
        "states": states,
        "edges": list(edges) if network.config.has_links else [],
        "fillings": fillings,
    }


def _segments(
    ids: list[int], by_mask: list[list[int]], tokenizer: PreTrainedTokenizerFast
) -> list[Segment]:
    """The filled text in parts: what stands between the masks, and what fills each mask."""
    beginnings = list(accumulate(texts.filled_in(ids, by_mask, tokenizer)))
    text = str(tokenizer.decode(beginnings[-1]))
    # A character may be spread over tokens of two segments. Then only one of them gets it.
    ends = accumulate((len(tokenizer.decode(tokens)) for tokens in beginnings), max, initial=0)
    return [
        (text[start:end], i // 2 if i % 2 else None)
        for i, (start, end) in enumerate(pairwise(ends))
    ]


def draw_molecule(smiles: str, segments: Sequence[Segment]) -> str | None:
    """The molecule as SVG, with filled-in atoms in the colours of their masks. None if it is no
    molecule or empty."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    owner = [mask for text, mask in segments for _ in text]  # the mask of every character
    tokens = [(match[0], owner[match.start()]) for match in re.finditer(SMILES_PATTERN, smiles)]
    # of the atoms, in RDKit's order
    masks = [mask for token, mask in tokens if token[0] in "[*" or token.isalpha()]
    if len(masks) != molecule.GetNumAtoms():
        masks = []  # RDKit removed hydrogens, and it is not known which
    marked = {
        atom: to_rgba(TINTS[mask % 2], 0.5) for atom, mask in enumerate(masks) if mask is not None
    }
    canvas: Any = rdMolDraw2D.MolDraw2DSVG(360, 240)
    canvas.drawOptions().clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule, "", list(marked), [], marked)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()


def page(case: Case) -> str:
    """The page as HTML that loads no other file. The case is JSON inside it, in which no text can
    act as a tag."""
    return TEMPLATES.get_template("page.html").render(case=case)


def figure(case: Case) -> str:
    """A figure of the DAG and, if the model has transitions, of their matrix, as SVG."""

    def visible(text: str) -> str:  # XML has no control characters
        return "".join(filter(str.isprintable, " ".join(text.split())))

    column = [state["mask"] for state in case["states"]]
    row = [u - column.index(mask) - (column.count(mask) - 1) / 2 for u, mask in enumerate(column)]
    words = [
        [visible(word)[:11] for word, _ in state["words"][:3]] or ["[EOS]"]
        for state in case["states"]
    ]
    words[0] = ["[BOS]"]
    title = "".join(
        text if mask is None else f" [MASK {mask + 1}]" for text, mask in case["segments"]
    )
    return TEMPLATES.get_template("figure.svg").render(
        case,
        column=column,
        row=row,
        tints=[TINTS[mask % 2] if 0 <= mask < case["masks"] else END_TINT for mask in column],
        words=words,
        names=[", ".join(top) for top in words],
        title=visible(title)[:120],
        colours=[to_hex(HEAT(p)) for _, _, p in case["edges"]],
        scale=[to_hex(HEAT(i / 40)) for i in range(41)],
    )
