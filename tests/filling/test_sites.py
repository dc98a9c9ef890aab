"""Sites: from attachment points, SMARTS and residues to ranked molecules; what may fill them."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem

from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.data.tokenization import letter_tokenizer
from exlm.filling import graph_search
from exlm.filling.fill import add_template
from exlm.filling.filled_text import FilledText, Filling, Molecule
from exlm.filling.filler import Filler, fill_texts
from exlm.filling.graphs import load_for_filling
from exlm.filling.molecule_facts import judge
from exlm.filling.options import FillCommandOptions, FillOptions, allowed_tokens
from exlm.filling.templates import molecule_template, protein_template
from exlm.storage.models import save_model
from exlm_command import main
from tests.conftest import MOLECULES
from tests.filling.test_filling import GRAPHS, enumerate_fillings, every_graph, save

PARACETAMOL = "CC(=O)Nc1ccc(O)cc1"
LINKER = "c1ccc([*:1])cc1.CC1CCN([*:2])CC1"
SHIPPED = "molecules-5M"
M = "[MASK]"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def protein_model(tmp_path_factory):
    torch.manual_seed(0)
    tokenizer = letter_tokenizer("protein")
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = ExLMConfig(
        vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id, num_states=2, **sizes
    )
    directory = tmp_path_factory.mktemp("protein")
    save_model(directory, ExLMForMaskedLM(config).eval(), tokenizer)
    return str(directory)


def template(text, proteins=False, **settings):
    make_template = protein_template if proteins else molecule_template
    return make_template(text, FillCommandOptions(**settings))


# --- templates


@pytest.mark.parametrize(
    "text,options,expected",
    [
        ("c1ccc(cc1)[*:1]", dict(site=["2"]), [f"c1ccc({M}{M})cc1"]),
        # as RDKit's FragmentOnBonds and BRICS write it
        ("[16*]c1ccccc1", dict(site=["1"]), [f"c1ccc({M})cc1"]),
        ("[1*]c1ccccc1.[14*]N1CCC(C)CC1", dict(site=["2"]), [f"CC1CCN({M}{M}c2ccccc2)CC1"]),
        ("c1ccc(cc1)[*]", dict(site=["1=1-2"]), [f"c1ccc({M})cc1", f"c1ccc({M}{M})cc1"]),
        # a linker, its ends with two numbers or one
        (LINKER, dict(site=["2"]), [f"CC1CCN({M}{M}c2ccccc2)CC1"]),
        (LINKER.replace("*:2", "*:1"), dict(site=["2"]), [f"CC1CCN({M}{M}c2ccccc2)CC1"]),
        ("C[*:1].O[*:1].[Na+]", dict(site=["2"]), [f"C{M}{M}O.[Na+]"]),
        # a site in a ring has no ring digit of its own
        ("C1CC*CC1", dict(site=["2"]), [f"C1CC{M}{M}CC1"]),
        ("*C(=O)N*", dict(site=["1=1", "2=2"]), [f"O=C(N{M}{M}){M}"]),
        # by SMARTS, with as many tokens as now or as given
        (PARACETAMOL, dict(replace="C(=O)N"), [f"C{M * 6}c1ccc(O)cc1"]),
        (PARACETAMOL, dict(replace="C(=O)N", site=["2"]), [f"C{M * 2}c1ccc(O)cc1"]),
        (PARACETAMOL, dict(keep="c1ccccc1"), [f"c1cc({M})ccc1{M * 7}"]),
        (f"{PARACETAMOL}.Cl", dict(keep="c1ccccc1"), [f"Cl.c1cc({M})ccc1{M * 7}"]),
        (f"{PARACETAMOL}.Cl", dict(replace="C(=O)N"), [f"C{M * 6}c1ccc(O)cc1.Cl"]),
        # rings that are closed behind the site, where it cannot be otherwise
        ("N1CC1C", dict(replace="N"), [f"CC1C{M}1"]),
        ("Oc1ccc2ncccc2c1", dict(keep="c1ccncc1", site=["7"]), [f"c1cnc2c(c1){M * 7}2"]),
        ("c1ccncc1C", dict(replace="n", site=["1"]), [f"Cc1ccc{M}c1"]),
        ("MKVLAT", dict(site=["2-3", "6"], proteins=True), [f"M{M}{M}LA{M}"]),
    ],
)
def test_masks_stand_where_the_site_is(text, options, expected):
    made = template(text, **options)
    assert made.masked_texts == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CC(=O)Nc1ccc([*:1])cc1", f"{M}c1ccc(NC(C)=O)cc1"),
        ("*C(=O)N*", f"{M}C(=O)N{M}"),
        (LINKER, f"c1ccccc1{M}N1CCC(C)CC1"),  # no ring is open at the site
    ],
)
def test_where_pieces_are_sampled_the_molecule_begins_with_a_site(text, expected):
    assert template(text, site=["1"], samples=1).masked_texts == [expected]
    assert template(text, site=["1"]).masked_texts != [expected]


@pytest.mark.parametrize(
    "text,options,expected",
    [
        ("N[C@@H](C)C(=O)[*:1]", dict(site=["1"]), "N[C@@H](C)C(=O)N"),
        ("[*:1][C@@H](C)C(=O)O", dict(site=["1"]), "N[C@@H](C)C(=O)O"),
        ("C[C@H](F)[*:1].C[C@@](Cl)(Br)[*:2]", dict(site=["1"]), "C[C@H](F)N[C@](C)(Cl)Br"),
        ("C[C@H](Cl)N[C@@H](F)Br", dict(replace="N"), "C[C@H](Cl)N[C@@H](F)Br"),
        ("C/C=C/NC", dict(replace="N"), "C/C=C/NC"),
        ("CC1CC(OC1)c1ccc2c(c1)ncnc2Nc1ccccc1", dict(replace="[NH]"), None),
        ("O[C@@H]1CN[C@H](C)C1", dict(replace="N"), None),
        ("C[C@H](O)NCl", dict(keep="[C@H](O)", site=["1"]), "N[C@H](O)N"),
    ],
)
def test_what_stays_is_the_same_molecule_as_before(text, options, expected):
    (masked,) = template(text, **options).masked_texts
    assert Chem.CanonSmiles(masked.replace(M, "N")) == Chem.CanonSmiles(expected or text)


@pytest.mark.parametrize("smiles", MOLECULES)
def test_any_atom_with_one_or_two_bonds_can_be_a_site(smiles):
    molecule = Chem.MolFromSmiles(smiles)
    for atom in molecule.GetAtoms():
        if atom.GetDegree() not in (1, 2) or atom.GetFormalCharge():
            continue
        token = atom.GetSymbol().lower() if atom.GetIsAromatic() else atom.GetSymbol()
        atom.SetIsotope(99)
        (masked,) = template(Chem.MolToSmiles(molecule), replace="[99*]", site=["1"]).masked_texts
        atom.SetIsotope(0)
        assert Chem.CanonSmiles(masked.replace(M, token)) == Chem.CanonSmiles(smiles)


# --- what may be filled in


@every_graph
def test_restricted_fillings_have_the_probabilities_given_that_all_tokens_are_allowed(case):
    graph, tokens = GRAPHS[case]
    allowed = torch.tensor([True, False, True, True, False])[: graph.probs.shape[1]]
    every, log_f = enumerate_fillings(graph, tokens)
    is_allowed = allowed[every].all(1)
    expected = log_f[is_allowed] - log_f[is_allowed].logsumexp(0)
    restricted = graph_search.restrict(graph, allowed, temperature=1.0)
    torch.testing.assert_close(
        graph_search.log_probability(restricted, every[is_allowed]), expected
    )
    best = graph_search.beam_search(restricted, tokens, n_best=len(every), beam=len(every))
    possible = best.token_ids[best.log_prob > -math.inf]
    assert allowed[possible].all() and len(possible) == is_allowed.sum()
    torch.testing.assert_close(best.log_prob, expected.sort(descending=True).values)
    samples = graph_search.sample(restricted, tokens, 50, torch.Generator().manual_seed(1))
    assert allowed[samples.token_ids].all()


def test_a_temperature_changes_every_distribution_over_tokens():
    graph, tokens = GRAPHS["two masks"]
    sharp = graph_search.restrict(graph, None, temperature=0.5)
    torch.testing.assert_close(sharp.probs, graph.probs**2 / (graph.probs**2).sum(1, keepdim=True))
    assert sharp.links is graph.links
    assert graph_search.restrict(graph, None, temperature=1.0) is graph
    allowed = torch.tensor([True, True, False, False, True])
    both = graph_search.restrict(graph, allowed, temperature=0.5)
    every, log_f = enumerate_fillings(sharp, tokens)
    is_allowed = allowed[every].all(1)
    expected = log_f[is_allowed] - log_f[is_allowed].logsumexp(0)
    torch.testing.assert_close(graph_search.log_probability(both, every[is_allowed]), expected)


@pytest.mark.parametrize("objective", ["exlm", "mlm"])
def test_a_model_fills_in_allowed_tokens_with_their_share_of_the_probability(tmp_path, objective):
    network, tokenizer = load_for_filling(str(save(tmp_path / "model", objective)))
    text, size = "CC[MASK]c1ccccc1[MASK]", len(tokenizer)
    whole = dict(n_best=size**2, beam=size**2, passes=1)
    (every,) = fill_texts(network, tokenizer, [text], FillOptions(**whole))
    for options in (dict(allow="N,O,(,="), dict(forbid="C"), dict(allow="C,O", forbid="[C@H]")):
        allowed = allowed_tokens(tokenizer, FillOptions(**options), size)
        names = set(tokenizer.convert_ids_to_tokens(allowed.nonzero()[:, 0].tolist()))
        expected = {
            entry.text: entry.probability
            for entry in every.fillings
            if names.issuperset(entry.tokens[0] + entry.tokens[1])
        }
        assert len(expected) == len(names) ** 2
        total = sum(expected.values())
        (filled,) = fill_texts(network, tokenizer, [text], FillOptions(**whole, **options))
        assert filled.exact and len(filled.fillings) == len(expected)
        for entry in filled.fillings:
            assert entry.probability == pytest.approx(expected[entry.text] / total, rel=1e-4)
        (twice,) = fill_texts(
            network, tokenizer, [text], FillOptions(passes=2, n_best=20, **options)
        )
        for entry in twice.fillings:
            assert names.issuperset(entry.tokens[0] + entry.tokens[1])


def test_an_element_is_all_its_atoms_and_limits_no_bonds(model):
    _, tokenizer = load_for_filling(model)

    def names(**options):
        allowed = allowed_tokens(tokenizer, FillOptions(**options), len(tokenizer))
        return set(tokenizer.convert_ids_to_tokens(allowed.nonzero()[:, 0].tolist()))

    nitrogen = names(allow="N")
    assert {"N", "n", "[N+]", "(", "=", "1"} <= nitrogen
    assert not nitrogen & {"C", "c", "O", "[", "##N", "<mask>", "<s>"}
    assert names(allow="n") & {"N", "n"} == {"n"}
    assert names(allow="N,=") & {"N", "=", "("} == {"N", "="}
    assert names(forbid="C") & {"C", "c", "[C@H]", "[C@@H]", "O", "Cl"} == {"O", "Cl"}
    assert allowed_tokens(tokenizer, FillOptions(), len(tokenizer)) is None


# --- proposals


def test_lengths_are_ranked_together_and_equally_probable(model):
    network, tokenizer = load_for_filling(model)
    settings = FillCommandOptions(n_best=4, site=["1-3"], molecules=True)
    filler = Filler(network, tokenizer, settings)
    texts = ["c1ccccc1*", "CC", "OC*"]
    inputs = [FilledText(line, text) for line, text in enumerate(texts, 1)]
    filled_texts = list(filler.fill([add_template(text, settings) for text in inputs]))
    assert [filled.line for filled in filled_texts] == [1, 2, 3]
    assert (
        filled_texts[1].problem.startswith("no attachment point")
        and filled_texts[1].template is None
    )
    filled = filled_texts[0]
    assert len(filled.fillings) == 12 and filled.problem is None
    assert {entry.length_probability for entry in filled.fillings} == {1 / 3}
    probabilities = [entry.probability for entry in filled.fillings]
    assert probabilities == sorted(probabilities, reverse=True)
    for masked in filled.template.masked_texts:
        (alone,) = fill_texts(network, tokenizer, [masked], FillOptions(n_best=4))
        together = [entry for entry in filled.fillings if entry.masked == masked]
        assert [entry.text for entry in together] == [e.text for e in alone.fillings]


def molecules_of(texts, template=None, known=None):
    fillings = [Filling(text, [], 0.0) for text in texts]
    filled = FilledText(1, "", template=template, fillings=fillings)
    return [filling.molecule for filling in judge(filled, known).fillings]


def test_a_filling_that_breaks_what_stays_is_not_valid():
    made = template("*N1CCCCC1C", site=["1"])
    texts = ["CN1CCCCC1C", "C.N1CCCCC1C", "C1N1CCCCC1C", "C1C1N1CCCCC1C", "OC(=)N1CCCCC1C"]
    assert [molecule.valid for molecule in molecules_of(texts, made)] == [True, *[False] * 4]
    # without a template, RDKit alone decides
    assert [molecule.valid for molecule in molecules_of(texts)][:2] == [True, True]


@pytest.mark.parametrize(
    ("text", "at_the_site", "elsewhere"),
    [
        # `)(` would close the branch of the site, and open another one before it
        ("CC(C[*:1])c1ccccc1", "CC(CO)c1ccccc1", "CC(C)(O)c1ccccc1"),
        ("CCCOC(c1ccccc1[*:1])C1CNC1", "CCCOC(c1ccccc1C)C1CNC1", "CCCOC(c1ccccc1)(C)C1CNC1"),
        ("c1ccccc1[*:1].C1CCNC1[*:1]", "c1ccccc1OC1CCCN1", "c1ccccc1OC1CCNC1"),
        # the ring is found in two ways, of which one has nothing new but at the site
        ("Cc1ccc([*:1])cc1", "CCc1ccc(C)cc1", "Cc1ccc(C)c(C)c1"),
        # both pieces hang on the second site
        ("O=C(Nc1ccccc1[*:1])[*:2]", "O=C(Nc1ccccc1F)CC", "O=C(Nc1ccccc1)C(F)CC"),
        # a bond between two atoms that stay
        ("CC(C[*:1])CC", "CC(CO)CC", "OCC1CCC1"),
    ],
)
def test_a_filling_must_hang_on_its_site(text, at_the_site, elsewhere):
    made = template(text, site=["1-3"])
    there, not_there = molecules_of([at_the_site, elsewhere], made)
    assert there.valid
    assert not not_there.valid


def test_properties_of_molecules():
    made = replace(template("*c1ccccc1", site=["1"]), original="Cc1ccccc1")
    texts = ["Cc1ccccc1", "c1ccccc1C", "Oc1ccccc1", "C("]
    toluene, again, phenol, broken = molecules_of(texts, made, {"Oc1ccccc1"})
    assert toluene.smiles == again.smiles == "Cc1ccccc1"
    assert (toluene.unique, again.unique, phenol.unique) == (True, False, True)
    assert (toluene.new, phenol.new) == (True, False)
    assert toluene.similarity == 1 and 0 < phenol.similarity < 1
    assert 0 < toluene.qed < 1 <= toluene.sa_score < 2
    assert broken == Molecule(valid=False)


def run(*arguments):
    main(["fill", *map(str, arguments)])


@pytest.mark.parametrize("passes", ["1", "2"])
def test_samples_for_sites_depend_on_no_other_text(model, tmp_path, passes):
    def sampled(first):
        (tmp_path / "a.smi").write_text(f"{first}\nc1ccccc1[*:1]\n")
        options = ["--site", "2-3", "--samples", "4", "--passes", passes]
        run(model, "--file", tmp_path / "a.smi", "--output", tmp_path / "a.jsonl", *options)
        filled_texts = list(map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines()))
        return [filling["text"] for filling in filled_texts[1]["fillings"]]

    assert sampled("C[*:1]") == sampled("CC")


def test_a_linker_in_every_kind_of_file(tmp_path, capsys):
    command = (SHIPPED, LINKER, "--site", "5", "--n_best", "20")
    run(*command, "--valid_only", "true", "--output", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 2 and {row["valid"] for row in rows} == {"True"}
    assert rows[0]["text"] == LINKER and rows[0]["filling"] == "C(=O)"
    assert rows[0]["filled"] == "CC1CCN(C(=O)c2ccccc2)CC1"
    assert rows[0]["smiles"] == "CC1CCN(C(=O)c2ccccc2)CC1"
    assert float(rows[0]["probability"]) == pytest.approx(
        math.exp(float(rows[0]["log_probability"]))
    )
    assert rows[0]["new"] == rows[0]["similarity"] == "" and float(rows[0]["qed"]) > 0.5

    (tmp_path / "known.smi").write_text("CC1CCN(CC1)C(=O)c1ccccc1\n")
    known = ("--known", tmp_path / "known.smi", "--top", "3")
    run(*command, *known, "--output", tmp_path / "a.jsonl")
    filled = json.loads((tmp_path / "a.jsonl").read_text())
    assert len(filled["fillings"]) == 3
    assert [entry["new"] for entry in filled["fillings"] if entry["valid"]][0] is False

    run(*command, "--output", tmp_path / "a.sdf")
    molecules = list(Chem.SDMolSupplier(str(tmp_path / "a.sdf")))
    assert [Chem.MolToSmiles(m) for m in molecules] == [row["smiles"] for row in rows]
    assert molecules[0].GetProp("filling") == "C(=O)"

    run(*command, "--output", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    unique = {row["smiles"] for row in rows}
    assert page.count("<svg") == len(unique) and "<b>C(=O)</b>" in page
    run(*command, "--output", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "1 lines filled, 0 with a problem, 0 with a warning" in capsys.readouterr().out
    run(*command, "--output", tmp_path / "a.csv")
    frame = pd.read_csv(tmp_path / "a.csv")
    assert set(frame["token_count"]) == {5} and frame["filled"][0] == molecules[0].GetProp("filled")
    run(*command, "--valid_only", "false", "--output", tmp_path / "a.csv")
    frame = pd.read_csv(tmp_path / "a.csv")
    counts = f"{len(frame)} fillings, {frame['valid'].sum()} of them valid"
    assert counts in capsys.readouterr().out
    run(*command, "--valid_only", "false", "--output", tmp_path / "a.sdf")
    smiles = frame["smiles"][frame["valid"]]
    assert len(Chem.SDMolSupplier(str(tmp_path / "a.sdf"))) == smiles.nunique()


def test_an_sdf_says_that_its_stereo_centres_are_absolute(tmp_path):
    texts = ("N[C@@H](C)C(=O)*", "C[C@H]1CC[C@@H](*)CC1", "NCC(=O)*")
    run(SHIPPED, *texts, "--site", "1", "--n_best", "5", "--output", tmp_path / "a.sdf")
    flags = []
    for molecule in Chem.SDMolSupplier(str(tmp_path / "a.sdf")):
        flags.append(molecule.GetIntProp("_MolFileChiralFlag"))
        Chem.TranslateChiralFlagToStereoGroups(molecule)
        groups = [group.GetGroupType() for group in molecule.GetStereoGroups()]
        is_chiral = "@" in molecule.GetProp("smiles")
        assert groups == [Chem.StereoGroupType.STEREO_ABSOLUTE] * is_chiral
    assert set(flags) == {0, 1}


def test_the_commands_read_the_sdf_that_fill_writes(tmp_path):
    command = (SHIPPED, "CCC*", "--site", "1", "--n_best", "5", "--output")
    run(*command, tmp_path / "a.sdf")
    run(*command, tmp_path / "a.csv", "--known", tmp_path / "a.sdf")
    frame = pd.read_csv(tmp_path / "a.csv")
    assert not frame["new"][frame["valid"]].any()
    main(["embed", SHIPPED, str(tmp_path / "a.sdf"), "--output", str(tmp_path / "a.npy")])
    assert len(np.load(tmp_path / "a.npy")) == frame["smiles"].nunique()


def test_known_molecules_may_lie_in_any_sheet_of_a_workbook(tmp_path):
    with pd.ExcelWriter(tmp_path / "known.xlsx") as book:
        pd.DataFrame({"made by": ["Ada"]}).to_excel(book, sheet_name="Notes", index=False)
        pd.DataFrame({"smiles": ["CCCC"]}).to_excel(book, sheet_name="Old", index=False)
    known = ("--known", tmp_path / "known.xlsx", "--known_sheet", "Old")
    run(SHIPPED, "CCC*", "--site", "1", *known, "--output", tmp_path / "a.csv")
    frame = pd.read_csv(tmp_path / "a.csv")
    assert not frame["new"][frame["smiles"] == "CCCC"].any()
    assert frame["new"][frame["valid"] & (frame["smiles"] != "CCCC")].all()


def test_known_salts_are_known_without_their_counterions(tmp_path, capsys):
    (tmp_path / "known.csv").write_text("smiles\nCCCN.Cl\nCCO\nCCC\nCC(C)O\nC1CC\n")
    options = ["--site", "1", "--known", tmp_path / "known.csv", "--allow", "N"]
    run(SHIPPED, "CCC*", *options, "--output", tmp_path / "a.csv")
    filled = pd.read_csv(tmp_path / "a.csv")
    assert filled["smiles"][0] == "CCCN" and not filled["new"][0]
    assert "1 of 5 rows of" in capsys.readouterr().err


def test_pieces_are_listed_by_the_numbers_of_their_sites(tmp_path):
    sites = ["--site", "1=1", "2=2", "--allow", "N,O", "--n_best", "3"]
    run(SHIPPED, "c1cc([*:2])ncc1[*:1]", *sites, "--output", tmp_path / "a.jsonl")
    [line] = (tmp_path / "a.jsonl").read_text().splitlines()
    for filling in json.loads(line)["fillings"]:
        pieces = filling["filling"].split()
        assert list(map(len, pieces)) == [1, 2]
        assert filling["text"] == f"c1cc({pieces[1]})ncc1{pieces[0]}"


def test_known_molecules_are_known_whatever_their_charges(tmp_path):
    for known in ("CC(=O)[O-].[Na+]", "CC(=O)O", "CC(=O)[O-]"):
        (tmp_path / "known.smi").write_text(f"{known}\nCCO\n")
        for allowed in ("[O-]", "O"):
            options = ["--site", "1", "--allow", allowed, "--known", tmp_path / "known.smi"]
            run(SHIPPED, "CC(=O)[*:1]", *options, "--n_best", "1", "--output", tmp_path / "a.csv")
            assert not pd.read_csv(tmp_path / "a.csv")["new"].any()


def test_a_table_of_known_molecules_may_have_no_header_line(tmp_path):
    (tmp_path / "known.csv").write_text("CCCC\nCCCO\n")
    options = ["--site", "1", "--known", tmp_path / "known.csv", "--header", "false"]
    run(SHIPPED, "CCC*", *options, "--output", tmp_path / "a.csv")
    frame = pd.read_csv(tmp_path / "a.csv")
    is_new = frame["new"][frame["smiles"] == "CCCC"]
    assert len(is_new) and not is_new.any()
    (tmp_path / "known.csv").write_text("a,CCCC\nb,CCCO\n")
    run(SHIPPED, "CCC*", *options, "--text_column", "column 2", "--output", tmp_path / "b.csv")
    assert pd.read_csv(tmp_path / "b.csv").equals(frame)


def test_the_top_are_different_molecules(tmp_path):
    output = tmp_path / "a.jsonl"
    sampling = ("--samples", "30", "--valid_only", "true")
    run(SHIPPED, "N[C@@H](C)C(=O)*", "--site", "3", *sampling, "--output", output)
    every = json.loads(output.read_text())["fillings"]
    run(SHIPPED, "N[C@@H](C)C(=O)*", "--site", "3", *sampling, "--top", "2", "--output", output)
    first = json.loads(output.read_text())["fillings"]
    assert [entry["smiles"] for entry in first] == [e["smiles"] for e in every if e["unique"]][:2]
    assert len({entry["smiles"] for entry in every}) < len(every)


def test_a_file_of_molecules_with_problems(tmp_path, model):
    (tmp_path / "in.smi").write_text("CCN one\nCCC two\nNCN\nN1CCC1C four\nOC[NH3+] five\n")
    options = ["--replace", "N", "--site", "1-2", "--passes", "2", "--n_best", "2"]
    run(model, "--file", tmp_path / "in.smi", *options, "--output", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["line"] for row in rows] == [*"1111", "2", "3", *"44445555"]
    assert {row["line"]: row["name"] for row in rows} == {
        "1": "one",
        "2": "two",
        "3": "",
        "4": "four",
        "5": "five",
    }
    problems = {row["line"]: row["problem"] for row in rows}
    assert not (problems["1"] or problems["4"] or problems["5"])
    assert "does not match" in problems["2"] and "matches 2 times" in problems["3"]


def test_residues_of_a_protein(tmp_path, protein_model):
    (tmp_path / "in.fasta").write_text(">a\nMKVLATGG\n>b\nMKV\n")
    options = ["--site", "3-4", "8", "--allow", "A,V,G", "--n_best", "30"]
    output = tmp_path / "out.csv"
    run(protein_model, "--file", tmp_path / "in.fasta", *options, "--output", output)
    with output.open() as stream:
        *rows, short = list(csv.DictReader(stream))
    assert len(rows) == 27 and "valid" not in rows[0]
    for row in rows:
        assert row["filled"][:2] == "MK" and row["filled"][4:7] == "ATG"
        assert set(row["filled"][2:4] + row["filled"][7]) <= set("AVG")
        assert row["filling"] == f"{row['filled'][2:4]} {row['filled'][7]}"
    assert sum(float(row["probability"]) for row in rows) == pytest.approx(1.0)
    assert {row["name"] for row in rows} == {"a"} and short["name"] == "b"
    assert short["problem"] == "site 3-4 is not in the sequence, which has 3 residues"


def test_sites_that_touch_are_filled_each_for_itself(tmp_path, protein_model):
    output = tmp_path / "out.csv"
    sites = ["--site", "3-4", "5", "7"]
    run(protein_model, "MKVLATGG", *sites, "--n_best", "3", "--output", output)
    for row in csv.DictReader(output.read_text().splitlines()):
        filled = row["filled"]
        assert row["filling"] == f"{filled[2:4]} {filled[4]} {filled[6]}"


NO_MOLECULES = str(Path(__file__).parents[2] / "requirements.txt")
PHENYL = "c1ccccc1*"


@pytest.mark.parametrize(
    "arguments,message",
    [
        # --site
        (("CCO", "--site", "3"), "no attachment point: write [*:1]"),
        ((PHENYL, "--site", "8-3"), "site is 8-3; give a number from 1, or a range"),
        ((PHENYL, "--site", "0"), "site is 0; give a number from 1"),
        ((PHENYL, "--site", "2=3"), "there is no site 2, only 1"),
        (("*CC*", "--site", "1=3"), "how many tokens site 2 may have is not said"),
        ((PHENYL, "--site", "3-8", "4"), "site has 4 for what it has before"),
        ((PHENYL, "--site", "R=3"), "site is R=3, but there is no site R, only 1"),
        (("C*.C*.C*", "--site", "3"), "the fragments are not joined"),
        (("C[*:1].C[*:1].C[*:1]", "--site", "3"), "3 attachment points have the number 1"),
        (("C*(C)C", "--site", "3"), "an attachment point must have one or two bonds"),
        (("C**", "--site", "3"), "and none to another point"),
        (("*", "--site", "3"), "an attachment point must have one or two bonds"),
        (("C1C*", "--site", "3"), "not a SMILES string: unclosed ring"),
        (("C[MASK]", "--site", "3"), "it has masks, but site, keep or replace say what is free"),
        (("*CC*", "--site", "1-999"), "998,001 choices of lengths together"),
        ((PHENYL, "--site", "400"), "too long: it expands to"),
        ((PHENYL, "--site", "3", "--tokens", "2"), "states, tokens and free are for texts"),
        ((PHENYL, "--site", "3", "--free", "true"), "states, tokens and free are for texts"),
        # --keep
        (("CCO", "--keep", "N"), "keep is N, which does not match"),
        (("CCO", "--keep", "C"), "keep is C, which matches 2 times"),
        (("CCO", "--keep", "C(("), "keep is C((, which is no SMARTS"),
        (("CCO", "--keep", "CCO"), "the whole molecule, so nothing is free"),
        (("CCO", "--keep", "CC", "--replace", "O"), "give keep or replace, not both"),
        (("CC(N)(O)F", "--keep", "F", "--site", "2=3"), "there is no site 2, only 1"),
        # --replace
        (("CCO", "--replace", "N"), "replace is N, which does not match"),
        (("CCO", "--replace", "C"), "replace is C, which matches 2 times"),
        (("CCO", "--replace", ")"), "replace is ), which is no SMARTS"),
        (("CCO", "--replace", "CCO"), "bonded to what stays at 0 places"),
        (("CC(N)O", "--replace", "[CH]"), "bonded to what stays at 3 places"),
        (("C?", "--replace", "C"), "not a SMILES string"),
        # --allow and --forbid
        ((PHENYL, "--site", "1", "--allow", "Xe"), "allow names 'Xe', which is neither a token"),
        ((PHENYL, "--site", "1", "--allow", "N,"), "allow names '', which is neither a token"),
        ((PHENYL, "--site", "1", "--allow", "<mask>"), "allow names '<mask>'"),
        ((PHENYL, "--site", "1", "--allow", "N", "--forbid", "N"), "leave no token"),
        ((PHENYL, "--site", "1", "--allow", "O", "--forbid", "O"), "leave no token"),
        ((PHENYL, "--site", "1", "--forbid", "Zz"), "forbid names 'Zz'"),
        ((PHENYL, "--site", "1", "--forbid", "[Xx]"), "forbid names '[Xx]'"),
        ((PHENYL, "--site", "1", "--forbid", "[, O"), "forbid names '['"),
        ((PHENYL, "--site", "1", "--forbid", "<s>"), "forbid names '<s>'"),
        ((PHENYL, "--site", "1", "--forbid", "B,Br,C,Cl,F,I,N,O,P,S,*"), "leave no token"),
        # others
        ((PHENYL, "--site", "1", "--temperature", "0"), "temperature is 0"),
        ((PHENYL, "--site", "1", "--temperature", "nan"), "temperature is nan; give a number"),
        ((PHENYL, "--site", "1", "--temperature", "-Inf"), "temperature is -inf; give a number"),
        ((PHENYL, "--site", "1", "--temperature", "1e9"), "temperature is 1"),
        ((PHENYL, "--site", "1", "--top", "0"), "top is 0; it must be at least 1"),
        ((PHENYL, "--site", "1", "--known", "/nowhere.smi"), "/nowhere.smi"),
        ((PHENYL, "--site", "1", "--known", NO_MOLECULES), "which holds no molecules"),
        ((PHENYL, "--site", "1", "--known_sheet", "Old"), "known_sheet is for a workbook; give"),
        ((PHENYL, "--site", "1", "--known", __file__), "unknown file type; use a"),
        (
            (PHENYL, "--site", "1", "--output", "a.doc"),
            "must end in .jsonl or .csv or .parquet or .xlsx",
        ),
        (("F*F", "--site", "1", "--allow", "F,(", "--output", "a.png"), "nothing to draw"),
    ],
)
def test_what_is_wrong_with_a_site_is_said_in_one_sentence(
    capsys, monkeypatch, tmp_path, model, arguments, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run(model, *arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2 and message in error and "Traceback" not in error
    assert error.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("MKV", "--site", "3-4"), "site 3-4 is not in the sequence, which has 3 residues"),
        (("MKV", "--site", "0-1"), "site is 0-1; give a number from 1"),
        (("MKV", "--site", "1=2-3"), "site is 1=2-3; give a number from 1, or a range"),
        (("MKV", "--site", "1-2", "2-3"), "two sites have residue 2"),
        (("MKV", "--site", "1", "--allow", "Cl"), "allow names 'Cl'"),
        (("MKV", "--keep", "CC"), "keep and replace are SMARTS, for models of molecules"),
        (("MKV", "--site", "1", "--output", "a.sdf"), "output a.sdf is for molecules"),
        (("MKV", "--site", "1", "--known", __file__), "known is for molecules; leave it out"),
    ],
)
def test_what_is_wrong_with_residues_is_said_in_one_sentence(
    capsys, protein_model, arguments, message
):
    with pytest.raises(SystemExit) as caught:
        run(protein_model, *arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2 and message in error and error.count("\n") == 1


def test_a_radical_is_no_valid_filling():
    molecules = molecules_of(["C[CH]C", "CCC", "C[C]C", "C[N+](=O)[O-]"])
    assert [molecule.valid for molecule in molecules] == [False, True, False, True]
