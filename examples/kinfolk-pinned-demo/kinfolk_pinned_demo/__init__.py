"""Example: a policy for the experts of kinfolk."""
