"""The model file that a family ships, used where the user names none. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from kinfolk.errors import SettingsError
from kinfolk.registry import Registry


def bundled_model(registry: Registry) -> Path:
    """The model file that an installed family ships; :class:`SettingsError` if there is none."""
    path = registry.bundled_model()
    if path is None:
        raise SettingsError("no installed family ships a model: name a file with -m")
    return path
