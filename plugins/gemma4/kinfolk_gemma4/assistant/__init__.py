"""The drafter ``gemma4-assistant``: a small model that reads its target's keys and values."""
