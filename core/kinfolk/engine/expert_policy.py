"""What counters of experts are for, between steps: swaps are asked for, a profile is kept."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.experts.profile_writer import ProfileWriter
from kinfolk.experts.swaps import SwapQueue
from kinfolk.plans import ExpertUse
from kinfolk.sched.plan import StepPlan

log = logging.getLogger(__name__)

SETTLED_SECONDS: Final = 0.25
"""An engine that has rested for so long reads its counters, which takes about a millisecond."""

_LEAST_SECONDS: Final = 1.0
"""Between two looks at a profile that is late because the disk is slow."""


class ExpertPolicy:
    """Asks the hook ``swap_experts`` for swaps, a few for each step that follows, and counts uses
    in the profile (``--expert-profile``). A policy that fails costs its swaps, is counted in
    ``failures`` and logged once, and harms no request."""

    def __init__(self, loaded: LoadedModel) -> None:
        source = loaded.source
        planned = None if source is None else source.ready.experts
        self._hooks = loaded.hooks
        self._queue = SwapQueue()
        self._swaps = planned is None or planned.swap
        profile = None if planned is None else planned.profile
        self._profile = profile if profile is not None and profile.kept else None
        self._writer = None if self._profile is None else ProfileWriter(self._profile)
        self._top_k = 1 if planned is None else max(1, planned.top_k)
        self.failures = 0

    def with_swaps(self, plan: StepPlan) -> StepPlan:
        """``plan`` with the swaps of its step."""
        swaps = self._queue.take()
        return replace(plan, swaps=swaps) if swaps else plan

    def harvest(self, runner: ModelRunner) -> None:
        """Between steps: take the counters, if any have come."""
        if (harvested := runner.take_expert_use()) is None:
            return
        use, residency = harvested
        self._count(use)
        if self._writer is not None:
            self._writer.save_if_due()
        if not (self._swaps and use.steps):
            return
        try:
            answer = self._hooks.swap_experts(use, residency)
        except Exception as error:
            self.failures += 1
            if self.failures == 1:
                log.warning("swap_experts failed, bays stay as they are for now: %s", error)
            return
        self._queue.put(answer.swaps, residency.nbytes)

    def rest(self, runner: ModelRunner, seconds: float) -> float | None:
        """No step runs, and none has for ``seconds``: count what has not been counted yet and save
        the profile, if it is time. Returns after how many seconds to ask again, ``None`` = not
        before the next step."""
        if runner.expert_use_is_old:
            if seconds < SETTLED_SECONDS:
                return SETTLED_SECONDS - seconds
            self._refresh(runner)
            self.harvest(runner)
        if self._writer is None or self._profile is None:
            return None
        self._writer.save_if_due()
        return max(_LEAST_SECONDS, self._profile.due_in)

    def close(self, runner: ModelRunner) -> None:
        """Count what has not been counted yet, and write the profile: this waits for the device and
        for the disk. No step may run."""
        if self._writer is None:
            return
        self._refresh(runner)
        if (harvested := runner.take_expert_use()) is not None:
            self._count(harvested[0])
        self._writer.finish()

    def _refresh(self, runner: ModelRunner) -> None:
        try:
            runner.expert_use()
        except RuntimeError as error:
            log.warning("the last uses of experts are lost: %s", error)

    def _count(self, use: ExpertUse) -> None:
        if self._profile is not None:
            rows = max((sum(uses) for uses in use.uses), default=0) // self._top_k
            self._profile.add(use.uses, rows)
