"""Questions, windows, scores and answers, as somebody with questions of their own meets them."""

import json
import lzma
from itertools import product
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import processors
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    XLNetConfig,
    XLNetForQuestionAnsweringSimple,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from exlm import ExLMForMaskedLM, ExLMForQuestionAnswering, InputError
from exlm.data.tokenization import train_text_tokenizer
from exlm.errors import Diverged
from exlm.storage.models import save_model
from exlm.storage.tokenizers import save_tokenizer
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import inference
from exlm.tasks.encoders.inference import pad
from exlm.tasks.encoders.loading import EncoderSource
from exlm.tasks.finetune import finetune_seed
from exlm.tasks.questions.answers import (
    N_BEST,
    answer,
    best_spans,
    em_and_f1,
    normalize_answer,
    score_answers,
    span_training_loss,
    summarise_answers,
    vote,
)
from exlm.tasks.questions.question_task import read_question_task
from exlm.tasks.questions.questions import (
    make_windows,
    read_questions,
    window_batches,
)
from exlm.tasks.questions.settings import check_task, choose_stride
from exlm.train.checkpoint import Checkpoints
from exlm.train.loop import LoopConfig, fit
from exlm.train.optim import OptimizerConfig
from exlm.train.tracking import RunLog

NAMES = ["Ada", "Bela", "Cleo", "Dora", "Emil", "Finn", "Gita", "Hugo", "Iris", "Jane"]
TOWNS = ["Rome", "Oslo", "Lima", "Bonn", "Cairo", "Delhi", "Quito", "Paris", "Turin", "Basel"]
SMALL = (48, 8)  # tokens of a window, and of its overlap
LONGEST = 6  # tokens of an answer


def evaluate_answers(questions, answers):
    return summarise_answers(score_answers(questions, answers))


def sentences(names, shift):
    """Who lives where, and where in the text each town stands."""
    text, places = "", {}
    for name in names:
        town = TOWNS[(NAMES.index(name) + shift) % len(TOWNS)]
        text += f"{name} lives in the old town of {town}. "
        places[name] = (town, text.rindex(town))
    return text.strip(), places


def squad(paragraphs):
    """SQuAD 2.0 JSON of (context, [(question, [(answer, start)])])."""
    counter = iter(range(10**6))

    def item(question, answers):
        listed = [{"text": text, "answer_start": start} for text, start in answers]
        return {
            "id": f"q{next(counter)}",
            "question": question,
            "answers": listed,
            "is_impossible": not answers,
        }

    blocks = [
        {"context": context, "qas": [item(*pair) for pair in pairs]}
        for context, pairs in paragraphs
    ]
    return {"version": "v2.0", "data": [{"title": "towns", "paragraphs": blocks}]}


def town_questions(size=10):
    """Twenty questions; half have no answer, because the text does not speak of the person."""
    paragraphs = []
    for shift in range(2):
        text, places = sentences(NAMES[shift * 5 : shift * 5 + size // 2], shift)
        asked = [(f"Where does {n} live?", [places[n]] if n in places else []) for n in NAMES]
        paragraphs.append((text, asked))
    return squad(paragraphs)


@pytest.fixture
def write(tmp_path):
    """A function that reads questions from what it writes as SQuAD JSON, those that can be used
    unless all are wanted."""

    def read(document, all_rows=False):
        (tmp_path / "questions.json").write_text(json.dumps(document))
        questions = read_questions(tmp_path / "questions.json")
        return questions if all_rows else questions[questions["problem"] == ""]

    return read


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "left", "segments"])
def tokenizer(request):
    """Also one that pads on the left and ends with CLS, as XLNet's, and one with token types, as
    BERT's."""
    lines = [sentences(NAMES, shift)[0] for shift in range(10)] + [
        f"Where does {name} live?" for name in NAMES
    ]
    kind = "bpe" if request.param == "bpe" else "wordpiece"
    result = train_text_tokenizer(kind, lines, 400)
    if request.param in ("left", "segments"):
        template = {
            "left": "$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2",
            "segments": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        }
        special = [(token, result.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
        processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=template[request.param], special_tokens=special
        )
        result.backend_tokenizer.post_processor = processor
        result.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        result.padding_side = "left" if request.param == "left" else "right"
    return result


# Reading


def test_every_format_gives_the_same_questions(write, tmp_path):
    text, places = sentences(NAMES[:3], 1)
    asked = [
        ("Where does Bela live?", [places["Bela"]]),
        ('Where is "it",\nthen?', []),
        ("Who?", [("Ada", 0)]),
    ]
    truth = write(squad([(text, asked)]))
    rows = [
        (f"q{i}", "towns", q, text, *(a[0] if a else ("", ""))) for i, (q, a) in enumerate(asked)
    ]
    frame = pd.DataFrame(
        rows, columns=["id", "title", "question", "context", "answer", "answer_start"]
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.drop(columns="answer_start").to_csv(tmp_path / "found.csv", index=False)
    frame["answer_start"] = pd.to_numeric(frame["answer_start"])  # with a gap, and so floats
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    hub = frame[["id", "title", "context", "question"]].copy()
    hub["answers"] = [
        {"text": [t for t, _ in a], "answer_start": [s for _, s in a]} for _, a in asked
    ]
    hub.to_parquet(tmp_path / "hub.parquet")
    (tmp_path / "a.json.xz").write_bytes(lzma.compress((tmp_path / "questions.json").read_bytes()))
    for name in ("a.csv", "found.csv", "a.jsonl", "hub.parquet", "a.json.xz"):
        pd.testing.assert_frame_equal(read_questions(tmp_path / name), truth)
    assert (truth[["remark", "problem"]] == "").all(axis=None)
    assert truth["answers"].tolist() == [[places["Bela"]], [], [("Ada", 0)]]


def test_answers_that_are_not_at_their_place_are_dropped_and_counted(write):
    text, places = sentences(NAMES[:2], 0)
    town, start = places["Ada"]
    asked = [
        ("one of two?", [(town, start + 1), (town, start)]),
        ("none?", [(town, 0)]),
        ("", [(town, start)]),
        ("far?", [(town, 10**6)]),
        ("behind?", [("town.", -5)]),
    ]
    document = squad([(text, asked), ("  ", [("nothing to read?", [])])])
    read = write(document, all_rows=True)
    assert read.loc[0, "answers"] == [(town, start)]
    assert read["remark"][0] == "an answer is not at its place; dropped"
    misplaced = "no answer is at its place in the context"
    assert read["problem"].tolist() == [
        *["", misplaced, "empty question", misplaced, misplaced, "empty context"]
    ]


def test_half_a_character_can_be_reported_and_written(write):
    document = squad(
        [("Ada.", [("Who?", [("Ada", 0)]), ("half \ud800?", []), ("Ada?", [("\ud800", 0)])])]
    )
    read = write(document, all_rows=True)
    assert read["question"].tolist() == ["Who?", "half \\ud800?", "Ada?"]
    assert (read["problem"] != "").tolist() == [False, False, True]
    "".join(read["question"] + read["problem"]).encode()


@pytest.mark.parametrize(
    "start,kept", [("5", True), ("5.0", True), ("", True), ("x", True), ("4", False)]
)
def test_starts_may_be_written_as_any_whole_number(tmp_path, start, kept):
    rows = [{"question": "Who?", "context": "Not, Ada.", "answer": "Ada", "answer_start": start}]
    rows.append({"question": "What?", "context": "Nothing.", "answer": " ", "answer_start": ""})
    pd.DataFrame(rows).to_csv(tmp_path / "q.csv", index=False)
    read = read_questions(tmp_path / "q.csv")
    assert read["answers"].tolist() == [[("Ada", 5)] if kept else None, []]
    assert (read["problem"] != "").sum() == (0 if kept else 1)


def test_a_contradiction_is_not_resolved_in_silence(write):
    document = squad([("Ada is here.", [("Who?", [("Ada", 0)]), ("Where?", [])])])
    document["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    read = write(document, all_rows=True)
    assert read["problem"].tolist() == ["marked impossible but has answers", ""]


def test_questions_without_labels_need_no_answers(tmp_path):
    frame = pd.DataFrame({"question": ["Who?"], "context": ["Ada."]})
    frame.to_csv(tmp_path / "q.csv", index=False)
    read = read_questions(tmp_path / "q.csv", labelled=False)
    assert read.values.tolist() == [["row 1", "Who?", "Ada.", None, "", ""]]
    with pytest.raises(
        InputError, match="first row 1, value 'Who[?]': no answers that are understood"
    ):
        read_questions(tmp_path / "q.csv")


@pytest.mark.parametrize(
    "content,message",
    [
        ("{", "cannot be read"),
        ("[]", "not SQuAD JSON"),
        ('{"data": []}', "no question can be used"),
        ('{"data": [3]}', "not SQuAD JSON"),
        ('{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "not SQuAD JSON .*'context'"),
        (
            '{"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "y"}]}]}]}',
            "first row 1, value 'y': no answers that are understood",
        ),
        (
            '{"data": [{"paragraphs": [{"context": " ", "qas": '
            '[{"question": "y", "answers": []}]}]}]}',
            "no question can be used, first row 1.*empty context",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, content, message):
    (tmp_path / "q.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_questions(tmp_path / "q.json")


def test_a_table_with_other_columns_is_told_how_to_call_them(tmp_path):
    (tmp_path / "a.csv").write_text("soru,metin,yanit\nWho?,Ada is here,Ada\n")
    names = "question, context and, where they have answers, answer and answer_start"
    message = f"no column 'question'; it has: soru, metin, yanit; rename its columns to {names}"
    with pytest.raises(InputError, match=message):
        read_questions(tmp_path / "a.csv")


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_questions(tmp_path / "none.json")
    (tmp_path / "cut.json.xz").write_bytes(lzma.compress(b'{"data": []}' * 99)[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        read_questions(tmp_path / "cut.json.xz")
    pd.DataFrame({"question": ["a"], "context": ["b"], "answers": ["c"]}).to_csv(
        tmp_path / "q.csv", index=False
    )
    with pytest.raises(InputError, match="row 1, value 'a': no answers that are understood"):
        read_questions(tmp_path / "q.csv")


# Windows


@pytest.mark.parametrize(
    "change,message",
    [
        ({"stride": -1}, "stride is -1; it must be at least 0"),
        ({"max_answer": 0}, "max_answer is 0; it must be at least 1"),
        (
            {"max_length": 128, "stride": 128},
            "has 128 tokens; it must have at least 160, 32 more than task.stride",
        ),
        ({"metric": "accuracy"}, "no metric 'accuracy'"),
        ({"train_rows": 5}, "has no task.train_rows; leave it out"),
        ({"duplicates": "drop"}, "has no task.duplicates; leave it out"),
        ({"text_column": "frage"}, "has no task.text_column; leave it out"),
        ({"molecules": False}, "has no task.molecules; leave it out"),
    ],
)
def test_settings_that_cannot_work_are_named(tmp_path, tiny_config, tokenizer, change, message):
    sizes = dict(vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id)
    save_model(tmp_path, ExLMForMaskedLM(tiny_config(**sizes)), tokenizer)
    with pytest.raises(InputError, match=message):
        read_question_task(
            EncoderSource(str(tmp_path)), TaskConfig("train.json", "valid.json", **change)
        )


@pytest.mark.parametrize("window,stride", [(384, 128), (160, 128), (159, 53), (64, 21), (40, 8)])
def test_a_stride_that_is_not_given_fits_into_the_window(window, stride):
    """Longer windows than 159 tokens have always had the usual one."""
    assert choose_stride(window) == stride
    check_task(TaskConfig("a.json", "b.json"), window, stride)


def test_a_window_that_is_too_short_for_any_stride_is_refused():
    with pytest.raises(InputError, match="has 31 tokens; it must have at least 32.*raise task.max"):
        check_task(TaskConfig("a.json", "b.json"), 31, choose_stride(31))


def test_questions_that_leave_no_room_and_pooling_are_refused(tmp_path, tiny_config, tokenizer):
    sizes = dict(vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id)
    save_model(tmp_path / "model", ExLMForMaskedLM(tiny_config(**sizes)), tokenizer)
    source = EncoderSource(str(tmp_path / "model"))
    table = tmp_path / "q.csv"
    names = "question,context,answer\n"
    table.write_text(f"{names}Who?,Ada.,Ada\n")
    (tmp_path / "long.csv").write_text(f"{names}{'Who? ' * 300},{'Ada. ' * 90},Ada\n")
    with pytest.raises(InputError, match="long.csv: no question leaves room"):
        read_question_task(source, TaskConfig(str(table), str(tmp_path / "long.csv")))
    task = read_question_task(source, TaskConfig(str(table), str(table)))
    long_context = "Ada. " * 300
    rows = [f"{'Who? ' * 300},{long_context},Ada", f"Who?,{long_context},{long_context.strip()}"]
    (tmp_path / "odd.csv").write_text("\n".join([names + "Who?,Ada.,Ada", *rows]) + "\n")
    odd = read_question_task(source, TaskConfig(str(tmp_path / "odd.csv"), str(table)))
    reported = odd.task.reported_rows[["row", "reason", "part", "action"]].values.tolist()
    assert reported == [
        [2, "longer than the window of 384 tokens", "train", "left out"],
        [3, "no window holds all of the answer; not used for training", "train", "kept"],
    ]
    hyper = FinetuneConfig(batch_size=1, pooling="mean")
    with pytest.raises(InputError, match="train.pooling is for .*; leave it out"):
        finetune_seed(task, tmp_path / "seed-0", hyper, 0)


def decoded(window, context):
    """The text between the labels of a window."""
    first, last = window.label
    return context[window.offsets[first, 0] : window.offsets[last, 1]].strip()


def has_answer(window):
    return window.label != (window.null, window.null)


def test_windows_cover_every_character_overlap_and_hold_the_labels(write, tokenizer):
    questions = write(town_questions())
    windows = make_windows(questions, tokenizer, *SMALL)
    assert max(len(window.offsets) for window in windows) <= SMALL[0]
    labelled = [window for window in windows if has_answer(window)]
    for window in labelled:
        question = questions.loc[window.row]
        assert decoded(window, question["context"]).strip(". ") == question["answers"][0][0]
    assert {window.row for window in labelled} == {
        i for i, answers in enumerate(questions["answers"]) if answers
    }
    assert {window.example["input_ids"][window.null] for window in windows} == {
        tokenizer.cls_token_id
    }
    for i, context in enumerate(questions["context"]):
        parts = [window.offsets for window in windows if window.row == i]
        parts = [part[part[:, 0] >= 0] for part in parts]
        assert len(parts) > 1
        for left, right in zip(parts, parts[1:], strict=False):
            assert left[-SMALL[1] :].tolist() == right[: SMALL[1]].tolist()
        seen = {c for part in parts for first, last in part for c in range(first, last)}
        assert all(c in seen for c in range(len(context)) if not context[c].isspace())


def test_token_types_are_kept(write, tokenizer):
    windows = make_windows(write(town_questions()), tokenizer, *SMALL)
    typed = "token_type_ids" in tokenizer.model_input_names
    for window in windows:
        assert ("token_type_ids" in window.example) is typed
        assert not typed or (window.example["token_type_ids"][window.offsets[:, 0] >= 0] == 1).all()


def test_short_contexts_stay_whole(write, tokenizer):
    whole = make_windows(write(town_questions()), tokenizer, 384, 128)
    assert [window.row for window in whole] == list(range(20))


def test_what_no_window_can_hold_is_left_out_and_counted(write, tokenizer):
    text, places = sentences(NAMES, 0)
    long = "Where does Ada live? " * 30
    asked = [
        ("Where does Ada live?", [places["Ada"]]),
        (long, [places["Ada"]]),
        ("All?", [(text, 0)]),
    ]
    short = ("Ada lives in Rome.", [("Where does Ada live? " * 4, [("Rome", 13)])])
    document = squad([(text, asked), short])
    questions = write(document)
    windows = make_windows(questions, tokenizer, *SMALL)
    assert {window.row for window in windows} == {0, 2, 3}, "a long question with a short text fits"
    assert all((window.label is None) == (window.row == 2) for window in windows)
    assert 2 not in {
        windows[i].row
        for i in np.concatenate(window_batches(windows, tokenizer, 4, 0).batches_of_epoch(0))
    }


def test_a_part_of_an_answer_is_no_answer(write, tokenizer):
    text, _ = sentences(NAMES, 0)
    answers = [text[first : first + 60] for first in range(0, len(text) - 60, 7)]
    questions = write(
        squad([(text, [(f"{i}?", [(part, text.index(part))]) for i, part in enumerate(answers)])])
    )
    windows = make_windows(questions, tokenizer, *SMALL)
    labelled = [window for window in windows if window.label and has_answer(window)]
    assert len({window.row for window in labelled}) > 0 and len(labelled) < len(windows)
    for window in labelled:
        assert answers[window.row].strip() in decoded(window, text)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("word", ["caf\u00e9", "x\u0302", "\ud55c", "\u00f1\u00f1"])
def test_an_answer_keeps_the_accents_and_letters_at_its_end(write, tokenizer, word, form):
    word = normalize(form, word)
    for context in (f"He lives in {word} of Rome.", f"He lives in {word}"):
        questions = write(squad([(context, [("Where?", [(word, 12)])])]))
        [window] = make_windows(questions, tokenizer, *SMALL)
        assert has_answer(window) and decoded(window, context).strip() == word


def test_spaces_around_a_context_change_only_the_places(write, tokenizer, tmp_path):
    context = "Ada lives in Rome."
    spaced = f" \r\n  {context}\u2003\n"
    questions = write(
        squad([(c, [("Where?", [("Rome", c.index("R"))])]) for c in (context, spaced)])
    )
    plain, moved = make_windows(questions, tokenizer, *SMALL)
    assert plain.example["input_ids"].tolist() == moved.example["input_ids"].tolist()
    assert decoded(plain, context).strip() == decoded(moved, spaced).strip() == "Rome"
    save_tokenizer(tmp_path / "saved", tokenizer)
    served = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert served("Where?", spaced)["input_ids"] == moved.example["input_ids"].tolist()


def test_batches_cover_an_epoch_and_count_the_padding_on_the_left(write, tokenizer):
    questions = write(town_questions())
    windows = make_windows(questions, tokenizer, *SMALL)
    batches = window_batches(windows, tokenizer, 8, seed=3)
    seen = []
    for step in range(batches.per_epoch):
        ((_, batch),) = batches(step)
        rows = batches.batches_of_epoch(0)[step]
        seen += rows.tolist()
        for name, end in (("start_positions", 0), ("end_positions", 1)):
            tokens = batch["input_ids"].gather(1, batch[name][:, None])[:, 0]
            expected = [windows[row].example["input_ids"][windows[row].label[end]] for row in rows]
            assert (
                tokens.tolist() == expected
                and batch["attention_mask"].gather(1, batch[name][:, None]).all()
            )
    assert sorted(seen) == list(range(len(windows)))
    again = window_batches(windows, tokenizer, 8, seed=3)(1)[0][1]
    assert all(torch.equal(again[name], tensor) for name, tensor in batches(1)[0][1].items())


# Scores


@pytest.mark.parametrize(
    "reference,predicted,em,f1",
    [
        ("the Eiffel Tower", "Eiffel tower.", 1, 1),
        ("An apple a day", "apple day", 1, 1),
        ("theatre", "the atre", 0, 0),  # only whole words are articles
        ("1,000", "1000", 1, 1),
        ("red  and\tblue", "red and blue", 1, 1),
        ("New York City", "York", 0, 0.5),
        (
            "a b b c",
            "b b d",
            0,
            2 * (2 / 3) * (2 / 3) / (2 / 3 + 2 / 3),
        ),  # "a" goes; words count as often as they occur
        ("", "", 1, 1),
        ("", "x", 0, 0),
        ("x", "", 0, 0),
        ("x", "the", 0, 0),
    ],
)
def test_exact_match_and_f1_of_hand_made_cases(reference, predicted, em, f1):
    assert em_and_f1(normalize_answer(reference), normalize_answer(predicted)) == (
        em,
        pytest.approx(f1),
    )


def test_normalising():
    assert normalize_answer("  The cat's (very) BIG\nan hat ") == ["cats", "very", "big", "hat"]


def spans_with_margins(*pairs):
    """Answers with how much "no answer" is preferred to each."""
    return pd.DataFrame(pairs, columns=["answer", "null_minus_best"])


def test_the_best_of_several_references_counts_and_no_answer_is_right_where_there_is_none(write):
    context = "The old bridge of Rome, the."
    asked = [
        ("1?", [("old bridge", 4), ("bridge of Rome", 8)]),
        ("2?", []),
        ("3?", []),
        ("4?", [("Rome", 18)]),
        ("5?", [("The", 0), ("Rome", 18)]),
    ]
    questions = write(squad([(context, asked)]))
    answers = spans_with_margins(
        ("the bridge of Rome", -1.0), ("Rome", 0.5), ("Rome", -1.0), ("Rome", 2.0), ("the", -1.0)
    )
    scores = evaluate_answers(questions, answers)
    assert scores["em"] == pytest.approx(100 * (1 + 1 + 0 + 0 + 0) / 5), (
        '"The" is no reference: nothing is left of it'
    )
    assert scores["no_answer_accuracy"] == 50 and scores["has_answer_em"] == pytest.approx(100 / 3)
    assert scores["questions"] == 5 and scores["has_answer"] == 3
    assert evaluate_answers(questions, spans_with_margins(*[("", 1.0)] * 5))["em"] == 40


def test_answers_belong_to_their_rows(write):
    document = squad([("Ada.", [("", []), ("Who?", [])])])
    alone = evaluate_answers(write(document), spans_with_margins(("Ada", -1.0), ("", -1.0)))
    assert np.isnan(alone["has_answer_em"]) and alone["no_answer_accuracy"] == 100
    with pytest.raises(KeyError):
        evaluate_answers(write(document), spans_with_margins(("", -1.0)))


@pytest.mark.parametrize("seed", range(6))
def test_the_best_threshold_is_the_best_of_all(write, seed):
    random = np.random.default_rng(seed)
    words = ["red", "green", "blue", "cold", "warm", "dry"]
    context = " ".join(words)
    asked, predictions = [], []
    for i in range(40):
        a, b = sorted(random.integers(0, 6, 2))
        text = " ".join(words[a : b + 1])
        asked.append((f"{i}?", [(text, context.index(text))] if random.random() < 0.6 else []))
        a, b = sorted(random.integers(0, 6, 2))
        predictions.append((" ".join(words[a : b + 1]), random.normal() + (2 if seed == 0 else 0)))
    questions = write(squad([(context, asked)]))
    scores = evaluate_answers(questions, spans_with_margins(*predictions))

    def at(threshold, name):
        return evaluate_answers(
            questions, spans_with_margins(*((text, m - threshold) for text, m in predictions))
        )[name]

    margins = sorted(margin for _, margin in predictions)
    candidates = [
        margins[0] - 1,
        *((a + b) / 2 for a, b in zip(margins, margins[1:], strict=False)),
        margins[-1] + 1,
    ]
    for name in ("em", "f1"):
        assert scores[f"best_{name}"] == pytest.approx(
            max(at(threshold, name) for threshold in candidates)
        )
        assert at(scores[f"best_{name}_threshold"], name) == pytest.approx(scores[f"best_{name}"])
        assert scores[name] <= scores[f"best_{name}"]


def test_where_nothing_should_be_answered_the_threshold_says_so(write):
    questions = write(squad([("Ada.", [(f"{i}?", []) for i in range(4)])]))
    scores = evaluate_answers(
        questions, spans_with_margins(*(("Ada", margin) for margin in (-3.0, -1.0, 0.5, 2.0)))
    )
    assert scores["best_em"] == 100 and scores["best_em_threshold"] < -3 and scores["em"] == 50


# Answers


def all_spans(start, end, longest):
    """[(score, first, last)], best first, one by one."""
    spans = [(i, j) for i, j in product(range(len(start)), repeat=2) if i <= j < i + longest]
    return sorted(((float(start[i] + end[j]), i, j) for i, j in spans), reverse=True)


@pytest.mark.parametrize("longest", [1, 3, 50])
def test_the_best_spans_are_those_of_a_search_through_all(longest):
    for size in (12, 2, 0):
        start, end = torch.randn(2, size)
        assert best_spans(start, end, longest) == all_spans(start, end, longest)[:N_BEST]


class Fixed(torch.nn.Module):
    """Logits that depend on a token and the one before it alone, so that padding cannot matter."""

    def __init__(self, size, scale=3.0):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = torch.nn.Parameter(
            scale * torch.randn(size, 4, generator=generator, dtype=torch.float64)
        )

    def forward(self, input_ids, attention_mask):
        previous, real = (
            torch.nn.functional.pad(x, (1, 0))[:, :-1] for x in (input_ids, attention_mask)
        )
        before = torch.where(real.bool()[..., None], self.table[previous][..., 2:], 0.0)
        logits = self.table[input_ids][..., :2] + before
        return QuestionAnsweringModelOutput(start_logits=logits[..., 0], end_logits=logits[..., 1])


def test_answers_are_those_of_a_search_through_all_windows(write, tokenizer, monkeypatch):
    monkeypatch.setattr(inference, "TOKENS_PER_BATCH", 200)
    questions = write(town_questions())
    windows = make_windows(questions, tokenizer, *SMALL)
    model = Fixed(len(tokenizer))
    answers = answer(model, questions, windows, tokenizer, LONGEST, "fp32")
    for i, context in enumerate(questions["context"]):
        spans, null = {}, []
        for window in [window for window in windows if window.row == i]:
            ids = torch.tensor(window.example["input_ids"][None], dtype=torch.long)
            with torch.no_grad():
                output = model(ids, torch.ones_like(ids))
            start, end = output.start_logits[0].float(), output.end_logits[0].float()
            null.append(float(start[window.null] + end[window.null]))
            inside = window.offsets[:, 0] >= 0
            offsets = window.offsets[inside]
            for score, first, last in all_spans(start[inside], end[inside], LONGEST):
                place = offsets[first, 0], offsets[last, 1]
                spans[place] = max(score, spans.get(place, -np.inf))
        best = sorted(spans, key=spans.get, reverse=True)[:N_BEST]
        texts = {}
        for first, last in best:
            texts.setdefault(context[first:last].strip(), spans[first, last])
        text, null_minus_best, candidates = answers.loc[i]
        assert null_minus_best == pytest.approx(min(null) - spans[best[0]], abs=1e-4)
        assert candidates.keys() == {*texts, ""}
        weights = np.exp([texts.get(candidate, min(null)) for candidate in candidates])
        np.testing.assert_allclose([*candidates.values()], weights / weights.sum(), rtol=1e-3)
        assert text in context and text == next(iter(texts))


def test_every_question_gets_an_answer_and_a_diverged_model_an_error(write, tokenizer):
    text, places = sentences(NAMES, 0)
    asked = [("Where does Ada live? " * 30, [places["Ada"]]), ("Where does Ada live?", [])]
    questions = write(squad([(text, asked)]))
    windows = make_windows(questions, tokenizer, *SMALL)
    answers = answer(Fixed(len(tokenizer)), questions, windows, tokenizer, LONGEST)
    text_of_unread, margin, candidates = answers.loc[0]
    assert (text_of_unread, candidates) == ("", {}) and np.isnan(margin)
    voted = vote(questions, [answers, answers])
    assert voted.loc[0, ["probability", "null_minus_best", "probability std"]].isna().all()
    assert answers.loc[1, "answer"] in text and len(answers.loc[1, "candidates"]) > 1
    with pytest.raises(Diverged, match="diverged"):
        answer(Fixed(len(tokenizer), float("nan")), questions, windows, tokenizer, LONGEST)


def test_models_vote_by_their_mean_probability(write):
    questions = write(squad([("Ada, Bela.", [("Who?", []), ("Where?", [])])]))
    first = pd.DataFrame(
        {"candidates": [{"Ada": 0.6, "": 0.4}, {"": 1.0}], "null_minus_best": [-1.0, np.inf]}
    )
    second = pd.DataFrame(
        {
            "candidates": [{"Bela": 0.5, "": 0.3, "Ada": 0.2}, {"": 1.0}],
            "null_minus_best": [2.0, 1.0],
        }
    )
    columns = ["answer", "probability", "null_minus_best"]
    assert vote(questions, [first])[columns].values.tolist() == [
        ["Ada", 0.6, -1.0],
        ["", 1.0, np.inf],
    ]
    assert vote(questions, [first, second])[columns].values.tolist() == [
        ["Ada", 0.4, 0.5],
        ["", 1.0, np.inf],
    ]


def test_the_thresholds_of_an_ensemble_are_on_the_scale_of_its_margins(write):
    asked = [("Who?", ["Ada"]), ("Where?", []), ("Whose?", [])]
    questions = write(
        squad([("Ada, Bela.", [(q, [(a, 0) for a in answers]) for q, answers in asked])])
    )
    answers = pd.DataFrame(
        {
            "answer": ["Ada", "Bela", ""],
            "null_minus_best": [-5.0, -1.0, 2.0],
            "refused": [False, False, True],
        }
    )
    scores = evaluate_answers(questions, answers)
    assert scores["em"] == pytest.approx(200 / 3) and scores["best_em"] == 100
    assert scores["best_em_threshold"] == -5


# Models


@pytest.mark.parametrize(
    "switches", [{}, {"boundary_states": "k"}, {"rotary": "1d"}, {"objective": "mlm"}]
)
def test_the_head_reads_the_tokens_at_their_places(tiny_config, switches):
    """A sequence gives the same logits alone and padded on either side; masks are tokens among
    others."""
    model = ExLMForQuestionAnswering(tiny_config(**switches)).eval()
    row, width = [0, 5, 29, 7, 6, 2], 9
    alone = model(torch.tensor([row]))
    for left in (0, 3):
        ids = torch.ones(1, width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        ids[0, left : left + 6], mask[0, left : left + 6] = torch.tensor(row), 1
        output = model(ids, mask)
        for name in ("start_logits", "end_logits"):
            real = mask[0].bool()
            torch.testing.assert_close(output[name][0, real], alone[name][0], rtol=1e-4, atol=1e-5)
            assert (output[name][0, ~real] < -1e30).all() and (2 * output[name]).isfinite().all()
    assert alone.start_logits.shape == (1, 6) and alone.start_logits.dtype == torch.float32
    starts, ends = torch.tensor([1]), torch.tensor([3])
    loss = model(torch.tensor([row]), start_positions=starts, end_positions=ends).loss
    parts = [-alone[n].log_softmax(-1)[0, p] for n, p in (("start_logits", 1), ("end_logits", 3))]
    torch.testing.assert_close(loss, sum(parts) / 2)


def test_the_head_loads_on_a_pretrained_encoder(tiny_config, tmp_path):
    pretrained = ExLMForMaskedLM(tiny_config())
    pretrained.save_pretrained(tmp_path)
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert isinstance(model, ExLMForQuestionAnswering)
    assert torch.equal(model.exlm.embeddings.weight, pretrained.exlm.embeddings.weight)
    model.save_pretrained(tmp_path / "tuned")
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "tuned")
    assert torch.equal(again.qa_outputs.weight, model.qa_outputs.weight)


def trained(model, windows, tokenizer, epochs, directory):
    batches = window_batches(windows, tokenizer, 10, seed=0)
    optimizer = OptimizerConfig(learning_rate=3e-3, schedule="constant", weight_decay=0.0)
    config = LoopConfig(
        epochs * batches.per_epoch, optimizer, "fp32", log_every=10**6, save_every=0
    )
    log, checkpoints = RunLog(directory), Checkpoints(directory)
    fit(model, span_training_loss, batches, config, 0, log, checkpoints, evaluate=lambda step: {})
    return model


@pytest.mark.parametrize("tokenizer", ["bpe", "left"], indirect=True)
def test_a_small_model_learns_to_answer_and_when_not_to(
    write, tokenizer, tiny_config, tmp_path, monkeypatch
):
    questions = write(town_questions())
    windows = make_windows(questions, tokenizer, 80, 16)
    sizes = dict(vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id)
    quick = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2)
    model = trained(
        ExLMForQuestionAnswering(tiny_config(**sizes, **quick)), windows, tokenizer, 90, tmp_path
    )
    answers = answer(model, questions, windows, tokenizer, 30, "fp32")
    scores = evaluate_answers(questions, answers)
    assert scores["em"] > 80 and scores["has_answer_em"] > 80 and scores["no_answer_accuracy"] > 80
    assert scores["best_f1"] >= scores["f1"] >= scores["em"]
    side = tokenizer.padding_side
    tokenizer.padding_side = "left" if side == "right" else "right"
    monkeypatch.setattr(inference, "TOKENS_PER_BATCH", 500)
    other = answer(model, questions, windows, tokenizer, 30, "fp32")
    tokenizer.padding_side = side
    assert other["answer"].tolist() == answers["answer"].tolist()
    np.testing.assert_allclose(other["null_minus_best"], answers["null_minus_best"], atol=1e-3)


@pytest.mark.parametrize("tokenizer", ["left"], indirect=True)
def test_xlnet_learns_and_answers_with_its_own_inputs(write, tokenizer, tmp_path):
    questions = write(town_questions())
    windows = make_windows(questions, tokenizer, *SMALL)
    sizes = dict(vocab_size=len(tokenizer), d_model=16, n_layer=1, n_head=2, d_inner=32)
    model = XLNetForQuestionAnsweringSimple(
        XLNetConfig(**sizes, pad_token_id=tokenizer.pad_token_id)
    )
    batch = pad([window.example for window in windows[:2]], tokenizer)
    assert batch["token_type_ids"].shape == batch["input_ids"].shape
    everything = window_batches(windows, tokenizer, len(windows), 0)(0)[0][1]
    before = span_training_loss(model.eval(), everything).total.item()
    trained(model, windows, tokenizer, 5, tmp_path)
    assert span_training_loss(model.eval(), everything).total.item() < before
    answers = answer(model, questions, windows, tokenizer, LONGEST)
    assert len(answers) == 20 and all(
        a in c for a, c in zip(answers["answer"], questions["context"], strict=True)
    )


def test_the_real_questions_have_their_answers_in_place(data_dir):
    path = data_dir / "text" / "squad2" / "dev.json.xz"
    if not path.is_file():
        pytest.skip(f"{path} is not there; set EXLM_DATA")
    questions = read_questions(path)
    contexts = questions["context"]
    assert (questions[["remark", "problem"]] == "").all(axis=None) and len(questions) == 1447
    assert (questions["answers"].map(len) == 0).sum() == 719 and contexts.nunique() == 157
    tokenizer = train_text_tokenizer("bpe", sorted(set(contexts)), 2000)
    windows = make_windows(questions, tokenizer, 384, 128)
    assert {window.row for window in windows} == set(range(1447))
    first = {i: answers[0][0].strip() for i, answers in enumerate(questions["answers"]) if answers}
    exact = [
        decoded(window, contexts[window.row]) == first[window.row]
        for window in windows
        if has_answer(window)
    ]
    assert np.mean(exact) > 0.95  # the others begin or end inside a token
