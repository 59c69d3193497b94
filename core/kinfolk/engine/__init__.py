"""The engine: plan, launch, collect and commit steps."""
