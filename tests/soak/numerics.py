"""The alignment against enumeration of all paths, thousands of times, and a long run that must not
grow."""

import os
import resource
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from exlm.data.prepare import prepare
from exlm.ops import alignment
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, PriorSchedule
from exlm.train import loop
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from tests.ops.test_alignment import INF, enumerate_sequence, random_case
from tests.soak import work
from tests.soak.work import Test

CASES, PER_TRIAL = 2000, 50
BACKENDS = sorted(alignment.BACKENDS)
# k states for each of the masks, first and last state of their own; one target per mask, first and
# last token.
shapes = st.tuples(st.integers(1, 4), st.integers(0, 5)).map(
    lambda pair: (pair[1] + 2, pair[0] * pair[1] + 2)
)


def _spoil(
    emission: torch.Tensor, transition: torch.Tensor, targets: torch.Tensor, states: torch.Tensor
) -> None:
    """Writes NaN and infinity where nothing may read: beyond each sequence's lengths, and below the
    diagonal."""
    for b, (t, n) in enumerate(zip(targets.tolist(), states.tolist(), strict=True)):
        emission[b, t:], emission[b, :, n:] = float("nan"), INF
        transition[b, n:], transition[b, :, n:] = float("nan"), INF
    below = torch.ones(transition.shape[1:]).tril().bool()
    transition.masked_fill_(below, float("nan"))


def alignment_cases(index: int, directory: Path) -> dict[str, Any]:
    """50 random cases for one back end, values and gradients, in float64 and float32."""
    backend, errors = BACKENDS[index % len(BACKENDS)], {"float64": [0.0], "float32": [0.0]}
    not_numbers = []

    @seed(index)
    @settings(
        max_examples=PER_TRIAL,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        shapes,
        st.integers(0, 2**31),
        st.sampled_from([1.0, 20.0, 400.0]),
        st.sampled_from([0.0, 0.2, 0.5]),
    )
    def case(shape: tuple[int, int], number: int, spread: float, missing: float) -> None:
        emission, transition, targets, states = random_case(number, 3, *shape, spread, missing)
        _spoil(emission, transition, targets, states)
        for dtype in (torch.float64, torch.float32):
            inputs = [x.to(dtype).requires_grad_() for x in (emission, transition)]
            value = alignment.log_likelihood(*inputs, targets, states, backend=backend)
            gradients = torch.autograd.grad(
                value[value > -INF].sum(), inputs, materialize_grads=True
            )
            not_numbers.append(sum(int(x.isnan().sum()) for x in (value, *gradients)))
            for b, (t, n) in enumerate(zip(targets.tolist(), states.tolist(), strict=True)):
                exact = [x.detach()[b].double() for x in inputs]
                expected, at_state, on_edge, _ = enumerate_sequence(*exact, t, n)
                found = value[b].item()
                if expected == -INF or found == -INF:
                    error = 0.0 if expected == found else INF
                else:
                    error = abs(found - expected) / max(1.0, abs(expected))
                    gaps = [
                        (g[b].double() - e).abs().max()
                        for g, e in zip(gradients, (at_state, on_edge), strict=True)
                    ]
                    # A posterior is the exponential of differences of sums as large as the value.
                    error = max(error, float(max(gaps)) / max(1.0, abs(expected)))
                errors[str(dtype).removeprefix("torch.")].append(error)

    case()
    worst = {dtype: max(found) for dtype, found in errors.items()}
    passed = worst["float64"] <= 1e-10 and worst["float32"] <= 1e-5 and not any(not_numbers)
    return {
        "passed": passed,
        "cases": PER_TRIAL,
        "backend": backend,
        "worst": worst,
        "nan": sum(not_numbers),
    }


def long_run(index: int, directory: Path) -> dict[str, Any]:
    """20,000 updates: memory and open files after the first 2,000 and at the end."""
    table = work.molecules(directory / "molecules.csv")
    prepare([str(table)], str(directory / "corpus"), held_out=0.05, workers=1)
    seen: list[tuple[int, int]] = []

    config = LoopConfig(
        20_000, OptimizerConfig(1e-3, 5), log_every=100, eval_every=0, save_every=2000
    )
    add = loop.Tracker.add

    def watched(self: Any, *values: Any) -> None:
        add(self, *values)
        seen.append(
            (_resident(), len(os.listdir("/proc/self/fd"))) if len(seen) % 1000 == 0 else (0, 0)
        )

    loop.Tracker.add = watched  # type: ignore[method-assign]
    try:
        pretrain(
            str(directory / "run"),
            DataConfig(
                str(directory / "corpus"),
                tokens_per_batch=128,
                tokens_per_micro_batch=128,
                eval_sequences=10,
            ),
            ArchitectureConfig(
                num_states=2,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=256,
            ),  # fmt: skip
            config,
            prior=PriorSchedule(order=10.0, sticky=3.0),
        )
    finally:
        loop.Tracker.add = add  # type: ignore[method-assign]
    found = [pair for pair in seen if pair != (0, 0)]
    growth = found[-1][0] / found[2][0] - 1
    files = found[-1][1] - found[2][1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "passed": growth < 0.02 and files <= 0,
        "growth": growth,
        "more_open_files": files,
        "peak_bytes": peak,
    }


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


TESTS = [
    Test(
        "alignment",
        "every back end equals enumeration: 1e-10 in float64, 1e-5 in float32, no NaN, at spreads "
        "up to 400 nats",
        len(BACKENDS) * CASES // PER_TRIAL,
        alignment_cases,
    ),
    Test(
        "long run",
        "20,000 updates: memory grows by less than 2%, open files not at all",
        1,
        long_run,
    ),
]
