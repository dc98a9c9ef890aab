"""What a directory or the installation is, in words."""
