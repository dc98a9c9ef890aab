"""Draws the figures of method.md with the library's own functions: python docs/figures.py."""

from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exlm.ops.alignment import best_path, posterior
from exlm.ops.expansion import Lattice, expand
from exlm.ops.transition import LinkPrior, PriorStrength, edge_mask

FOLDER = Path(__file__).parent / "figures"
TOKENS = ["<s>", "C", "[M]", "C", "[M]", "</s>"]
PLAIN, BOUNDARY, MASKS = "#EEEEEE", "#CFE2F3", ("#FFE599", "#F9CB9C")


def example() -> Lattice:
    """TOKENS with k = 2 states for each mask."""
    ids = torch.arange(len(TOKENS))[None]
    masked = torch.tensor([[token == "[M]" for token in TOKENS]])
    return expand(ids, torch.ones_like(ids), masked, states_per_mask=2, states_per_boundary=1)


def color(source: int) -> str:
    """The color of the input token `source` and of all its copies."""
    if TOKENS[source] == "[M]":
        return MASKS[TOKENS[:source].count("[M]")]
    return BOUNDARY if TOKENS[source].endswith("s>") else PLAIN


def state_names(lattice: Lattice) -> list[str]:
    """BOS, EOS, and each state's mask and copy."""
    pairs = zip(lattice.target_of_state[0].tolist(), lattice.state_copy[0].tolist(), strict=True)
    inner = [f"{mask}.{copy}" for mask, copy in pairs][1:-1]
    return ["BOS", *inner, "EOS"]


def box(axes: Axes, x: float, y: float, text: str, face: str) -> None:
    """A word in a colored box."""
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        bbox=dict(boxstyle="round,pad=0.45", fc=face, ec="#888888"),
    )


def expansion(lattice: Lattice) -> Figure:
    """The tokens, their copies with word and state position, and which of these are states of the
    lattice."""
    figure = Figure(figsize=(7.6, 3.0), layout="constrained")
    axes = figure.subplots()
    positions, length = lattice.position_ids[0].tolist(), lattice.input_ids.shape[1]
    stretch = (length - 1) / (len(TOKENS) - 1)
    for i, token in enumerate(TOKENS):
        box(axes, i * stretch, 3, token, color(i))
    for x, source in enumerate(lattice.source_token[0].tolist()):
        axes.plot([source * stretch, x], [2.75, 2.25], color="#888888", linewidth=0.8)
        box(axes, x, 2, TOKENS[source], color(source))
        axes.text(x, 1.35, "({}, {})".format(*positions[x]), ha="center", va="center")
    for n, (x, name) in enumerate(
        zip(lattice.state_index[0].tolist(), state_names(lattice), strict=True)
    ):
        axes.text(x, 0.7, f"{n}: {name}", ha="center", va="center")
    for y, title in (
        (3, "input"),
        (2, "expanded, k = 2"),
        (1.35, "(word, state)"),
        (0.7, "lattice state"),
    ):
        axes.text(-0.8, y, title, ha="right", va="center")
    axes.set(xlim=(-2.4, length - 0.4), ylim=(0.4, 3.4))
    axes.axis("off")
    return figure


def links(lattice: Lattice) -> Figure:
    """Which links exist in the two kinds of DAG, and what the order prior adds to their scores."""
    figure = Figure(figsize=(7.6, 3.1), layout="constrained")
    names, width = state_names(lattice), int(lattice.state_lengths)
    full = edge_mask(lattice.state_lengths, width)
    sparse = edge_mask(lattice.state_lengths, width, lattice.target_of_state)
    prior = LinkPrior(PriorStrength(10.0, 3.0), lattice.target_of_state, lattice.state_copy).add_to(
        torch.zeros(1, width, width)
    )
    titles = "full DAG", "sparse DAG", "added by the prior (10, 3)"
    for axes, title, edges in zip(
        figure.subplots(1, 3, sharey=True), titles, (full, sparse, full), strict=True
    ):
        shown = prior[0].masked_fill(~full[0], torch.nan) if "prior" in title else edges[0].float()
        limits = (
            dict(cmap="RdBu", vmin=-40, vmax=40)
            if "prior" in title
            else dict(cmap="Blues", vmin=0, vmax=1.6)
        )
        axes.imshow(shown, **limits)
        if "prior" in title:
            for u, v in full[0].nonzero().tolist():
                axes.text(
                    v,
                    u,
                    f"{prior[0, u, v]:+.0f}".replace("+0", "0"),
                    ha="center",
                    va="center",
                    fontsize=8,
                )
        axes.set_xticks(range(width), names)
        axes.set_yticks(range(width), names)
        axes.set(title=title, xlabel="to state")
    figure.axes[0].set_ylabel("from state")
    return figure


def alignment() -> Figure:
    """The posterior of an example with more states than targets, and its most probable path."""
    generator, targets, width = torch.Generator().manual_seed(3), 5, 9
    emission = torch.randn(1, targets, width, generator=generator)
    edges = edge_mask(torch.tensor([width]), width)
    transition = torch.randn(1, width, width, generator=generator).masked_fill(~edges, -torch.inf)
    sizes = torch.tensor([targets]), torch.tensor([width])
    at_state, _ = posterior(emission, transition, *sizes)
    path, _ = best_path(emission, transition, *sizes)
    figure = Figure(figsize=(6.2, 3.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(at_state[0], cmap="Blues", vmin=0, vmax=1)
    axes.plot(path[0], range(targets), color="#C0392B", marker="o", label="most probable path")
    for i in range(targets):
        for u in range(width):
            if not i <= u <= i + width - targets:
                axes.text(u, i, "×", ha="center", va="center", color="#AAAAAA")
    axes.set_xticks(range(width), ["BOS", *map(str, range(1, width - 1)), "EOS"])
    axes.set_yticks(range(targets), ["BOS", *(f"mask {i}" for i in range(1, targets - 1)), "EOS"])
    axes.set(xlabel="state", ylabel="target")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    figure.colorbar(image, label="P(target is at state)", shrink=0.8)
    return figure


if __name__ == "__main__":
    with rc_context(
        {
            "font.size": 9,
            "svg.hashsalt": "exlm",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
        }
    ):
        lattice = example()
        drawn = {"expansion": expansion(lattice), "links": links(lattice), "alignment": alignment()}
        for name, figure in drawn.items():
            figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, facecolor="white")
