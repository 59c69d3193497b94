"""Tools for testing a plugin; only ``kinfolk check`` and tests import them.

A test module with ``from kinfolk.testing import FamilyConformance`` and a subclass that names a
family runs every check of the conformance kit; ``DrafterConformance`` does so for a drafter,
``PolicyConformance`` for a policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.testing.conformance import (
        DrafterConformance,
        FamilyConformance,
        PolicyConformance,
    )

__all__ = ["DrafterConformance", "FamilyConformance", "PolicyConformance"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from kinfolk.testing import conformance

        return getattr(conformance, name)
    raise AttributeError(f"module 'kinfolk.testing' has no attribute {name!r}")
