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
from exlm.tasks.questions.answers import answer, score_answers, summarise_answers, vote
from exlm.tasks.questions.questions import (
    QuestionProblem,
    Window,
    make_windows,
    read_answered_questions,
    read_questions,
    rows_with_windows,
)
from exlm.tasks.rows.predictions import (
    ChunkPredictor,
    Predictions,
    PredictOptions,
    with_predictions,
)
from exlm.tasks.rows.table import UNUSABLE

# All other settings of `PredictOptions` are for tables.
PREDICT_SETTINGS = {"on_invalid", "device", "precision"}


class QuestionPredictor:
    """The models of all seeds, and the file whose questions they answer (`Predictor`)."""

    def __init__(self, models: Sequence[SeedModel], path: str, options: PredictOptions) -> None:
        check_settings(options, PREDICT_SETTINGS, "")
        self.models = models
        self.path = path
        self.options = options

    def predict(self) -> Predictions:
        """Answers all questions; `problem` says why one cannot be answered."""
        path = self.path
        saved_task = self.models[0].saved_task
        tokenizer = self.models[0].loaded.tokenizer  # that of all seeds
        questions, problems = read_questions(path, labelled=False)
        windows, too_long = make_windows(
            questions, tokenizer, saved_task.max_length, saved_task.stride
        )
        problems += too_long
        if problems and self.options.on_invalid == "error":
            row, question, problem = problems[0]
            raise InputError(f"{path}: row {row + 1}, {question!r}: {problem}; correct it")
        answers_by_model: dict[str, pd.DataFrame] = {}
        for model in self.models:
            answers_by_model[model.directory.name] = answer(
                model.loaded.network,
                questions,
                windows,
                tokenizer,
                max_answer=saved_task.max_answer,
                precision=saved_task.precision,
            )
        voted = vote(questions, [*answers_by_model.values()])
        frame = _with_problems(voted, problems)
        counts = {
            "questions answered": len(frame) - len(problems),
            UNUSABLE: len(problems),
        }
        if plain_suffix(path) != ".json":
            new_columns = frame.drop(columns=["row", "id", "question"])
            columns = {str(name): new_columns[name] for name in new_columns}
            frame = with_predictions(read_frame(path, self.options.table_options), columns, path)
        return self._scored(Predictions(frame, counts), answers_by_model, voted, windows)

    def _scored(
        self,
        predictions: Predictions,
        answers_by_model: dict[str, pd.DataFrame],
        voted: pd.DataFrame,
        windows: list[Window],
    ) -> Predictions:
        """The predictions with how they are scored, if the file has answers, or why they are
        not."""
        try:
            questions = read_answered_questions(self.path)
        except InputError as error:
            return replace(predictions, note=str(error))
        if questions is None:
            return predictions
        labelled = rows_with_windows(questions, windows)
        if not len(labelled):
            max_length = self.models[0].saved_task.max_length
            note = f"no question with an answer fits into {max_length} tokens"
            return replace(predictions, note=note)
        if len(answers_by_model) > 1:
            # An ensemble decides by its vote, not by a threshold.
            of_ensemble = voted.assign(refused=voted["answer"] == "")
            answers_by_model = {"ensemble": of_ensemble, **answers_by_model}
        scorers = {
            name: partial(summarise_answers, score_answers(questions, answers))
            for name, answers in answers_by_model.items()
        }
        return replace(predictions, scorers=scorers, labelled=labelled)

    def chunk_predictor(self) -> ChunkPredictor | None:
        """None: the questions of a file are answered together."""
        return None


def check_settings(settings: TaskConfig | PredictOptions, names: set[str], section: str) -> None:
    """InputError if a setting besides these `names` has another value than its default."""
    for field in fields(settings):
        if field.name not in names and getattr(settings, field.name) != field.default:
            raise InputError(f"question answering has no {section}{field.name}; leave it out")


def _with_problems(voted: pd.DataFrame, problems: list[QuestionProblem]) -> pd.DataFrame:
    """The answers that models voted for, and a row with the problem of each other question."""
    columns = ["row", "question", "problem"]
    unanswered = pd.DataFrame(problems, columns=columns).set_index("row")
    table = voted.join(unanswered["problem"], how="outer")
    empty = {"id": "", "question": unanswered["question"], "answer": "", "problem": ""}
    return table.fillna(empty).reset_index()
