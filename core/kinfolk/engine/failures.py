"""The messages that clients get for errors of the engine."""

from __future__ import annotations

import torch

from kinfolk.errors import PluginError


def explain(error: BaseException) -> str:
    """The error in one line, for ``Finished.error``."""
    raised = error.__cause__ if isinstance(error, PluginError) else error
    if isinstance(raised, torch.OutOfMemoryError):
        return "the device ran out of memory: lower --context or --slots"
    return f"{type(error).__name__}: {error}"
