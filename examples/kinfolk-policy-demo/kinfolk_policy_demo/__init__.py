"""Example: a policy for kinfolk."""
