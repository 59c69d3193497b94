"""Training of blocks for multi-token prediction."""
