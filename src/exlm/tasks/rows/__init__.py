"""Rows of a table, from files to the parts of a split:

1. `datasets.py`: the files of a task and their rows, also of data sets that are known by name;
2. `table.py`: the texts and labels of these rows (`TextTable`), and `texts.py`: the cells of texts;
3. `reading.py`: the tokens of the texts, and what is wrong with them for a model (`TextReader`);
   `units.py`: labels of residues and words;
4. `duplicates.py`: groups of equal rows; `splits.py`: the rows of each part;
5. `summary.py`: a table in words; `hashes.py`: tells whether two tables or splits are equal."""
