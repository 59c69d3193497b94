"""Example: a policy for kinfolk that scores chunks."""
