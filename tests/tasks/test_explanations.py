"""What a prediction rests on: tokens and words are masked, and pages show what changes."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from exlm import InputError
from exlm.data.frames import FileRows
from exlm.data.tokenization import letter_tokenizer
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.predict import predict
from exlm.tasks.rows.reading import TextReader
from exlm.tasks.tables.explain import explain, write_page
from exlm_command import main
from tests.tables import make_table
from tests.tasks.tiny_models import predicted


def read_explanations(path):
    return [text and json.loads(text) for text in pd.read_csv(path)["explanation"].fillna("")]


def test_both_molecules_of_a_pair_must_be_molecules(molecules):
    reader = TextReader(load_tokenizer(molecules / "model"), 64, molecules=True)
    frame = pd.DataFrame({"a": ["CCC", "C1CC", "CCC"], "b": ["CCO", "CCO", "C1CC"], "y": [0, 1, 0]})
    table, _ = reader.read(make_table(FileRows(frame), "rows", "a", ["y"], pair_column="b"))
    assert table.usable.tolist() == [True, False, False]


def test_masking_what_matters_matters(molecules):
    """A stand-in for a model predicts the number of bromine atoms."""
    tokenizer = load_tokenizer(molecules / "model")
    bromine = tokenizer.convert_tokens_to_ids("Br")
    frame = pd.DataFrame({"smiles": ["CCC(Br)CBr", "CCO"]})
    reader = TextReader(tokenizer, 64, molecules=True)
    table, tokens = reader.read(make_table(FileRows(frame), "rows", "smiles", []))

    def count_bromine(examples):
        return np.array([[float((example["input_ids"] == bromine).sum())] for example in examples])

    explained = explain(
        table, tokens.examples, count_bromine, tokenizer, SavedTask(max_length=64), molecules=True
    )
    assert [span.text for span in explained[0].spans] == ["C", "C", "C", "(", "Br", ")", "C", "Br"]
    assert explained[0].changes[:, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 1]
    assert explained[0].predictions == [2] and not explained[1].changes.any()
    write_page(molecules / "page.html", explained, ["bromine"], draws_best_only=False)
    page = (molecules / "page.html").read_text()
    coloured = re.findall(r'title="(\S+)" style="background: #c55a11bf">(\w+)<', page)
    assert coloured == [("+1", "Br"), ("+1", "Br")]
    drawn = page[page.index("<svg") : page.index("</svg>")]
    assert len(re.findall("<ellipse.*fill:#C55A11BF", drawn)) == 2


def test_an_explanation_compares_with_the_prediction_for_the_masked_molecule(tuned, molecules):
    output, page = str(tuned("multiclass")), molecules / "page.html"
    table = molecules / "two.csv"
    table.write_text("smiles,Sample ID\nCCNC,<A>\nno molecule,B\nCCC(=O)O,\n")
    frame = predicted(output, str(table), str(molecules / "p.csv"), explain=str(page))
    explanations = read_explanations(molecules / "p.csv")
    assert explanations[1] == "" and frame["problem"][1]
    assert explanations[0]["tokens"] == ["C", "C", "N", "C"]
    masked_text = f"CC{load_tokenizer(output).mask_token}C"
    titles = re.findall("<small>(row .*)</small>", page.read_text())
    assert titles == ["row 1, Sample ID &lt;A&gt;", "row 3, Sample ID "]
    pd.DataFrame({"smiles": [masked_text]}).to_csv(table, index=False)
    masked = predicted(
        output, str(table), str(molecules / "p.csv"), on_invalid="keep", molecules=True
    )
    for name in ("predicted neither", "predicted nitrogen", "predicted oxygen"):
        change = explanations[0][name][2]
        assert change == pytest.approx(frame[name][0] - masked[name][0], abs=1e-6)
        assert abs(change) > 1e-5
    best = frame["predicted class"][0]
    assert re.findall(r"predicted \w+", page.read_text())[0] == f"predicted {best}"
    assert page.read_text().count("<svg") == 2  # the most probable class of each molecule


def test_explore_shows_what_one_prediction_rests_on(tuned, molecules, capsys, monkeypatch):
    model, page = str(tuned("multiclass")), molecules / "explored.html"
    capsys.readouterr()  # what the training printed
    main(["explore", model, "CCNC", "--output", str(page)])
    assert capsys.readouterr().out == f"1 prediction: {page}\n"
    of_table = molecules / "of_table.html"
    (molecules / "one.csv").write_text("smiles\nCCNC\n")
    predict(model, str(molecules / "one.csv"), str(molecules / "p.csv"), explain=str(of_table))
    assert page.read_text() == of_table.read_text()
    for arguments, message in (
        (("C(C", "--output", str(page)), "the text: no row can be used, the first: row 1"),
        (("CCO", "--output", "page.png"), "page.png; the name must end in .html"),
        (("CCO", "--words", "9"), "a fine-tuned model fills no masks; leave out words, or"),
        (("CCO", "--threshold", "0.1", "--free", "true"), "leave out free and threshold, or"),
        (("CCO", "--n_best", "3", "--allow", "C"), "leave out n_best and allow, or"),
    ):
        with pytest.raises(SystemExit):
            main(["explore", model, *arguments])
        assert message in capsys.readouterr().err
    monkeypatch.delitem(LABEL_TYPES, "multiclass")  # as if another version had made the model
    with pytest.raises(SystemExit):
        main(["explore", model, "CCNC", "--output", str(page)])
    assert "there is no task_type 'multiclass'; use one of binary," in capsys.readouterr().err


def test_words_of_pairs_are_masked_as_a_whole(texts):
    tokenizer = load_tokenizer(texts / "model")
    frame = pd.DataFrame({"text": ["Ada <b> Rome"], "second": ["Not Lima!"]})
    table, tokens = TextReader(tokenizer, 64, molecules=False).read(
        make_table(FileRows(frame), "rows", "text", [], pair_column="second")
    )
    masks = []

    def count_masks(examples):
        for example in examples:
            masks.append(int((example["input_ids"] == tokenizer.mask_token_id).sum()))
        return np.zeros((len(examples), 1))

    [explained] = explain(
        table, tokens.examples, count_masks, tokenizer, SavedTask(max_length=64), molecules=False
    )
    words = [span.text for span in explained.spans]
    assert words[0] == "Ada" and "Rome" in words and words[-3:] == ["Not", "Lima", "!"]
    special = tokenizer.num_special_tokens_to_add(pair=True)
    assert sum(masks) == len(tokens.examples[0]["input_ids"]) - special and masks[0] == 0
    write_page(texts / "page.html", [explained], ["label"], draws_best_only=False)
    page = (texts / "page.html").read_text()
    assert "<b>" not in page and "<svg" not in page


def test_words_keep_the_accents_at_their_ends(texts):
    tokenizer = load_tokenizer(texts / "model")
    frame = pd.DataFrame({"text": ["A cafe\u0301"]})
    table, tokens = TextReader(tokenizer, 64, molecules=False).read(
        make_table(FileRows(frame), "rows", "text", [])
    )
    zeros = np.zeros((9, 1))
    [explained] = explain(
        table=table,
        examples=tokens.examples,
        predict=lambda examples: zeros[: len(examples)],
        tokenizer=tokenizer,
        saved_task=SavedTask(max_length=64),
        molecules=False,
    )
    assert [span.text for span in explained.spans][-1] == "cafe\u0301"


def test_residues_of_proteins_are_masked_one_by_one():
    tokenizer = letter_tokenizer("protein")
    frame = pd.DataFrame({"sequence": ["MKVA"]})
    table, tokens = TextReader(tokenizer, 64, molecules=False).read(
        make_table(FileRows(frame), "rows", "sequence", [])
    )
    saved_task = SavedTask(max_length=64)
    (explanation,) = explain(
        table,
        tokens.examples,
        lambda examples: np.zeros((len(examples), 1)),
        tokenizer,
        saved_task,
        False,
    )
    assert [span.text for span in explanation.spans] == ["M", "K", "V", "A"]


def test_explanations_that_cannot_be_given_are_refused(tuned, molecules):
    table = str(molecules / "table.csv")
    for path in ("page.pdf", table):
        with pytest.raises(InputError, match="must end in .html|is the input itself"):
            predict(str(tuned("binary")), table, str(molecules / "p.csv"), explain=path)
