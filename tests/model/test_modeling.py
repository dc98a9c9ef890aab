"""The model under transformers: every switch trains, saves and loads; marginals are exact; the
Trainer works."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)
from transformers.utils import logging

from exlm import (
    ExLMConfig,
    ExLMForMaskedLM,
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMModel,
    InputError,
)
from exlm.model.configuration_exlm import ArchitectureConfig
from exlm.model.downstream import classification_loss
from exlm.model.encoder import gather_positions
from exlm.model.evaluation import evaluate_batch
from exlm.model.expander import expand_batch
from exlm.model.objectives import single_target_ctc
from exlm.ops import alignment

SWITCHES = [
    {},
    {"num_states": 1},
    {"num_states": 8, "boundary_states": "k"},
    {"rotary": "1d"},
    {"rotary": "full", "state_share": 0.25},
    {"rotary": "full", "expanded_layers": 1, "state_share": 0.25},
    {"state_share": 0, "copy_embedding": 0.5},
    {"objective": "mlm", "rotary": "full"},
    {"dag": "sparse"},
    {"transition": "single"},
    {"transition": "single", "dag": "sparse", "boundary_states": "k"},
    {"objective": "ctc"},
    {"objective": "ctc", "boundary_states": "k"},
    {"objective": "mlm"},
    {"order_prior": 10.0, "sticky_prior": 3.0, "copy_embedding": 0.1},
    {"expanded_layers": 1, "copy_embedding": 0.5, "order_prior": 10.0},
    {"expanded_layers": 1, "boundary_states": "k", "rotary": "1d"},
    {"expanded_layers": 1, "objective": "ctc"},
]
ids = [",".join(f"{k}={v}" for k, v in switches.items()) or "default" for switches in SWITCHES]


@pytest.mark.parametrize("switches", SWITCHES, ids=ids)
def test_every_switch_gives_finite_losses_and_gradients(tiny_config, tiny_batch, switches):
    model = ExLMForMaskedLM(tiny_config(**switches))
    output = model(**tiny_batch)
    output.loss.backward()
    assert output.loss.isfinite() and output.infeasible == 0
    unused = {name for name, p in model.named_parameters() if p.grad is None}
    assert not unused
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_an_mlm_with_positions_in_all_features_has_ordinary_rotary_positions(
    tiny_config, tiny_batch
):
    """It is RoFormer's MLM to the last digit: the state axis takes nothing, whatever share an ExLM
    would give it."""
    logits = []
    for positions in ({"rotary": "full", "state_share": 0.25}, {"rotary": "1d"}, {"rotary": "2d"}):
        torch.manual_seed(0)
        model = ExLMForMaskedLM(tiny_config(objective="mlm", **positions)).eval()
        logits.append(model(**tiny_batch).logits[tiny_batch["attention_mask"].bool()])
    assert torch.equal(logits[0], logits[1]) and not torch.allclose(logits[0], logits[2])


def test_positions_before_a_late_expansion_are_those_of_words_alone(tiny_config, tiny_batch):
    model = ExLMForMaskedLM(tiny_config(rotary="full", expanded_layers=1, state_share=0.25))
    tables = []
    for layer in model.exlm.layers:
        layer.register_forward_pre_hook(lambda _, arguments: tables.append(arguments[1][0]))
    model.eval()(**tiny_batch)
    early, late = tables  # [B, L, blocks, 2, width / 2]: one axis has one block
    assert early.shape[2] == 1 and late.shape[2] == 4
    with pytest.raises(InputError, match="state_share is 0.3; it must be 0, 0.5, 0.25"):
        tiny_config(state_share=0.3)
    with pytest.raises(InputError, match="must be a multiple of 16 x"):
        tiny_config(state_share=0.125, hidden_size=16)


@pytest.mark.parametrize("switches", SWITCHES, ids=ids)
def test_every_switch_overfits_a_few_sentences(tiny_config, tiny_batch, switches):
    # Masked tokens of one sequence differ, so that their order is all there is to learn.
    model = ExLMForMaskedLM(
        tiny_config(**switches, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(1, 301):
        optimizer.zero_grad()
        model(**tiny_batch).loss.backward()
        optimizer.step()
        if step % 50 == 0:
            scores = evaluate_batch(model, tiny_batch)
            assert scores["masked"] == 6
            if scores["correct"] == 6:
                return
    pytest.fail(f"after {step} steps {scores['correct']} of 6 are right")


@pytest.mark.parametrize("switches", SWITCHES, ids=ids)
def test_a_batch_equals_its_sequences_one_by_one(tiny_config, tiny_batch, switches):
    model = ExLMForMaskedLM(tiny_config(**switches)).eval()
    together = model(**tiny_batch)
    totals = []
    for b, n in enumerate(tiny_batch["attention_mask"].sum(1).tolist()):
        totals.append(model(**{name: t[b : b + 1, :n] for name, t in tiny_batch.items()}).total)
    torch.testing.assert_close(torch.stack(totals).sum(), together.total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("switches", SWITCHES, ids=ids)
def test_saving_and_loading_keeps_logits_and_ties(tiny_config, tiny_batch, tmp_path, switches):
    model = ExLMForMaskedLM(tiny_config(**switches)).eval()
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, ExLMForMaskedLM)
    assert loaded.head.decoder.weight.data_ptr() == loaded.exlm.embeddings.weight.data_ptr()
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits)
    for name, value in switches.items():
        assert getattr(AutoConfig.from_pretrained(tmp_path), name) == value


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"boundary_states": "k"},
        {"dag": "sparse"},
        {"objective": "ctc"},
        {"order_prior": 2.0, "sticky_prior": 1.0, "copy_embedding": 0.5, "expanded_layers": 1},
    ],
)
def test_logits_at_masks_are_the_exact_marginals(tiny_config, switches):
    """Summing the joint probability over the other mask's token gives the marginal of each."""
    config = tiny_config(**switches, vocab_size=8, mask_token_id=7, num_states=2)
    model = ExLMForMaskedLM(config).double().eval()
    row = torch.tensor([[0, 7, 4, 7, 2]])
    pairs = list(itertools.product(range(8), repeat=2))
    labels = torch.full((64, 5), -100)
    labels[:, [1, 3]] = torch.tensor(pairs)
    lattice = model.exlm.expand(row.expand(64, -1), labels=labels)
    states = model.lattice_states(lattice)
    if config.objective == "ctc":
        log_probs = model.head(states[0, 1:-1]).log_softmax(-1).unflatten(0, (2, 2)).transpose(0, 1)
        each = single_target_ctc(log_probs, log_probs[..., 3:4].expand_as(log_probs))
        each[:, 3] = -torch.inf
        joint = (each[0, :, None] + each[1, None, :]).flatten()
    else:
        emission = (
            model.head(states)
            .log_softmax(-1)
            .gather(2, lattice.targets[:, None].expand(-1, states.shape[1], -1))
        )
        emission = emission.transpose(1, 2).contiguous()
        emission[:, 0] = emission[:, -1] = 0.0  # BOS and EOS are known
        links = model.transition(states, lattice).double()
        joint = alignment.log_likelihood(
            emission, links, lattice.target_lengths, lattice.state_lengths
        )
    table = joint.softmax(0).reshape(8, 8)
    logits = model(row).logits[0]
    torch.testing.assert_close(logits[1].softmax(-1), table.sum(1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(logits[3].softmax(-1), table.sum(0), atol=1e-6, rtol=1e-5)


def test_one_state_per_mask_and_a_path_through_all_of_them_is_the_vanilla_loss(
    tiny_config, tiny_batch
):
    """With k = 1 every state is on the only path: -log f is the sum of cross entropies and forced
    transitions."""
    model = ExLMForMaskedLM(tiny_config(num_states=1)).eval()
    lattice = model.exlm.expand(**tiny_batch)
    states = model.lattice_states(lattice)
    log_probs, links = model.head(states).log_softmax(-1), model.transition(states, lattice)
    expected = torch.zeros(())
    for b, n in enumerate(lattice.target_lengths.tolist()):
        score = log_probs[b, range(n), lattice.targets[b, :n]].sum() + sum(
            links[b, i, i + 1] for i in range(n - 1)
        )
        expected = expected - score / n
    torch.testing.assert_close(model(**tiny_batch).total, expected)


def test_mlm_loss_is_the_cross_entropy_of_the_masked_tokens(tiny_config, tiny_batch):
    model = ExLMForMaskedLM(tiny_config(objective="mlm")).eval()
    logits = model(tiny_batch["input_ids"], tiny_batch["attention_mask"]).logits
    expected = F.cross_entropy(logits.flatten(0, 1), tiny_batch["labels"].flatten())
    torch.testing.assert_close(model(**tiny_batch).loss, expected)


def test_single_target_ctc_is_pytorchs():
    log_probs = torch.randn(5, 7, 6, dtype=torch.float64).log_softmax(-1)  # k, masks, classes
    targets = torch.tensor([1, 2, 3, 4, 5, 1, 2])
    picked = log_probs.gather(2, targets[None, :, None].expand(5, -1, -1))[..., 0]
    ours = single_target_ctc(picked, log_probs[..., 0])
    lengths = torch.full((7,), 5), torch.ones(7, dtype=torch.long)
    theirs = F.ctc_loss(log_probs, targets[:, None], *lengths, reduction="none")
    torch.testing.assert_close(-ours, theirs)


def test_hidden_states_line_up_with_the_input_tokens(tiny_config, tiny_batch):
    model = ExLMModel(tiny_config()).eval()
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    hidden = model(**inputs).last_hidden_state
    assert hidden.shape == (4, 7, 32)
    nothing = torch.zeros_like(tiny_batch["input_ids"], dtype=torch.bool)
    lattice = model.expand(**inputs, masked=nothing)
    full, _ = model.encode(lattice)
    torch.testing.assert_close(hidden[0, 3], full[0, lattice.first_copy[0, 3]])


def test_states_of_one_mask_differ_only_because_of_their_2d_position(tiny_config, tiny_batch):
    model = ExLMModel(tiny_config()).eval()
    lattice = model.expand(**tiny_batch)
    states = model.encode(lattice).hidden[0, 2:5]
    assert (states[0] - states[1]).abs().max() > 1e-4
    flat = ExLMModel(tiny_config()).eval()
    flat.load_state_dict(model.state_dict())
    frozen = replace(lattice, position_ids=lattice.position_ids * torch.tensor([1, 0]))
    same = flat.encode(frozen).hidden[0, 2:5]
    torch.testing.assert_close(same[0], same[1])


def test_classification_losses_ignore_missing_labels():
    logits = torch.tensor([[0.5, -1.0], [2.0, 0.0]])
    labels = torch.tensor([[1.0, float("nan")], [0.0, 1.0]])
    total, count = classification_loss(logits, labels, "multi_label_classification")
    expected = sum(
        F.binary_cross_entropy_with_logits(logits[i], labels[i]) for i in [(0, 0), (1, 0), (1, 1)]
    )
    torch.testing.assert_close(total, expected)
    assert count == 3
    total, count = classification_loss(logits, labels, "regression")
    torch.testing.assert_close(total, torch.tensor(0.25 + 4.0 + 1.0))
    total, _ = classification_loss(logits, torch.tensor([0, 1]), "single_label_classification")
    torch.testing.assert_close(
        total, F.cross_entropy(logits, torch.tensor([0, 1]), reduction="sum")
    )


def test_the_problem_type_is_inferred_as_in_transformers():
    logits = torch.randn(3, 2)
    whole, several = torch.tensor([0, 1, 1]), torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert classification_loss(logits, whole, None)[0] == F.cross_entropy(
        logits, whole, reduction="sum"
    )
    expected = F.binary_cross_entropy_with_logits(logits, several, reduction="sum")
    torch.testing.assert_close(classification_loss(logits, several, None)[0], expected)
    expected = F.mse_loss(logits[:, 0], several[:, 0], reduction="sum")
    torch.testing.assert_close(classification_loss(logits[:, :1], several[:, 0], None)[0], expected)


@pytest.mark.parametrize("switches", SWITCHES, ids=ids)
def test_mask_filling_works_under_autocast_and_in_half_precision(tiny_config, tiny_batch, switches):
    model = ExLMForMaskedLM(tiny_config(**switches)).eval()
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    expected = model(**inputs).logits[0, 2].softmax(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(**inputs).logits[0, 2]
        assert mixed.dtype == torch.float32
    half = model.to(torch.bfloat16)(**inputs).logits[0, 2].float()
    for logits in (mixed, half):
        torch.testing.assert_close(logits.softmax(-1), expected, atol=0.01, rtol=0.1)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_an_empty_row_in_a_batch_leaves_the_others_finite(tiny_config, tiny_batch, precision):
    model = ExLMForMaskedLM(tiny_config())
    tiny_batch["attention_mask"][2] = 0
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        output = model(**tiny_batch)
    output.loss.backward()
    assert output.infeasible == 1 and output.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_classifiers_pool_real_tokens_only(tiny_config, tiny_batch, pooling):
    model = ExLMForSequenceClassification(
        tiny_config(classifier_pooling=pooling, num_labels=2)
    ).eval()
    together = model(tiny_batch["input_ids"], tiny_batch["attention_mask"]).logits
    for b, n in enumerate(tiny_batch["attention_mask"].sum(1).tolist()):
        torch.testing.assert_close(
            model(tiny_batch["input_ids"][b : b + 1, :n]).logits[0], together[b]
        )


def test_the_encoder_gives_a_tuple_on_request(tiny_config, tiny_batch):
    model = ExLMModel(tiny_config()).eval()
    (hidden,) = model(tiny_batch["input_ids"], tiny_batch["attention_mask"], return_dict=False)
    assert hidden.shape == (4, 7, 32)


def test_classifiers_read_masks_as_ordinary_tokens_and_load_pretrained_encoders(
    tiny_config, tiny_batch, tmp_path
):
    pretrained = ExLMForMaskedLM(tiny_config())
    pretrained.save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3).eval()
    assert isinstance(model, ExLMForSequenceClassification)
    assert torch.equal(model.exlm.embeddings.weight, pretrained.exlm.embeddings.weight)
    logits = model(tiny_batch["input_ids"], tiny_batch["attention_mask"]).logits
    assert logits.shape == (4, 3)
    assert isinstance(AutoModel.from_pretrained(tmp_path), ExLMModel)


@pytest.mark.parametrize("switches", [{}, {"repeat": 2}, {"expanded_layers": 1, "task_layers": 2}])
@pytest.mark.parametrize("boundary_states", [1, "k"])
def test_a_classifier_and_an_embedding_take_the_same_mean(
    tiny_config, tiny_batch, boundary_states, switches
):
    config = tiny_config(
        boundary_states=boundary_states,
        classifier_pooling="mean",
        num_labels=2,
        initializer_range=0.5,
        **switches,
    )
    model = ExLMForSequenceClassification(config).eval()
    model.classifier = nn.Identity()
    ids, mask = tiny_batch["input_ids"], tiny_batch["attention_mask"]
    ids[0, 3] = config.eos_token_id  # between the texts of a pair
    for side in (ids, mask), (ids.flip(1), mask.flip(1)):
        torch.testing.assert_close(
            model(*side).logits, model.exlm.embedding(*side), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize(
    "change,message",
    [
        ({"objective": "bert"}, "objective is 'bert'"),
        ({"hidden_size": 36}, "multiple of 4 x 4 heads"),
        ({"num_states": 0}, "num_states is 0"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
        ({"boundary_states": 2}, "boundary_states is 2"),
        ({"boundary_states": True}, "boundary_states is True; it must be one of 1, k"),
        ({"order_prior": -1.0}, "order_prior is -1.0; it must be 0 or a positive number"),
        ({"expanded_layers": 3}, "expanded_layers is 3; it must be all, or from 1 to 2"),
        ({"expanded_layers": "some"}, "expanded_layers is some"),
        ({"expanded_layers": True}, "expanded_layers is True; it must be all, or from 1 to 2"),
        ({"state_share": 1e-320}, "state_share is 1e-320"),
        ({"max_position_embeddings": -5}, "max_position_embeddings is -5; it must be at least 1"),
        (
            {"initializer_range": -1.0},
            "initializer_range is -1.0; it must be 0 or a positive number",
        ),
        ({"rotary_base": 0.0}, "rotary_base is 0.0; it must be a positive number"),
        ({"task_layers": 9}, "task_layers is 9; it must lie between 1 and num_hidden_layers, 2"),
        ({"standardize": "foo"}, "standardize is 'foo'; it must be one of none, canonical, parent"),
        (
            {"objective": "ctc", "unk_token_id": None},
            "ctc has <unk> as its blank, but the tokenizer has no unk token",
        ),
    ],
)
def test_impossible_configurations_say_what_is_wrong(tiny_config, change, message):
    with pytest.raises(InputError, match=message):
        tiny_config(**change)


@pytest.mark.parametrize("parts", [2, 3, 49])
def test_one_part_of_any_number_can_be_the_share_of_copies(tiny_config, parts):
    config = tiny_config(state_share=1 / parts, hidden_size=8 * parts)
    assert round(1 / config.state_share) == parts


@pytest.mark.parametrize(
    "change,message",
    [
        ({"objective": "bert"}, "objective is 'bert'.* exlm, mlm, ctc"),
        ({"boundary_states": 2}, "boundary_states is 2"),
        ({"boundary_states": True}, "boundary_states is True; it must be one of 1, k"),
        ({"num_states": 0}, "num_states is 0"),
        ({"hidden_size": 36, "num_attention_heads": 4}, "hidden_size 36 .* 4 heads"),
        ({"activation_dropout": 1.0}, "activation_dropout is 1.0"),
        ({"expanded_layers": 13}, "expanded_layers is 13"),
    ],
)
def test_an_architecture_is_checked_before_there_is_a_tokenizer(change, message):
    with pytest.raises(InputError, match=message):
        ArchitectureConfig(**change)


@pytest.mark.parametrize("switches", SWITCHES, ids=ids)
def test_batches_are_expanded_without_the_network(tiny_config, tiny_batch, switches):
    config = tiny_config(**switches)
    lattice = expand_batch(config, **tiny_batch)
    model = ExLMForMaskedLM(config).eval()
    assert torch.equal(model(lattice=lattice).loss, model(**tiny_batch).loss)


@pytest.mark.parametrize("switches", [{}, {"rotary": "1d"}, {"repeat": 2}, {"expanded_layers": 1}])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_padding_on_the_left_changes_no_embedding(tiny_config, tiny_batch, pooling, switches):
    model = ExLMModel(tiny_config(**switches, initializer_range=0.5)).eval()
    ids, mask = tiny_batch["input_ids"], tiny_batch["attention_mask"]
    left_ids, left_mask = torch.ones_like(ids), torch.zeros_like(mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        left_ids[row, -length:], left_mask[row, -length:] = ids[row, :length], 1
    expected = model.embedding(ids, mask, pooling)
    torch.testing.assert_close(
        model.embedding(left_ids, left_mask, pooling), expected, atol=1e-5, rtol=1e-5
    )


def test_a_sequence_beyond_the_position_table_is_an_error(tiny_config):
    model = ExLMForMaskedLM(tiny_config(max_position_embeddings=8))
    row = torch.tensor([[0, 29, 29, 29, 2]])
    with pytest.raises(InputError, match="expands to 11 positions"):
        model(row, labels=torch.tensor([[-100, 4, 5, 6, -100]]))


def test_the_hugging_face_trainer_trains_it(tiny_config, tiny_batch, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    rows = [{name: t[b] for name, t in tiny_batch.items()} for b in range(4)] * 8
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=8,
        learning_rate=5e-3,
        report_to=[],
        use_cpu=True,
        logging_steps=1000,
        disable_tqdm=True,
    )
    model = ExLMForMaskedLM(tiny_config())
    before = model.eval()(**tiny_batch).loss.item()
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert model.eval()(**tiny_batch).loss.item() < before / 2
    assert trainer.evaluate()["eval_loss"] > 0


def test_configuration_round_trip(tmp_path):
    ExLMConfig(objective="ctc", boundary_states="k", dag="sparse", rotary="1d").save_pretrained(
        tmp_path
    )
    loaded = ExLMConfig.from_pretrained(tmp_path)
    assert (loaded.objective, loaded.boundary_states, loaded.dag, loaded.rotary) == (
        "ctc",
        "k",
        "sparse",
        "1d",
    )


def test_log_probabilities_are_those_of_float32_under_autocast(tiny_config, tiny_batch):
    """A bfloat16 link is off by percents, and errors add up along a path."""
    model = ExLMForMaskedLM(tiny_config(initializer_range=0.5)).eval()
    lattice = model.exlm.expand(**tiny_batch)
    states = model.lattice_states(lattice)
    expected = model.transition(states, lattice), *model.head.emission_inputs(states)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = model.transition(states, lattice), *model.head.emission_inputs(states)
    # the operands, not the logits
    assert torch.equal(ours[0], expected[0]) and ours[1].dtype == torch.bfloat16
    torch.testing.assert_close(ours[1].float(), expected[1], atol=0.02, rtol=0.01)


def test_a_ctc_target_that_is_the_blank_is_left_out(tiny_config):
    """`<unk>` is the blank: its alignments would be counted twice, and its loss could fall below
    0."""
    model = ExLMForMaskedLM(tiny_config(objective="ctc")).eval()
    row, labels = torch.tensor([[0, 29, 7, 29, 2]]), torch.tensor([[-100, 3, -100, 8, -100]])
    with torch.no_grad():
        model.head.decoder.bias[3] = 30.0  # the blank is all but certain
        output = model(row, labels=labels)
        alone = model(row, labels=torch.tensor([[-100, 9, -100, 8, -100]]))
    lattice = model.exlm.expand(row, labels=labels)
    log_probs = model.head(model.lattice_states(lattice)).log_softmax(-1)[0, 4:7]
    torch.testing.assert_close(output.loss, -single_target_ctc(log_probs[:, 8], log_probs[:, 3]))
    assert output.loss > 0 and output.count == 1 and alone.loss > output.loss / 2
    nothing = model(row, labels=torch.tensor([[-100, 3, -100, 3, -100]]))
    assert nothing.loss == 0 and nothing.count == 0


def test_ctc_averages_over_bos_and_eos_where_they_have_k_states(tiny_config):
    model = ExLMForMaskedLM(tiny_config(objective="ctc", boundary_states="k")).eval()
    row, labels = torch.tensor([[0, 29, 7, 2]]), torch.tensor([[-100, 6, -100, -100]])
    lattice = model.exlm.expand(row, labels=labels)
    log_probs = model.head(model.lattice_states(lattice)).log_softmax(-1)[0].unflatten(0, (3, 3))
    blocks = [
        single_target_ctc(log_probs[i, :, y], log_probs[i, :, 3]) for i, y in enumerate([0, 6, 2])
    ]
    torch.testing.assert_close(model(row, labels=labels).loss, -torch.stack(blocks).mean())


def test_the_masks_of_an_mlm_are_tokens_like_any_other(tiny_config, tiny_batch):
    """Fine-tuning never sees a copy index, so pre-training of the baseline must not either."""
    model = ExLMModel(tiny_config(objective="mlm")).eval()
    masked = model.expand(**tiny_batch)
    assert (masked.copy_index == 0).all()
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    real = tiny_batch["attention_mask"].bool()
    expected, _ = model.encode(model.task_input(**inputs))
    torch.testing.assert_close(model.encode(masked).hidden[real], expected[real])


@pytest.mark.parametrize("objective", ["exlm", "mlm", "ctc"])
def test_logits_come_beside_a_loss_in_evaluation_only(tiny_config, tiny_batch, objective):
    """As compute_metrics of a Trainer needs them; they are those that come without labels."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = ExLMForMaskedLM(tiny_config(objective=objective, initializer_range=0.3, **rates))
    in_training = model.train()(**tiny_batch)
    assert in_training.logits is None
    alone = model.eval()(**{name: x for name, x in tiny_batch.items() if name != "labels"}).logits
    found = model(**tiny_batch)
    torch.testing.assert_close(found.logits, alone)
    torch.testing.assert_close(found.loss, in_training.loss)


HEADS = [ExLMModel, ExLMForMaskedLM, ExLMForSequenceClassification, ExLMForQuestionAnswering]


@pytest.mark.parametrize(
    "switches", [{}, {"expanded_layers": 1, "copy_embedding": 0.5}, {"objective": "mlm"}]
)
@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_hidden_states_of_every_layer_on_request(tiny_config, tiny_batch, kind, switches):
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    model = kind(tiny_config(**switches)).eval()
    plain, full = model(**inputs), model(**inputs, output_hidden_states=True)
    for name, value in plain.items():
        torch.testing.assert_close(full[name], value)
    encoder = model if kind is ExLMModel else model.exlm
    reads_masks = kind is ExLMForMaskedLM
    lattice = encoder.expand(**inputs) if reads_masks else encoder.task_input(**inputs)
    depth = 2 if reads_masks else model.config.task_layers
    assert len(full.hidden_states) == depth + 1
    assert all(hidden.shape == (4, 7, 32) for hidden in full.hidden_states)
    for i in range(1, depth + 1):
        rows = lattice
        if lattice.unexpanded is not None and i <= encoder.config.unexpanded_layers:
            rows = lattice.unexpanded
        expected = gather_positions(encoder.encode(lattice, read_layers=i).hidden, rows.first_copy)
        found = full.hidden_states[i] if i == depth else encoder.norm(full.hidden_states[i])
        torch.testing.assert_close(found, expected)
    as_tuple = model(**inputs, output_hidden_states=True, return_dict=False)
    assert len(as_tuple) == len(full) and torch.equal(as_tuple[0], full[0])


def test_hidden_states_in_training_are_those_behind_the_loss(tiny_config, tiny_batch):
    model = ExLMForMaskedLM(
        tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ).train()
    output = model(**tiny_batch, output_hidden_states=True)
    torch.testing.assert_close(output.loss, model(**tiny_batch).loss)
    assert len(output.hidden_states) == 3 and all(
        hidden.requires_grad for hidden in output.hidden_states
    )
    first, *_ = model.eval()(**tiny_batch, return_dict=False)
    # a tuple begins with the loss, whatever else it has
    torch.testing.assert_close(first, output.loss)


def test_the_hidden_states_of_a_repeated_input_are_those_of_its_tokens(tiny_config, tiny_batch):
    model = ExLMForSequenceClassification(tiny_config(objective="mlm", repeat=2)).eval()
    output = model(tiny_batch["input_ids"], tiny_batch["attention_mask"], output_hidden_states=True)
    assert all(hidden.shape == (4, 7, 32) for hidden in output.hidden_states)
    first = output.hidden_states[0]
    torch.testing.assert_close(
        first[0, 1], model.exlm.embeddings.weight[tiny_batch["input_ids"][0, 1]]
    )


def test_what_the_texts_are_is_saved_with_the_model(tiny_config, tmp_path):
    assert (tiny_config().molecules, tiny_config().standardize) == (None, "none")
    tiny_config(molecules=True, standardize="parent").save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert (loaded.molecules, loaded.standardize) == (True, "parent")


def test_padding_without_a_mask_is_warned_of(tiny_config, tiny_batch, monkeypatch):
    """As transformers' own encoders do; it warns once in a process."""
    for head in (ExLMForMaskedLM, ExLMForSequenceClassification):
        warnings = []
        logger = logging.get_logger("transformers.modeling_utils")
        monkeypatch.setattr(logger, "warning_once", warnings.append)
        model = head(tiny_config()).eval()
        model(tiny_batch["input_ids"], tiny_batch["attention_mask"])
        model(tiny_batch["input_ids"][:1])  # without padding
        assert not warnings
        model(tiny_batch["input_ids"])
        assert "attention_mask" in warnings[0]
