"""A pre-trained encoder that learns a task: loaded with a head, trained, kept with what it needs to
predict, and run."""
