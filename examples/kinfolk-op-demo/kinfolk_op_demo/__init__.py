"""A back end for an op of kinfolk, and an op of this plugin's own."""
