"""Shows how a model fills one text: its states, their links and the best fillings, as the paper's
case study. `build_case` collects the numbers as plain data, the *case*. `page` and `figure`
show it. Scripts inside the page draw it in the browser (`layout.js`, `draw.js`, `events.js`)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.colors import to_hex
from rdkit import rdBase
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import molecule_problem
from exlm.data.drawing import TINTS, draw_molecule
from exlm.errors import InputError, check_at_least, import_optional, note
from exlm.filling.filled_text import FilledText, Filling
from exlm.filling.filler import TOP_TOKENS, Filler
from exlm.filling.graphs import fills_molecules, graphs_of_texts, load_for_filling, tokenize
from exlm.filling.options import FillOptions
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.files import check_suffix, replacing
from exlm.storage.templates import render
from exlm.tasks.predict import can_predict, explain_prediction
from exlm.train import devices

Case = dict[str, Any]

END_TINT = "#7F7F7F"  # the colour of BOS and EOS
HEAT = matplotlib.colormaps["YlOrBr"]
PAGE = Path(__file__).with_name("page.html")
FIGURE = Path(__file__).with_name("figure.svg")


@dataclass(frozen=True)
class ExploreOptions(FillOptions):
    """How `exlm explore` fills a text, and what it shows of it.

    Attributes:
        n_best: how many fillings to show (of each length, if there are several lengths).
        words: how many tokens to show of each state, the most probable ones.
        threshold: links with a smaller probability are hidden at first."""

    n_best: int = 10
    words: int = TOP_TOKENS
    threshold: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, words=1)
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold is {self.threshold}; give 0 <= threshold < 1")
        if self.passes not in (None, 1):
            raise InputError("leave out passes: explore shows the states of one pass")


def explore(model: str, text: str, output: str = "explore.html", **options: Any) -> None:
    """Shows the states of every mask, their links and the best joint fillings of one text,
    or what the prediction of a fine-tuned model rests on.

    Args:
        model: a model directory.
        text: a text in which the tokenizer's mask token, or [MASK], marks every place to fill. For
            a fine-tuned model, a text without masks: output, an .html file, is the page of
            `exlm predict --explain`, and the options of fillings are refused.
        output: .html writes one page that needs no other file. The mouse shows states and their
            tokens, a slider hides weak links, fillings can be clicked on, and molecules are drawn.
            .svg, .pdf and .png write a figure of the DAG and the matrix of its links; the last two
            need pip install '.[figures]', in the folder of ExLM's source.
        options: the options of `ExploreOptions`."""
    explore_options = ExploreOptions(**options)
    if can_predict(model):
        defaults = vars(ExploreOptions())
        changed = [name for name, value in vars(explore_options).items() if value != defaults[name]]
        if changed:
            raise InputError(
                f"a fine-tuned model fills no masks; leave out {' and '.join(changed)}, "
                "or give a pre-trained model"
            )
        explain_prediction(model, text, output)
        return
    check_suffix(output, [".html", ".svg", ".pdf", ".png"])
    network, tokenizer = load_for_filling(model)
    devices.place_model(network)
    case = build_case(network, tokenizer, text, explore_options, explore_options.words)
    content = _render({**case, "model": model, "threshold": explore_options.threshold}, output)
    with replacing(Path(output)) as unfinished:
        unfinished.write_bytes(content)
    if case["warning"] is not None:
        note(case["warning"])
    counts = f"{len(case['states'])} states, {len(case['edges'])} links"
    print(f"{counts}, {len(case['fillings'])} fillings: {output}")


def _render(case: Case, output: str) -> bytes:
    """The content of the output: a page, or a figure in the format that its ending names."""
    if output.endswith(".html"):
        return page(case).encode()
    svg = figure(case)
    if output.endswith(".svg"):
        return svg.encode()
    converter: Any = import_optional("vl_convert", "figures", f"writing {output}")
    if output.endswith(".pdf"):
        return converter.svg_to_pdf(svg)
    return converter.svg_to_png(svg, scale=2)


def build_case(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    text: str,
    options: FillOptions | None = None,
    token_count: int = TOP_TOKENS,
) -> Case:
    """Collects what the model says about one text in one pass, in a form that JSON can store.

    Returns:
        A dictionary with these keys.

        - objective: of the model, `exlm`, `mlm` or `ctc`.
        - k: the number of states of each mask.
        - masks: the number M of masks.
        - free: whether a mask may get no token or several.
        - exact, warning: as in `fill`.
        - molecules: whether the text is a SMILES.
        - segments: the text as a list of [string, mask or None], with masks numbered from 0.
        - states: for each state, in the order of the lattice, its mask (-1 for BOS, M for EOS),
          weight and, called `words`, its `token_count` most probable tokens.
        - edges: [u, v, probability] for every link between states, whatever tokens and paths the
          options allow. `mlm` and `ctc` have none.
        - fillings: as in `fill`, and segments, the path from BOS to EOS (the most probable path,
          but of a sample the sampled path), a molecule's drawing and its problem.

    Raises InputError if the text has no mask, is too long or cannot be encoded."""
    in_one_pass = replace(options or ExploreOptions(), passes=1)
    filler = Filler(network, tokenizer, in_one_pass)
    [masked_text] = tokenize(network, tokenizer, [text])
    filled = FilledText(1, text, problem=masked_text.problem)
    if filled.problem is None:
        [(_, whole_graph)] = graphs_of_texts(network, tokenizer, [masked_text])
        graph = filler.restrict(whole_graph)
        filled = filler.fill_graph(filled, masked_text, graph)
    if filled.problem is not None:
        raise InputError(f"the text cannot be filled: {filled.problem}")
    states = [state.to_json() for state in filler.describe_states(graph, token_count)]
    for state, target in zip(states, graph.target_of_state.tolist(), strict=True):
        state["mask"] = target - 1
    # the first state emits BOS and the last one EOS, never another token
    states[0]["words"] = states[-1]["words"] = []
    start, stop = (whole_graph.links > -torch.inf).nonzero(as_tuple=True)
    probabilities = whole_graph.links[start, stop].exp().tolist()
    edges = list(zip(start.tolist(), stop.tolist(), probabilities, strict=True))
    molecules = fills_molecules(network, tokenizer, [text])
    last = len(states) - 1
    fillings = [_describe_filling(filling, last, molecules) for filling in filled.fillings]
    # Each mask is filled with itself, so that the segments are of the text as it was given.
    ids_of_masks = {place: [int(tokenizer.mask_token_id)] for place in masked_text.masks}
    return {
        "objective": network.config.objective,
        "k": network.config.states_per_mask,
        "masks": graph.num_masks,
        "free": filler.options.all_paths,
        "exact": filled.exact,
        "warning": filled.warning,
        "molecules": molecules,
        "segments": filler.segments(masked_text, ids_of_masks),
        "states": states,
        "edges": edges if network.config.has_links else [],
        "fillings": fillings,
    }


def _describe_filling(filling: Filling, last_state: int, is_molecule: bool) -> dict[str, Any]:
    """A filling with its path and segments and, of a molecule, its problem and drawing."""
    details: dict[str, Any] = {
        **filling.to_json(),
        "path": [0, *(filling.path or []), last_state],
        "segments": filling.segments,
    }
    if is_molecule:
        with rdBase.BlockLogs():
            details["problem"] = molecule_problem(filling.text)
            details["drawing"] = draw_molecule(filling.text, filling.segments)
    return details


def page(case: Case) -> str:
    """The page as HTML that loads no other file. The case is JSON inside it, in which no text can
    act as a tag."""
    return render(PAGE, case=case)


def figure(case: Case) -> str:
    """A figure of the states and, if the model has links, of their matrix, as SVG."""
    masks = [state["mask"] for state in case["states"]]
    nodes = []
    for u, state in enumerate(case["states"]):
        mask = state["mask"]
        tokens = [_visible(token)[:11] for token, _ in state["words"][:3]] or ["[EOS]"]
        if u == 0:
            tokens = ["[BOS]"]
        node = {
            # each mask is a column, whose states stand one below the other around the middle
            "column": mask,
            "row": u - masks.index(mask) - (masks.count(mask) - 1) / 2,
            "tint": TINTS[mask % 2] if 0 <= mask < case["masks"] else END_TINT,
            "tokens": tokens,
            "name": ", ".join(tokens),
        }
        nodes.append(node)
    segments = [text if mask is None else f" [MASK {mask + 1}]" for text, mask in case["segments"]]
    return render(
        FIGURE,
        masks=case["masks"],
        threshold=case["threshold"],
        links=case["edges"],
        nodes=nodes,
        title=_visible("".join(segments))[:120],
        colours=[to_hex(HEAT(p)) for _, _, p in case["edges"]],
        scale=[to_hex(HEAT(i / 40)) for i in range(41)],
    )


def _visible(text: str) -> str:
    """The text without control characters, which XML does not have."""
    return "".join(filter(str.isprintable, " ".join(text.split())))
