"""The experiments of the paper, and the report on all runs.

`exlm analyze` makes runs: analyze.py says which, jobs.py runs them, and measurements.py and cost.py
measure them. `exlm report` shows runs: the head of report.py tells in which order to read its
files."""
