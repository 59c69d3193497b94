"""The plugin's registration; the policy itself is imported when it is switched on."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec

KINFOLK_API = (1, 1)


@hookimpl
def register_policies() -> list[PolicySpec]:
    return [
        PolicySpec(
            "pinned",
            "kinfolk_pinned_demo.pinned:create",
            "experts that are on the device stay there",
        )
    ]
