"""Conversion of DFlash drafters from Hugging Face directories to layout B."""
