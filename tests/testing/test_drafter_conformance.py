"""The drafters of the core, through the checks that those of plugins go through."""

from __future__ import annotations

from kinfolk.testing import DrafterConformance


class TestDFlash(DrafterConformance):
    drafter = "dflash"


class TestNgram(DrafterConformance):
    drafter = "ngram"


class TestRandom(DrafterConformance):
    drafter = "random"
