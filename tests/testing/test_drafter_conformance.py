"""The drafters of the core, through the checks that those of plugins go through."""

from __future__ import annotations

import pytest

from kinfolk.testing import DrafterConformance
from kinfolk.testing.drafter_kit import DrafterKit


class TestDFlash(DrafterConformance):
    drafter = "dflash"


class TestMTP(DrafterConformance):
    drafter = "mtp"


class TestNgram(DrafterConformance):
    drafter = "ngram"


class TestRandom(DrafterConformance):
    drafter = "random"


@pytest.mark.parametrize(
    ("drafter", "models"),
    [("mtp", ["qwen35-untied", "qwen35moe-block"]), ("dflash", []), ("ngram", [])],
)
def test_a_drafter_in_a_models_file_is_checked_with_all_tiny_models_that_hold_it(
    drafter, models, tmp_path
):
    """At least those of our families; others may be installed."""
    found = [model for _, model in DrafterKit(drafter, tmp_path).targets()]
    assert set(models) <= set(found)
    assert bool(models) == bool(found)
