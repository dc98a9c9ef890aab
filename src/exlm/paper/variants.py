"""The models of the paper's analyses, as changes to one recipe.

Names say what is special: `mlm-p38.7-r2` is the MLM with 38.7% masks on tokens repeated twice, `exlm-p15-k4-1d` ExLM
with four states and one-dimensional positions. Experiments share runs: the MLM at 15% is the same one everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from exlm.errors import InputError
from exlm.recipe import ArchitectureConfig, DataConfig
from exlm.train.loop import LoopConfig


@dataclass(frozen=True)
class Space:
    """What the experiments vary.

    Attributes:
        mask_ratios: rows of the Repeated MLM grid.
        repeats: its columns.
        smallest: cells with less corrupted semantics p^r than this stay blank: the paper found them unstable.
        cells: only these (mask ratio, repeats) of the grid, if given.
        states: numbers of states k of the sweep.
        sweep_mask_ratios: its mask ratios.
    """

    mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387, 0.622, 0.789])
    repeats: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    smallest: float = 5.05e-4
    cells: list[tuple[float, int]] | None = None
    states: list[int] = field(default_factory=lambda: [2, 4, 8])
    sweep_mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387])

    def __post_init__(self) -> None:
        ratios = [*self.mask_ratios, *self.sweep_mask_ratios, *(p for p, _ in self.cells or [])]
        if bad := [p for p in ratios if not 0 < p < 1]:
            raise InputError(f"a mask ratio is {bad[0]}; it must lie strictly between 0 and 1")
        if not (self.cells or (self.mask_ratios and self.repeats)) or not (self.states and self.sweep_mask_ratios):
            raise InputError("the space is empty: mask_ratios, repeats, states and sweep_mask_ratios need a value each")
        if bad_counts := [n for n in [*self.repeats, *self.states] if n < 1]:
            raise InputError(f"a number of repeats or states is {bad_counts[0]}; it must be at least 1")

    def grid(self) -> list[tuple[float, int]]:
        """(p, r) of the Repeated MLM experiment, cheap ones first."""
        cells = self.cells or [(p, r) for p in self.mask_ratios for r in self.repeats if p**r >= self.smallest]
        return sorted({(float(p), int(r)) for p, r in cells}, key=lambda cell: (cell[1], cell[0]))


@dataclass(frozen=True)
class Variant:
    """One model to pre-train: the name of its directories, and its settings as in a pre-training recipe."""

    name: str
    data: DataConfig
    model: ArchitectureConfig
    train: LoopConfig


@dataclass(frozen=True)
class Base:
    """The recipe that variants change."""

    data: DataConfig
    model: ArchitectureConfig
    train: LoopConfig
    space: Space

    def mlm(self, mask_ratio: float, repeat: int = 1) -> Variant:
        """The vanilla MLM, on repeated tokens if asked."""
        name = f"mlm-p{100 * mask_ratio:g}" + (f"-r{repeat}" if repeat > 1 else "")
        data = replace(self.data, mask_ratio=mask_ratio, repeat=repeat)
        return Variant(name, data, replace(self.model, objective="mlm"), self.train)

    def exlm(self, mask_ratio: float, num_states: int, ending: str = "", **switches: Any) -> Variant:
        """ExLM with k = `num_states`, or an ablation of it by `switches` of the architecture."""
        model = replace(self.model, **{"objective": "exlm", "num_states": num_states, **switches})
        name = f"{model.objective}-p{100 * mask_ratio:g}-k{num_states}{ending}"
        return Variant(name, replace(self.data, mask_ratio=mask_ratio, repeat=1), model, self.train)


def repeated_mlm(base: Base) -> list[Variant]:
    """The grid of mask ratios and repetitions (paper, section 3)."""
    return [base.mlm(p, r) for p, r in base.space.grid()]


def ablations(base: Base, cost_ratio: float = 1.0) -> list[Variant]:
    """ExLM, ExLM without each of its parts, the MLM, and MLM++ (paper, section 5.3 and appendix).

    MLM++ is the MLM with as many updates as cost what ExLM's cost; `cost_ratio` is the cost of an update of ExLM in
    updates of the MLM.
    """
    p, k = base.data.mask_ratio, base.model.num_states
    mlm = base.mlm(p)
    steps = max(base.train.optimizer.warmup_steps, round(base.train.steps * cost_ratio), 1)
    return [
        mlm,
        base.exlm(p, k),
        base.exlm(p, k, objective="ctc"),
        base.exlm(p, k, "-1d", rotary="1d"),
        base.exlm(p, k, "-sparse", dag="sparse"),
        replace(mlm, name=f"{mlm.name}-plus-plus", train=replace(base.train, steps=steps)),
    ]


def sweep(base: Base) -> list[Variant]:
    """ExLM with several numbers of states k, and the MLM, at several mask ratios p (paper, section 5.3)."""
    states = dict.fromkeys(base.space.states)
    ratios = dict.fromkeys(base.space.sweep_mask_ratios)
    return [variant for p in ratios for variant in (base.mlm(p), *(base.exlm(p, k) for k in states))]


def entropy(base: Base) -> list[Variant]:
    """All models whose entropy the paper shows: the grid's and the sweep's."""
    return list({variant.name: variant for variant in repeated_mlm(base) + sweep(base)}.values())


VARIANTS: dict[str, Callable[[Base], list[Variant]]] = {
    "repeated-mlm": repeated_mlm,
    "ablations": ablations,
    "sweep": sweep,
    "entropy": entropy,
    "efficiency": lambda base: [],
}
