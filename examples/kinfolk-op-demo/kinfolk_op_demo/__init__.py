"""Example: a back end for an op of kinfolk, and a new op."""
