"""What labels are: how cells are read as labels, and how predictions are compared with them."""
