"""What clients are told of what went wrong in the engine."""

from __future__ import annotations

import torch


def explain(error: Exception) -> str:
    """One line, as ``Finished.error``."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the device ran out of memory: lower --context or --slots"
    return f"{type(error).__name__}: {error}"
