"""Labelled tables: how models are trained for them, what they predict, and how sure they are.

Training: `table_task.py` has the table that is read once for all seeds, `unit_table.py` reads one
with labels of residues or words, `table_config.py` its settings; `finetuning.py` trains an encoder
with a seed, `seed_results.py` writes what it gave. `training_texts.py` keeps what was learned.

Predicting: `predictor.py` makes `predictions.py` of a file. Both use `output_meaning.py`, which
turns outputs into predictions, `scoring.py` and `certainty.py`; `explain.py` draws explanations."""
