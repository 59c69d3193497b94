"""State of sequences: torch-free bookkeeping (KV cache manager, prefix cache) and tensors."""
