"""The conformance kit of kinfolk, run on this policy."""

from kinfolk.testing import PolicyConformance


class TestPinned(PolicyConformance):
    policy = "pinned"
