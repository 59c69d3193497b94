"""The plugin's registration; the policy itself is imported when it is switched on."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec

KINFOLK_API = (1, 0)


@hookimpl
def register_policies() -> list[PolicySpec]:
    return [
        PolicySpec(
            "lenient",
            "kinfolk_policy_demo.lenient:create",
            "keeps drafts that are among the likeliest tokens: faster, and not exact",
        )
    ]
