"""Functions from tensors to tensors. Nothing here depends on a model, a tokenizer or a data set.

Letters used throughout: B sequences, S input tokens, L expanded tokens, k states per mask, N
lattice states, T targets (masks + BOS + EOS), D width, H heads, V vocabulary."""
