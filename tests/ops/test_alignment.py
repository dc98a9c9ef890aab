"""The dynamic programme against enumeration of all paths, against identities, and on hostile
input."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exlm.ops import alignment
from tests.ops import reference  # noqa: F401  adds a back end

BACKENDS = sorted(alignment.BACKENDS)
FAST = [name for name in BACKENDS if name != "reference"]
INF = float("inf")


def paths(targets: int, states: int):
    """All strictly increasing paths from state 0 to state `states - 1`."""
    if targets == 1:
        return [(0,)] if states == 1 else []
    middle = itertools.combinations(range(1, states - 1), targets - 2)
    return [(0, *inner, states - 1) for inner in middle] if states > 1 else []


def path_score(emission, transition, path):
    score = sum(emission[i, u].item() for i, u in enumerate(path))
    return score + sum(transition[u, v].item() for u, v in itertools.pairwise(path))


def enumerate_sequence(emission, transition, targets, states):
    """log f, posterior over states and expected edge use by brute force."""
    scores = {path: path_score(emission, transition, path) for path in paths(targets, states)}
    alive = {path: s for path, s in scores.items() if s > -INF}
    at_state, on_edge = torch.zeros_like(emission), torch.zeros_like(transition)
    if not alive:
        return -INF, at_state, on_edge, None
    peak = max(alive.values())
    total = peak + math.log(sum(math.exp(s - peak) for s in alive.values()))
    for path, score in alive.items():
        weight = math.exp(score - total)
        for i, u in enumerate(path):
            at_state[i, u] += weight
        for u, v in itertools.pairwise(path):
            on_edge[u, v] += weight
    return total, at_state, on_edge, peak


def random_case(seed, batch=6, targets=5, states=9, spread=1.0, missing=0.0, dtype=torch.float64):
    """Random lengths, log-softmax transitions over valid successors, and a share of missing edges
    and emissions."""
    g = torch.Generator().manual_seed(seed)
    emission = -spread * torch.rand(batch, targets, states, generator=g, dtype=torch.float64) - 0.1
    scores = spread * torch.randn(batch, states, states, generator=g, dtype=torch.float64)
    upper = torch.ones(states, states).triu(1).bool()
    transition = scores.masked_fill(~upper, -INF).log_softmax(-1).nan_to_num(-INF, neginf=-INF)
    transition = transition.masked_fill(torch.rand(transition.shape, generator=g) < missing, -INF)
    emission = emission.masked_fill(torch.rand(emission.shape, generator=g) < missing / 2, -INF)
    target_lengths = torch.randint(1, targets + 1, (batch,), generator=g)
    state_lengths = torch.randint(1, states + 1, (batch,), generator=g)
    target_lengths[0], state_lengths[0] = targets, states
    return emission.to(dtype), transition.to(dtype), target_lengths, state_lengths


CASES = {
    "ordinary": dict(seed=0),
    "missing edges": dict(seed=1, missing=0.3),
    "400 nats": dict(seed=2, spread=400.0),
    "400 nats, missing edges": dict(seed=3, spread=400.0, missing=0.3),
    "as many targets as states": dict(seed=4, targets=6, states=6),
    "more targets than states": dict(seed=5, targets=8, states=5),
    "one target": dict(seed=6, targets=1, states=4),
    "one state": dict(seed=7, targets=3, states=1),
    "two by two": dict(seed=8, targets=2, states=2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_equal_enumeration(backend, case):
    emission, transition, target_lengths, state_lengths = random_case(**CASES[case])
    emission.requires_grad_(), transition.requires_grad_()
    value = alignment.log_likelihood(
        emission, transition, target_lengths, state_lengths, backend=backend
    )
    weights = torch.arange(1.0, len(value) + 1, dtype=value.dtype)
    torch.where(value == -INF, 0.0, value * weights).sum().backward()
    for b, (targets, states) in enumerate(
        zip(target_lengths.tolist(), state_lengths.tolist(), strict=True)
    ):
        expected, at_state, on_edge, _ = enumerate_sequence(
            emission[b], transition[b], targets, states
        )
        assert value[b].item() == pytest.approx(expected, rel=1e-10)
        torch.testing.assert_close(emission.grad[b], at_state * (b + 1), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(transition.grad[b], on_edge * (b + 1), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    targets=st.integers(1, 5),
    states=st.integers(1, 8),
    missing=st.sampled_from([0.0, 0.5]),
)
def test_random_lattices_equal_enumeration(backend, seed, targets, states, missing):
    case = random_case(seed, batch=3, targets=targets, states=states, spread=30.0, missing=missing)
    value = alignment.log_likelihood(*case, backend=backend)
    for b, (t, n) in enumerate(zip(case[2].tolist(), case[3].tolist(), strict=True)):
        assert value[b].item() == pytest.approx(
            enumerate_sequence(case[0][b], case[1][b], t, n)[0], rel=1e-10
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("targets,states", [(2, 2), (3, 6), (5, 11), (9, 20), (12, 12)])
def test_counting_identity(backend, targets, states):
    """With all log-probabilities 0 the likelihood counts the paths: C(N-2, T-2)."""
    lengths = torch.tensor([targets]), torch.tensor([states])
    zeros = (
        torch.zeros(1, targets, states, dtype=torch.float64),
        torch.zeros(1, states, states, dtype=torch.float64),
    )
    value = alignment.log_likelihood(*zeros, *lengths, backend=backend)
    assert value.exp().item() == pytest.approx(math.comb(states - 2, targets - 2), rel=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_infeasible_is_minus_infinity_with_zero_gradient_beside_feasible_ones(backend):
    emission, transition, _, _ = random_case(11, batch=4, targets=4, states=6, dtype=torch.float32)
    emission[2, 1] = -INF
    target_lengths, state_lengths = torch.tensor([4, 4, 4, 3]), torch.tensor([6, 3, 6, 5])
    emission.requires_grad_(), transition.requires_grad_()
    value = alignment.log_likelihood(
        emission, transition, target_lengths, state_lengths, backend=backend
    )
    assert value.isfinite().tolist() == [True, False, False, True]
    assert (value[1:3] == -INF).all()
    value.sum().backward()
    for grad in (emission.grad, transition.grad):
        assert grad.isfinite().all()
        assert (grad[1:3] == 0).all() and (grad[[0, 3]] != 0).any()


LARGE = {
    "large": (dict(seed=12, batch=3, targets=14, states=40), 1e-5),
    "large, 400 nats, missing edges": (
        dict(seed=12, batch=3, targets=14, states=40, spread=400.0, missing=0.1),
        2e-4,
    ),
}


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("case", [*CASES, *LARGE])
def test_float32_is_close_to_the_float64_reference(backend, case):
    settings, tolerance = LARGE.get(case) or (CASES[case], 2e-4)
    emission, transition, *lengths = random_case(**settings)
    if case in LARGE:
        emission[:, 0, 0] = -1.0
    value = alignment.log_likelihood(emission, transition, *lengths, backend="reference")
    expected = alignment.posterior(emission, transition, *lengths, backend="reference")
    single = emission.float(), transition.float(), *lengths
    ours = alignment.log_likelihood(*single, backend=backend)
    torch.testing.assert_close(ours.double(), value, rtol=1e-6, atol=1e-5)
    for got, want in zip(alignment.posterior(*single, backend=backend), expected, strict=True):
        assert (got.double() - want).abs().max() < tolerance
        assert torch.equal(got[want == 0], torch.zeros_like(got[want == 0])) or case.startswith(
            "400"
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_shows_where_a_path_can_use_it_and_nowhere_else(backend):
    """NaN in every place of the emissions and transitions, each in a sequence of its own, beside a
    longer sequence. The slow interpreter gets every seventh of these sequences."""
    emission, transition, _, _ = random_case(20, batch=1, targets=3, states=5, dtype=torch.float32)
    _, at_state, on_edge, _ = enumerate_sequence(emission[0], transition[0], 3, 4)
    used = torch.cat([at_state.flatten(), on_edge.flatten(), torch.zeros(1)]) > 0
    rows = torch.arange(len(used) - 1, -1, -7 if backend == "interpreted" else -1)
    used = used[rows]
    places = torch.cat([emission.flatten(), transition.flatten()]).repeat(len(rows), 1)
    target_lengths = torch.full_like(rows, 3)
    state_lengths = torch.where(rows == rows.max(), 5, 4)

    def results():
        case = places[:, :15].reshape(-1, 3, 5), places[:, 15:].reshape(-1, 5, 5)
        case = *case, target_lengths, state_lengths
        value = alignment.log_likelihood(*case, backend=backend)
        return [value, *alignment.posterior(*case, backend=backend)]

    clean = results()
    spoilt_rows = rows < places.shape[1]
    places[spoilt_rows, rows[spoilt_rows]] = float("nan")
    spoilt = results()
    assert torch.equal(spoilt[0].isnan(), used)
    for got, want in zip(spoilt, clean, strict=True):
        torch.testing.assert_close(got[~used], want[~used])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [-(2**40), -1, 0, 9, 2**40])
def test_lengths_beyond_the_tensors_are_infeasible(backend, length):
    emission, transition, _, _ = random_case(21, batch=2, targets=4, states=7, dtype=torch.float32)
    for lengths in ([length, 4], [7, 7]), ([4, 4], [length, 7]):
        case = emission, transition, *map(torch.tensor, lengths)
        assert (alignment.log_likelihood(*case, backend=backend) == -INF).tolist() == [True, False]
        assert all(
            (p[0] == 0).all() and (p[1] != 0).any()
            for p in alignment.posterior(*case, backend=backend)
        )


@pytest.mark.skipif(
    alignment.compiled_library() is None, reason="the compiled alignment is not installed"
)
def test_the_compiled_back_end_is_the_default_and_does_not_depend_on_threads():
    case = random_case(22, batch=9, targets=6, states=14, dtype=torch.float32)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(alignment.posterior(*case))
    finally:
        torch.set_num_threads(before)
    for single, several, compiled in zip(
        *results, alignment.posterior(*case, backend="c"), strict=True
    ):
        assert torch.equal(single, several) and torch.equal(single, compiled)


def test_without_the_compiled_library_pytorch_takes_over(monkeypatch):
    case = random_case(23, dtype=torch.float32)
    monkeypatch.setattr(alignment, "compiled_library", lambda: None)
    expected = alignment.log_likelihood(*case, backend="torch")
    assert torch.equal(alignment.log_likelihood(*case), expected)
    assert torch.equal(alignment.log_likelihood(*case, backend="c"), expected)


def test_posterior_identities():
    emission, transition, target_lengths, state_lengths = random_case(
        13, targets=6, states=12, dtype=torch.float32
    )
    at_state, on_edge = alignment.posterior(emission, transition, target_lengths, state_lengths)
    feasible = alignment.log_likelihood(emission, transition, target_lengths, state_lengths) > -INF
    real = torch.arange(6) < target_lengths[:, None]
    torch.testing.assert_close(
        at_state.sum(2), (real & feasible[:, None]).float(), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        on_edge.sum((1, 2)), (target_lengths - 1) * feasible.float(), atol=1e-4, rtol=0
    )
    assert (at_state >= 0).all() and (on_edge >= 0).all()


def test_shifting_emissions_shifts_the_value_and_leaves_the_posterior():
    emission, transition, target_lengths, state_lengths = random_case(14, targets=4, states=9)
    target_lengths[:], state_lengths[:] = 4, 9
    shifted = emission + torch.tensor([-1000.0, 3.0, -50.0, 0.5])[None, :, None]
    before = alignment.log_likelihood(emission, transition, target_lengths, state_lengths)
    after = alignment.log_likelihood(shifted, transition, target_lengths, state_lengths)
    torch.testing.assert_close(after, before - 1046.5)
    left, right = (
        alignment.posterior(e, transition, target_lengths, state_lengths)[0]
        for e in (emission, shifted)
    )
    torch.testing.assert_close(left, right)


def test_batching_with_padding_equals_one_by_one():
    emission, transition, target_lengths, state_lengths = random_case(
        15, batch=5, targets=6, states=12
    )
    together = alignment.log_likelihood(emission, transition, target_lengths, state_lengths)
    for b, (t, n) in enumerate(zip(target_lengths.tolist(), state_lengths.tolist(), strict=True)):
        alone = alignment.log_likelihood(
            emission[b : b + 1, :t, :n],
            transition[b : b + 1, :n, :n],
            target_lengths[b : b + 1],
            state_lengths[b : b + 1],
        )
        torch.testing.assert_close(alone[0], together[b])


@pytest.mark.parametrize("padding", [7.0, INF, float("nan")])
def test_padding_content_is_never_read(padding):
    emission, transition, target_lengths, state_lengths = random_case(
        16, batch=5, targets=6, states=12
    )
    value = alignment.log_likelihood(emission, transition, target_lengths, state_lengths)
    posterior = alignment.posterior(emission, transition, target_lengths, state_lengths)
    emission, transition = emission.clone(), transition.clone()
    for b, (t, n) in enumerate(zip(target_lengths.tolist(), state_lengths.tolist(), strict=True)):
        emission[b, t:] = emission[b, :, n:] = padding
        transition[b, n:] = transition[b, :, n:] = padding
    transition.masked_fill_(torch.ones_like(transition).tril().bool(), padding)
    for backend in BACKENDS:
        again = alignment.log_likelihood(
            emission, transition, target_lengths, state_lengths, backend=backend
        )
        torch.testing.assert_close(again, value)
        single = alignment.log_likelihood(
            emission.float(), transition.float(), target_lengths, state_lengths, backend=backend
        )
        torch.testing.assert_close(single.double(), value, rtol=1e-5, atol=1e-5)
        found = alignment.posterior(
            emission, transition, target_lengths, state_lengths, backend=backend
        )
        for read, expected in zip(found, posterior, strict=True):
            torch.testing.assert_close(read, expected)


@pytest.mark.parametrize("case", CASES)
def test_best_path_is_the_best_of_all(case):
    emission, transition, target_lengths, state_lengths = random_case(**CASES[case])
    path, score = alignment.best_path(emission, transition, target_lengths, state_lengths)
    for b, (t, n) in enumerate(zip(target_lengths.tolist(), state_lengths.tolist(), strict=True)):
        best = enumerate_sequence(emission[b], transition[b], t, n)[3]
        assert (path[b, t:] == -1).all()
        if best is None:
            assert score[b] == -INF and (path[b] == -1).all()
        else:
            assert score[b].item() == pytest.approx(best, rel=1e-9)
            assert path_score(emission[b], transition[b], path[b, :t].tolist()) == pytest.approx(
                best, rel=1e-9
            )


def test_samples_follow_the_posterior():
    emission, transition, _, _ = random_case(17, batch=1, targets=4, states=7)
    many = 4000
    lengths = torch.tensor([4]).expand(many), torch.tensor([7]).expand(many)
    drawn = alignment.sample(
        emission.expand(many, -1, -1),
        transition.expand(many, -1, -1),
        *lengths,
        generator=torch.Generator().manual_seed(0),
    )
    frequency = torch.nn.functional.one_hot(drawn, 7).double().mean(0)
    expected = alignment.posterior(emission, transition, lengths[0][:1], lengths[1][:1])[0][0]
    assert (frequency - expected).abs().max() < 4 * 0.5 / many**0.5
    again = alignment.sample(
        emission.expand(many, -1, -1),
        transition.expand(many, -1, -1),
        *lengths,
        generator=torch.Generator().manual_seed(0),
    )
    assert torch.equal(drawn, again)


def test_sample_marks_sequences_without_a_path():
    emission, transition, _, _ = random_case(18, batch=2, targets=4, states=7)
    drawn = alignment.sample(emission, transition, torch.tensor([4, 4]), torch.tensor([7, 3]))
    assert (drawn[0] >= 0).all() and (drawn[1] == -1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_half_precision_inputs_and_any_integer_lengths_are_accepted(dtype, integers):
    emission, transition, target_lengths, state_lengths = random_case(24, targets=5, states=9)
    emission, transition = emission.to(dtype).requires_grad_(), transition.to(dtype)
    value = alignment.log_likelihood(
        emission, transition, target_lengths.to(integers), state_lengths.to(integers)
    )
    expected = alignment.log_likelihood(
        emission.double(), transition.double(), target_lengths, state_lengths
    )
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    torch.where(value == -INF, 0.0, value).sum().backward()
    assert emission.grad.isfinite().all() and (emission.grad != 0).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_and_a_sequence_without_targets(backend):
    def empty(batch, targets):
        lengths = torch.zeros(batch, dtype=torch.long)
        return torch.zeros(batch, targets, 5), torch.zeros(batch, 5, 5), lengths, lengths + 5

    assert alignment.log_likelihood(*empty(0, 3), backend=backend).shape == (0,)
    assert (alignment.log_likelihood(*empty(2, 3), backend=backend) == -INF).all()
    assert (alignment.log_likelihood(*empty(2, 0), backend=backend) == -INF).all()


def test_shape_errors_name_the_shapes():
    emission, transition, target_lengths, state_lengths = random_case(19)
    with pytest.raises(ValueError, match=r"\[batch, states, states\]"):
        alignment.log_likelihood(emission, transition[:, :3], target_lengths, state_lengths)
    with pytest.raises(ValueError, match="state_lengths"):
        alignment.log_likelihood(emission, transition, target_lengths, state_lengths.float())
