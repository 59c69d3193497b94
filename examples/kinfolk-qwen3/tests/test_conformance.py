"""The conformance kit of kinfolk, run on this family."""

from kinfolk.testing import FamilyConformance


class TestQwen3(FamilyConformance):
    family = "qwen3"
