"""What every family has to do, from the conformance kit of kinfolk."""

from kinfolk.testing import FamilyConformance


class TestQwen3(FamilyConformance):
    family = "qwen3"
