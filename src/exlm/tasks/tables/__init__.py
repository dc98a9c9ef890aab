"""Labelled tables: how models are trained for them, what they predict, and how sure they are.

Training: `table_task.py` has the table that is read once for all seeds, `table_config.py` its
settings; `unit_table.py` reads one with labels of residues or words. `supervision.py` trains an
encoder with a seed, `seed_directory.py` writes what it gave, `training_texts.py` what it learned.

Predicting: `table_predictor.py` makes the `predictions.py` of a file with an `ensemble.py`;
`prediction_columns.py` names their columns, `explain.py` draws explanations.

Both run a network by `network_outputs.py`, and use `labelled_predictions.py` and `certainty.py`."""
