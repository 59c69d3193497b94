"""The conformance kit of kinfolk, run on this family."""

from kinfolk.testing import FamilyConformance


class TestQwen35Moe(FamilyConformance):
    family = "qwen35moe"
