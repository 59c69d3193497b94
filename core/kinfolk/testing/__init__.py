"""Tools to test a family with; only ``kinfolk check`` imports them.

``from kinfolk.testing import FamilyConformance`` and a subclass that names a family is a test
module with everything that a family has to do.
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
