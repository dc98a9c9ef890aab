"""Fills all masks of a text jointly (`exlm fill`) and shows how the model does it (`exlm
explore`)."""
