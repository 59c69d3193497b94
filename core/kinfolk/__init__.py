"""kinfolk: a local LLM runtime in which model families drop in as plugins.

Importing this package is cheap: every name below is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinfolk.version import __version__

if TYPE_CHECKING:
    from kinfolk.hookspecs import hookimpl

_LAZY = {"hookimpl": "kinfolk.hookspecs"}

__all__ = ["__version__", "hookimpl"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
