"""Masks and batches as pure functions: statistics, budget, order and independence of how the work
is shared."""

from types import SimpleNamespace

import numpy as np
import pytest

from exlm import InputError
from exlm.data.batching import MaskedBatches, longest_first
from exlm.data.masking import mask_tokens
from exlm.randomness import Purpose, random_bits, uniform

BOS, PAD, EOS, MASK = 0, 1, 2, 99
TOKENIZER = SimpleNamespace(
    bos_token_id=BOS, pad_token_id=PAD, eos_token_id=EOS, mask_token_id=MASK
)
KEYS = ("input_ids", "labels", "attention_mask")


class Sequences:
    """Random sequences in memory."""

    def __init__(self, count=500, seed=0, lengths=None):
        rng = np.random.default_rng(seed)
        self.token_counts = rng.integers(1, 60, count) if lengths is None else np.array(lengths)
        self.tokens = rng.integers(4, 90, (len(self.token_counts), self.token_counts.max()))

    def gather(self, indices):
        lengths = self.token_counts[indices]
        ids = self.tokens[indices][:, : lengths.max()].copy()
        ids[np.arange(ids.shape[1]) >= lengths[:, None]] = PAD
        return ids, lengths


def _batches(source, budget):
    return MaskedBatches(source, TOKENIZER, budget, 10**6, 0.15, seed=0)


def masked_batch(source, examples, *settings, **options):
    return mask_tokens(*source.gather(examples), examples, *settings, **options)


def _masked(source, examples, ratio, seed=0, epoch=0):
    """[n, longest] bool, without BOS and EOS."""
    batch = masked_batch(source, np.array(examples), TOKENIZER, seed, epoch, ratio)
    assert ((batch["input_ids"] == MASK) == (batch["labels"] != -100)).all()
    return (batch["labels"] != -100).numpy()[:, 1:-1]


def test_mask_ratio_is_met_in_expectation_and_rounded_per_sequence():
    masked = _masked(Sequences(lengths=[41] * 20000), range(20000), 0.15, seed=1)
    counts = masked.sum(1)
    assert set(counts) == {6, 7}  # 41 x 0.15 = 6.15
    assert abs(counts.mean() - 6.15) < 4 * 0.36 / 20000**0.5
    assert abs(masked.mean(0) - 0.15).max() < 5 * (0.15 * 0.85 / 20000) ** 0.5


@pytest.mark.parametrize("ratio", [0.5, 0.787])
def test_high_ratios(ratio):
    masked = _masked(Sequences(lengths=[60] * 2000), range(2000), ratio)
    assert masked.mean() == pytest.approx(ratio, abs=0.01)


def test_of_a_range_each_sequence_draws_its_own_share():
    masked = _masked(Sequences(lengths=[50] * 20000), range(20000), (0.1, 0.5))
    share = masked.mean(1)
    assert share.mean() == pytest.approx(0.3, abs=0.005)
    assert share.std() == pytest.approx(0.4 / 12**0.5, abs=0.005)
    assert share.min() == 0.1 and share.max() == 0.5
    alone = _masked(Sequences(lengths=[50] * 20000), [7], (0.1, 0.5))
    assert np.array_equal(alone[0], masked[7])
    later = _masked(Sequences(lengths=[50] * 20000), range(20000), (0.1, 0.5), epoch=1)
    assert not np.array_equal(share, later.mean(1))


def test_a_range_of_one_number_is_that_share():
    source = Sequences(300)
    assert np.array_equal(_masked(source, range(300), (0.3, 0.3)), _masked(source, range(300), 0.3))


def test_so_many_masks_as_asked_for():
    source = Sequences(lengths=[3, 30, 60])
    batch = masked_batch(source, np.arange(3), TOKENIZER, 0, 0, 0.15, masks=4)
    more = masked_batch(source, np.arange(3), TOKENIZER, 0, 0, 0.15, masks=8)
    assert (batch["labels"] != -100).sum(1).tolist() == [3, 4, 4]
    # the first four of the eight
    assert ((batch["labels"] == -100) | (more["labels"] != -100)).all()


@pytest.mark.parametrize("wrong", [0.0, 1.0, (0.5, 0.2), (0.0, 0.5), (0.2, 1.0)])
def test_what_is_no_share_is_refused(wrong):
    with pytest.raises(InputError, match="mask_ratio is"):
        _masked(Sequences(3), range(3), wrong)


def test_masks_change_with_seed_epoch_and_example_and_with_nothing_else():
    source = Sequences(lengths=[30, 40, 50, 30])
    base = _masked(source, [0, 1, 2], 0.3)
    assert np.array_equal(base, _masked(source, [0, 1, 2], 0.3))
    assert np.array_equal(base[1:2, :40], _masked(source, [1], 0.3))
    for change in ({"seed": 1}, {"epoch": 1}):
        assert not np.array_equal(base, _masked(source, [0, 1, 2], 0.3, **change))
    assert not np.array_equal(base[0, :30], _masked(source, [3], 0.3)[0])


def test_padding_is_never_masked():
    lengths = np.array([1, 5, 20])
    masked = _masked(Sequences(lengths=lengths), range(3), 0.9)
    assert not masked[np.arange(20) >= lengths[:, None]].any()


def test_random_bits_are_uniform_and_independent():
    draws = uniform(random_bits(3, np.arange(200)[:, None], np.arange(500)))
    assert abs(draws.mean() - 0.5) < 0.005 and abs(draws.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.015


def test_no_two_purposes_share_a_stream():
    """Whatever the seed, epoch and example, also where a seed has the number of a purpose."""
    counters = np.meshgrid(*[np.arange(12)] * 3, indexing="ij")
    streams = [random_bits(purpose, *counters) for purpose in Purpose] + [
        random_bits(p, *counters[:2])[..., 0] for p in Purpose
    ]
    bits = np.concatenate([stream.ravel() for stream in streams])
    assert len(np.unique(bits)) == len(bits)


@pytest.mark.parametrize("budget,groups", [(512, 1), (2048, 2), (5000, 2), (9000, 4)])
def test_an_epoch_holds_every_example_once_within_the_budget(budget, groups):
    masked = _batches(Sequences(3000), budget)
    batches = masked.batches_of_epoch(0)
    all_groups = [group for batch in batches for group in batch]
    assert sorted(np.concatenate(all_groups)) == list(range(3000))
    assert len(batches[0]) == groups and sum(len(batch) != groups for batch in batches) < groups
    sizes = [len(group) * masked.plan.lengths[group].max() for group in all_groups]
    # Leftovers join a group.
    assert sorted(sizes)[-2] <= budget // groups and max(sizes) <= budget // groups + 7 * 62
    assert sum(sizes) > 0.9 * budget * (len(batches) - 2)  # the budget is used


def test_of_a_tiny_corpus_too_only_one_step_exceeds_the_budget_and_by_little():
    rng = np.random.default_rng(0)
    for _ in range(200):
        shortest = rng.integers(1, 60)
        lengths = rng.integers(shortest, shortest + rng.integers(1, 200), rng.integers(1, 60))
        budget = int((lengths.max() + 2) * rng.uniform(1, 12))
        masked = _batches(Sequences(lengths=lengths), budget)
        batches = masked.batches_of_epoch(0)
        groups = [group for batch in batches for group in batch]
        assert sorted(np.concatenate(groups)) == list(range(len(lengths)))
        tokens = [
            sum(len(group) * masked.plan.lengths[group].max() for group in batch)
            for batch in batches
        ]
        exceeding = [step for step, number in enumerate(tokens) if number > budget]
        assert len(exceeding) <= 1 and max(tokens) < budget + masked.plan.tokens_per_group
        for step in exceeding:
            longest = max(masked.plan.lengths[group].max() for group in batches[step])
            assert tokens[step] <= budget + 7 * longest


def test_padding_stays_below_six_percent():
    masked = _batches(Sequences(lengths=np.random.default_rng(0).integers(20, 60, 5000)), 4096)
    padded = sum(
        len(group) * masked.plan.lengths[group].max()
        for batch in masked.batches_of_epoch(0)
        for group in batch
    )
    assert masked.plan.lengths.sum() / padded > 0.94


def test_a_batch_mixes_lengths_and_a_group_does_not():
    """No batch is of short or of long sequences only, so that its gradient is that of the
    corpus."""
    source = Sequences(6000)
    masked = _batches(source, 8192)
    tokens = []
    for batch in masked.batches_of_epoch(0)[:-1]:
        lengths = [masked.plan.lengths[group] for group in batch]
        assert all(np.ptp(group) <= 16 for group in lengths)
        assert lengths[0].min() > 45 and (len(batch) < 4 or lengths[-1].max() < 35)
        tokens.append(np.concatenate(lengths).mean())
    assert len(tokens) > 15 and np.std(tokens) < 0.2 * np.mean(tokens)


def test_few_sequences_share_a_batch_all_the_same():
    for count in range(1, 12):
        masked = _batches(Sequences(count), 4096)
        groups = [group for batch in masked.batches_of_epoch(0) for group in batch]
        assert sorted(np.concatenate(groups)) == list(range(count))
        assert all(len(group) for group in groups)


def test_steps_run_through_epochs_that_differ():
    batches = _batches(Sequences(), 512)
    assert not any(
        np.array_equal(a[0], b[0])
        for a, b in zip(batches.batches_of_epoch(0), batches.batches_of_epoch(1), strict=True)
    )
    ids = [
        batches(step)[0][1]["input_ids"].tolist()
        for step in (3, batches.plan.steps_per_epoch + 3, 3)
    ]
    assert ids[0] == ids[2] != ids[1]
    assert (
        _batches(Sequences(), 512)(batches.plan.steps_per_epoch + 3)[0][1]["input_ids"].tolist()
        == ids[1]
    )


def test_a_sequence_longer_than_the_budget_is_an_error():
    with pytest.raises(InputError, match="62 tokens but a batch may have 32"):
        _batches(Sequences(lengths=[10, 60]), 32)


def test_boundaries_between_documents_are_never_masked():
    """A packed sequence holds BOS and EOS of its documents; they are not words to guess."""
    source = Sequences()
    source.tokens[:, 5::9], source.tokens[:, 6::9] = EOS, BOS
    batch = masked_batch(source, np.arange(200), TOKENIZER, seed=0, epoch=0, ratio=0.5)
    labels = batch["labels"].numpy()
    assert not np.isin(labels, (BOS, EOS)).any()
    for row in range(200):
        words = source.tokens[row, : source.token_counts[row]]
        assert abs((labels[row] != -100).sum() - 0.5 * (~np.isin(words, (0, 2))).sum()) < 1


def _unpadded(batches):
    rows = [row for batch in batches for row in batch["input_ids"].tolist()]
    return sorted([token for token in row if token != PAD] for row in rows)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_the_micro_batches_of_a_step_without_overlap(world):
    single = MaskedBatches(Sequences(), TOKENIZER, 512, 512 // world, 0.15, seed=0)
    shares = [
        MaskedBatches(Sequences(), TOKENIZER, 512, 512, 0.15, 0, rank, world)
        for rank in range(world)
    ]
    for step in range(5):
        batches = [batch for share in shares for _, batch in share(step)]
        assert _unpadded(batches) == _unpadded([batch for _, batch in single(step)])
        assert sorted(number for share in shares for number, _ in share(step)) == list(range(world))


def test_leftovers_do_not_make_a_batch_too_small_for_several_processes():
    for budget in range(200, 600, 13):
        for rank in (0, 1):
            share = MaskedBatches(Sequences(seed=budget), TOKENIZER, budget, 100, 0.15, 0, rank, 2)
            for step in range(share.plan.steps_per_epoch):
                assert all(len(batch["input_ids"]) for _, batch in share(step))


def test_fewer_sequences_in_a_batch_than_processes_is_an_error_at_the_start():
    """The least that any batch of any epoch has is known: the sizes of groups do not change, only
    which meet."""
    source = Sequences(lengths=np.random.default_rng(0).integers(20, 499, 3000))
    least = min(
        sum(map(len, batch))
        for epoch in range(8)
        for batch in _batches(source, 4096).batches_of_epoch(epoch)
    )
    for world in range(1, 64):
        try:
            MaskedBatches(source, TOKENIZER, 4096, 100, 0.15, 0, 0, world)
        except InputError as error:
            assert f"fewer sequences than the {world} processes" in str(error)
            break
        assert world <= least
    assert 1 < world < 63


def test_a_masked_batch_restores_the_original_tokens():
    source = Sequences()
    examples = np.array([5, 17, 3])
    batch = masked_batch(source, examples, TOKENIZER, seed=0, epoch=2, ratio=0.3)
    ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
    assert ((ids == MASK) == (labels != -100)).all()
    for row, example in enumerate(examples):
        n = source.token_counts[example]
        restored = np.where(labels[row] == -100, ids[row], labels[row])
        assert restored[0] == 0 and restored[n + 1] == 2
        assert np.array_equal(restored[1 : n + 1], source.tokens[example, :n])
        assert batch["attention_mask"][row].sum() == n + 2


@pytest.mark.parametrize("few_shapes", [False, True])
def test_work_without_a_plan_takes_the_longest_first_within_the_budget(few_shapes):
    lengths = np.random.default_rng(0).integers(1, 60, 500).astype(np.uint32)
    batches = list(longest_first(lengths, 300, few_shapes))
    order = np.concatenate(batches)
    assert np.array_equal(order, np.argsort(-lengths.astype(int), kind="stable"))
    assert all(len(batch) * lengths[batch].max() <= 300 for batch in batches)
    assert [len(batch) for batch in longest_first([9, 9, 50], 20, few_shapes)] == [1, 2]
    assert list(longest_first([], 20)) == []


def test_of_few_shapes_the_last_batches_have_powers_of_two():
    assert [len(batch) for batch in longest_first([1] * 23, 8, few_shapes=True)] == [8, 8, 4, 2, 1]
    assert [len(batch) for batch in longest_first([1] * 23, 8)] == [8, 8, 7]


@pytest.mark.parametrize("repeat", [2, 4])
def test_repeated_tokens_stand_together_and_each_copy_is_masked_by_itself(repeat):
    source = Sequences()
    examples = np.array([5, 17, 3])
    batch = masked_batch(source, examples, TOKENIZER, seed=0, epoch=2, ratio=0.4, repeat=repeat)
    ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
    restored = np.where(labels == -100, ids, labels).reshape(len(ids), -1, repeat)
    assert (restored == restored[..., :1]).all()
    for row, example in enumerate(examples):
        n = source.token_counts[example]
        expected = [BOS, *source.tokens[example, :n], EOS]
        assert restored[row, : n + 2, 0].tolist() == expected
        assert batch["attention_mask"][row].sum() == (n + 2) * repeat
        assert abs((labels[row] != -100).sum() - 0.4 * n * repeat) < 1
    masked = (labels != -100).reshape(len(ids), -1, repeat).sum(2)
    assert ((masked > 0) & (masked < repeat)).any()


@pytest.mark.parametrize("budget", [512, 4096])
def test_repetition_and_memory_change_no_steps_sequences_and_micro_batches_are_small(budget):
    """How a step is cut is a matter of memory alone."""
    whole = MaskedBatches(Sequences(3000), TOKENIZER, budget, 10**6, 0.15, seed=0)
    for repeat, micro in ((1, 200), (4, 512)):
        cut = MaskedBatches(Sequences(3000), TOKENIZER, budget, micro, 0.15, seed=0, repeat=repeat)
        for step in range(4):
            parts = [batch["input_ids"] for _, batch in cut(step)]
            assert sum(map(len, parts)) == sum(len(batch["input_ids"]) for _, batch in whole(step))
            assert len(parts) > 1 and all(ids.numel() <= 2 * micro for ids in parts)


def _inputs_and_labels(micro_batches):
    """Of every sequence, without padding, in an order of their own."""
    sequences = []
    for _, batch in micro_batches:
        for ids, labels, mask in zip(*(batch[n].numpy() for n in KEYS), strict=True):
            sequences.append((ids[mask == 1].tolist(), labels[mask == 1].tolist()))
    return sorted(sequences)


def test_an_unpadded_batch_that_fits_is_one_micro_batch_of_the_same_masked_sequences():
    """Where padding costs nothing, one pass takes what else would take several."""
    source = Sequences(3000)
    padded = MaskedBatches(source, TOKENIZER, 4096, 8192, 0.3, seed=0)
    unpadded = MaskedBatches(source, TOKENIZER, 4096, 8192, 0.3, seed=0, without_padding=True)
    for step in range(3):
        parts, together = padded(step), unpadded(step)
        assert len(parts) > 1 and len(together) == 1
        assert _inputs_and_labels(together) == _inputs_and_labels(parts)
    cut = MaskedBatches(source, TOKENIZER, 4096, 512, 0.3, seed=0, without_padding=True)
    assert len(cut(0)) > 1  # what does not fit is cut as before


def test_joined_groups_may_be_cut_though_their_tokens_fit():
    """One long sequence: with padding, the others have many more tokens than they are."""
    source = Sequences(lengths=[498] + [2] * 200)
    batches = MaskedBatches(source, TOKENIZER, 8192, 2000, 0.3, seed=0, without_padding=True)
    assert batches.plan.lengths.sum() <= 2000
    assert [len(batch["input_ids"]) for _, batch in batches(0)] == [101, 100]
