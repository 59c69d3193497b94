"""What every family has to do, from the conformance kit of kinfolk."""

from kinfolk.testing import FamilyConformance


class TestLaguna(FamilyConformance):
    family = "laguna"
