"""The experiments of the paper, and the report on all runs.

`exlm analyze` makes the runs: `analyze.py` says which, `jobs.py` runs them, and `measurements.py`
and `cost.py` measure them.

`exlm report` (`report.py`) shows them, and each of its files needs only those before it:

| files                                  | what they have                                          |
| -------------------------------------- | ------------------------------------------------------- |
| `display.py`                           | titles, texts, and a `Model`: what the experiments vary |
| `pretrainings.py`, `task_trainings.py` | a run, as it is read                                    |
| `runs.py`                              | all runs below some directories                         |
| `means.py`, `groups.py`                | a `RunGroup`: runs that can be compared                 |
| `page.py`                              | a `Table`, a `Drawing` and a `Section`, to be written   |
| `tables.py`, `comparisons.py`          | the tables                                              |
| `figures.py`                           | the figures                                             |
"""
