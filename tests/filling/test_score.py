"""Scores of mutations against the enumeration of all paths, on tiny models."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
import torch

from exlm import ExLMForMaskedLM, InputError
from exlm.data.tokenization import letter_tokenizer
from exlm.filling.graphs import load_for_filling, tokenize
from exlm.filling.mutations import clean_sequence, new_residues
from exlm.filling.score import score
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model
from tests.conftest import train_smiles_tokenizer

WILD = "MKVLAAGWRT"


def save(path, objective, tokenizer=None, **switches):
    tokenizer = tokenizer or letter_tokenizer("protein")
    architecture = ArchitectureConfig(
        objective=objective,
        initializer_range=0.3,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_states=3,
        **switches,
    )
    save_model(path, ExLMForMaskedLM(architecture.build(tokenizer)), tokenizer)
    return str(path)


def table(path, **columns):
    pd.DataFrame(columns).to_csv(path, index=False)
    return str(path)


@torch.no_grad()
def by_hand(path, changes):
    """(score, joint_score) from the model's own logits at the masks, and from all paths with one
    state in each mask."""
    network = ExLMForMaskedLM.from_pretrained(path).eval()
    tokenizer = letter_tokenizer("protein")
    ids = tokenizer(WILD, return_tensors="pt")["input_ids"]
    places = sorted(changes)
    old = tokenizer.convert_tokens_to_ids([WILD[place] for place in places])
    new = tokenizer.convert_tokens_to_ids([changes[place] for place in places])
    ids[0, [place + 1 for place in places]] = tokenizer.mask_token_id
    logits = network(ids).logits[0, [place + 1 for place in places]].log_softmax(-1)
    single = sum(
        float(logits[i, b] - logits[i, a]) for i, (a, b) in enumerate(zip(old, new, strict=True))
    )
    if not network.config.has_links:
        return single, single
    output = network.lattice_output(network.exlm.expand(ids))
    links, emission = output.links[0].exp(), network.head(output.states)[0].softmax(-1)
    k, total = network.config.num_states, {}
    for name, tokens in (("old", old), ("new", new)):
        total[name] = 0.0
        for copies in itertools.product(range(k), repeat=len(places)):
            path = [1 + mask * k + copy for mask, copy in enumerate(copies)]
            steps = itertools.pairwise([0, *path, len(links) - 1])
            chance = np.prod([float(links[u, v]) for u, v in steps])
            emitted = [float(emission[u, y]) for u, y in zip(path, tokens, strict=True)]
            total[name] += chance * np.prod(emitted)
    return single, float(np.log(total["new"] / total["old"]))


@pytest.mark.parametrize(("objective", "expanded"), [("exlm", "all"), ("exlm", 1), ("mlm", "all")])
def test_scores_are_those_of_all_paths(tmp_path, objective, expanded):
    model = save(tmp_path / "model", objective, expanded_layers=expanded)
    changes = ["V3A", "V3A:R9K", "R9W,V3A", "M1K:G7P:T10A"]
    path = table(tmp_path / "variants.csv", sequence=[WILD] * 4, mutations=changes)
    scored = score(model, path, str(tmp_path / "scores.csv"))
    for row, change in enumerate(changes):
        expected = by_hand(model, new_residues(WILD, change))
        scores = scored.loc[row, ["score", "joint_score"]].astype(float)
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
    several = (scored["score"] - scored["joint_score"]).abs()[1:]
    assert several.max() < 1e-6 if objective == "mlm" else several.min() > 1e-4
    assert abs(scored.loc[0, "score"] - scored.loc[0, "joint_score"]) < 1e-5  # a single position


def test_columns_that_were_there_stay_and_the_true_names_are_told(tmp_path, capsys):
    model = save(tmp_path / "model", "mlm")
    path = table(
        tmp_path / "a.csv",
        sequence=[WILD] * 4,
        mutant=["V3A", "R9K", "K3A", "T10A"],
        score=[0.5, 0.2, 0.1, 0.3],
        problem="ok",
    )
    scored = score(model, path, str(tmp_path / "b.csv"), label_column="score")
    assert list(scored.columns[4:]) == ["exlm score", "joint_score", "exlm problem"]
    assert list(scored["score"]) == ["0.5", "0.2", "0.1", "0.3"]
    out, err = capsys.readouterr()
    assert "3 rows scored, 1 marked in the column exlm problem: " in out
    assert "Spearman correlation with score (3 of 4 rows): exlm score " in out
    assert (
        f"{path} already has columns called score, problem, which stay as they are; what "
        "exlm score adds is called exlm score, exlm problem"
    ) in err


@pytest.mark.parametrize(
    "labels, reason",
    [
        (["dead", "alive", "dead", "dead"], "the column effect has no numbers"),
        ([1.5, 1.5, 1.5, 2], "with effect (3 of 4 rows): it needs rows that differ"),
        (["", "dead", "", 2], "with effect (0 of 4 rows): it needs rows that differ"),
    ],
)
def test_why_there_is_no_correlation_is_told(tmp_path, capsys, labels, reason):
    model = save(tmp_path / "model", "mlm")
    columns = {"sequence": [WILD] * 4, "mutations": ["V3A", "R9K", "T10A", "K3A"]}
    path = table(tmp_path / "a.csv", effect=labels, **columns)
    score(model, path, str(tmp_path / "b.csv"), label_column="effect")
    out = capsys.readouterr().out
    assert reason in out and "no correlation" in out and "nan" not in out


def test_a_stop_inside_a_protein_is_never_cut_off(tmp_path):
    model = save(tmp_path / "model", "exlm")
    cells = {"sequence": ["MQY*KLI", "MQY*KLI", "MQYKLI*"], "mutations": ["K5A", "L6A", "K4A"]}
    scored = score(model, table(tmp_path / "a.csv", **cells), str(tmp_path / "scores.csv"))
    assert list(scored["problem"]) == ["not in the vocabulary: *"] * 2 + [""]
    assert scored["score"].isna().tolist() == [True, True, False]
    network, tokenizer = load_for_filling(model)
    texts = ["MQY*[MASK]LI", "MQ[MASK]Y*[MASK]I", "MQY*", "[MASK]Q*Y", "MQ[MASK]Y*"]
    problems = [text.problem for text in tokenize(network, tokenizer, texts)]
    lost, no_mask = "not in the vocabulary: *", problems[2]
    assert problems == [lost, lost, no_mask, lost, None] and "no mask" in no_mask


def test_mutants_and_mutations_agree_and_every_row_stays(tmp_path, capsys):
    model = save(tmp_path / "model", "exlm")
    mutants = ["MKALAAGWRT", "MKALAAGWKT", WILD, "MKALAAGWR", "MKV-AAGWRT"]
    whole = table(tmp_path / "a.csv", sequence=[WILD] * 5, mutant=mutants, effect=[1, 2, 0, 5, ""])
    named = table(
        tmp_path / "b.csv",
        sequence=[WILD.lower()] * 6,
        mutations=["V3A", "V3A;R9K", "K3A", "V33A", "V3A:V3L", "R9W"],
    )
    a = score(model, whole, str(tmp_path / "a.tsv"), label_column="effect")
    text = capsys.readouterr().out
    assert "3 rows scored, 2 marked" in text and "with effect (3 of 5 rows)" in text
    commas = table(
        tmp_path / "c.csv", sequence=[WILD] * 4, mutant=mutants[:4], effect=["1,5", "2", "<0", ""]
    )
    score(model, commas, str(tmp_path / "c.tsv"), label_column="effect")
    assert "with effect (2 of 4 rows)" in capsys.readouterr().out
    b = score(model, named, str(tmp_path / "b.tsv"))
    np.testing.assert_allclose(a["score"][:2], b["score"][:2], rtol=1e-6)
    assert (a.loc[2, ["score", "joint_score"]] == 0).all()
    assert list(a["effect"]) == ["1", "2", "0", "5", ""]
    assert a["score"][3:].isna().all()
    assert a["problem"].str.contains("nor a mutant with the 10 residues")[3:].all()
    assert b["problem"].tolist()[2:5] == [
        "K3A: at position 3 there is V, not K",
        "V33A: at position 33 there is no residue, not V",
        "V3L: at position 3 there is another mutation, not V",
    ]


def test_one_wild_type_for_all_rows_whose_numbers_begin_elsewhere(tmp_path, capsys):
    """As in tables of deep mutational scanning, beside which the sequence lies in a file."""
    model = save(tmp_path / "model", "exlm")
    fasta = tmp_path / "wild.fasta"
    fasta.write_text(f">the protein\n{WILD[:4]}\n{WILD[4:]}*\n")
    changes = ["V3A", "V3A:R9K", "WT"]
    whole = table(tmp_path / "a.csv", sequence=[WILD] * 3, mutations=changes)
    expected = score(model, whole, str(tmp_path / "a.tsv"))
    path = table(
        tmp_path / "b.csv", mutant=["V25A", "V25A:R31K", "WT", "V3A"], effect=[1, 2, 3, "inf"]
    )
    for wild_type in (WILD, str(fasta)):
        scored = score(
            model,
            path,
            str(tmp_path / "b.tsv"),
            label_column="effect",
            wild_type=wild_type,
            first_position=23,
        )
        np.testing.assert_array_equal(scored["score"][:3], expected["score"])
        assert scored["problem"][3] == "V3A: at position 3 there is no residue, not V"
    assert "with effect (3 of 4 rows)" in capsys.readouterr().out
    fasta.write_text(">one\nMKV\n>two\nMKV\n")
    for wild_type, reason in ((str(fasta), "has 2 sequences"), ("wild.fa", "neither a file nor")):
        with pytest.raises(InputError, match=reason):
            score(model, path, str(tmp_path / "b.tsv"), wild_type=wild_type)


@pytest.mark.parametrize(
    "sequence, mutations, misfits, first",
    [
        # counted from 0; A5C fits by chance, as there are two A side by side
        ([WILD] * 4, ["V2A", "WT", "R8K", "A5C"], "2 of 3", "row 1: V2A: at position 2 there is K"),
        # the mutants in place of the wild type
        (["MKALAAGWRT", "MKVLCAGWRT"], ["V3A", "A5C"], "2 of 2", "row 1: V3A: at position 3"),
    ],
)
def test_a_table_of_which_most_mutations_do_not_fit_is_refused(
    tmp_path, sequence, mutations, misfits, first
):
    model = save(tmp_path / "model", "mlm")
    path = table(tmp_path / "a.csv", sequence=sequence, mutations=mutations)
    with pytest.raises(InputError) as caught:
        score(model, path, str(tmp_path / "b.csv"))
    error = str(caught.value)
    assert f"column sequence: {misfits} rows with mutations do not fit their wild type" in error
    assert f"as {first}" in error and "the numbering may be shifted (set first_position)" in error
    assert not (tmp_path / "b.csv").exists()


def test_an_empty_cell_is_called_empty(tmp_path):
    model = save(tmp_path / "model", "mlm")
    path = table(tmp_path / "a.csv", sequence=[WILD] * 3, mutations=["V3A", "", "NA"])
    problems = score(model, path, str(tmp_path / "b.csv"))["problem"]
    assert [*problems] == ["", *["no mutations: the cell is empty"] * 2]


def test_alleles_are_no_double_mutant():
    for name in ("p.[Val3Ala];[Leu4Cys]", "p.Val3Ala(;)Leu4Cys"):
        with pytest.raises(InputError, match="is neither mutations of one allele"):
            new_residues("MKVLD", name)
    assert new_residues("MKVLD", "p.[Val3Ala;Leu4Cys]") == {2: "A", 3: "C"}


def test_other_models_and_tables_are_refused(tmp_path):
    chemist = save(tmp_path / "chemist", "exlm", train_smiles_tokenizer(["CCO"]))
    path = table(tmp_path / "a.csv", sequence=["CCO"], mutations=["C1O"])
    out = str(tmp_path / "b.csv")
    with pytest.raises(InputError, match="no model of proteins"):
        score(chemist, path, out)
    model = save(tmp_path / "model", "mlm")
    with pytest.raises(InputError, match="no column 'absent'"):
        score(model, path, out, mutations_column="absent")
    path = table(tmp_path / "c.csv", sequence=["CCO"], mutations=["K1O"])
    with pytest.raises(InputError, match="1 of 1 rows with mutations do not fit their wild type"):
        score(model, path, out)
    path = table(tmp_path / "d.csv", sequence=["MKV"], mutations=["unknown"])
    with pytest.raises(InputError, match="no row can be scored, the first: 'unknown' is neither"):
        score(model, path, out)


@pytest.mark.parametrize(
    "spelling",
    [
        "V3A:D5C",
        "v3a_D5C",
        "V3A/D5C",
        "p.Val3Ala, p.Asp5Cys",
        "p.[Val3Ala;Asp5Cys]",
        "p.(Val3Ala)|D5C",
    ],
)
def test_mutations_as_other_tables_write_them(spelling):
    assert new_residues("MKVLD", spelling) == {2: "A", 4: "C"}
    assert new_residues("MKVLD", spelling.replace("5Cys", "5Cys;L4=")) == {2: "A", 4: "C"}


@pytest.mark.parametrize("wild", [None, float("nan"), "NA", ""])
def test_without_a_wild_type_there_is_no_score(wild):
    with pytest.raises(InputError, match="no wild type"):
        new_residues(clean_sequence(wild), "N1A")


def test_the_wild_type_has_no_mutation():
    assert all(
        new_residues("MKVLD", name) == {}
        for name in ("WT", "p.Val3=", "p.=", "wild-type", "MKVLD*")
    )


@pytest.mark.parametrize("spelling", ["V3*", "p.Val3Ter", "XYZ3A", "V3_L4insG"])
def test_what_is_no_substitution_is_quoted(spelling):
    with pytest.raises(InputError, match=re.escape(f"{spelling!r} is neither mutations")):
        new_residues("MKVLD", spelling)


@pytest.mark.parametrize("wild, mutations", [("MKV", "K2X"), ("MXV", "X2K"), ("MKV", "MBV")])
def test_letters_for_several_residues_have_no_score(wild, mutations):
    with pytest.raises(InputError, match="-3V: a gap has no score"):
        new_residues("MK-A", "MKVA")
    with pytest.raises(InputError, match="which stand for several residues"):
        new_residues(wild, mutations)


def test_a_residue_that_stays_is_no_mutation():
    assert new_residues("MKV", "K2R:V3V") == new_residues("MKV", "K2R") == {1: "R"}


def test_positions_may_lie_before_the_first():
    assert new_residues("MVKL", "V-2A", first_position=-3) == {1: "A"}
    with pytest.raises(InputError, match="at position -9 there is no residue"):
        new_residues("MVKL", "V-9A", first_position=-3)


def test_a_word_for_the_wild_type_is_no_mutant_of_as_many_residues():
    assert new_residues("ACDEFGHI", "wildtype") == {}
