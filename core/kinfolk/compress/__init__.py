"""Compression of prompts: which parts of a long prompt the model reads. Torch-free."""
