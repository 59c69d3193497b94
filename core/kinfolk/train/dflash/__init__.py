"""Training of DFlash drafters."""
