"""What fine-tuned models answer to the questions of a file."""

from collections.abc import Sequence
from typing import cast

import pandas as pd

from exlm.data.frames import FileRows, read_file
from exlm.data.open_files import plain_suffix
from exlm.errors import InputError
from exlm.tasks.labels.column_labels import note_unscored
from exlm.tasks.questions.answers import answer, make_scorer, vote
from exlm.tasks.questions.questions import QuestionFile, read_windows
from exlm.tasks.questions.settings import PREDICT_SETTINGS, check_settings
from exlm.tasks.rows.table import UNUSABLE
from exlm.tasks.tables.predictions import (
    ENSEMBLE,
    Evaluation,
    Predictions,
    PredictOptions,
    with_predictions,
)
from exlm.tasks.tables.seed_models import EncoderModel, SeedModel


class QuestionPredictor:
    """The models of all seeds, and a file whose questions they answer: a `Predictor`
    (`tasks/task.py`). InputError for options that question answering does not have."""

    label_columns = ()
    by_frames = False  # the windows of all questions are answered together

    def __init__(self, models: Sequence[SeedModel], path: str, options: PredictOptions) -> None:
        check_settings(options, PREDICT_SETTINGS)
        self.models = cast(Sequence[EncoderModel], models)  # no baseline answers questions
        self.path = path
        self.options = options

    def predict(self) -> Predictions:
        """The answers to all questions; `problem` says why one cannot be answered. They are scored
        if the file has answers."""
        saved_task = self.models[0].saved_task
        tokenizer = self.models[0].tokenizer
        file = read_windows(self.path, tokenizer, saved_task, labelled=False)
        questions = file.questions
        unanswered = questions[questions["problem"] != ""]
        if len(unanswered) and self.options.on_invalid == "error":
            first = unanswered.reset_index().iloc[0]
            raise InputError(
                f"{self.path}: row {first['row'] + 1}, {first['question']!r}: {first['problem']}; "
                "correct it"
            )
        answers_by_model = self._answers_by_model(file)
        voted = vote(questions, [*answers_by_model.values()])
        if len(self.models) > 1:
            # An ensemble decides by its vote, not by a threshold.
            of_ensemble = voted.assign(refused=voted["answer"] == "")
            answers_by_model = {ENSEMBLE: of_ensemble, **answers_by_model}
        frame = self._frame(voted.assign(problem=questions["problem"]))
        answered = len(questions) - len(unanswered)
        counts = {"questions answered": answered, UNUSABLE: len(unanswered)}
        remarks = questions["remark"].where(questions["answers"].isna(), "")
        unscored = {row: remark for row, remark in enumerate(remarks) if remark}
        note_unscored(unscored, questions.index, self.path)
        if not any(file.labelled["answers"]):
            return Predictions(frame, counts)
        if not len(file.scored):
            problem = f"no question with an answer fits into {saved_task.max_length} tokens"
            return Predictions(frame, counts, note=problem)
        scorers = {name: make_scorer(file, answers) for name, answers in answers_by_model.items()}
        return Predictions(frame, counts, Evaluation(scorers, file.scored))

    def predict_rows(self, rows: FileRows) -> Predictions:
        raise NotImplementedError("questions are answered together")

    def _answers_by_model(self, file: QuestionFile) -> dict[str, pd.DataFrame]:
        """What `answer` returns for every model, by its name."""
        return {
            model.name: answer(
                model.network,
                file.questions,
                file.windows,
                model.tokenizer,
                max_answer=model.saved_task.max_answer,
                precision=self.options.precision,
            )
            for model in self.models
        }

    def _frame(self, answers: pd.DataFrame) -> pd.DataFrame:
        """The rows of the file with their answers; those of SQuAD JSON are the answers alone."""
        if plain_suffix(self.path) == ".json":
            return answers.reset_index()
        columns = {**answers.drop(columns=["id", "question"])}
        frame = read_file(self.path, self.options.header, self.options.sheet).frame
        return with_predictions(frame, columns, self.path)
