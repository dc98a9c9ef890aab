"""Rows of a table: from a file to texts, tokens, labels and the parts of a split."""
