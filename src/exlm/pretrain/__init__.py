"""Pre-training: its settings, one run from start to finish, how it is evaluated."""
