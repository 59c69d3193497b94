"""The conformance kit of kinfolk, run on this policy."""

from kinfolk.testing import PolicyConformance


class TestRareTokens(PolicyConformance):
    policy = "rare-tokens"
