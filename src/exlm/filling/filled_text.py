"""A text that `exlm fill` fills, its fillings, and what is known of their molecules. The fields
have the names of the output, which the docstring of `fill` explains."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from exlm.data.drawing import Segment
from exlm.filling.templates import MOST_CHOICES, Template


@dataclass(frozen=True)
class Molecule:
    """What is known of a filling that should be a molecule; nothing else if it is not valid."""

    valid: bool
    smiles: str | None = None
    unique: bool | None = None
    new: bool | None = None
    qed: float | None = None
    sa_score: float | None = None
    similarity: float | None = None


@dataclass(frozen=True)
class Filling:
    """A filling of a text."""

    text: str  # the whole text, filled
    tokens: list[list[str]]  # what fills each mask, by the names of the vocabulary
    log_probability: float
    path: list[int] | None = None  # the state of each token, in one pass
    # Only a text with sites has these: the text with masks that was filled, and the number of each
    # mask's site.
    masked: str | None = None
    site_of_mask: list[int] | None = None
    # How probable so many tokens are: with all paths, as the model says; with sites, 1 / the number
    # of choices of lengths, which are all taken to be equally probable.
    length_probability: float | None = None
    molecule: Molecule | None = None
    # the filled text in segments, in order, each with the mask that it fills
    segments: list[Segment] = field(default_factory=list)

    @property
    def probability(self) -> float:
        """Among all fillings with as many tokens."""
        return math.exp(self.log_probability)

    @property
    def is_valid(self) -> bool:
        """Whether it is known to be a valid molecule."""
        return self.molecule is not None and self.molecule.valid

    @property
    def segments_of_sites(self) -> list[Segment]:
        """The segments, each with the number of the site that it fills. In a text without sites,
        masks side by side are one site: those of `C[MASK][MASK]O[MASK]` are 0, 0 and 1."""
        # Segments alternate: the text before the first mask, its filling, the text behind it, ...
        texts_between_masks = [text for text, _ in self.segments[2:-1:2]]
        begins_site = [bool(text.strip()) for text in texts_between_masks]
        sites = self.site_of_mask or list(accumulate(begins_site, initial=0))
        return [(text, None if mask is None else sites[mask]) for text, mask in self.segments]

    @property
    def inserted(self) -> str:
        """What fills each site, in the order of their numbers and with a space between two of them;
        `filling` in the output."""
        text_of_site: dict[int, str] = {}
        for text, site in self.segments_of_sites:
            if site is not None:
                text_of_site[site] = text_of_site.get(site, "") + text
        return " ".join(text.strip() for _, text in sorted(text_of_site.items()))

    def to_json(self) -> dict[str, Any]:
        """The filling as an entry of a line of JSON."""
        entry: dict[str, Any] = {
            "filling": self.inserted,
            "text": self.text,
            "tokens": self.tokens,
            "probability": self.probability,
            "log_probability": self.log_probability,
        }
        for name in ("masked", "length_probability"):
            if getattr(self, name) is not None:
                entry[name] = getattr(self, name)
        return entry if self.molecule is None else entry | vars(self.molecule)


def most_probable_first(fillings: Iterable[Filling]) -> list[Filling]:
    """The fillings of a text, ranked by their probability times `length_probability`."""
    return sorted(
        fillings,
        key=lambda filling: -filling.log_probability - math.log(filling.length_probability or 1.0),
    )


@dataclass(frozen=True)
class MaskState:
    """What one state of a mask says of the text."""

    weight: float  # the probability that a path visits it
    tokens: list[tuple[str, float]]  # its most probable tokens, with their probabilities

    def to_json(self) -> dict[str, Any]:
        """The state as an entry of a line of JSON, where its tokens are called `words`."""
        return {"weight": self.weight, "words": [list(token) for token in self.tokens]}


@dataclass(frozen=True)
class FilledText:
    """A text, and its fillings once it is filled; it gets none if it has a problem."""

    line: int  # from 1: its row of the file, or its place among the texts
    text: str  # as it was given
    name: str | None = None
    problem: str | None = None  # why it cannot be filled
    template: Template | None = None  # what stays and its sites, if it has sites
    fillings: list[Filling] = field(default_factory=list)  # the most probable first
    exact: bool | None = None
    kept: float | None = None
    passes: int | None = None
    warning: str | None = None
    states: list[list[MaskState]] | None = None  # of each mask, if they are asked for
    left_out: int = 0

    @property
    def choices(self) -> list["FilledText"]:
        """The texts to fill: one for each choice of lengths of the sites; without sites, itself."""
        if self.template is None:
            return [self]
        # A line is in the seed of samples, so the lines of choices must not depend on other texts.
        first_line = (self.line - 1) * MOST_CHOICES + 1
        lines = enumerate(self.template.masked_texts, first_line)
        return [FilledText(line, text) for line, text in lines]

    def to_json(self) -> dict[str, Any]:
        """The text and its fillings as a line of JSON."""
        entry = {**vars(self), "fillings": [filling.to_json() for filling in self.fillings]}
        del entry["template"]
        if self.states is None:
            del entry["states"]
        else:
            entry["states"] = [[state.to_json() for state in mask] for mask in self.states]
        return entry
