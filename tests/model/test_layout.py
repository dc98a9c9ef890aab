"""The encoder gives the same hidden states however the batch is laid out and however few positions
are read."""

import pytest
import torch
from torch.nn import functional as F

from exlm import ExLMForMaskedLM, ExLMModel
from exlm.model import encoder
from exlm.model.encoder import gather_positions

READS = ["states", "all"]
LAYOUTS = [
    {},
    {"rotary": "1d", "boundary_states": "k"},
    {"num_hidden_layers": 1},
    {"expanded_layers": 1, "copy_embedding": 0.5},
    {"expanded_layers": 1, "copy_embedding": 0.5, "rotary": "full", "state_share": 0.25},
    {"expanded_layers": 1, "boundary_states": "k", "rotary": "1d"},
]


def each_sequence(query, key, value, cu_q, cu_k, max_q, max_k, rate, is_causal, return_debug_mask):
    """What variable-length attention promises, one sequence at a time."""
    assert not (is_causal or return_debug_mask)
    parts = []
    for b in range(len(cu_q) - 1):
        assert cu_q[b + 1] - cu_q[b] <= max_q and cu_k[b + 1] - cu_k[b] <= max_k
        q, k, v = (
            x[ends[b] : ends[b + 1]].transpose(0, 1)
            for x, ends in ((query, cu_q), (key, cu_k), (value, cu_k))
        )
        parts.append(F.scaled_dot_product_attention(q, k, v, dropout_p=rate).transpose(0, 1))
    return torch.cat(parts), None


@pytest.fixture
def remove_padding(monkeypatch):
    """Removes padding on this machine too."""

    def switch_on():
        monkeypatch.setattr(ExLMModel, "removes_padding", lambda *_: True)
        monkeypatch.setattr(encoder, "flash_attention", each_sequence)

    return switch_on


def hidden_states(model, lattice, read):
    if read == "all":
        return model.encode(lattice).hidden, lattice.attention_mask
    real = torch.arange(lattice.state_index.shape[1]) < lattice.state_lengths[:, None]
    return model.encode(lattice, lattice.state_index, lattice.state_lengths).hidden, real


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("switches", LAYOUTS, ids=str)
def test_unpadded_equals_padded(tiny_config, tiny_batch, remove_padding, switches, read):
    model = ExLMModel(tiny_config(**switches)).eval()
    lattice = model.expand(**tiny_batch)
    expected, real = hidden_states(model, lattice, read)
    remove_padding()
    ours, _ = hidden_states(model, lattice, read)
    assert ours.shape == expected.shape
    torch.testing.assert_close(ours[real], expected[real], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("switches", LAYOUTS, ids=str)
def test_columns_of_padding_change_nothing(
    tiny_config, tiny_batch, remove_padding, switches, unpadded, side
):
    """Batches padded to a fixed width, or on the left."""
    model = ExLMForMaskedLM(tiny_config(**switches)).eval()
    wide = {}
    for name, fill in (("input_ids", 1), ("attention_mask", 0), ("labels", -100)):
        wide[name] = torch.full((4, 11), fill)
        for row, count in enumerate(tiny_batch["attention_mask"].sum(1).tolist()):
            place = slice(11 - count, None) if side == "left" else slice(0, count)
            wide[name][row, place] = tiny_batch[name][row, :count]
    expected = model(**tiny_batch).total
    if unpadded:
        remove_padding()
    torch.testing.assert_close(model(**wide).total, expected)
    assert model(wide["input_ids"], wide["attention_mask"]).logits.isfinite().all()


@pytest.mark.parametrize(
    "switches", [{}, {"expanded_layers": 1, "copy_embedding": 0.5, "order_prior": 3.0}], ids=str
)
def test_unpadded_trains_with_the_same_gradients(tiny_config, tiny_batch, remove_padding, switches):
    model = ExLMForMaskedLM(tiny_config(**switches)).eval()
    losses, gradients = [], []
    for prepare in (lambda: None, remove_padding):
        prepare()
        model.zero_grad()
        output = model(**tiny_batch)
        output.loss.backward()
        losses.append(output.loss.detach())
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*losses)
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_states_that_are_read_are_those_of_the_whole_sequence(tiny_config, tiny_batch, precision):
    model = ExLMModel(tiny_config()).eval()
    lattice = model.expand(**tiny_batch)
    with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
        whole = gather_positions(model.encode(lattice).hidden, lattice.state_index)
        ours, real = hidden_states(model, lattice, "states")
    tolerance = 1e-5 if precision == torch.float32 else 5e-2
    torch.testing.assert_close(ours[real], whole[real], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("switches", [{}, {"objective": "mlm", "repeat": 2}], ids=str)
def test_embeddings_take_the_places_of_their_tokens(
    tiny_config, tiny_batch, remove_padding, switches
):
    """Also in an unpadded row."""
    model = ExLMModel(tiny_config(**switches)).eval()
    remove_padding()
    mask = tiny_batch["attention_mask"]
    embedded = model.embeddings(tiny_batch["input_ids"])
    expected = model(tiny_batch["input_ids"], mask).last_hidden_state[mask.bool()]
    ours = model(inputs_embeds=embedded, attention_mask=mask).last_hidden_state[mask.bool()]
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("switches", LAYOUTS, ids=str)
def test_hidden_states_of_every_layer_beside_those_that_are_read(tiny_config, tiny_batch, switches):
    model = ExLMModel(tiny_config(**switches)).eval()
    lattice = model.expand(**tiny_batch)
    expected, real = hidden_states(model, lattice, "states")
    ours, of_layers = model.encode(
        lattice, lattice.state_index, lattice.state_lengths, every_layer=True
    )
    torch.testing.assert_close(ours[real], expected[real], atol=1e-5, rtol=1e-4)
    assert len(of_layers) == model.config.num_hidden_layers + 1


def test_the_last_layer_does_not_compute_what_nobody_reads(tiny_config, tiny_batch):
    model = ExLMModel(tiny_config()).eval()
    rows = []
    for layer in model.layers:
        layer.ffn_in.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[1]))
    lattice = model.expand(**tiny_batch)
    model.encode(lattice, lattice.state_index, lattice.state_lengths)
    assert rows == [lattice.input_ids.shape[1], lattice.state_index.shape[1]]


def test_gathering_rows_and_its_gradient():
    hidden = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 4, 4], [1, 2, 3], [2, 0, 0]])
    assert all(
        torch.equal(gather_positions(hidden, index)[b, n], hidden[b, index[b, n]])
        for b in range(3)
        for n in range(3)
    )
    assert torch.autograd.gradcheck(lambda x: gather_positions(x, index), hidden)
