"""What fine-tuned models answer to the questions of a file."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import pandas as pd

from exlm.data.frames import read_file
from exlm.data.open_files import plain_suffix
from exlm.data.writing import add_columns
from exlm.errors import InputError
from exlm.tasks.labels.column_labels import note_unscored
from exlm.tasks.questions.answers import answer, make_scorer, vote
from exlm.tasks.questions.questions import read_windows
from exlm.tasks.questions.settings import PREDICT_SETTINGS, check_settings
from exlm.tasks.rows.table import UNUSABLE
from exlm.tasks.tables.predictions import (
    ENSEMBLE,
    Evaluation,
    Predictions,
    PredictOptions,
    Predictor,
    nothing_to_score,
)
from exlm.tasks.tables.seed_models import EncoderModel, SeedModel


def make_predictor_for_questions(
    models: Sequence[SeedModel], path: str, options: PredictOptions
) -> Predictor:
    """What answers the questions of the file `path`, all together. InputError for options that
    question answering does not have."""
    check_settings(options, PREDICT_SETTINGS)
    return Predictor(partial(answer_file, models, path, options))


def answer_file(
    models: Sequence[SeedModel], path: str, options: PredictOptions, must_score: bool
) -> Predictions:
    """The answers of models to all questions of the file `path`; `problem` says why one cannot be
    answered. They are scored if the file has answers. InputError if they must be scored and cannot
    be, before the work."""
    encoders = cast(Sequence[EncoderModel], models)  # no baseline answers questions
    saved_task = encoders[0].saved_task
    file = read_windows(path, encoders[0].tokenizer, saved_task, labelled=False)
    questions = file.questions
    unanswered = questions[questions["problem"] != ""]
    if len(unanswered) and options.on_invalid == "error":
        first = unanswered.reset_index().iloc[0]
        raise InputError(
            f"{path}: row {first['row'] + 1}, {first['question']!r}: {first['problem']}; correct it"
        )
    remarks = questions["remark"].where(questions["answers"].isna(), "")
    unscored = {row: remark for row, remark in enumerate(remarks) if remark}
    note_unscored(unscored, questions.index, path)
    has_answers = any(file.labelled["answers"])
    problem = "no question has an answer; give them as `exlm finetune` takes them"
    if has_answers:
        problem = f"no question with an answer fits into {saved_task.max_length} tokens"
    can_score = has_answers and len(file.scored) > 0
    if must_score and not can_score:
        raise nothing_to_score(path, problem)
    answers_by_model = {}
    for model in encoders:
        answers_by_model[model.name] = answer(
            model.network,
            questions,
            file.windows,
            model.tokenizer,
            max_answer=model.saved_task.max_answer,
            precision=options.precision,
        )
    voted = vote(questions, [*answers_by_model.values()])
    if len(encoders) > 1:
        # An ensemble decides by its vote, not by a threshold.
        of_ensemble = voted.assign(refused=voted["answer"] == "")
        answers_by_model = {ENSEMBLE: of_ensemble, **answers_by_model}
    frame = _frame(voted.assign(problem=questions["problem"]), path)
    answered = len(questions) - len(unanswered)
    counts = {"questions answered": answered, UNUSABLE: len(unanswered)}
    if not can_score:
        return Predictions(frame, counts, note=problem if has_answers else "")
    scorers = {name: make_scorer(file, answers) for name, answers in answers_by_model.items()}
    return Predictions(frame, counts, Evaluation(scorers, file.scored))


def _frame(answers: pd.DataFrame, path: str) -> pd.DataFrame:
    if plain_suffix(path) == ".json":
        return answers.reset_index()
    columns = {**answers.drop(columns=["id", "question"])}
    frame = read_file(path).frame
    return add_columns(frame, columns, path, "exlm predict")
