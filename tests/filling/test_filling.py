"""Joint fillings against the enumeration of all of them, and the command on a tiny model."""

import itertools
import json
import math
from dataclasses import FrozenInstanceError, replace

import pandas as pd
import pytest
import torch
from transformers import AutoModelForMaskedLM

from exlm import InputError
from exlm.data.chemistry import molecule_problem
from exlm.data.tokenization import train_text_tokenizer
from exlm.filling import graph_search
from exlm.filling.fill import _select, fill
from exlm.filling.filled_text import FilledText, Filling
from exlm.filling.filler import fill_texts
from exlm.filling.graph_search import Graph
from exlm.filling.graphs import graphs_of_texts, load_for_filling, tokenize
from exlm.filling.options import FillCommandOptions, FillOptions
from exlm.filling.writers import OF_MOLECULES
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.downstream import ExLMForSequenceClassification
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops import alignment
from exlm.storage.models import save_model
from exlm_command import main
from tests.conftest import MOLECULES, read_frame, train_smiles_tokenizer
from tests.ops import reference  # noqa: F401  adds a back end


def random_graph(seed, masks, k, vocabulary=5, boundary=1, spread=2.0, sparse=False):
    g = torch.Generator().manual_seed(seed)
    states = masks * k + 2 * boundary
    mask = (torch.arange(states) - boundary).div(k, rounding_mode="floor").clamp(-1, masks)
    scores = spread * torch.randn(states, states, generator=g, dtype=torch.float64)
    linked = torch.ones(states, states).triu(1).bool()
    if sparse:
        linked &= mask[:, None] != mask
    links = scores.masked_fill(~linked, -torch.inf).log_softmax(-1)
    links = links.nan_to_num(-torch.inf, neginf=-torch.inf)
    probs = (spread * torch.randn(states, vocabulary, generator=g, dtype=torch.float64)).softmax(-1)
    return Graph(probs, links, mask)


def enumerate_fillings(graph, tokens):
    """All sequences of that many tokens, and their probabilities by the alignment's own
    likelihood."""
    vocabulary, states = graph.probs.shape[1], len(graph.links)
    every = torch.tensor(list(itertools.product(range(vocabulary), repeat=tokens)))
    emission = torch.zeros(len(every), tokens + 2, states, dtype=torch.float64)
    emission[:, 1:-1] = graph.probs[:, every].log().permute(1, 2, 0)
    links = graph.links.expand(len(every), -1, -1)
    target_lengths = torch.full((len(every),), tokens + 2)
    state_lengths = torch.full((len(every),), states)
    log_f = alignment.log_likelihood(
        emission, links, target_lengths, state_lengths, backend="reference"
    )
    return every, log_f


def enumerate_paths(graph, tokens):
    """log-probability of every path of that many tokens by the transitions alone."""
    last = len(graph.links) - 1
    scores = {}
    for inner in itertools.combinations(range(1, last), tokens):
        score = sum(graph.links[u, v].item() for u, v in itertools.pairwise((0, *inner, last)))
        if score > -math.inf:
            scores[inner] = score
    return scores


GRAPHS = {
    "one mask": (random_graph(0, masks=1, k=3), 1),
    "two masks": (random_graph(1, masks=2, k=3), 2),
    "three masks": (random_graph(2, masks=3, k=2), 3),
    "three tokens for two masks": (random_graph(3, masks=2, k=3), 3),
    "one token for two masks": (random_graph(4, masks=2, k=2), 1),
    "several boundary states": (random_graph(5, masks=2, k=2, boundary=2), 2),
    "sparse": (random_graph(6, masks=3, k=2, sparse=True), 2),
    "as many tokens as states": (random_graph(7, masks=2, k=2, vocabulary=3), 4),
    "one per mask": (graph_search.with_one_per_mask(random_graph(8, masks=3, k=2)), 3),
    "one per mask, several boundary states": (
        graph_search.with_one_per_mask(random_graph(9, masks=2, k=3, boundary=3)),
        2,
    ),
    "one state for each mask": (graph_search.with_one_per_mask(random_graph(16, masks=3, k=1)), 3),
    "sharp": (random_graph(10, masks=3, k=2, spread=30.0), 3),
}
every_graph = pytest.mark.parametrize("case", GRAPHS)


@every_graph
def test_a_wide_beam_finds_all_fillings_with_their_probabilities(case):
    graph, tokens = GRAPHS[case]
    every, log_f = enumerate_fillings(graph, tokens)
    path_scores = list(enumerate_paths(graph, tokens).values())
    expected = log_f - torch.tensor(path_scores, dtype=torch.float64).logsumexp(0)
    assert expected.exp().sum().item() == pytest.approx(1.0, abs=1e-9)
    fillings = graph_search.beam_search(graph, tokens, n_best=len(every), beam=len(every))
    assert fillings.exact and len(fillings.token_ids) == len(every)
    assert fillings.log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-9)
    assert (fillings.log_prob.diff() <= 1e-9).all()
    by_tokens = {tuple(y): p for y, p in zip(every.tolist(), expected.tolist(), strict=True)}
    assert {tuple(y) for y in fillings.token_ids.tolist()} == set(by_tokens)
    for y, p in zip(fillings.token_ids.tolist(), fillings.log_prob.tolist(), strict=True):
        assert p == pytest.approx(by_tokens[tuple(y)], rel=1e-9, abs=1e-9)
    torch.testing.assert_close(
        graph_search.log_probability(graph, every), expected, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("candidates", [1, 2, 200])
@pytest.mark.parametrize("width", [1, 2, 5])
@every_graph
def test_what_a_narrow_beam_calls_exact_is_true(case, width, candidates):
    graph, tokens = GRAPHS[case]
    _, log_f = enumerate_fillings(graph, tokens)
    fillings = graph_search.beam_search(graph, tokens, n_best=3, beam=width, candidates=candidates)
    log_weight = graph_search.log_weight_of_all_paths(graph.links, tokens)
    best = (log_f.sort(descending=True).values - log_weight)[:3]
    assert (fillings.log_prob <= best[: len(fillings.log_prob)] + 1e-9).all()
    if fillings.exact:
        torch.testing.assert_close(fillings.log_prob, best, rtol=1e-9, atol=1e-9)


def test_most_narrow_searches_are_exact():
    cases = [random_graph(seed, masks=3, k=3, vocabulary=40) for seed in range(20)]
    exact = [
        graph_search.beam_search(graph, 3, n_best=5, beam=16, candidates=10).exact
        for graph in cases
    ]
    assert sum(exact) >= 15


@every_graph
def test_the_path_of_a_filling_is_its_best(case):
    graph, tokens = GRAPHS[case]
    fillings = graph_search.beam_search(graph, tokens, n_best=4)
    paths = enumerate_paths(graph, tokens)
    for y, path in zip(fillings.token_ids.tolist(), fillings.path.tolist(), strict=True):
        score = {
            u: s + sum(graph.probs[v, w].log().item() for v, w in zip(u, y, strict=True))
            for u, s in paths.items()
        }
        assert score[tuple(path)] == pytest.approx(max(score.values()))


@pytest.mark.parametrize(
    "case", ["two masks", "three tokens for two masks", "one per mask", "several boundary states"]
)
def test_samples_follow_the_distribution(case):
    graph, tokens = GRAPHS[case]
    every, log_f = enumerate_fillings(graph, tokens)
    expected = (log_f - log_f.logsumexp(0)).exp()
    count = 4000
    samples = graph_search.sample(graph, tokens, count, torch.Generator().manual_seed(1))
    weights = graph.probs.shape[1] ** torch.arange(tokens - 1, -1, -1)
    frequency = torch.bincount((samples.token_ids * weights).sum(1), minlength=len(every)) / count
    error = (expected * (1 - expected) / count).sqrt()
    assert (frequency - expected <= 4 * error + 1 / count).all() and (
        expected - frequency <= 4 * error + 1e-9
    ).all()
    again = graph_search.sample(graph, tokens, count, torch.Generator().manual_seed(1))
    assert again.token_ids.equal(samples.token_ids)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("boundary", [1, 2])
def test_lengths_are_a_distribution(boundary, sparse):
    graph = random_graph(11, masks=2, k=2, boundary=boundary, sparse=sparse)
    lengths = graph_search.length_distribution(graph.links).exp()
    assert lengths.sum().item() == pytest.approx(1.0)
    masses = [
        sum(map(math.exp, enumerate_paths(graph, m).values())) for m in range(len(graph.links) - 1)
    ]
    torch.testing.assert_close(lengths, torch.tensor(masses, dtype=torch.float64) / sum(masses))
    if not sparse:
        assert sum(masses) == pytest.approx(1.0)


def test_visits_are_those_of_all_paths():
    graph = random_graph(12, masks=2, k=3)
    paths = enumerate_paths(graph, 2)
    total = sum(map(math.exp, paths.values()))
    expected = torch.zeros(len(graph.links), dtype=torch.float64)
    for path, score in paths.items():
        expected[[0, *path, -1]] += math.exp(score) / total
    torch.testing.assert_close(graph_search.visits(graph, 2).sum(0), expected)


@pytest.mark.parametrize("boundary", [1, 2])
def test_one_state_in_every_mask_keeps_its_share_of_the_paths(boundary):
    graph = random_graph(15, masks=3, k=2, boundary=boundary)
    one_per_mask = enumerate_paths(graph_search.with_one_per_mask(graph), 3)
    every = enumerate_paths(graph, 3)
    expected = sum(map(math.exp, one_per_mask.values())) / sum(map(math.exp, every.values()))
    assert 0 < expected < 1
    assert graph_search.kept_share(graph) == pytest.approx(expected)
    assert graph_search.kept_share(GRAPHS["one state for each mask"][0]) == 1
    assert graph_search.kept_share(GRAPHS["one per mask"][0]) == 1


def test_many_masks_do_not_underflow():
    wide = random_graph(13, masks=300, k=2, vocabulary=500, spread=3.0)
    assert 0 < graph_search.kept_share(wide) < 1
    assert graph_search.log_weight_of_all_paths(wide.links, 300) < -800
    graph = graph_search.with_one_per_mask(
        random_graph(13, masks=150, k=2, vocabulary=500, spread=0.1)
    )
    fillings = graph_search.beam_search(graph, 150, n_best=3, beam=4)
    assert fillings.log_prob.isfinite().all() and fillings.log_prob[0] < -900
    torch.testing.assert_close(
        graph_search.log_probability(graph, fillings.token_ids), fillings.log_prob
    )


# --- the command


def save(directory, objective="exlm", model_class=ExLMForMaskedLM, **switches):
    """A tiny model with sharp predictions, so that fillings differ."""
    torch.manual_seed(1)
    tokenizer = train_smiles_tokenizer(MOLECULES)
    settings = {
        "vocab_size": len(tokenizer),
        "mask_token_id": tokenizer.mask_token_id,
        "objective": objective,
        "initializer_range": 0.3,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "num_states": 3,
        "max_position_embeddings": 64,
    }
    config = ExLMConfig(**{**settings, **switches})
    save_model(directory, model_class(config).eval(), tokenizer)
    return directory


@pytest.fixture(scope="module", params=["exlm", "mlm", "ctc"])
def any_model(request, tmp_path_factory):
    return save(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


TWO = "CC(=O)[MASK]c1cccc[MASK]1"


def graphs_of(network, tokenizer, texts):
    """The graph of each text, in their order."""
    by_number = dict(graphs_of_texts(network, tokenizer, tokenize(network, tokenizer, texts)))
    return [by_number[number] for number in range(len(texts))]


def test_one_mask_is_ranked_as_by_the_ordinary_logits(any_model):
    network, tokenizer = load_for_filling(str(any_model))
    text = "CC(=O)<mask>c1ccccc1"
    (filled,) = fill_texts(network, tokenizer, [text], FillOptions(n_best=10))
    ids = tokenizer(text, return_tensors="pt")
    logits = AutoModelForMaskedLM.from_pretrained(any_model).eval()(**ids).logits
    expected = logits[0, ids["input_ids"][0] == tokenizer.mask_token_id][0].log_softmax(-1)
    top = expected.topk(10)
    assert [entry.tokens for entry in filled.fillings] == [
        [[token]] for token in tokenizer.convert_ids_to_tokens(top.indices.tolist())
    ]
    assert [e.log_probability for e in filled.fillings] == pytest.approx(
        top.values.tolist(), abs=1e-4
    )
    assert filled.exact and filled.problem is None


def test_one_mask_with_free_paths_and_k_boundary_states_is_ranked_as_by_the_ordinary_logits(
    tmp_path,
):
    network, tokenizer = load_for_filling(str(save(tmp_path / "model", boundary_states="k")))
    (filled,) = fill_texts(network, tokenizer, ["CC<mask>O"], FillOptions(free=True))
    ids = tokenizer("CC<mask>O", return_tensors="pt")
    top = network(**ids).logits[0, 3].log_softmax(-1).topk(5)
    assert [e.log_probability for e in filled.fillings] == pytest.approx(
        top.values.tolist(), abs=1e-4
    )


@pytest.mark.parametrize("any_model", ["mlm", "ctc"], indirect=True)
def test_without_transitions_the_joint_is_the_product_of_the_marginals(any_model):
    network, tokenizer = load_for_filling(str(any_model))
    (filled,) = fill_texts(network, tokenizer, [TWO], FillOptions(n_best=50, free=True))
    ids = tokenizer(TWO.replace("[MASK]", "<mask>"), return_tensors="pt")
    logits = network(**ids).logits[0].log_softmax(-1)
    first, second = logits[ids["input_ids"][0] == tokenizer.mask_token_id]
    joint = (first[:, None] + second).flatten().topk(50)
    assert [e.log_probability for e in filled.fillings] == pytest.approx(
        joint.values.tolist(), abs=1e-4
    )
    assert filled.fillings[0].length_probability == pytest.approx(1.0) and filled.exact


def test_the_probability_is_that_of_the_training_objective(model):
    network, tokenizer = load_for_filling(str(model))
    (filled,) = fill_texts(network, tokenizer, [TWO], FillOptions(free=True, n_best=2))
    ids = tokenizer(TWO.replace("[MASK]", "<mask>"), return_tensors="pt")
    masked = ids["input_ids"] == tokenizer.mask_token_id
    losses = []
    for entry in filled.fillings:
        labels = torch.full_like(ids["input_ids"], -100)
        labels[masked] = torch.tensor(
            tokenizer.convert_tokens_to_ids([t for part in entry.tokens for t in part])
        )
        losses.append(4 * network(**ids, labels=labels).loss.item())  # 4 targets with BOS and EOS
    best, second = (entry.log_probability for entry in filled.fillings)
    assert losses[1] - losses[0] == pytest.approx(best - second, abs=1e-4)


@pytest.mark.parametrize("boundary", [1, "k"])
def test_priors_and_late_expansion_are_filled_as_they_are_evaluated(tmp_path, boundary):
    switches = {
        "order_prior": 2.0,
        "sticky_prior": 1.0,
        "copy_embedding": 0.5,
        "expanded_layers": 1,
    }
    network, tokenizer = load_for_filling(
        str(save(tmp_path / "model", boundary_states=boundary, **switches))
    )
    (filled,) = fill_texts(network, tokenizer, [TWO], FillOptions(n_best=1, passes=1))
    ids = tokenizer(TWO.replace("[MASK]", "<mask>"), return_tensors="pt")
    labels = torch.full_like(ids["input_ids"], -100)
    best = [token for part in filled.fillings[0].tokens for token in part]
    labels[ids["input_ids"] == tokenizer.mask_token_id] = torch.tensor(
        tokenizer.convert_tokens_to_ids(best)
    )
    output = network.lattice_output(network.exlm.expand(**ids, labels=labels))
    mask_of_state = output.lattice.target_of_state
    lengths = output.lattice.target_lengths, output.lattice.state_lengths
    emission = torch.where(output.lattice.target_is_mask[..., None], output.emission, 0.0)
    is_next = mask_of_state[:, :, None] + 1 == mask_of_state[:, None, :]
    one_each = output.links.masked_fill(~is_next, -torch.inf)
    log_emitting = alignment.log_likelihood(emission, one_each, *lengths)
    log_kept = alignment.log_likelihood(output.free_emission, one_each, *lengths)
    log_all = alignment.log_likelihood(output.free_emission, output.links, *lengths)
    assert filled.fillings[0].log_probability == pytest.approx(
        float(log_emitting - log_kept), abs=1e-4
    )
    assert filled.kept == pytest.approx(float((log_kept - log_all).exp()), abs=1e-4)


def test_an_end_inside_the_text_is_refused_where_it_has_states_of_its_own(tmp_path):
    network, tokenizer = load_for_filling(str(save(tmp_path / "model", boundary_states="k")))
    (filled,) = fill_texts(network, tokenizer, ["CC[MASK]O</s>CC"])
    assert "end of sequence inside the text" in filled.problem and not filled.fillings


def test_options_stay_as_they_are_given():
    options = FillOptions(tokens="2-3")
    assert options.all_paths and options.lengths == range(2, 4) and not options.free
    assert replace(options, tokens=None) == FillOptions()
    with pytest.raises(FrozenInstanceError):
        options.n_best = 3


@pytest.mark.parametrize(
    "options", [FillOptions(passes=1), FillOptions(free=True), FillOptions(tokens="2-3")]
)
def test_every_filled_text_says_what_one_token_for_each_mask_keeps(any_model, options):
    network, tokenizer = load_for_filling(str(any_model))
    filled_texts = list(fill_texts(network, tokenizer, [TWO, "[MASK]" * 8, "CCO"], options))
    shares = [filled.kept for filled in filled_texts]
    if options.all_paths:
        assert shares == [None] * 3
    elif network.transition is None:
        assert shares == [1, 1, None]
    else:
        by_number = graphs_of(network, tokenizer, [TWO, "[MASK]" * 8])
        assert shares == [*map(graph_search.kept_share, by_number), None]
        assert shares[1] < 0.5 and "say little of the model" in filled_texts[1].warning
    for filled, share in zip(filled_texts, shares, strict=True):
        assert (filled.warning is None) == (share is None or share >= 0.5)


def test_batches_order_and_padding_do_not_matter(any_model):
    network, tokenizer = load_for_filling(str(any_model))
    texts = [f"{'C' * n}[MASK]{'[MASK]' * (n % 3)}O" for n in (3, 20, 1)]
    for options in (FillOptions(), FillOptions(samples=5)):
        together = list(fill_texts(network, tokenizer, texts, options))
        small = list(fill_texts(network, tokenizer, texts, options, tokens_per_batch=1))
        assert [filled.text for filled in together] == texts
        assert [filled.line for filled in together] == [1, 2, 3]
        for one, other in zip(together, small, strict=True):
            for entry, same in zip(one.fillings, other.fillings, strict=True):
                assert entry.tokens == same.tokens
                assert entry.log_probability == pytest.approx(same.log_probability, abs=1e-4)


def test_a_piece_of_a_character_is_told():
    fillings = [Filling("a \ufffd b", [["x"]], -1.0), Filling("a c b", [["c"]], -2.0)]
    filled = FilledText(1, "a [MASK] b", fillings=fillings)
    options = FillCommandOptions(n_best=2)
    assert "piece of a character" in _select(filled, options, set()).warning
    assert _select(replace(filled, fillings=fillings[1:]), options, set()).warning is None
    assert _select(replace(filled, text="\ufffd [MASK] b"), options, set()).warning is None


def test_the_graph_holds_the_states_of_each_mask(model):
    network, tokenizer = load_for_filling(str(model))
    both = graphs_of(network, tokenizer, ["C<mask>C[MASK]", "CC<mask>"])
    assert [graph.target_of_state.tolist() for graph in both] == [
        [0, 1, 1, 1, 2, 2, 2, 3],
        [0, 1, 1, 1, 2],
    ]


def test_several_tokens_go_where_their_states_are(model):
    network, tokenizer = load_for_filling(str(model))
    options = FillOptions(tokens="1-9", n_best=4)
    (filled,) = fill_texts(network, tokenizer, [TWO], options, states=True)
    by_length = {}
    for entry in filled.fillings:
        first, second = (tokenizer.convert_tokens_to_string(part) for part in entry.tokens)
        assert entry.text == TWO.replace("[MASK]", first, 1).replace("[MASK]", second, 1)
        by_length.setdefault(sum(map(len, entry.tokens)), []).append(entry)
    assert sorted(by_length) == [1, 2, 3, 4, 5, 6] and all(
        len(entries) == 4 for entries in by_length.values()
    )
    chance = sum(entries[0].length_probability for entries in by_length.values())
    assert 0 < chance <= 1 and chance == pytest.approx(1 - empty(network, tokenizer), abs=1e-6)
    assert [len(states) for states in filled.states] == [3, 3]
    assert filled.exact is True
    assert all(0 <= state.weight <= 1.0001 for states in filled.states for state in states)


def empty(network, tokenizer):
    """Probability of a path that emits nothing."""
    (graph,) = graphs_of(network, tokenizer, [TWO])
    return graph.links[0, -1].exp().item()


def test_texts_on_the_command_line(capsys, model):
    main(["fill", str(model), TWO, "CC<mask>O", "--n_best", "3", "--states", "true"])
    text = capsys.readouterr().out
    assert text.startswith(TWO) and "\nCC<mask>O\n" in text
    assert text.count("mask 1 state 3  weight") == 2
    main(["fill", str(model), TWO, "--tokens", "2-3", "--n_best", "1"])
    text = capsys.readouterr().out
    assert "tokens 2 (" in text and "tokens 3 (" in text
    main(["fill", str(model), "[MASK]" * 8, "--n_best", "50", "--beam", "1"])
    text = capsys.readouterr().out
    assert "may have been missed; raise --beam" in text
    assert "\n  warning: these probabilities say little" in text
    assert "\n  paths with one token in each mask have " in text


def test_a_table_tells_where_better_fillings_may_be_missing(model, tmp_path, capsys):
    lines = ["[MASK]" * 8, "C[MASK]", "CC"]
    command = ["fill", str(model), *lines, "--output", str(tmp_path / "a.csv")]
    note = "kept {} at a time (--beam), so more probable fillings may be missing in {} of 3 lines"
    for n_best, beam in ((50, 1), (50, 64), (2, 1)):
        main([*command, "--n_best", str(n_best), "--beam", str(beam)])
        rows = read_frame(tmp_path / "a.csv").drop_duplicates("line")
        exact = rows["exact"].tolist()
        assert "False" in exact and exact[-1] == ""
        error = capsys.readouterr().err
        assert note.format(beam, exact.count("False")) in error
        assert (f"raise --beam to {n_best} (--n_best) or" in error) == (n_best > beam)
    main([*command[:2], "C[MASK]", *command[-2:], "--n_best", "2"])
    assert "--beam" not in capsys.readouterr().err


def test_special_tokens_are_not_proposed(capsys, model, tmp_path):
    _, tokenizer = load_for_filling(str(model))
    target = tmp_path / "fills.jsonl"
    every = str(len(tokenizer))
    main(
        [
            "fill",
            str(model),
            "CC[MASK]O",
            "--n_best",
            every,
            "--beam",
            every,
            "--output",
            str(target),
        ]
    )
    (filled,) = read(target)
    tokens = [entry["tokens"][0][0] for entry in filled["fillings"]]
    assert sorted(tokens) == sorted(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens))


def test_every_line_of_a_file_is_kept(capsys, model, tmp_path):
    source, target = tmp_path / "lines.txt", tmp_path / "fills.jsonl"
    lines = [TWO, "CCO", "", "C" * 70 + "[MASK]", "C!?<mask>", "CC<mask>O"]
    source.write_text("\n".join(lines) + "\n")
    main(["fill", str(model), "--file", str(source), "--output", str(target), "--n_best", "2"])
    filled_texts = read(target)
    weak = sum(filled["warning"] is not None for filled in filled_texts)
    no_mask = (
        "no mask: write [MASK] where something is missing, or, in a molecule or protein, name "
        "a site with exlm fill --site"
    )
    first = f"(line 2: {no_mask})"
    counts = f"2 lines filled, 4 with a problem {first}, {weak} with a warning"
    assert counts in capsys.readouterr().out
    assert [r["line"] for r in filled_texts] == [1, 2, 3, 4, 5, 6]
    assert [len(r["fillings"]) for r in filled_texts] == [2, 0, 0, 0, 0, 2]
    assert [r["problem"] for r in filled_texts[:3]] == [None, no_mask, "empty text"]
    assert "too long" in filled_texts[3]["problem"]
    assert "not in the vocabulary" in filled_texts[4]["problem"]
    entry = filled_texts[0]["fillings"][0]
    of_texts = {"filling", "text", "tokens", "probability", "log_probability"}
    assert set(entry) == {*of_texts, *OF_MOLECULES}
    assert math.log(entry["probability"]) == pytest.approx(entry["log_probability"])


def test_a_table_of_any_kind_names_its_rows_by_any_column(model, tmp_path):
    source = tmp_path / "masked.csv"
    source.write_text(f"Reg.-Nr.,SMILES\n007,{TWO}\n8,CC\n")
    command = ["fill", str(model), "--file", str(source), "--n_best", "2"]
    tables = []
    for ending in ("csv", "xlsx", "parquet"):
        output = tmp_path / f"a.{ending}"
        main([*command, "--id_column", "Reg.-Nr.", "--output", str(output)])
        tables.append(read_frame(output).fillna("").astype(str))
    assert [*tables[0]["name"]] == ["007", "007", "8"] and [*tables[0]["passes"]] == ["2", "2", ""]
    for table in tables[1:]:
        assert [*table["filled"]] == [*tables[0]["filled"]] and table.columns.equals(
            tables[0].columns
        )
    with pytest.raises(InputError, match="no column 'nr'; it has: Reg.-Nr., SMILES"):
        fill(str(model), [], file=str(source), id_column="nr")


def test_a_cell_that_stands_for_a_missing_text_is_empty(model, tmp_path):
    source = tmp_path / "masked.csv"
    source.write_text(f"name,SMILES\na,{TWO}\nb,NA\nc,  \nd\n")
    output = tmp_path / "a.jsonl"
    main(["fill", str(model), "--file", str(source), "--output", str(output)])
    _, missing, empty, short = read(output)
    assert (missing["text"], missing["name"]) == ("", "b")
    assert missing["problem"] == "empty text" and not missing["fillings"]
    assert (empty["text"], empty["problem"]) == ("", "empty text")
    assert (short["text"], short["problem"]) == ("", "empty text")


def test_a_file_that_is_no_utf8_is_named(model, tmp_path):
    source = tmp_path / "latin.csv"
    source.write_bytes(b"name,SMILES\n\xe9,CC[MASK]\n")
    with pytest.raises(InputError, match=r"latin.csv cannot be read: it is not UTF-8"):
        fill(str(model), [], file=str(source))


def test_the_sheet_of_a_workbook_is_the_one_that_is_named(model, tmp_path):
    with pd.ExcelWriter(tmp_path / "a.xlsx") as book:
        pd.DataFrame({"made by": ["Ada"]}).to_excel(book, sheet_name="Notes", index=False)
        pd.DataFrame({"smiles": [TWO]}).to_excel(book, sheet_name="Gaps", index=False)
    output = tmp_path / "a.jsonl"
    file = ["--file", str(tmp_path / "a.xlsx"), "--sheet", "Gaps"]
    main(["fill", str(model), *file, "--n_best", "2", "--output", str(output)])
    assert [filled["text"] for filled in read(output)] == [TWO]
    (tmp_path / "a.txt").write_text(TWO)
    with pytest.raises(InputError, match="a.txt has no sheets; leave out sheet"):
        fill(str(model), [], file=str(tmp_path / "a.txt"), sheet="Gaps")
    with pytest.raises(InputError, match="sheet is for the table of --file; leave it out"):
        fill(str(model), [TWO], sheet="Gaps")


def test_special_tokens_in_a_text_are_told(capsys, model, tmp_path):
    """A tokenizer takes them for its own; the mask and what may be filled in are no fault."""
    out, page = tmp_path / "out.jsonl", tmp_path / "page.html"
    texts = ["CC<pad>[MASK]C", "C<s>C[MASK]</s>", "CC<mask>C", "CC[MASK]C"]
    fill(model, texts, str(out), passes=1)
    warnings = [filled["warning"] or "" for filled in read(out)]
    assert warnings[0].startswith("it has special tokens of the model: <pad>")
    assert "<s> </s>" in warnings[1]
    assert not any("special tokens of the model" in warning for warning in warnings[2:])
    capsys.readouterr()
    main(["explore", str(model), texts[0], "--output", str(page)])
    assert "special tokens of the model: <pad>" in "".join(capsys.readouterr())


def test_fillings_that_are_no_molecule_are_marked_or_left_out(capsys, model, tmp_path):
    source = tmp_path / "masked.csv"
    source.write_text(f"cid,Compound Name,SMILES\n1,A-1,{TWO}\n\n2,A-2,C1CC[MASK]\n")
    output = str(tmp_path / "a.jsonl")
    command = ["fill", str(model), "--file", str(source), "--n_best", "20", "--output", output]
    main(command)
    marked = read(tmp_path / "a.jsonl")
    assert [filled["name"] for filled in marked] == ["A-1", None, "A-2"]
    for filled in marked:
        for entry in filled["fillings"]:
            assert entry["valid"] == (not molecule_problem(entry["text"]))
    main([*command, "--top", "4"])
    for filled, before in zip(read(tmp_path / "a.jsonl"), marked, strict=True):
        names = [entry["smiles"] or entry["text"] for entry in before["fillings"]]
        kept = [entry["smiles"] or entry["text"] for entry in filled["fillings"]]
        assert kept == list(dict.fromkeys(names))[:4]
    capsys.readouterr()
    main([*command, "--valid_only", "true"])
    count = sum(len(filled["fillings"]) for filled in read(tmp_path / "a.jsonl"))
    assert f"with a warning; {count} fillings" in capsys.readouterr().out
    for filled, before in zip(read(tmp_path / "a.jsonl"), marked, strict=True):
        assert filled["fillings"] == [entry for entry in before["fillings"] if entry["valid"]]
        invalid = len(before["fillings"]) - len(filled["fillings"])
        assert filled["left_out"] == before["left_out"] + invalid
        assert (
            before["problem"]
            or filled["fillings"]
            or filled["warning"].startswith(
                f"all {filled['left_out']} fillings that were made have special tokens or are not"
            )
        )
    with pytest.raises(SystemExit):
        main(["fill", str(model), TWO, "--molecules", "false", "--valid_only", "true"])
    assert "valid_only is for molecules" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["fill", str(model), "C" * 70 + "[MASK]"])
    assert caught.value.code == 2 and "line 1: too long" in capsys.readouterr().err


def test_states_have_tokens_as_text_and_not_as_the_vocabulary_spells_them():
    tokenizer = train_text_tokenizer("bpe", ["this is very good and so is that"] * 9, 300)
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = ExLMConfig(
        vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id, num_states=2, **sizes
    )
    network = ExLMForMaskedLM(config)
    with torch.no_grad():
        network.head.decoder.bias[tokenizer.convert_tokens_to_ids("Ġis")] = 50.0
    [filled] = fill_texts(network, tokenizer, ["this [MASK] very good"], states=True)
    assert all(state.tokens[0][0] == "is" for state in filled.states[0])


def test_samples_depend_on_the_seed_and_the_line_alone(model, tmp_path):
    def sampled(seed):
        target = tmp_path / f"{seed}.jsonl"
        options = ["--samples", "5", "--seed", str(seed), "--output", str(target)]
        main(["fill", str(model), TWO, TWO, *options])
        return [[entry["text"] for entry in filled["fillings"]] for filled in read(target)]

    assert sampled(3) == sampled(3) != sampled(4)
    assert sampled(3)[0] != sampled(3)[1]


@pytest.mark.parametrize("options", [["--tokens", "1-3"], ["--passes", "1", "--samples", "40"]])
def test_the_top_are_the_most_probable_of_all_lengths_and_samples(model, tmp_path, options):
    def ranks(*top):
        target = tmp_path / "fills.jsonl"
        main(["fill", str(model), "CC[MASK][MASK]O", *options, *top, "--output", str(target)])
        fillings = read(target)[0]["fillings"]
        return {x["text"]: x["probability"] * x.get("length_probability", 1) for x in fillings}

    every = ranks()
    assert [*ranks("--top", "3").values()] == sorted(every.values(), reverse=True)[:3]


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("MODEL",), "give either texts after the model or --file"),
        (("MODEL", TWO, "--file", __file__), "give either texts after the model or --file"),
        (("MODEL", "CCO"), "line 1: no mask: write [MASK]"),
        (("MODEL", "--file", "/nowhere.txt"), "/nowhere.txt does not exist"),
        (("MODEL", TWO, "--tokens", "0"), "tokens is 0"),
        (("MODEL", TWO, "--tokens", "4-2"), "tokens is 4-2"),
        (("MODEL", TWO, "--tokens", "some"), "tokens is some"),
        (("MODEL", TWO, "--n_best", "0"), "n_best is 0"),
        (("MODEL", TWO, "--samples", "0"), "samples is 0; give a number from 1 to 100,000"),
        (("MODEL", TWO, "--samples", "1000000000"), "samples is 1000000000"),
        (
            ("MODEL", TWO, "--output", "fills.txt"),
            "must end in .jsonl or .csv or .parquet or .xlsx or .sdf or .html or .png",
        ),
        (
            ("MODEL", TWO, "--tokens_per_batch", "-5"),
            "tokens_per_batch is -5; it must be at least 1",
        ),
        (("/nowhere", TWO), "/nowhere does not exist"),
        ((), "give MODEL before the options"),
    ],
)
def test_bad_input_is_named(capsys, model, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(["fill", *(str(model) if a == "MODEL" else a for a in arguments)])
    error = capsys.readouterr().err
    assert caught.value.code == 2 and message in error and "Traceback" not in error


def test_a_model_without_a_table_of_positions_fills_texts_of_any_length(tmp_path):
    def problem(objective: str) -> str | None:
        directory = save(tmp_path / objective, objective, max_position_embeddings=8)
        [text] = tokenize(*load_for_filling(str(directory)), ["CCCCCCCCC[MASK]"])
        return text.problem

    assert "too long: it expands to" in problem("exlm")
    assert problem("mlm") is None


def test_a_model_without_a_prediction_head_is_refused(tmp_path):
    save(tmp_path / "classifier", model_class=ExLMForSequenceClassification)
    with pytest.raises(
        InputError, match="holds ExLMForSequenceClassification; give the directory of a pre-trained"
    ):
        load_for_filling(str(tmp_path / "classifier"))


def test_a_model_of_repeated_tokens_is_refused(tmp_path):
    save(tmp_path / "repeated", repeat=2)
    with pytest.raises(InputError, match="was trained on repeated tokens"):
        load_for_filling(str(tmp_path / "repeated"))


def test_more_tokens_than_states_are_a_problem_of_the_line(model, tmp_path):
    target = tmp_path / "fills.jsonl"
    main(["fill", str(model), TWO, "CC[MASK]", "--tokens", "5", "--output", str(target)])
    assert [bool(filled["fillings"]) for filled in read(target)] == [True, False]
    assert read(target)[1]["problem"] == "no path puts 5 tokens into its masks (3 states)"


@pytest.mark.parametrize("ending", ["csv", "parquet", "xlsx", "sdf", "html"])
def test_a_file_without_a_place_for_states_is_refused(model, tmp_path, ending):
    output = tmp_path / f"out.{ending}"
    with pytest.raises(InputError, match="has no place for states; write .jsonl, or leave out"):
        fill(str(model), ["C[MASK]O"], output=str(output), states=True)
    assert not output.exists()
