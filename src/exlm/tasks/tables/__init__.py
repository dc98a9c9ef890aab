"""Models of tables: how they are trained, what they predict, and how sure they are."""
