"""The paper's experiments: `exlm analyze`."""
