"""Tools for testing a family; only ``kinfolk check`` and tests import them.

A test module with ``from kinfolk.testing import FamilyConformance`` and a subclass that names a
family runs every check of the conformance kit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.testing.conformance import FamilyConformance

__all__ = ["FamilyConformance"]


def __getattr__(name: str) -> Any:
    if name == "FamilyConformance":
        from kinfolk.testing.conformance import FamilyConformance

        return FamilyConformance
    raise AttributeError(f"module 'kinfolk.testing' has no attribute {name!r}")
