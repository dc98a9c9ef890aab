"""Joint fillings of all masks of a text: `exlm fill`."""
