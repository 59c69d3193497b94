"""The conformance kit of kinfolk, run on this family."""

from kinfolk.testing import FamilyConformance


class TestQwen35(FamilyConformance):
    family = "qwen35"
