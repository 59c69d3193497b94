"""How a check says what it needs and what it runs on. Light: pytest loads it with the plugin."""

from __future__ import annotations

from typing import Literal

import pytest

Need = Literal[
    "tiny", "reference", "checkpoint", "row order", "eviction", "windows", "experts",
    "chat template",
]  # fmt: skip
NEEDS = "kinfolk_needs"
EACH_TINY = "kinfolk_each_tiny"
each_tiny: pytest.MarkDecorator = getattr(pytest.mark, EACH_TINY)
"""The check runs on every tiny model of the family, not on its first alone."""

FORMAT = "quant_format"
"""The argument of checks that run once for every format of weights."""


def needs(*wanted: Need) -> pytest.MarkDecorator:
    """The check means something only where the family has all of this."""
    return getattr(pytest.mark, NEEDS)(*wanted)  # type: ignore[no-any-return]
