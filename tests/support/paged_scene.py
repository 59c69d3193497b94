"""A scheduler and a runner of one model, step by step: what the engine's thread does in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kinfolk.engine.history import History
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import StepPlan, StepResult, TokenLogprob
from kinfolk.sched.request import Request
from kinfolk.sched.scheduler import Scheduler
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import PrefixCache


@dataclass
class Said:
    """What a request has emitted, and how it has ended."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: Finished | None = None


class PagedScene:
    """``scores``: all (request, scores) pairs of the steps so far."""

    def __init__(self, loaded: LoadedModel, drafter=None, **limits) -> None:
        self.loaded = loaded
        self.kv_cache, self.state = loaded.new_state()
        self.runner = ModelRunner(loaded, self.state)
        values = {"slots": 4, "context": loaded.limits.context, "step_tokens": 1024, "slice": 512}
        wanted = SchedulerLimits(vocabulary=loaded.info.vocabulary, **{**values, **limits})
        prefixes = PrefixCache(self.kv_cache.checkpoints, loaded.limits.checkpoints)
        self.scheduler = Scheduler(
            wanted, self.kv_cache, prefixes, drafter, residency=loaded.residency
        )
        self.histories: dict[str, History] = {}
        self.said: dict[str, Said] = {}
        self.scores: list[tuple] = []

    def submit(self, request: Request) -> None:
        self.histories[request.id] = History(request)
        self.said[request.id] = Said()
        self.scheduler.check(request)
        self.scheduler.submit(request, HashedTokens(request.prompt))

    def steps(self) -> Iterator[tuple[StepPlan, StepResult]]:
        """Each step, when it is committed, until nothing is left to do."""
        while (plan := self.scheduler.plan()) is not None:
            result = self.runner.run(plan, self.histories)
            self.scores += zip(plan.scores, result.scores, strict=True)
            self.take(self.scheduler.commit(result))
            yield plan, result

    def drain(self) -> None:
        for _ in self.steps():
            pass

    def resident(self, lease) -> set[int]:
        """Chunks of full attention in the table of a sequence."""
        return {chunk for chunk, _ in self.kv_cache.tables.table(lease, 0)}

    def take(self, events) -> None:
        for event in events:
            if isinstance(event, Emitted):
                self.said[event.request_id].tokens += event.tokens
                self.said[event.request_id].logprobs += event.logprobs
            elif isinstance(event, Finished):
                self.said[event.request_id].end = event
