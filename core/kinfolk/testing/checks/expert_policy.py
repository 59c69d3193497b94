"""Checks of policies that say which experts are on the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinfolk.engine.expert_reports import REPORT_STEPS
from kinfolk.plans import ExpertStats
from kinfolk.sched.request import Request
from kinfolk.testing.checks.engine import engine
from kinfolk.testing.checks.experts import run_requests
from kinfolk.testing.kit import Kit
from kinfolk.testing.marks import needs
from kinfolk.testing.policy_kit import PolicyKit

SHARE = "40%"
"""Of the experts, in bays."""


class ExpertPolicyChecks:
    """A policy answers for any experts, and moves them without changing an answer."""

    @needs("placement")
    @pytest.mark.parametrize("counted", [False, True], ids=["no profile", "a profile"])
    def test_experts_are_placed_in_any_budget(
        self, kinfolk_policy: PolicyKit, counted: bool
    ) -> None:
        """`place_experts` answers bays that fit, each expert once, for every budget from none to
        all, for layers of different sizes and layers without experts, with and without counts."""
        hooks = kinfolk_policy.mixture_hooks
        for stats, budget in placings(counted):
            hooks.place_experts(stats, budget)

    @needs("placement")
    def test_answers_do_not_depend_on_its_bays(self, kinfolk_policy: PolicyKit) -> None:
        """Requests at once get the tokens that they get with all experts near."""
        run_requests(kinfolk_policy.mixture, 6, SHARE, policy=(kinfolk_policy.name,))

    @needs("swaps")
    def test_swaps_change_no_token(self, kinfolk_policy: PolicyKit) -> None:
        """`swap_experts` answers without a failure whenever it is asked, and a long request gets
        the tokens that it gets with all experts near."""
        kit, name = kinfolk_policy.mixture, kinfolk_policy.name
        count = 3 * REPORT_STEPS
        expected, _ = _answer(kit, count, "all", ())
        found, failures = _answer(kit, count, SHARE, (name,))
        assert failures == 0, f"swap_experts failed {failures} times; the log says how"
        assert found == expected


def placings(counted: bool) -> Iterator[tuple[ExpertStats, int]]:
    """Experts of models, and budgets, that a policy may be asked about."""
    for layers, nbytes in (
        ((8, 8, 8), (256, 256, 256)),
        ((8, 0, 5), (256, 0, 1024)),
        ((1,), (512,)),
        ((64, 64), (256, 768)),
    ):
        counts = tuple(tuple(97 * e % 13 for e in range(count)) for count in layers)
        stats = ExpertStats(layers, counts if counted else None, nbytes)
        total = sum(count * size for count, size in zip(layers, nbytes, strict=True))
        record = min(size for size in nbytes if size)
        for budget in (0, record - 1, record, total // 3, total - 1, total, 2 * total):
            yield stats, budget


def _answer(kit: Kit, count: int, budget: str, policy: tuple[str, ...]) -> tuple[list[int], int]:
    """The tokens of a greedy answer, and how often the policy failed."""
    with engine(kit, expert_budget=budget, policy=policy) as runtime:
        prompt = tuple(kit.random_tokens(5, seed=3))
        tokens: list[int] = []
        for event in runtime.engine.submit(Request("swaps", prompt, count)):
            tokens += getattr(event, "tokens", ())
        failures = runtime.engine.stats().get("swap_experts_failures", 0)
        runtime.engine.check_integrity()
    return tokens, int(failures)
