"""What `exlm fill` says of texts: a record for each text, with one for each of its fillings. Their
fields have the names of the output, which the docstring of `fill` explains."""

import math
from dataclasses import dataclass, field
from typing import Any

from exlm.data.drawing import Segment
from exlm.filling.sites import Template


@dataclass(frozen=True)
class Molecule:
    """What is known of a filling that should be a molecule; all but `valid` is None if it is
    none."""

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

    text: str  # the whole text
    tokens: list[list[str]]  # those that fill each mask
    log_probability: float
    path: list[int] | None = None  # the state of each token, in one pass
    path_probability: float | None = None  # only `viterbi` gives it
    masked: str | None = None  # of sites: the text with masks that was filled
    length_probability: float | None = None  # of sites, and with all paths
    molecule: Molecule | None = None
    # the filled text in parts, in order, each with the mask that it fills
    segments: list[Segment] = field(default_factory=list)

    @property
    def probability(self) -> float:
        """Among all fillings with as many tokens."""
        return math.exp(self.log_probability)

    @property
    def segments_of_sites(self) -> list[Segment]:
        """The segments, each with the site that it fills. Masks side by side are one site."""
        site = 0
        segments: list[Segment] = []
        for number, (text, mask) in enumerate(self.segments):
            if number > 0 and mask is None and text.strip():
                site += 1
            segments.append((text, None if mask is None else site))
        return segments

    @property
    def filling(self) -> str:
        """What fills each site, with a space between two of them."""
        sites: dict[int, str] = {}
        for text, site in self.segments_of_sites:
            if site is not None:
                sites[site] = sites.get(site, "") + text
        return " ".join(text.strip() for text in sites.values())

    def to_json(self) -> dict[str, Any]:
        """The filling as an entry of a line of JSON."""
        names = ["filling", "text", "tokens", "probability", "log_probability"]
        for name in ("path_probability", "masked", "length_probability"):
            if getattr(self, name) is not None:
                names.append(name)
        entry = {name: getattr(self, name) for name in names}
        return entry if self.molecule is None else entry | vars(self.molecule)


@dataclass(frozen=True)
class FilledText:
    """A text and its fillings, or the problem that it has."""

    line: int
    text: str
    fillings: list[Filling] = field(default_factory=list)
    exact: bool | None = None
    kept: float | None = None
    passes: int | None = None
    warning: str | None = None
    problem: str | None = None
    states: list[list[dict[str, Any]]] | None = None  # of each mask, if they are asked for
    left_out: int = 0
    name: str | None = None
    template: Template | None = None  # what stays and its sites, if it has sites

    def to_json(self) -> dict[str, Any]:
        """The text and its fillings as a line of JSON."""
        record = {**vars(self), "fillings": [filling.to_json() for filling in self.fillings]}
        del record["template"]
        if self.states is None:
            del record["states"]
        return record
