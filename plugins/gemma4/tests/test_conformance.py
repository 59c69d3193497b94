"""The conformance kit of kinfolk, run on this family."""

from kinfolk.testing import FamilyConformance


class TestGemma4(FamilyConformance):
    family = "gemma4"
