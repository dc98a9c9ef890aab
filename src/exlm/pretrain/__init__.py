"""Pre-training: its settings, one run from start to finish, what is measured on held-out data."""
