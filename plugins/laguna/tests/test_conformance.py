"""The conformance kit of kinfolk, run on this family."""

from kinfolk.testing import FamilyConformance


class TestLaguna(FamilyConformance):
    family = "laguna"
