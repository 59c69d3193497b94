"""Ops: typed functions, each run by a back end that supports its arguments."""
