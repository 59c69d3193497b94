"""Layers of models, built from ops and weights."""
