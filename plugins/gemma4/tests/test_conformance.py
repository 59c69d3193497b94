"""The conformance kit of kinfolk, run on this family and its drafter."""

from kinfolk.testing import DrafterConformance, FamilyConformance


class TestGemma4(FamilyConformance):
    family = "gemma4"


class TestAssistant(DrafterConformance):
    drafter = "gemma4-assistant"
