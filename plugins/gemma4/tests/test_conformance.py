"""What every family has to do, from the conformance kit of kinfolk."""

from kinfolk.testing import FamilyConformance


class TestGemma4(FamilyConformance):
    family = "gemma4"
