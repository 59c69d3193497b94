"""Ops: one typed function each, dispatched to a back end that says it can."""
