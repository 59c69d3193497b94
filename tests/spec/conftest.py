"""A chi-square test of counts, and the distribution of sampling computed by its definition."""

from __future__ import annotations

from collections.abc import Callable

import chances
import pytest


@pytest.fixture(scope="session")
def chance_of() -> Callable[..., float]:
    """``chance_of(counts, probabilities)``; see :mod:`chances`."""
    return chances.chance_of


@pytest.fixture(scope="session")
def distribution() -> Callable[..., dict[int, float]]:
    """``distribution(logits, sampling, prompt, output)``; see :mod:`chances`."""
    return chances.distribution
