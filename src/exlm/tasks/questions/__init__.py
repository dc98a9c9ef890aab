"""Questions that a span of a context answers.

`questions.py` reads them and cuts their contexts into windows, `answers.py` turns the outputs of a
network into answers and scores these. `finetuning.py` trains with them, `answering.py` predicts;
`settings.py` says what settings both have."""
