"""The conformance kit's test classes: a plugin subclasses one and states its name."""

from __future__ import annotations

import pytest

from kinfolk.testing.checks.chunk_scores import ChunkScoreChecks, FamilyScoreChecks
from kinfolk.testing.checks.contract import ContractChecks
from kinfolk.testing.checks.drafter_engine import DrafterEngineChecks
from kinfolk.testing.checks.drafter_files import DrafterFileChecks
from kinfolk.testing.checks.drafter_proposals import DrafterProposalChecks
from kinfolk.testing.checks.drafter_state import DrafterStateChecks
from kinfolk.testing.checks.drafts import DraftChecks
from kinfolk.testing.checks.engine import EngineChecks
from kinfolk.testing.checks.expert_policy import ExpertPolicyChecks
from kinfolk.testing.checks.experts import ExpertChecks
from kinfolk.testing.checks.features import FeatureChecks
from kinfolk.testing.checks.files import FileChecks
from kinfolk.testing.checks.numbers import NumberChecks
from kinfolk.testing.checks.policy import PolicyChecks
from kinfolk.testing.checks.ranges import RangeChecks
from kinfolk.testing.checks.state import StateChecks
from kinfolk.testing.checks.text import TextChecks


@pytest.mark.cpu
class FamilyConformance(
    # pytest runs the last base first.
    EngineChecks, FamilyScoreChecks, ExpertChecks, TextChecks, FeatureChecks, DraftChecks,
    StateChecks, NumberChecks, RangeChecks, FileChecks, ContractChecks,
):  # fmt: skip
    """All checks, on the installed family that ``family`` names.

    A test module needs only ``class TestOlive(FamilyConformance): family = "olive"``. Checks that
    do not apply to a family, by its state plan and its tiny model, are listed with the reason at
    the end of the run.
    """

    family: str
    kinfolk_conformance = True


@pytest.mark.cpu
class DrafterConformance(
    DrafterEngineChecks, DrafterProposalChecks, DrafterStateChecks, DrafterFileChecks,
):  # fmt: skip
    """All checks, on the installed drafter that ``drafter`` names.

    A test module needs only ``class TestHead(DrafterConformance): drafter = "head"``. Checks that
    do not apply, such as those of weights to a drafter of the host, are listed with the reason.
    """

    drafter: str
    kinfolk_conformance = True


@pytest.mark.cpu
class PolicyConformance(ChunkScoreChecks, ExpertPolicyChecks, PolicyChecks):
    """All checks, on the installed policy that ``policy`` names.

    A test module needs only ``class TestMine(PolicyConformance): policy = "mine"``. Checks that do
    not apply, such as those of scores to a policy that scores nothing, are listed with the reason.
    """

    policy: str
    kinfolk_conformance = True
