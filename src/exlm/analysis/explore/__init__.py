"""A look inside the model on one text: `exlm explore`."""
