"""Files, directories and models on disk: written whole, verified, locked."""
