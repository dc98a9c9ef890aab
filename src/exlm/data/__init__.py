"""From files to masked batches. A file is read in these steps, in constant memory:

1. `open_files.py`: the lines of a file, plain or compressed, and of standard input;
2. `formats.py`: which file is read, and which format it has (`DataFile`);
3. `records.py`: a record for each row (of CSV and TSV in `delimited.py`, of sentences in
   `conll.py`); `decimals.py` tells which mark stands before the decimals of texts, and
   `cell_texts.py` what text a cell is;
4. `frames.py`: frames of records (`read_frames`); `columns.py` finds their columns by name;
5. `inputs.py`: the texts in these frames, for `prepare`. Labelled tables are in `tasks/rows`.

Texts become batches in `batching.py` and `masking.py`, and in `collator.py` for the Trainer of
Hugging Face. Frames are written by `writing.py`, the results of a command by `output_files.py`.
`spelling.py` says how a text is spelled when a model reads it."""
