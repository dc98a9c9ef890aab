"""What fine-tuned models answer to the questions of a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from exlm.data.files import plain_suffix
from exlm.data.frames import read_file
from exlm.errors import InputError
from exlm.tasks.encoders.loading import SeedModel
from exlm.tasks.labels.column_labels import note_unscored
from exlm.tasks.questions.answers import answer, score_answers, summarise_answers, vote
from exlm.tasks.questions.questions import QuestionFile, read_windows
from exlm.tasks.questions.settings import check_prediction
from exlm.tasks.rows.table import UNUSABLE
from exlm.tasks.tables.predictions import (
    ENSEMBLE,
    Evaluation,
    Predictions,
    PredictOptions,
    Predictor,
    with_predictions,
)


def open_questions(
    models: Sequence[SeedModel], path: str, options: PredictOptions
) -> "QuestionPredictor":
    """What answers the questions of the file `path`. InputError for options that question answering
    does not have."""
    check_prediction(options)
    return QuestionPredictor(models, path, options)


@dataclass(frozen=True)
class QuestionPredictor(Predictor):
    """The models of all seeds, and the file whose questions they answer."""

    models: Sequence[SeedModel]
    path: str
    options: PredictOptions
    label_columns: Sequence[str] = ()  # answers are in columns of their own names

    def predict(self) -> Predictions:
        """Answers all questions; `problem` says why one cannot be answered. They are scored if the
        file has answers."""
        first_model = self.models[0]
        file = read_windows(
            self.path, first_model.tokenizer, first_model.saved_task, labelled=False
        )
        questions = file.questions
        unanswered = questions[questions["problem"] != ""]
        if len(unanswered) and self.options.on_invalid == "error":
            first = unanswered.reset_index().iloc[0]
            raise InputError(
                f"{self.path}: row {first['row'] + 1}, {first['question']!r}: {first['problem']}; "
                "correct it"
            )
        answers_by_model = {
            model.directory.name: self._answer(model, file) for model in self.models
        }
        voted = vote(questions, [*answers_by_model.values()])
        if len(self.models) > 1:
            # An ensemble decides by its vote, not by a threshold.
            of_ensemble = voted.assign(refused=voted["answer"] == "")
            answers_by_model = {ENSEMBLE: of_ensemble, **answers_by_model}
        frame = self._frame(voted.assign(problem=questions["problem"]))
        counts = {
            "questions answered": len(questions) - len(unanswered),
            UNUSABLE: len(unanswered),
        }
        remarks = questions["remark"].where(questions["answers"].isna(), "")
        unscored = {row: remark for row, remark in enumerate(remarks) if remark}
        note_unscored(unscored, questions.index, self.path)
        if not any(file.labelled["answers"]):
            return Predictions(frame, counts)
        if not len(file.scored):
            max_length = first_model.saved_task.max_length
            problem = f"no question with an answer fits into {max_length} tokens"
            return Predictions(frame, counts, note=problem)
        return Predictions(frame, counts, _evaluation(file, answers_by_model))

    def _answer(self, model: SeedModel, file: QuestionFile) -> pd.DataFrame:
        """What a model answers to the questions of a file."""
        return answer(
            model.network,
            file.questions,
            file.windows,
            model.tokenizer,
            max_answer=model.saved_task.max_answer,
            precision=self.options.precision,
        )

    def _frame(self, answers: pd.DataFrame) -> pd.DataFrame:
        """The answers as rows of their own, or behind the columns of the table."""
        if plain_suffix(self.path) == ".json":
            return answers.reset_index()
        columns = {**answers.drop(columns=["id", "question"])}
        frame = read_file(self.path, self.options.header, self.options.sheet).frame
        return with_predictions(frame, columns, self.path)


def _evaluation(file: QuestionFile, answers_by_model: Mapping[str, pd.DataFrame]) -> Evaluation:
    """How the answers of models to the questions of a file are scored."""
    scorers = {
        name: partial(summarise_answers, score_answers(file.labelled, answers))
        for name, answers in answers_by_model.items()
    }
    return Evaluation(scorers, file.scored)
