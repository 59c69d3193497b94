"""What every family has to do, from the conformance kit of kinfolk."""

from kinfolk.testing import FamilyConformance


class TestQwen35Moe(FamilyConformance):
    family = "qwen35moe"
