"""The page and figures of `exlm explore`: their numbers, what hostile texts do to them, and the
page in a browser."""

import itertools
import json
import math
import os
import re
import shutil
import sys
from xml.etree import ElementTree

import matplotlib.image
import pytest
import torch

from exlm import InputError
from exlm.data.drawing import draw_molecule
from exlm.data.tokenization import train_text_tokenizer
from exlm.filling import graph_search
from exlm.filling.explore import build_case, figure, page
from exlm.filling.graphs import load_for_filling
from exlm.filling.options import FillOptions
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops import alignment
from exlm.storage.models import save_model
from exlm_command import main
from tests.filling.test_filling import TWO, graphs_of, save

HOSTILE = (
    "</script><script>window.hacked = 1</script><!-- "
    '<img src=x onerror="window.hacked = 1"> & $x_1^2$ [MASK] [MASK]'
)
SENTENCES = [
    "This is good, and I am very glad to see this. " * 3,
    HOSTILE.replace("[MASK]", "word"),
    "a b <i> c & d",
] * 9
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def smiles(tmp_path_factory):
    return save(tmp_path_factory.mktemp("smiles"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A tiny model with a BPE tokenizer that has seen the hostile text."""
    directory = tmp_path_factory.mktemp("text")
    tokenizer = train_text_tokenizer("bpe", SENTENCES, 400)
    config = ExLMConfig(
        vocab_size=len(tokenizer),
        mask_token_id=tokenizer.mask_token_id,
        max_position_embeddings=256,
        initializer_range=0.3,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_states=4,
    )
    torch.manual_seed(0)
    save_model(directory, ExLMForMaskedLM(config).eval(), tokenizer)
    return directory


def case_of(model, text, options=None, **changes):
    network, tokenizer = load_for_filling(str(model))
    case = build_case(network, tokenizer, text, options, **changes)
    return {**case, "model": "tiny", "threshold": 0.05}


def graph_of(model, text):
    network, tokenizer = load_for_filling(str(model))
    return graphs_of(network, tokenizer, [text])[0], tokenizer


@pytest.mark.parametrize("switches", [{}, {"dag": "sparse"}, {"boundary_states": "k"}], ids=str)
def test_links_that_leave_a_state_sum_to_one(tmp_path, switches):
    case = case_of(save(tmp_path / "model", **switches), TWO)
    last = len(case["states"]) - 1
    leaving = [sum(p for u, _, p in case["edges"] if u == state) for state in range(last + 1)]
    dead = {last - 2, last - 1} if len(switches) == 1 and "boundary_states" in switches else set()
    assert all(u < v for u, v, _ in case["edges"])
    assert [leaving[u] for u in range(last) if u not in dead] == pytest.approx(
        [1.0] * (last - len(dead)), abs=1e-6
    )
    assert leaving[last] == 0
    json.dumps(case, allow_nan=False)


@pytest.mark.parametrize("free", [False, True])
def test_weights_are_those_of_the_posterior(smiles, free):
    graph, _ = graph_of(smiles, TWO)
    case = case_of(smiles, TWO, FillOptions(free=free))
    links = graph.links if free else graph_search.with_one_per_mask(graph).links
    count = torch.tensor([4]), torch.tensor([len(links)])
    at_state, _ = alignment.posterior(
        torch.zeros(1, 4, len(links), dtype=links.dtype), links[None], *count
    )
    assert [s["weight"] for s in case["states"]] == pytest.approx(
        at_state[0].sum(0).tolist(), abs=1e-9
    )
    assert [s["mask"] for s in case["states"]] == [-1, 0, 0, 0, 1, 1, 1, 2]
    if not free:
        assert sum(s["weight"] for s in case["states"][1:4]) == pytest.approx(1)


@pytest.mark.parametrize("free", [False, True])
def test_the_path_of_a_filling_is_the_best_of_all_paths(smiles, free):
    graph, tokenizer = graph_of(smiles, TWO)
    links = graph.links if free else graph_search.with_one_per_mask(graph).links
    last = len(links) - 1
    for entry in case_of(smiles, TWO, FillOptions(n_best=6, free=free))["fillings"]:
        tokens = tokenizer.convert_tokens_to_ids([t for part in entry["tokens"] for t in part])
        scores = {
            (0, *inner, last): sum(
                links[u, v].item() for u, v in itertools.pairwise((0, *inner, last))
            )
            + sum(math.log(graph.probs[u, t]) for u, t in zip(inner, tokens, strict=True))
            for inner in itertools.combinations(range(1, last), 2)
        }
        assert tuple(entry["path"]) == max(scores, key=scores.__getitem__)


def test_words_and_segments(text):
    case = case_of(text, "This is [MASK], and I am very <mask> to see this.", token_count=3)
    graph, tokenizer = graph_of(text, "This is [MASK], and I am very <mask> to see this.")
    assert [len(s["words"]) for s in case["states"]] == [0] + [3] * 8 + [0]
    assert case["states"][1]["words"][0][1] == pytest.approx(graph.probs[1].max().item())
    assert [mask for _, mask in case["segments"]] == [None, 0, None, 1, None]
    assert case["masks"] == 2 and case["k"] == 4
    assert case["molecules"] is False and case["exact"] in (True, False)
    for entry in case["fillings"]:
        assert "".join(part for part, _ in entry["segments"]) == entry["text"]
        assert [mask for _, mask in entry["segments"] if mask is not None] == [0, 1]


def test_masks_may_stay_empty_on_free_paths(smiles):
    case = case_of(smiles, TWO, FillOptions(tokens="1-2"))
    single = [e for e in case["fillings"] if len(e["path"]) == 3]
    assert single and all([m for _, m in e["segments"] if m is not None] == [0, 1] for e in single)
    assert {e["length_probability"] for e in case["fillings"]} and case["free"]


@pytest.mark.parametrize("objective", ["mlm", "ctc"])
def test_models_without_transitions_have_states_and_fillings_alone(tmp_path, objective):
    case = case_of(save(tmp_path / "model", objective), TWO)
    assert case["edges"] == [] and len(case["states"]) == 4 and len(case["fillings"]) == 10
    shown = figure(case | {"threshold": 0.05})
    assert shown.count('class="state"') == 4 and "probability of a link" not in shown
    assert objective in page(case)


def test_rare_paths_are_told_as_in_fill(smiles, tmp_path, capsys):
    main(["explore", str(smiles), "[MASK]" * 8, "--output", str(tmp_path / "page.html")])
    assert "note: these probabilities say little of the model" in capsys.readouterr().err
    case = json.loads(embedded((tmp_path / "page.html").read_text()))
    assert "say little of the model" in case["warning"]
    assert case_of(smiles, "[MASK]" * 8, FillOptions(free=True))["warning"] is None


def test_molecules_are_drawn(smiles):
    case = case_of(smiles, "CC(=O)[MASK]c1ccccc1", FillOptions(n_best=30))
    assert case["molecules"]
    drawn = [e for e in case["fillings"] if e["drawing"]]
    others = [e for e in case["fillings"] if not e["drawing"]]
    assert drawn and others
    assert all("<svg" in e["drawing"] and e["problem"] is None for e in drawn)
    assert all(e["problem"] for e in others)


def test_atoms_that_were_filled_in_are_marked():
    unmarked = draw_molecule("CCO", [("CCO", None)])
    marked = draw_molecule("CCO", [("CC", None), ("O", 0)])
    assert unmarked.count("ellipse") < marked.count("ellipse")
    # RDKit takes the hydrogen away: nothing is marked
    assert draw_molecule("[H]C", [("[H]", 0), ("C", None)])
    assert draw_molecule("", []) is None


def embedded(html):
    return re.search(r'<script type="application/json" id="case">(.*?)</script>', html, re.S)[1]


def test_the_page_is_whole_and_inert(text):
    case = case_of(text, HOSTILE)
    case["states"][1]["words"][0] = ["</script><b>\u2028", 0.5]
    case["fillings"][0]["segments"] = [["<img src=x>", None], ["{{ case }} {% raw %}", 0]]
    html = page(case)
    data = embedded(html)
    assert "<" not in data and "\u2028" not in data
    assert html.count("<script") == html.count("</script>") == 4
    assert json.loads(data)["states"][1]["words"][0] == ["</script><b>\u2028", 0.5]
    assert json.loads(data)["fillings"][0]["segments"] == case["fillings"][0]["segments"]
    outside = html.replace(data, "")
    assert not re.search(r"(src|href)\s*=|@import|url\(|fetch\(|XMLHttp", outside)
    # a name, not an address
    assert set(re.findall(r"https?://[^\"' ]+", outside)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in outside


def test_a_figure_is_written_in_which_text_stays_text(capsys, text, tmp_path):
    target = tmp_path / "case.svg"
    main(["explore", str(text), HOSTILE, "--output", str(target), "--n_best", "2"])
    assert "10 states, 45 links, 2 fillings" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [target]
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(target).iter()}
    assert tags == {"svg", "rect", "text", "g", "path", "title"}
    # Each probable link of the DAG has its weight beside it.
    weights = re.findall(r'class="weight"[^>]*>([\d.]+)<', target.read_text())
    links = re.findall(r"<path .*?: ([\d.]+)</title></path>", target.read_text())
    probable = [link for link in map(float, links) if link >= 0.1005]
    assert probable and [float(weight) for weight in weights] == pytest.approx(probable, abs=0.01)


def test_the_figure_is_converted_to_pdf_and_png(text, tmp_path):
    pytest.importorskip("vl_convert", reason="pip install '.[figures]'")
    for name in ("case.pdf", "case.png", "case.svg"):
        main(["explore", str(text), HOSTILE, "--output", str(tmp_path / name), "--n_best", "1"])
    assert (tmp_path / "case.pdf").read_bytes().startswith(b"%PDF-")
    box = ElementTree.parse(tmp_path / "case.svg").getroot().get("viewBox")
    width, height = map(float, box.split()[2:])
    image = matplotlib.image.imread(tmp_path / "case.png")
    assert image.shape[:2] == pytest.approx((2 * height, 2 * width), abs=2)
    assert image[..., :3].std() > 0.05  # something is drawn


def test_a_missing_converter_is_named(capsys, monkeypatch, text, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(SystemExit):
        main(["explore", str(text), HOSTILE, "--output", str(tmp_path / "case.pdf")])
    error = capsys.readouterr().err
    assert "needs vl_convert; install it with: pip install '.[figures]'" in error


def test_the_figure_has_a_state_for_each_state_and_a_link_for_each_probable_one(smiles):
    case = case_of(smiles, TWO) | {"threshold": 0.2}
    case["states"][1]["words"][0] = ['</text>\x07<script>"&', 0.5]
    case["segments"].append(("\x1b[0m", None))
    root = ElementTree.fromstring(figure(case))
    nodes = [element for element in root.iter() if element.get("class") == "state"]
    cells = [element for element in root.iter() if element.get("class") == "link"]
    assert len(nodes) == 8 and len({node.get("x") for node in nodes}) == 4
    assert len(cells) == len(case["edges"])
    words = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert words.count("[BOS]") == words.count("[EOS]") == 2 and "</text><scr" in words
    paths = [element for element in root.iter() if element.tag.endswith("}path")]
    assert 0 < sum(p >= 0.2 for *_, p in case["edges"]) == len(paths)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (
            ("MODEL", "CCO"),
            # explore itself has no option --site
            "the text cannot be filled: no mask: write [MASK] where something is missing, "
            "or, in a molecule or protein, name a site with exlm fill --site",
        ),
        (("MODEL", "C" * 70 + "[MASK]"), "too long: it expands to"),
        (("MODEL", "C!?[MASK]"), "not in the vocabulary"),
        (
            ("MODEL", TWO, "--output", "page.txt"),
            "page.txt; the name must end in .html or .svg or .pdf or .png",
        ),
        (("MODEL", TWO, "--words", "0"), "words is 0"),
        (("MODEL", TWO, "--threshold", "1.5"), "threshold is 1.5"),
        (("MODEL", TWO, "--n_best", "0"), "n_best is 0"),
        (("MODEL", TWO, "--tokens", "9"), "no path puts 9 tokens"),
        (("MODEL", TWO, "--tokens", "x"), "tokens is x"),
        (("/nowhere", TWO), "/nowhere does not exist"),
        (("MODEL",), "give MODEL and TEXT before the options"),
    ],
)
def test_bad_input_is_named(capsys, smiles, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["explore", *(str(smiles) if a == "MODEL" else a for a in arguments)])
    error = capsys.readouterr().err
    assert caught.value.code == 2 and message in error and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_filled_raises(smiles):
    with pytest.raises(InputError, match="no mask"):
        case_of(smiles, "CCO")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install playwright)"
    )
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens the page of a case; whatever it asks for and complains about is checked
    at the end."""
    requests, errors, tabs = [], [], []

    def open_page(case, **options):
        path = tmp_path / "page.html"
        path.write_text(page(case), encoding="utf-8")
        tabs.append(browser.new_page(**options))
        tabs[-1].on("request", lambda request: requests.append(request.url))
        tabs[-1].on("pageerror", lambda error: errors.append(str(error)))
        tabs[-1].on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        tabs[-1].goto(path.as_uri())
        return tabs[-1]

    yield open_page
    for tab in tabs:
        tab.close()
    assert not errors and all(url.startswith(("file:", "data:")) for url in requests)


SENTENCE = "This is [MASK], and I am very [MASK] to see this."


def test_a_state_tells_its_words(opened, text):
    case = case_of(text, SENTENCE)
    tab = opened(case)
    assert tab.locator("#tip").is_hidden()
    tab.hover('[data-state="2"]')
    told = tab.locator("#tip").inner_text()
    assert "mask 1, state 2" in told and all(word in told for word, _ in case["states"][2]["words"])
    near = tab.locator(".link.near")
    assert near.count() > 0 and tab.locator(".value").count() > 0
    assert all("2" in (e.get_attribute("data-u"), e.get_attribute("data-v")) for e in near.all())
    tab.mouse.move(1, 1)
    assert tab.locator("#tip").is_hidden() and near.count() == 0
    tab.focus('[data-state="5"]')
    assert "mask 2, state 1" in tab.locator("#tip").inner_text()


def visible(tab):
    return tab.locator(".link").evaluate_all(
        "all => all.filter(e => getComputedStyle(e).display !== 'none').length"
    )


def test_the_threshold_hides_links(opened, text):
    case = case_of(text, SENTENCE)
    tab = opened(case)
    tab.locator("ol button").first.click()  # lets go of the first filling, whose path would stay
    for least in (0.01, 0.25, 0.0):
        tab.locator("#threshold").fill(str(math.sqrt(least)))
        shown = sum(p >= least for *_, p in case["edges"])
        assert (
            visible(tab) == shown and tab.locator("#count").inner_text() == f"{shown} of 45 links"
        )
    tab.locator("#threshold").press("End")
    assert visible(tab) <= 9


def test_a_filling_shows_its_path_and_text(opened, text):
    case = case_of(text, SENTENCE)
    index = next(
        i for i, e in enumerate(case["fillings"]) if e["path"] != case["fillings"][0]["path"]
    )
    tab = opened(case)
    before = tab.locator("#filled").inner_text()
    tab.locator("ol button").nth(index).press("Enter")
    states = [int(s.get_attribute("data-state")) for s in tab.locator(".state.on-path").all()]
    links = {
        (int(e.get_attribute("data-u")), int(e.get_attribute("data-v")))
        for e in tab.locator(".link.on-path").all()
    }
    path = case["fillings"][index]["path"]
    assert (
        states == path
        and links == set(itertools.pairwise(path))
        and tab.locator(".cell-path").count() == 3
    )
    assert tab.locator("#filled").inner_text() != before
    assert tab.locator("ol button[aria-pressed=true]").count() == 1


def test_the_heat_map_tells_every_cell(opened, text):
    case = case_of(text, SENTENCE)
    tab = opened(case, viewport={"width": 1500, "height": 1100})
    cell = tab.locator(".cell").first
    cell.hover(force=True)
    assert "probability" in tab.locator("#tip").inner_text() and tab.locator(".cross").count() == 2
    assert tab.locator("#heat .axis").count() == 18


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_molecule_is_drawn_large(opened, smiles, scheme):
    case = case_of(smiles, "CC(=O)[MASK]c1ccccc1", FillOptions(n_best=30))
    good = next(i for i, e in enumerate(case["fillings"]) if e["drawing"])
    bad = next(i for i, e in enumerate(case["fillings"]) if not e["drawing"])
    tab = opened(case, color_scheme=scheme)
    tab.locator("ol button").nth(bad).click()
    if bad:
        assert "No molecule" in tab.locator("#molecule").inner_text()
    tab.locator("ol button").nth(good).click()
    picture = tab.locator("#molecule img")
    assert picture.get_attribute("alt") == case["fillings"][good]["text"]
    assert (
        picture.evaluate("image => image.complete && image.naturalWidth") > 0
        and picture.bounding_box()["width"] > 150
    )


def test_hostile_text_stays_text(opened, text):
    case = case_of(text, HOSTILE)
    case["states"][1]["words"] = [
        ['<img src=x onerror="window.hacked=1">', 0.5],
        ["</script>", 0.1],
    ]
    case["fillings"][1]["segments"] = [['<svg onload="window.hacked=1">', None], ["'\"`${1}", 0]]
    tab = opened(case)
    tab.hover('[data-state="1"]')
    assert "<img src=x onerror" in tab.locator("#tip").inner_text()
    tab.locator("ol button").nth(1).click()
    assert tab.evaluate("window.hacked") is None and tab.locator("img").count() == 0
    assert "<script>window.hacked = 1</script>" in tab.locator("#input").inner_text()


@pytest.mark.parametrize("objective", ["mlm", "ctc"])
def test_a_page_without_transitions(opened, tmp_path, objective):
    tab = opened(case_of(save(tmp_path / "model", objective), TWO))
    assert tab.locator("#matrix").is_hidden() and tab.locator("#controls").is_hidden()
    assert tab.locator(".state").count() == 4 and tab.locator(".state.on-path").count() == 4
    assert "no links" in tab.locator("#about").inner_text()


def test_many_masks_stay_on_the_page(opened, tmp_path):
    model = save(tmp_path / "model", num_states=8, max_position_embeddings=128)
    tab = opened(case_of(model, "C[MASK]" * 8), viewport={"width": 800, "height": 700})
    assert tab.locator(".state").count() == 66
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
