"""The engine: plan, run, commit."""
