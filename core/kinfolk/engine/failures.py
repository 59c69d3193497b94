"""What clients are told of what went wrong in the engine."""

from __future__ import annotations

import torch

from kinfolk.errors import PluginError


def explain(error: BaseException) -> str:
    """One line, as ``Finished.error``."""
    raised = error.__cause__ if isinstance(error, PluginError) else error
    if isinstance(raised, torch.OutOfMemoryError):
        return "the device ran out of memory: lower --context or --slots"
    return f"{type(error).__name__}: {error}"
