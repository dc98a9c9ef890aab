"""One training loop for pre-training and fine-tuning: `loop` calls `update` for every batch."""
