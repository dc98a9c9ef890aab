"""Joint likelihood in several passes: a distribution over all fillings, and equal to the policy
written out."""

import itertools
import math

import pytest
import torch

from exlm import ExLMForMaskedLM
from exlm.model.evaluation import evaluate_batch
from exlm.model.passes import most_certain, nll_in_passes

VOCABULARY, BOS, EOS, MASK = 6, 0, 2, 5
SWITCHES = [
    {"num_states": 1},
    {"num_states": 2},
    {"num_states": 3},
    {"num_states": 2, "dag": "sparse"},
    {"num_states": 3, "dag": "sparse", "order_prior": 1.0},
    {"num_states": 2, "boundary_states": "k"},
    {"num_states": 2, "expanded_layers": 1, "copy_embedding": 0.5},
    {"objective": "mlm"},
    {"objective": "ctc", "num_states": 2},
]
ROWS = {2: [BOS, MASK, 4, MASK, EOS], 3: [BOS, MASK, MASK, 4, MASK, EOS]}


@pytest.fixture
def build(tiny_config):
    """A function that builds a model in float64 whose predictions are sharp, so that the order of
    passes varies."""

    def model(**switches):
        config = tiny_config(
            **switches, vocab_size=VOCABULARY, mask_token_id=MASK, initializer_range=0.6
        )
        return ExLMForMaskedLM(config).double().eval()

    return model


def every_filling(masks):
    """A batch with all fillings of `masks` masks."""
    fillings = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=masks)))
    ids = torch.tensor([ROWS[masks]]).repeat(len(fillings), 1)
    labels = torch.full_like(ids, -100)
    labels[ids == MASK] = fillings.flatten()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_the_probabilities_of_all_fillings_sum_to_one(build, switches):
    model = build(**switches)
    for masks in ROWS:
        batch = every_filling(masks)
        for passes in (1, 2, 3, 4, "all"):
            total = nll_in_passes(model, batch, passes).neg().exp().sum()
            assert float(total) == pytest.approx(1.0, abs=1e-9), (masks, passes)


def log_distributions(model, ids, labels):
    """Everything that a pass needs, by the sum over all paths, written out: the masks, log p(tokens
    at a list of masks) and the marginal distribution of every mask."""
    lattice = model.exlm.expand(ids, torch.ones_like(ids), labels=labels)
    output = model.lattice_output(lattice)
    masks = [i for i, is_mask in enumerate(lattice.target_is_mask[0].tolist()) if is_mask]
    if model.transition is None:
        marginals = model.objective.marginals(output)[0].exp()
        return (
            lattice,
            masks,
            lambda chosen: math.prod(float(marginals[i, y]) for i, y in chosen),
            marginals,
        )
    links, words = output.links[0].exp(), model.head(output.states)[0].softmax(-1)
    last, inner = len(words) - 1, lattice.targets.shape[1] - 2
    paths = [(0, *path, last) for path in itertools.combinations(range(1, last), inner)]
    weights = [math.prod(float(links[u, v]) for u, v in itertools.pairwise(path)) for path in paths]

    def probability(chosen):
        emitted = [math.prod(float(words[path[i], y]) for i, y in chosen) for path in paths]
        return sum(w * p for w, p in zip(weights, emitted, strict=True)) / sum(weights)

    marginals = [[probability([(i, y)]) for y in range(VOCABULARY)] for i in range(inner + 2)]
    return lattice, masks, probability, torch.tensor(marginals, dtype=torch.float64)


@torch.no_grad()
def policy_written_out(model, ids, labels, passes):
    """-log-probability of one sequence [1, S], and the places that each pass revealed."""
    ids, labels, nll, order = ids.clone(), labels.clone(), 0.0, []
    for passes_left in range(passes, 0, -1):
        lattice, masks, probability, marginals = log_distributions(model, ids, labels)
        by_certainty = sorted(masks, key=lambda i: (-float(marginals[i].max()), i))
        chosen = by_certainty[: math.ceil(len(masks) / passes_left)]
        nll -= math.log(probability([(i, int(lattice.targets[0, i])) for i in chosen]))
        order.append([int(lattice.target_index[0, i]) for i in chosen])
        for place in order[-1]:
            ids[0, place], labels[0, place] = labels[0, place].item(), -100
    return nll, order


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_every_pass_is_the_policy_written_out(build, switches):
    model = build(**switches)
    every = every_filling(3)
    batch = {name: tensor[5::29] for name, tensor in every.items()}
    orders = set()
    for passes in (1, 2, 3):
        expected = []
        for row in range(len(batch["labels"])):
            nll, order = policy_written_out(
                model, batch["input_ids"][row : row + 1], batch["labels"][row : row + 1], passes
            )
            expected.append(nll)
            orders.add(str(order))
        found = nll_in_passes(model, batch, passes)
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9
        )
    assert len(orders) >= 3


@pytest.mark.parametrize("objective", ["exlm", "mlm", "ctc"])
def test_one_pass_is_the_joint_nll_and_the_batch_does_not_matter(
    tiny_config, tiny_batch, objective
):
    model = ExLMForMaskedLM(tiny_config(objective=objective, initializer_range=0.5)).eval()
    before = {name: tensor.clone() for name, tensor in tiny_batch.items()}
    one_by_one = [
        {name: tensor[i : i + 1] for name, tensor in tiny_batch.items()} for i in range(4)
    ]
    once = nll_in_passes(model, tiny_batch, 1)
    expected = [evaluate_batch(model, alone)["joint_nll"] for alone in one_by_one]
    assert once.tolist() == pytest.approx(expected, rel=1e-5) and once[2] == 0
    for passes in (2, 3, 100, "all"):
        alone = [float(nll_in_passes(model, row, passes)) for row in one_by_one]
        assert nll_in_passes(model, tiny_batch, passes).tolist() == pytest.approx(alone, rel=1e-5)
    assert nll_in_passes(model, tiny_batch, 100).equal(nll_in_passes(model, tiny_batch, "all"))
    assert nll_in_passes(model, one_by_one[2], "all").tolist() == [0.0]  # no mask, no pass
    assert all(tiny_batch[name].equal(tensor) for name, tensor in before.items())


def test_the_prior_counts(build):
    model, batch = build(num_states=2), every_filling(2)
    free = nll_in_passes(model, batch, 2)
    model.config.order_prior = 30.0
    assert not nll_in_passes(model, batch, 2).equal(free)


def test_masks_are_spread_evenly_and_of_equal_ones_the_left_come_first():
    certainty = torch.tensor(
        [[0.9, 0.5, 0.7, 0.5, 0.7, 0.5, 0.9], [0.9, 0.1, 0.2, 0.9, 0.9, 0.9, 0.9]]
    )
    masks = torch.tensor([[0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0]]).bool()
    sizes, left = [], masks
    for passes_left in (3, 2, 1):
        revealed = most_certain(certainty, left, passes_left)
        sizes.append(revealed.sum(1).tolist())
        left = left & ~revealed
    assert sizes == [[2, 1], [2, 1], [1, 0]] and not left.any()
    first = most_certain(certainty, masks, 3)
    assert first.nonzero().tolist() == [[0, 2], [0, 4], [1, 2]]
    second = most_certain(certainty, masks & ~first, 2)
    assert second.nonzero().tolist() == [[0, 1], [0, 3], [1, 1]]
