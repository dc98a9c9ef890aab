"""Questions that a span of a context answers."""
