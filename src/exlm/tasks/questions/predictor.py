"""What models that are fine-tuned for questions answer to those of a file."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

import pandas as pd

from exlm.data.files import plain_suffix
from exlm.data.frames import read_frame
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.saved_task import SeedModel
from exlm.tasks.labels.column_labels import note_unscored
from exlm.tasks.questions.answers import answer, score_answers, summarise_answers, vote
from exlm.tasks.questions.questions import QuestionFile, read_windows
from exlm.tasks.rows.predictions import (
    ChunkPredictor,
    Predictions,
    PredictOptions,
    with_predictions,
)
from exlm.tasks.rows.table import UNUSABLE

# All other settings of `PredictOptions` are for tables.
PREDICT_SETTINGS = {"header", "on_invalid", "device", "precision"}


class QuestionPredictor:
    """The models of all seeds, and the file whose questions they answer (`Predictor`)."""

    def __init__(self, models: Sequence[SeedModel], path: str, options: PredictOptions) -> None:
        check_settings(options, PREDICT_SETTINGS, "")
        self.models = models
        self.path = path
        self.options = options

    def predict(self) -> Predictions:
        """Answers all questions; `problem` says why one cannot be answered. They are scored if the
        file has answers."""
        task = self.models[0].saved_task
        tokenizer = self.models[0].loaded.tokenizer  # that of all seeds
        file = read_windows(
            self.path, tokenizer, task.max_length, task.stride, False, self.options.header
        )
        unanswered = file.problems[file.problems != ""]
        if len(unanswered) and self.options.on_invalid == "error":
            row, problem = next(iter(unanswered.items()))
            question = file.questions.loc[row, "question"]
            raise InputError(f"{self.path}: row {row + 1}, {question!r}: {problem}; correct it")
        answers_by_model = {
            model.directory.name: answer(
                model.loaded.network,
                file.questions,
                file.windows,
                tokenizer,
                max_answer=task.max_answer,
                precision=task.precision,
            )
            for model in self.models
        }
        voted = vote(file.questions, [*answers_by_model.values()])
        if len(self.models) > 1:
            # An ensemble decides by its vote, not by a threshold.
            of_ensemble = voted.assign(refused=voted["answer"] == "")
            answers_by_model = {"ensemble": of_ensemble, **answers_by_model}
        counts = {
            "questions answered": len(file.questions) - len(unanswered),
            UNUSABLE: len(unanswered),
        }
        predictions = Predictions(self._frame(voted.assign(problem=file.problems)), counts)
        return self._scored(predictions, file, answers_by_model)

    def _frame(self, answers: pd.DataFrame) -> pd.DataFrame:
        """The answers as rows of their own, or behind the columns of the table."""
        if plain_suffix(self.path) == ".json":
            return answers.reset_index()
        columns = {**answers.drop(columns=["id", "question"])}
        frame = read_frame(self.path, self.options.table_options)
        return with_predictions(frame, columns, self.path)

    def _scored(
        self,
        predictions: Predictions,
        file: QuestionFile,
        answers_by_model: dict[str, pd.DataFrame],
    ) -> Predictions:
        """The predictions with how they are scored, if the file has answers."""
        remarks = file.questions.loc[file.questions["answers"].isna(), "remark"]
        note_unscored(remarks[remarks != ""].to_dict(), file.questions.index, self.path)
        if not any(file.labelled["answers"]):
            return predictions
        if not len(file.scored):
            max_length = self.models[0].saved_task.max_length
            note = f"no question with an answer fits into {max_length} tokens"
            return replace(predictions, note=note)
        scorers = {
            name: partial(summarise_answers, score_answers(file.labelled, answers))
            for name, answers in answers_by_model.items()
        }
        return replace(predictions, scorers=scorers, labelled=file.scored)

    def chunk_predictor(self) -> ChunkPredictor | None:
        """None: the questions of a file are answered together."""
        return None


def check_settings(settings: TaskConfig | PredictOptions, names: set[str], section: str) -> None:
    """InputError if a setting besides these `names` has another value than its default."""
    for field in fields(settings):
        if field.name not in names and getattr(settings, field.name) != field.default:
            raise InputError(f"question answering has no {section}{field.name}; leave it out")
