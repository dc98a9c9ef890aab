"""A look inside the model: its states, their transitions and the best fillings of one text, as a page or a figure.

This is the paper's case study (section 5 and the appendix "Detailed Case Study") for any model and any text.
`build_case` collects the numbers as plain data; `page` and `figure` show them. The page draws itself (`draw.js`,
`events.js`).
"""

import re
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import are_molecules, molecule_problem
from exlm.data.tokenization import SMILES_PATTERN, splits_smiles
from exlm.errors import InputError
from exlm.filling import search, texts
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage import replacing, write_text
from exlm.train import distributed

Case = dict[str, Any]
Segment = tuple[str, int | None]  # of a text, and the mask it stands for

TINTS, END_TINT = ("#BF9000", "#C55A11"), "#7F7F7F"  # the paper's, mask by mask, and of BOS and EOS
WIDTH, HEIGHT = 0.62, 0.52  # of a state, where 1 is the distance from column to column, and from state to state


def explore(
    model: str,
    text: str,
    output: str = "explore.html",
    words: int = 5,
    threshold: float = 0.05,
    n_best: int = 10,
    **options: Any,
) -> None:
    """Shows the states of every mask, the transitions between them, and the best joint fillings of one text.

    Args:
        model: a pre-trained model directory.
        text: with the tokenizer's mask token or [MASK] where something is to be filled in.
        output: .html writes one page that needs nothing else: states and words under the mouse, a threshold for the
            edges, fillings to click on, drawn molecules. .svg, .png or .pdf writes a figure of the DAG and the
            transition matrix.
        words: most probable words that are shown of each state.
        threshold: edges of a smaller transition probability are hidden at first.
        n_best: fillings (of each length, if there are several).
        options: the others of `FillOptions`.
    """
    chosen, path = texts.FillOptions(n_best=n_best, **options), Path(output)
    if path.suffix not in (".html", ".svg", ".png", ".pdf"):
        raise InputError(f"cannot write {output}; the name must end in .html, .svg, .png or .pdf")
    if words < 1 or not 0 <= threshold < 1:
        raise InputError(f"words is {words} and threshold is {threshold}; give at least 1 word, and 0 <= threshold < 1")
    network, tokenizer = texts.load_for_filling(model)
    distributed.to_device(network)
    case = build_case(network, tokenizer, text, chosen, words) | {"model": model, "threshold": threshold}
    if path.suffix == ".html":
        write_text(path, page(case))
    else:
        # Words are text, not formulas ($); letters stay letters in PDF.
        style: dict[Any, Any] = {"font.size": 8, "text.parse_math": False, "pdf.fonttype": 42}
        with replacing(path) as partial, matplotlib.rc_context(style):
            figure(case).savefig(partial, format=path.suffix[1:], dpi=200, bbox_inches="tight")
    print(", ".join(f"{len(case[name])} {name}" for name in ("states", "edges", "fillings")) + f": {output}")


def build_case(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    options: texts.FillOptions | None = None,
    words: int = 5,
) -> Case:
    """What the model says about one text, as JSON can hold it.

    Returns:
        objective, k, free, molecules (whether the text is a SMILES), masks, exact (of the fillings: see `fill`);
        segments: the text as [string, mask or None], masks being numbered from 0;
        states: in the order of the lattice, the mask (-1 BOS, M EOS), the weight and the top words of each;
        edges: [u, v, probability] of every edge of the DAG; none without transitions (`mlm`, `ctc`);
        fillings: see `fill`, with segments, the best path from BOS to EOS, and a molecule's drawing and problem.

    Raises InputError if there is nothing to fill, or the text is too long or cannot be encoded.
    """

    def spell(token: int) -> str:
        text = str(tokenizer.decode([token])).strip()
        return text if text and text.isprintable() else str(tokenizer.convert_ids_to_tokens(token))

    options = options or texts.FillOptions(n_best=10)
    network.eval()
    (example,) = texts.encode(network, tokenizer, [text])
    if example.problem:
        raise InputError(f"the text cannot be filled: {example.problem}")
    (graph,) = texts.graphs(network, [example], tokenizer)
    record = texts.fill_graph(graph, example.ids, tokenizer, options)
    if "problem" in record:
        raise InputError(record["problem"])
    described = texts.describe_states(graph, options, words, spell)
    states = [{"mask": mask} | state for mask, state in zip(graph.mask.tolist(), described, strict=True)]
    states[0]["words"] = states[-1]["words"] = []  # these emit BOS and EOS, no word
    start, stop = (graph.links > -torch.inf).nonzero(as_tuple=True)
    edges = zip(start.tolist(), stop.tolist(), graph.links[start, stop].exp().tolist(), strict=True)
    fillings = record["fillings"]
    molecules = splits_smiles(tokenizer.backend_tokenizer) or are_molecules([entry["text"] for entry in fillings])
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
    case = {"objective": network.config.objective, "k": network.config.states_per_mask, "masks": graph.masks}
    case |= {"free": options.free, "exact": record["exact"], "molecules": molecules}
    case["segments"] = _segments(example.ids, [[tokenizer.mask_token_id]] * graph.masks, tokenizer)
    return case | {"states": states, "edges": list(edges) if network.config.has_links else [], "fillings": fillings}


def _segments(ids: list[int], by_mask: list[list[int]], tokenizer: PreTrainedTokenizerFast) -> list[Segment]:
    """The text of the tokens between the masks and in them, with the masks filled in."""
    beginnings = list(accumulate(texts.filled_in(ids, by_mask, tokenizer)))
    text = str(tokenizer.decode(beginnings[-1]))
    # Where a character is spread over tokens of two segments, it is cut off from one of them.
    ends = accumulate((len(tokenizer.decode(tokens)) for tokens in beginnings), max, initial=0)
    return [(text[start:end], i // 2 if i % 2 else None) for i, (start, end) in enumerate(pairwise(ends))]


def draw_molecule(smiles: str, segments: Sequence[Segment]) -> str | None:
    """The molecule as SVG, with the atoms of the masks in their colours; None where RDKit finds none or no atom."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    owner = [mask for text, mask in segments for _ in text]  # of every character
    tokens = [(match[0], owner[match.start()]) for match in re.finditer(SMILES_PATTERN, smiles)]
    masks = [mask for token, mask in tokens if token[0] in "[*" or token.isalpha()]  # of atoms, in RDKit's order
    if len(masks) != molecule.GetNumAtoms():
        masks = []  # RDKit took hydrogens away: nobody knows which
    marked = {atom: to_rgba(TINTS[mask % 2], 0.5) for atom, mask in enumerate(masks) if mask is not None}
    canvas: Any = rdMolDraw2D.MolDraw2DSVG(360, 240)
    canvas.drawOptions().clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule, "", list(marked), [], marked)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()


def page(case: Case) -> str:
    """The page, which loads nothing. Whatever the case holds is inert: it is JSON in which no tag can begin or end."""
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent))
    return templates.get_template("page.html").render(case=case)


def figure(case: Case) -> Figure:
    """The DAG of the states and, where the model has transitions, their matrix."""
    cells = len(case["states"]) - 1
    side = min(0.38 * cells, 8.0)  # inches
    height, widths = side + 2, [1.67 * (case["masks"] + 2.05), side + 2][: 2 if case["edges"] else 1]
    result = Figure((sum(widths), height), layout="constrained")
    title = "".join(text if mask is None else f" [MASK {mask + 1}]" for text, mask in case["segments"])
    result.suptitle(" ".join(title.split())[:120], x=0.01, ha="left", fontsize=12)
    axes = result.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    tints = [TINTS[s["mask"] % 2] if 0 <= s["mask"] < case["masks"] else END_TINT for s in case["states"]]
    words = [[word[:11] for word, _ in state["words"][:3]] for state in case["states"]]
    words[0], words[-1] = ["[BOS]"], ["[EOS]"]
    _draw_dag(axes[0], case, tints, words, height)
    if case["edges"]:
        _draw_matrix(axes[1], case["edges"], tints, [", ".join(top) for top in words], side / cells)
    return result


def _draw_dag(axes: Axes, case: Case, tints: list[str], words: list[list[str]], height: float) -> None:
    """A column of states for each mask, on `height` inches."""
    x = [state["mask"] for state in case["states"]]
    y = [u - x.index(mask) - (x.count(mask) - 1) / 2 for u, mask in enumerate(x)]
    for a, b, tint, top in zip(x, y, tints, words, strict=True):
        box = FancyBboxPatch((a - WIDTH / 2, b - HEIGHT / 2), WIDTH, HEIGHT, "round,pad=0,rounding_size=0.06")
        axes.add_patch(box).set(facecolor=tint, edgecolor="none", zorder=2)
        axes.text(a, b, top[0], color="white", weight="bold", fontsize=9, ha="center", va="center", zorder=3)
    for u, v, p in case["edges"]:
        if p >= case["threshold"]:
            # Straight to the next mask, to the right past other states of its own, or around masks that it leaves out.
            across, above = x[v] - x[u], y[u] + y[v] <= 0
            bend = 0.0 if across == 1 else -0.3 if across == 0 else (-1.3 if above else 1.3) / across
            ends = (x[u] + WIDTH / 2, y[u]), (x[v] + (-WIDTH if across else WIDTH) / 2, y[v])
            line = dict(color=tints[u], alpha=0.2 + 0.75 * p, linewidth=0.4 + 4 * p, shrinkA=0, shrinkB=0)
            axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-", connectionstyle=f"arc3,rad={bend}", **line))
    tallest = max(*y, height / 2 - 0.9) + 0.9
    axes.set(xlim=(-1.4, case["masks"] + 0.65), ylim=(tallest, -tallest))
    axes.set_axis_off()


def _draw_matrix(axes: Axes, edges: list[Any], tints: list[str], names: list[str], cell: float) -> None:
    """Rows: where an edge starts. Columns: where it ends. EOS has no row, BOS no column. A cell has `cell` inches."""
    values = np.full((len(names) - 1, len(names) - 1), np.nan)
    for u, v, p in edges:
        values[u, v - 1] = p
        if cell >= 0.2 and p >= 0.005:  # there is room for a number, and it is not 0.00
            tone = "white" if p > 0.55 else "black"
            axes.text(v - 1, u, f"{p:.2f}", fontsize=18 * cell, ha="center", va="center", color=tone)
    image = axes.matshow(values, cmap="YlOrBr", vmin=0, vmax=1)
    axes.figure.colorbar(image, ax=axes, shrink=0.4, ticks=[0, 0.5, 1], label="transition probability")
    axes.tick_params(length=0, bottom=False)
    font: dict[str, Any] = dict(fontsize=min(8.0, 50 * cell), weight="bold", rotation_mode="anchor")
    axes.set_xticks(range(len(values)), names[1:], rotation=52, ha="left", **font)
    axes.set_yticks(range(len(values)), names[:-1], **font)
    for label, tint in zip([*axes.get_xticklabels(), *axes.get_yticklabels()], tints[1:] + tints[:-1], strict=True):
        label.set_color(tint)
