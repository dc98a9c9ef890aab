"""What a directory is, in words."""
