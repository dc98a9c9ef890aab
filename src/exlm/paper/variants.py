"""The models of the paper's experiments. All are made from one recipe by changing some of its settings.

Names show the changes: `mlm-p38.7-r2` is an MLM with 38.7% masks and every token twice, and `exlm-p15-k4-1d` is an ExLM
with 15% masks, 4 states and one-dimensional positions. Experiments share runs, for example the MLM with 15% masks.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from exlm.errors import InputError
from exlm.pretrain import check_positions
from exlm.pretrained import load_tokenizer
from exlm.recipe import ArchitectureConfig, DataConfig
from exlm.train.loop import LoopConfig

Experiment = Literal["repeated-mlm", "ablations", "sweep", "entropy", "efficiency"]


@dataclass(frozen=True)
class Space:
    """The settings that the experiments vary.

    Attributes:
        mask_ratios: mask ratios p of the Repeated MLM grid (its rows).
        repeats: repetitions r of the grid (its columns).
        smallest: cells with corrupted semantics p^r below this are left out, as the paper found them unstable.
        cells: if given, only these cells (mask ratio, repetitions) of the grid are run.
        states: numbers of states k of the sweep.
        sweep_mask_ratios: mask ratios of the sweep.
    """

    mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387, 0.622, 0.789])
    repeats: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    smallest: float = 5.05e-4
    cells: list[tuple[float, int]] | None = None
    states: list[int] = field(default_factory=lambda: [2, 4, 8])
    sweep_mask_ratios: list[float] = field(default_factory=lambda: [0.15, 0.387])

    def grid(self) -> list[tuple[float, int]]:
        """The pairs (p, r) of the Repeated MLM experiment, the cheapest first."""
        cells = self.cells or [(p, r) for p in self.mask_ratios for r in self.repeats if p**r >= self.smallest]
        return sorted({(float(p), int(r)) for p, r in cells}, key=lambda cell: (cell[1], cell[0]))


@dataclass(frozen=True)
class Variant:
    """One model to pre-train: the name of its directories, and its settings for `exlm pretrain`."""

    name: str
    data: DataConfig
    model: ArchitectureConfig
    train: LoopConfig

    def check(self) -> None:
        """Raises InputError if the model cannot be built, or has too few positions (`check_positions`)."""
        try:
            check_positions(self.data, self.model)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from error
        self.model.build(load_tokenizer(self.data.corpus), self.data.repeat)


def variants(
    experiment: Experiment,
    data: DataConfig,
    model: ArchitectureConfig,
    train: LoopConfig,
    space: Space,
    cost_ratio: float = 1.0,
) -> list[Variant]:
    """The models of an experiment. For `efficiency` there are none.

    MLM++ is an MLM that has `cost_ratio` times as many updates. Its training then costs as much as ExLM's.
    """

    def mlm(p: float, repeat: int = 1) -> Variant:
        name = f"mlm-p{100 * p:g}" + (f"-r{repeat}" if repeat > 1 else "")
        return Variant(name, replace(data, mask_ratio=p, repeat=repeat), replace(model, objective="mlm"), train)

    def exlm(p: float, k: int, ending: str = "", **switches: Any) -> Variant:
        changed = replace(model, **{"objective": "exlm", "num_states": k, **switches})
        name = f"{changed.objective}-p{100 * p:g}-k{k}{ending}"
        return Variant(name, replace(data, mask_ratio=p, repeat=1), changed, train)

    found = []
    if experiment == "ablations":  # paper, section 5.3 and appendix
        p, k, vanilla = data.mask_ratio, model.num_states, mlm(data.mask_ratio)
        steps = max(train.optimizer.warmup_steps, round(train.steps * cost_ratio), 1)
        found += [vanilla, exlm(p, k), exlm(p, k, objective="ctc"), exlm(p, k, "-1d", rotary="1d")]
        found += [exlm(p, k, "-sparse", dag="sparse")]
        found += [replace(vanilla, name=f"{vanilla.name}-plus-plus", train=replace(train, steps=steps))]
    if experiment in ("repeated-mlm", "entropy"):  # sections 3 and 3.3
        found += [mlm(p, r) for p, r in space.grid()]
    if experiment in ("sweep", "entropy"):  # section 5.3
        for p in space.sweep_mask_ratios:
            found += [mlm(p), *(exlm(p, k) for k in space.states)]
    return list({variant.name: variant for variant in found}.values())  # the grid and the sweep share MLMs
