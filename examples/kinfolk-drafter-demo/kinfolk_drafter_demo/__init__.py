"""Example: a drafter with weights of its own, and the program that trains it."""
