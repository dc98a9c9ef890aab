"""Labelled data: fine-tuning, predictions, scores and vectors.

`labels` says what cells mean, `rows` reads tables, `tables` and `questions` train and predict, and
`baselines` are what to compare with. The files here are what these share, and the commands."""
