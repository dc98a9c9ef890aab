"""Parity with the authors' implementation: with a case that was recorded by the plain model of
`release.py` in float64 and, where it is at hand, with one that was recorded by their own code in
float32."""

import numpy as np
import pytest
import torch

from exlm import InputError, from_official
from tests.model import release

TRUNK = "encoder.sentence_encoder."


@pytest.fixture(scope="module", params=["release.py", "the authors"])
def case(request):
    """The arrays of a recorded case."""
    file = release.CASE if request.param == "release.py" else request.getfixturevalue("reference")
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays}


def weights_of(case):
    return {name[2:]: value for name, value in case.items() if name.startswith("w.")}


@pytest.fixture(scope="module")
def model(case):
    model = from_official(weights_of(case), num_states=3)
    return model.double() if case["loss"].dtype == np.float64 else model


@pytest.fixture(scope="module")
def inputs(case):
    ids, answers = torch.tensor(case["src"]), torch.tensor(case["tgt"])
    return {
        "input_ids": ids,
        "attention_mask": (ids != 1).long(),
        "labels": torch.where(answers == 1, -100, answers),
    }


def close(ours, theirs):
    """In float64 the angles of the rotary positions, which are float32, limit the agreement."""
    tolerance = 1e-6 if ours.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(
        ours.detach(), torch.as_tensor(theirs), atol=tolerance, rtol=tolerance
    )


def test_the_plain_model_of_the_release_gives_what_is_recorded(case):
    weights = {
        name: torch.tensor(value) for name, value in weights_of(case).items() if f"g.{name}" in case
    }
    again = release.batch(weights, case["src"], case["tgt"], k=3)
    assert again.keys() == {
        name for name in case if name not in ("src", "tgt") and not name.startswith("w.")
    }
    for name, values in again.items():
        expected = case[name]
        # the authors' code computes something of padding, too
        if name in ("features", "plain_features", "logits"):
            real = values.any(-1)
            assert real.sum(1).min() > 3
            values, expected = values[real], expected[real]
        np.testing.assert_allclose(values, expected, atol=1e-5, rtol=1e-5)


def test_the_recorded_case_is_small():
    assert release.CASE.stat().st_size < 300_000


def test_expanded_tokens_and_hidden_states(model, inputs, case):
    lattice = model.exlm.expand(**inputs)
    assert np.array_equal(lattice.input_ids.numpy(), case["ext_tokens"])
    real = lattice.attention_mask
    close(model.exlm.encode(lattice).hidden[real], torch.tensor(case["features"])[real])


def test_logits_of_the_states(model, inputs, case):
    lattice = model.exlm.expand(**inputs)
    logits = model.head(model.lattice_states(lattice))
    for b, n in enumerate(lattice.state_lengths.tolist()):
        close(logits[b, :n], case["logits"][b][lattice.state_index[b, :n]])


def test_links(model, inputs, case):
    lattice = model.exlm.expand(**inputs)
    ours = model.transition(model.lattice_states(lattice), lattice)
    for b, n in enumerate(lattice.state_lengths.tolist()):
        index = lattice.state_index[b, :n]
        theirs = torch.tensor(case["links"][b])[index][:, index]
        assert torch.equal(theirs.isfinite(), ours[b, :n, :n].isfinite())
        close(ours[b, :n, :n][theirs.isfinite()], theirs[theirs.isfinite()])


def test_hidden_states_without_masks(model, inputs, case):
    nothing = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    lattice = model.exlm.expand(inputs["input_ids"], inputs["attention_mask"], masked=nothing)
    real = lattice.attention_mask
    close(model.exlm.encode(lattice).hidden[real], torch.tensor(case["plain_features"])[real])


def test_loss_and_every_gradient(model, inputs, case):
    model.zero_grad()
    loss = model(**inputs).loss
    close(loss, case["loss"])
    loss.backward()
    ours = {name: p.grad for name, p in model.named_parameters()}
    theirs = {name[2:]: value for name, value in case.items() if name.startswith("g.")}
    checked = 0
    for i in range(model.config.num_hidden_layers):
        layer, here = f"{TRUNK}layers.{i}.", f"exlm.layers.{i}."
        for kind in ("weight", "bias"):
            close(
                ours[f"{here}attention.qkv.{kind}"],
                np.concatenate([theirs[f"{layer}self_attn.{n}_proj.{kind}"] for n in "qkv"]),
            )
            for mine, other in (
                ("attention.output", "self_attn.out_proj"),
                ("attention_norm", "self_attn_layer_norm"),
                ("ffn_in", "fc1"),
                ("ffn_out", "fc2"),
                ("ffn_norm", "final_layer_norm"),
            ):
                close(ours[f"{here}{mine}.{kind}"], theirs[f"{layer}{other}.{kind}"])
            checked += 8
    for mine, other in (
        ("exlm.embeddings.weight", TRUNK + "embed_tokens.weight"),
        ("head.decoder.bias", "encoder.lm_head.bias"),
        *((f"exlm.norm.{k}", f"{TRUNK}emb_layer_norm_after.{k}") for k in ("weight", "bias")),
        *((f"head.dense.{k}", f"encoder.lm_head.dense.{k}") for k in ("weight", "bias")),
        *((f"head.norm.{k}", f"encoder.lm_head.layer_norm.{k}") for k in ("weight", "bias")),
        *(
            (f"transition.{n}.{k}", f"encoder.{n}_linear.{k}")
            for n in ("query", "key", "gate")
            for k in ("weight", "bias")
        ),
    ):
        close(ours[mine], theirs[other])
        checked += 1
    close(ours["transition.positions.weight"], theirs["encoder.link_positional.weight"][2:])
    assert checked + 1 == len(theirs)


def test_a_foreign_state_dict_is_refused(case):
    with pytest.raises(InputError, match="gate_linear"):
        from_official(
            {name: value for name, value in weights_of(case).items() if "gate" not in name}, 3
        )


def test_a_pair_has_states_for_its_inner_boundary(model):
    """The release expands every BOS and EOS and lets a path through them: written out over all
    positions, in float64."""
    mask = model.config.mask_token_id
    ids, labels = torch.tensor([[0, 7, mask, 9, 2, 11, mask, 2]]), torch.full((1, 8), -100)
    labels[0, 2], labels[0, 6] = 8, 12
    expanded = [0, 0, 0, 7, *[mask] * 3, 9, 2, 2, 2, 11, *[mask] * 3, 2, 2, 2]
    lattice = model.exlm.expand(ids, labels=labels)
    assert lattice.input_ids[0].tolist() == expanded
    hidden, _ = model.exlm.encode(lattice)
    state = torch.tensor([[token in (0, 2, mask) for token in expanded]])
    head, log_probs = model.transition, model.head(hidden).log_softmax(-1).double()
    features = torch.cat([hidden, head.positions.weight[: len(expanded)][None]], -1)
    query, key = (
        linear(features).unflatten(-1, (head.heads, -1)).double()
        for linear in (head.query, head.key)
    )
    scores = torch.einsum("bihd,bjhd->bhij", query, key) / query.shape[-1] ** 0.5
    edges = (state[:, :, None] & state[:, None]).triu(1)
    gate = head.gate(features).double().log_softmax(-1).transpose(1, 2)[..., None]
    links = (scores.masked_fill(~edges[:, None], -1e30).log_softmax(-1) + gate).logsumexp(1)
    links = links.masked_fill(~edges, -torch.inf)
    targets = [0, 8, 2, 12, 2]
    alpha = torch.full((len(expanded),), -torch.inf, dtype=torch.float64)
    alpha[0] = log_probs[0, 0, targets[0]]
    for target in targets[1:]:
        alpha = (alpha[:, None] + links[0]).logsumexp(0) + log_probs[0, :, target]
    assert model(ids, labels=labels).loss.item() == pytest.approx(
        -float(alpha[-1]) / len(targets), abs=1e-5
    )
    plain = model.exlm.task_input(torch.tensor([[0, 7, 2, 9, 2]]))  # as in fine-tuning
    assert plain.input_ids[0].tolist() == [0, 0, 0, 7, 2, 2, 2, 9, 2, 2, 2]
