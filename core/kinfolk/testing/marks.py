"""Marks that state what a check needs and runs on. Light: every pytest run loads this module."""

from __future__ import annotations

from typing import Literal

import pytest

Need = Literal[
    "tiny", "reference", "checkpoint", "row order", "eviction", "windows", "experts",
    "chat template", "features", "tiny drafter", "file", "recurrent", "chain", "host", "scores",
    "verify", "placement", "swaps",
]  # fmt: skip
NEEDS = "kinfolk_needs"
EACH_TINY = "kinfolk_each_tiny"
each_tiny: pytest.MarkDecorator = getattr(pytest.mark, EACH_TINY)
"""The check runs on every tiny model of the family, not only on the first."""

FORMAT = "quant_format"
"""The argument of checks that run once for every weight format."""


def needs(*wanted: Need) -> pytest.MarkDecorator:
    """The check applies only to families, drafters or policies that meet all of these needs."""
    return getattr(pytest.mark, NEEDS)(*wanted)  # type: ignore[no-any-return]
