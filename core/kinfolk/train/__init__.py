"""Training of drafters: texts, features of the target, the loop, and what is kept of a run."""
