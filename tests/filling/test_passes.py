"""Fillings in several passes: all of them together, the best, samples, and the command."""

import itertools
import json
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from exlm import ExLMConfig, ExLMForMaskedLM, InputError
from exlm.filling import graph_search
from exlm.filling.explore import explore
from exlm.filling.filler import Filler, fill_texts
from exlm.filling.graphs import load_for_filling, tokenize
from exlm.filling.options import FillOptions
from exlm.filling.text_search import TextSearch
from exlm.model.passes import nll_in_passes
from exlm_command import main
from tests.filling.test_filling import (
    GRAPHS,
    enumerate_fillings,
    graphs_of,
    random_graph,
    save,
)

TWO = "CC(=O)[MASK]c1cccc[MASK]1"
# [MASK] and the end of a sequence can be filled in, too
TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "c", "<mask>"]
# models whose paths all have one state in each mask, so that `fill` and `joint_nll` count the same
# paths
ONE_PATH = [
    {"num_states": 1},
    {"objective": "mlm"},
    {"objective": "ctc", "num_states": 2},
    {"num_states": 2, "order_prior": 60.0},
]
OTHERS = [
    {"num_states": 3},
    {"num_states": 2, "dag": "sparse"},
    {"num_states": 2, "boundary_states": "k"},
]


class Whole(NamedTuple):
    """A text with all masks filled in."""

    token_ids: list[int]
    log_prob: float


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = Tokenizer(
        WordLevel({token: number for number, token in enumerate(TOKENS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    ends = [("<s>", TOKENS.index("<s>")), ("</s>", TOKENS.index("</s>"))]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture
def fill_in_passes(tokenizer):
    """A function that fills [MASK][MASK]...: the model, and ids with log-probabilities."""

    def fill(switches, masks, passes, n_best=10**4, width=64):
        torch.manual_seed(3)
        config = ExLMConfig(
            vocab_size=len(TOKENS),
            mask_token_id=tokenizer.mask_token_id,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
            initializer_range=0.6,
            **switches,
        )
        network = ExLMForMaskedLM(config).double().eval()
        options = FillOptions(passes=passes, n_best=n_best, beam=width)
        (start,) = tokenize(network, tokenizer, [" [MASK]" * masks])
        (first,) = graphs_of(network, tokenizer, [" [MASK]" * masks])
        filler = Filler(network, tokenizer, options)
        paths = graph_search.with_one_per_mask(first)
        whole_texts, exact = TextSearch(start, paths, first, filler.graphs, options).find_best(
            masks
        )
        fillings = [
            Whole(start.fill_in(whole.ids_of_masks).token_ids, whole.log_prob)
            for whole in whole_texts
        ]
        return network, fillings, exact

    return fill


def nll(network, tokenizer, ids, passes):
    """-log-probability of filled texts by the evaluation's likelihood."""
    labels = torch.tensor(ids)
    labels[:, [0, -1]] = -100
    masked = torch.where(labels == -100, torch.tensor(ids), tokenizer.mask_token_id)
    batch = {"input_ids": masked, "attention_mask": torch.ones_like(masked), "labels": labels}
    return nll_in_passes(network, batch, passes)


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("switches", [*ONE_PATH, *OTHERS], ids=str)
def test_a_wide_beam_lists_all_fillings_once_with_the_probabilities_of_the_policy(
    fill_in_passes, tokenizer, switches, passes
):
    network, fillings, exact = fill_in_passes(switches, masks=3, passes=passes)
    assert len({tuple(x.token_ids) for x in fillings}) == len(fillings) == len(TOKENS) ** 3
    assert exact
    values = torch.tensor([x.log_prob for x in fillings], dtype=torch.float64)
    assert float(values.exp().sum()) == pytest.approx(1.0, abs=1e-9) and (values.diff() <= 0).all()
    if switches in ONE_PATH:
        expected = -nll(network, tokenizer, [x.token_ids for x in fillings], passes)
        likely = expected > -60  # a mixture in float64 ends there, or the prior's other paths begin
        torch.testing.assert_close(values[likely], expected[likely], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("switches", [{"num_states": 3}, {"objective": "mlm"}], ids=str)
def test_what_a_narrow_beam_calls_exact_is_true(fill_in_passes, switches, width):
    times_exact = 0
    every_filling = {
        passes: fill_in_passes(switches, masks=3, passes=passes)[1] for passes in (2, 3)
    }
    for (passes, every), n_best in itertools.product(every_filling.items(), (1, 2, 3)):
        _, fillings_of_search, exact = fill_in_passes(
            switches, masks=3, passes=passes, n_best=n_best, width=width
        )
        values, best = ([x.log_prob for x in fillings] for fillings in (fillings_of_search, every))
        assert all(value <= other + 1e-9 for value, other in zip(values, best, strict=False))
        if exact:
            assert values == pytest.approx(best[:n_best], abs=1e-9)
        times_exact += exact
    assert times_exact >= (width == 4)


@pytest.mark.parametrize(
    "case", ["three masks", "sparse", "one per mask", "one per mask, several boundary states"]
)
def test_masks_are_summed_out_over_all_their_tokens(case):
    graph = graph_search.with_one_per_mask(GRAPHS[case][0])
    every, log_f = enumerate_fillings(graph, graph.num_masks)
    probabilities = (
        (log_f - log_f.logsumexp(0)).exp().view([graph.probs.shape[1]] * graph.num_masks)
    )
    for revealed in itertools.product([False, True], repeat=graph.num_masks):
        smaller = graph_search.sum_out(graph, torch.tensor(revealed))
        assert smaller.num_masks == sum(revealed)
        dropped = [mask for mask, now in enumerate(revealed) if not now]
        expected = probabilities.sum(dropped) if dropped else probabilities
        if smaller.num_masks:
            vocabulary = range(graph.probs.shape[1])
            tokens = torch.tensor(list(itertools.product(vocabulary, repeat=smaller.num_masks)))
            actual = graph_search.log_probability(smaller, tokens).exp()
            torch.testing.assert_close(actual, expected.flatten())


def test_many_masks_are_summed_out_without_underflow():
    graph = graph_search.with_one_per_mask(random_graph(13, masks=100, k=2, spread=9.0))
    revealed = torch.arange(100) == 60
    tokens = torch.arange(5)[:, None]
    smaller = graph_search.sum_out(graph, revealed)
    assert graph_search.log_probability(smaller, tokens).logsumexp(0).abs() < 1e-9


def test_samples_follow_the_policy(fill_in_passes, tokenizer):
    network, every, _ = fill_in_passes({"num_states": 2}, masks=2, passes=2)
    texts = [" [MASK]" * 2] * 2
    count = 200
    options = FillOptions(samples=count, passes=2)
    (filled, _) = fill_texts(network, tokenizer, texts, options)
    values = {tuple(x.token_ids[1:-1]): x.log_prob for x in every}
    sampled = []
    for entry in filled.fillings:
        sampled.append(tuple(tokenizer.convert_tokens_to_ids(mask[0]) for mask in entry.tokens))
        assert entry.log_probability == pytest.approx(values[sampled[-1]])
    assert filled.exact is None and filled.passes == 2 and len(sampled) == count
    expected = torch.tensor([*values.values()], dtype=torch.float64).exp()
    frequency = torch.tensor([sampled.count(y) / count for y in values], dtype=torch.float64)
    error = (expected * (1 - expected) / count).sqrt()
    assert ((frequency - expected).abs() <= 4 * error + 1 / count).all()
    few = replace(options, samples=10)
    first, second = fill_texts(network, tokenizer, texts, few)
    (again,) = fill_texts(network, tokenizer, texts[:1], few)
    assert first.fillings == again.fillings != second.fillings


# --- the command


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), num_states=1)


def test_a_filling_has_the_joint_likelihood_of_its_passes_and_says_how_many(model):
    network, tokenizer = load_for_filling(str(model))
    texts = [TWO, "CC[MASK]O", "C[MASK]CC[MASK]C[MASK]C[MASK]C", "CCO"]
    for wished, taken in ((1, [1, 1, 1]), (3, [2, 1, 3]), ("all", [2, 1, 4])):
        options = FillOptions(passes=wished, n_best=3, beam=8)
        *filled_texts, problem = fill_texts(network, tokenizer, texts, options)
        assert [filled.passes for filled in filled_texts] == taken and problem.passes is None
        for text, filled in zip(texts, filled_texts, strict=False):
            ids = tokenizer(text.replace("[MASK]", "<mask>"), return_tensors="pt")
            masked = ids["input_ids"] == tokenizer.mask_token_id
            for entry in filled.fillings:
                spelled = (tokenizer.convert_tokens_to_string(mask) for mask in entry.tokens)
                assert entry.text == text.replace("[MASK]", "{}").format(*spelled)
                labels = torch.full_like(ids["input_ids"], -100)
                tokens = [token for (token,) in entry.tokens]
                labels[masked] = torch.tensor(tokenizer.convert_tokens_to_ids(tokens))
                expected = nll_in_passes(network, {**ids, "labels": labels}, wished)
                assert entry.log_probability == pytest.approx(-float(expected), abs=1e-4)


def test_a_text_with_one_mask_is_filled_the_same_way_in_any_number_of_passes(model):
    network, tokenizer = load_for_filling(str(model))
    texts = ["CC[MASK]O"]
    (once,) = fill_texts(network, tokenizer, texts, FillOptions(passes=1), states=True)
    (often,) = fill_texts(network, tokenizer, texts, FillOptions(passes=4), states=True)
    assert once == often


def test_the_output_says_how_many_passes_it_took(capsys, model, tmp_path):
    main(["fill", str(model), TWO, "CC[MASK]O", "--passes", "4", "--n_best", "2"])
    assert capsys.readouterr().out.count("filled in 2 passes of the network") == 1
    main(["fill", str(model), TWO])
    assert "filled in 2 passes of the network" in capsys.readouterr().out
    for options in (["--passes", "1"], ["--free", "true"]):
        main(["fill", str(model), TWO, *options])
        assert "passes" not in capsys.readouterr().out
    target = tmp_path / "fills.jsonl"
    options = ["--passes", "all", "--samples", "5", "--output", str(target)]
    main(["fill", str(model), TWO, *options])
    (filled,) = map(json.loads, target.read_text().splitlines())
    assert filled["passes"] == 2 and len(filled["fillings"]) == 5 and filled["kept"] == 1


@pytest.mark.parametrize(
    "options, reason",
    [
        ("--passes 0", "passes is 0; it must be at least 1"),
        ("--passes 2 --free true", "leave out passes, or these"),
        ("--passes 2 --tokens 3", "leave out passes, or these"),
    ],
)
def test_passes_that_make_no_sense_are_told_in_one_sentence(capsys, model, options, reason):
    with pytest.raises(SystemExit):
        main(["fill", str(model), TWO, *options.split()])
    error = capsys.readouterr().err
    assert reason in error and len(error.strip().splitlines()) == 1


def test_a_look_inside_is_of_one_pass(model):
    with pytest.raises(InputError, match="explore shows the states of one pass"):
        explore(str(model), TWO, passes=2)
