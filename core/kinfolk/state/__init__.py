"""What sequences keep: torch-free bookkeeping (ledger, prefix) and tensors (pools, state)."""
