"""Labelled tables: how models are trained for them, what they predict, and how sure they are.

Training: `table_task.py` has the table that is read once for all seeds, `table_config.py` its
settings; `unit_table.py` reads one with labels of residues or words. `supervision.py` says what an
encoder learns with a seed, `seed_directory.py` writes its results, `training_texts.py` its texts.

Predicting: `table_predictor.py` makes the `predictions.py` of a file with `seed_models.py`;
`prediction_columns.py` names their columns, `explain.py` draws explanations.

Both run a network by `network_outputs.py`, and use `labelled_predictions.py` and `certainty.py`."""
