"""The conformance kit of kinfolk, run on this drafter."""

from kinfolk.testing import DrafterConformance


class TestRecurrentHead(DrafterConformance):
    drafter = "recurrent"
