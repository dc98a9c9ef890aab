"""The experiments of the paper, and the report: runs as they are read (`pretrainings.py`,
task_trainings.py), groups of comparable ones, tables, figures and claims."""
