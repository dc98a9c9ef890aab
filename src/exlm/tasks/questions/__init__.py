"""Questions that a span of a context answers.

`questions.py` reads them and cuts their contexts into windows, `answers.py` turns the outputs of a
network into answers and scores these. `question_task.py` trains with them, `answer_file.py`
predicts; `settings.py` says what settings both have."""
