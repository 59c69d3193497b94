"""Drafting and verification of several tokens a step."""
