"""Rows of a table, from files to the parts of a split:

1. `task_files.py`: the files of a task and their rows; `datasets.py`: data sets known by name;
2. `table.py`: the texts of these rows (`TextTable`), from the cells that `texts.py` reads;
   `labelled_table.py`: a table with its labels;
3. `reading.py`: the tokens of the texts, and what is wrong with them for a model (`TextReader`);
   `units.py`: labels of residues and words;
4. `duplicates.py`: groups of equal rows; `splits.py`: the rows of each part;
5. `summary.py`: a table in words; `hashes.py`: tells whether two tables or splits are equal."""
