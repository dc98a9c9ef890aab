"""Labelled data: fine-tuning, predictions, scores and vectors.

`labels` says what cells mean, `encoders` loads, trains and runs models, `rows` reads tables,
`tables` and `questions` train and predict, and `baselines` are what to compare with. The files here
are the settings, what a training leaves, what a task is (`task.py`), which kinds there are
(`task_kinds.py`), the grid, what is printed (`printing.py`), and the commands."""
