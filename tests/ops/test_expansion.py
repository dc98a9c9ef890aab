"""States Expansion on hand-made sequences."""

from dataclasses import replace

import pytest
import torch

from exlm.ops.expansion import expand, tensors_to, unexpanded_input

IDS = torch.tensor([[0, 5, 9, 7, 2], [0, 9, 2, 1, 1]])
LABELS = torch.tensor([[-100, -100, 6, -100, -100], [-100, 8, -100, -100, -100]])


def lattice(k=2, boundary=1):
    return expand(IDS, (IDS != 1).long(), LABELS != -100, k, boundary, LABELS, pad_token_id=1)


def test_masks_are_copied_and_everything_else_stays():
    result = lattice()
    assert result.input_ids.tolist() == [[0, 5, 9, 9, 7, 2], [0, 9, 9, 2, 1, 1]]
    assert result.attention_mask.tolist() == [[True] * 6, [True] * 4 + [False] * 2]


def test_positions_are_word_and_state():
    result = lattice()
    assert result.position_ids[0].tolist() == [[0, 0], [1, 0], [2, 1], [2, 2], [3, 0], [4, 0]]
    assert result.position_ids[1, :4].tolist() == [[0, 0], [1, 1], [1, 2], [2, 0]]


def test_states_and_targets_run_from_bos_to_eos():
    result = lattice()
    assert result.state_lengths.tolist() == [4, 4]
    assert result.state_index.tolist() == [[0, 2, 3, 5], [0, 1, 2, 3]]
    assert result.targets.tolist() == [[0, 6, 2], [0, 8, 2]]
    assert result.target_lengths.tolist() == [3, 3]
    assert result.target_is_mask.tolist() == [[False, True, False]] * 2
    assert result.target_of_state.tolist() == [[0, 1, 1, 2]] * 2
    assert result.state_copy.tolist() == [[0, 1, 2, 0]] * 2


def test_boundary_states_expand_bos_and_eos_like_masks():
    result = lattice(k=2, boundary=2)
    assert result.input_ids[1].tolist() == [0, 0, 9, 9, 2, 2, 1, 1]
    assert result.position_ids[1, :6].tolist() == [[0, 1], [0, 2], [1, 1], [1, 2], [2, 1], [2, 2]]
    assert result.state_lengths.tolist() == [6, 6]
    assert result.target_of_state[1].tolist() == [0, 0, 1, 1, 2, 2]
    assert result.state_copy[1].tolist() == [0, 0, 1, 2, 0, 0]


def test_one_state_per_mask_leaves_the_sequence_as_it_is():
    result = expand(IDS, (IDS != 1).long(), LABELS != -100, 1, 1, LABELS, pad_token_id=1)
    assert torch.equal(result.input_ids, IDS)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_first_points_at_the_first_copy_of_every_token(k):
    result = lattice(k=k)
    real = IDS != 1
    assert torch.equal(
        result.input_ids.gather(1, result.first_copy.clamp(max=result.input_ids.shape[1] - 1))[
            real
        ],
        IDS[real],
    )


def test_a_batch_equals_its_sequences_one_by_one():
    together = lattice(k=3, boundary=3)
    for b, length in enumerate([5, 3]):
        ids, labels = IDS[b : b + 1, :length], LABELS[b : b + 1, :length]
        alone = expand(ids, torch.ones_like(ids), labels != -100, 3, 3, labels, pad_token_id=1)
        size = alone.input_ids.shape[1]
        assert torch.equal(together.input_ids[b, :size], alone.input_ids[0])
        assert torch.equal(together.position_ids[b, :size], alone.position_ids[0])
        assert torch.equal(together.state_index[b, : alone.state_lengths], alone.state_index[0])


PAIR = torch.tensor([[0, 5, 9, 2, 7, 2], [0, 2, 9, 2, 1, 1]])


def test_inner_boundaries_are_states_where_boundaries_have_k():
    """A pair, `<s> 5 [M] </s> 7 </s>`: the release expands every BOS and EOS."""
    result = expand(PAIR, (PAIR != 1).long(), PAIR == 9, 2, 2, boundary_ids=(0, 2), pad_token_id=1)
    assert result.input_ids[0].tolist() == [0, 0, 5, 9, 9, 2, 2, 7, 2, 2]
    assert result.target_of_state[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert result.state_copy[0].tolist() == [0, 0, 1, 2, 0, 0, 0, 0]
    assert result.targets.tolist() == [[0, 9, 2, 2], [0, 2, 9, 2]]
    assert result.target_is_mask.tolist() == [
        [False, True, False, False],
        [False, False, True, False],
    ]
    paper = expand(PAIR, (PAIR != 1).long(), PAIR == 9, 2, 1, pad_token_id=1)
    assert paper.target_of_state[0].tolist() == [0, 1, 1, 2] and paper.input_ids[0].tolist() == [
        0,
        5,
        9,
        9,
        2,
        7,
        2,
    ]


def test_one_rotary_axis_counts_places():
    mask, masked = (IDS != 1).long(), LABELS != -100
    result = expand(IDS, mask, masked, 2, 1, LABELS, pad_token_id=1, count_copies=True)
    assert result.position_ids[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert result.copy_index[0].tolist() == [0, 0, 1, 2, 0, 0]


def test_a_lattice_moves_without_what_the_encoder_alone_reads():
    before_expansion = unexpanded_input(IDS, IDS != 1)
    whole = replace(lattice(), unexpanded=before_expansion)
    for_heads = whole.to(torch.device("meta"))
    assert for_heads.targets.is_meta and for_heads.unexpanded is None
    moved = tensors_to(whole, torch.device("meta"))
    assert moved.targets.is_meta and moved.unexpanded is before_expansion
