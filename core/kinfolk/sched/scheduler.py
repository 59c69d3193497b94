"""Who runs next: requests in, step plans out, results in, events out.

One step is ``plan()``, the engine's work, ``commit(result)``. Nothing here knows a tensor. A
request is promised all the room it may need before it starts, so none runs out of it. A result is
applied only if its step is the one outstanding and its lease is still the request's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from kinfolk.draft_api import Drafter
from kinfolk.errors import EngineError, SettingsError, SlotTaken
from kinfolk.residency.read_tokens import ReadTokens
from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.admission import Admission
from kinfolk.sched.checkpoints import Checkpoints
from kinfolk.sched.choices import Choices
from kinfolk.sched.drafts import Drafts
from kinfolk.sched.events import Blocked, Emitted, Finished, Held, SchedulerEvent, Usage
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.overlap import goes_on
from kinfolk.sched.paging import Paging
from kinfolk.sched.plan import Item, ItemKind, ItemResult, StepPlan, StepResult
from kinfolk.sched.preemption import Preemption
from kinfolk.sched.readings import Readings
from kinfolk.sched.request import FinishReason, Request, Sequence, Status
from kinfolk.sched.step_items import StepItems, draft_depth, forked_items
from kinfolk.sched.turns import Turns
from kinfolk.sched.validation import match_results
from kinfolk.sched.view import SequenceView
from kinfolk.state.chunks import SlotLease
from kinfolk.state.disk_books import DiskBooks
from kinfolk.state.disk_requests import StoreReport
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.operations import StateOperation
from kinfolk.state.prefix import PrefixCache


class Scheduler:
    """Plans the steps of one model. Not thread-safe: the engine's thread owns it.

    ``kv_cache`` must have ``limits.slots`` slots and room for steps as long as a slice or a draft.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv_cache: KVCacheManager,
        prefixes: PrefixCache,
        drafter: Drafter | None = None,
        disk: DiskBooks | None = None,
        residency: ResidencyRules | None = None,
        readings: Readings | None = None,
    ) -> None:
        longest = max(limits.slice, limits.max_draft + 1, limits.proposed + 1)
        tree = limits.proposed_tree
        arena = limits.slots * (tree + 1) if tree else 0
        if kv_cache.limits.tree_rows < arena:
            raise SettingsError(
                f"{limits.slots} trees of {tree} drafted rows need an arena of {arena} "
                f"rows, the state was made for {kv_cache.limits.tree_rows}"
            )
        if kv_cache.limits.slots < limits.slots or kv_cache.limits.step_rows < longest:
            raise SettingsError(
                f"the scheduler wants {limits.slots} slots and {longest} rows a sequence and step, "
                f"the state was made for {kv_cache.limits.slots} and {kv_cache.limits.step_rows}"
            )
        self.limits = limits
        self._kv_cache = kv_cache
        self._readings = readings or Readings()
        self._paging = Paging(residency, kv_cache.tables, self._readings.chunks)
        self._checkpoints = Checkpoints(kv_cache.checkpoints, prefixes, limits, self._paging)
        self._prefixes = prefixes
        self._disk = disk
        self._admission = Admission(limits, kv_cache, prefixes, self._paging, disk)
        self._choices = Choices(prefixes, self._admission.room_changed)
        self._preemption = Preemption(kv_cache.checkpoints, prefixes)
        self._drafts = Drafts(limits, drafter)
        self._turns = Turns(limits.quantum)
        self._items = StepItems(
            limits, kv_cache.tables, self._drafts, self._checkpoints, self._choices, self._paging
        )
        self._prefilling: list[Sequence] = []
        self._held = 0
        self._alive: dict[str, Sequence] = {}
        self._outstanding: list[StepPlan] = []
        self._arrivals = 0
        self._steps = 0
        self.stale_results = 0
        self.admits = True
        """Whether requests that wait get slots."""

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._admission) + len(self._choices)

    @property
    def running(self) -> int:
        """Requests with a slot."""
        return len(self._prefilling) + len(self._turns) + self._held

    @property
    def held(self) -> int:
        """Requests with a slot that wait for a grant."""
        return self._held

    @property
    def _places(self) -> int:
        """Requests that may get a slot now."""
        return self.limits.slots - self.running if self.admits else 0

    @property
    def proposes(self) -> bool:
        """Whether the device is asked to propose drafts, if it can."""
        return self._drafts.device_proposes

    @proposes.setter
    def proposes(self, value: bool) -> None:
        self._drafts.device_proposes = value

    def drafter_reloaded(self) -> None:
        """What the drafter of the device has failed at before no longer counts."""
        self._drafts.reloaded()

    @property
    def idle(self) -> bool:
        return not self._alive and not self._outstanding and not self._readings.busy

    @property
    def alive(self) -> Mapping[str, Sequence]:
        """Requests that have not ended, by id."""
        return MappingProxyType(self._alive)

    def view(self) -> tuple[SequenceView, ...]:
        """All requests that have not ended, in the order of their arrival, as they are now."""
        return tuple(map(SequenceView.of, self._alive.values()))

    def blocked(self) -> list[SchedulerEvent]:
        """The requests that wait, if :meth:`plan` has nothing to run: all that have a slot are
        held."""
        if not self._held or self.running != self._held:
            return []
        waiting = (seq for seq in self._alive.values() if seq.lease is None)
        fetching = self._admission.waits_for_disk
        return [Blocked(each.request.id) for each in waiting if not fetching(each)]

    def owner(self, slot: int) -> str | None:
        """The request that has a slot, or waits for it. Any thread may ask."""
        for request_id, sequence in list(self._alive.items()):
            lease = sequence.lease
            if slot == (sequence.request.slot if lease is None else lease.slot):
                return request_id
        return None

    @property
    def draft_failures(self) -> int:
        return self._drafts.failures

    @property
    def preemptions(self) -> int:
        return self._preemption.count

    def prefix_stats(self) -> dict[str, int]:
        """Counters of the prefix cache, of the disk behind it, of paging, and of scored texts."""
        disk = {} if self._disk is None else self._disk.stats()
        paging = self._paging.stats(tuple(self._alive.values()))
        reused = self._admission.reused.stats()
        return self._prefixes.stats() | reused | disk | paging | self._readings.stats()

    # -- requests -----------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raise :class:`RequestError` if a request could never run; any thread may ask."""
        self._admission.check(request)

    def submit(
        self, request: Request, prompt: HashedTokens | None = None, read: ReadTokens | None = None
    ) -> None:
        """Queue a request that :meth:`check` accepts and whose id no running request has.

        ``prompt`` is that of the request, ``read`` what :meth:`Readings.read` has made of it;
        another thread may have done that. Raises :class:`SlotTaken` if its slot is taken.
        """
        if request.slot is not None and (owner := self.owner(request.slot)) is not None:
            raise SlotTaken(f"slot {request.slot} is taken by request {owner!r}")
        sequence = Sequence(request, self._arrivals, prompt, read=read)
        self._arrivals += 1
        if self._choices.enter(sequence):
            self._admission.enqueue(sequence)
        self._alive[request.id] = sequence

    def cancel(
        self, request_id: str, reason: FinishReason = FinishReason.CANCELLED
    ) -> list[SchedulerEvent]:
        """End a request now, whatever it is doing; unknown and finished ids are no fault.

        What the outstanding step computes for it is dropped. ``reason`` is ``STOP`` when the
        output is complete for a reason that only the caller sees, such as a stop string.
        """
        sequence = self._alive.get(request_id)
        if sequence is None:
            return []
        # In the middle of a step the state is neither the old one nor the new one.
        between_steps = sequence.status is Status.DECODE and not self._outstanding
        settled = between_steps or sequence.status is Status.HELD
        return [self._finish(sequence, reason, settled=settled)]

    def grant(self, request_id: str, tokens: int | None = None) -> list[SchedulerEvent]:
        """Let a request emit ``tokens`` more than it was granted before it is held (again),
        ``None`` = all. Unknown and finished ids are no fault."""
        sequence = self._alive.get(request_id)
        if sequence is None:
            return []
        if tokens is None or sequence.granted is None:
            sequence.granted = None
        else:
            sequence.granted += tokens
        if sequence.status is Status.HELD:
            self._held -= 1
            sequence.status = Status.DECODE
            self._turns.join(sequence)
        return []

    def keep(self, request_id: str, length: int | None = None) -> bool:
        """Keep the state of a held request as a checkpoint for later prompts, after ``length``
        tokens (:meth:`Checkpoints.keep`). Raises :class:`EngineError` if it is not held."""
        sequence = self._alive.get(request_id)
        if sequence is None or sequence.status is not Status.HELD:
            raise EngineError(f"request {request_id!r} is not held: its state is about to change")
        kept = self._checkpoints.keep(sequence, sequence.leased, length)
        self._admission.room_changed()
        return kept

    @contextmanager
    def forks(self, request_ids: Iterable[str]) -> Iterator[StepPlan]:
        """A step of copies of held requests, each of which chooses the token after the pending one.
        Its result is not to be committed: the copies end with the context. Raises
        :class:`PoolExhausted` if there are no slots or blocks for them."""
        sequences = [self._alive[request_id] for request_id in request_ids]
        with forked_items(self._kv_cache.tables, sequences) as items:
            self._steps += 1
            yield StepPlan(self._steps, tuple(items), self._kv_cache.take_operations())

    def spilled(self, job: int, report: StoreReport) -> None:
        """What became of a ``SpillSaved``; unknown jobs are no fault."""
        if self._disk is not None:
            self._disk.spilled(job, report)
            self._admission.freed()

    def fetched(self, job: int, *, read: bool) -> None:
        """What became of a ``FetchSaved``; unknown jobs are no fault."""
        if self._disk is not None:
            self._admission.fetched(job, self._disk.fetched(job, read=read))

    # -- one step -----------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step, or ``None`` when nothing can run. Commit it before asking again."""
        if self._outstanding:
            raise EngineError(f"step {self._outstanding[0].step_id} was planned and not committed")
        self._begin(self._admission.admit(self._places))
        if self.limits.preempt:
            self._preempt()
        rows, mixed, prompts = self.limits.step_tokens, len(self._turns) > 0, self._prefilling
        left = rows - self._items.prefill_rows(prompts, mixed=mixed)
        items = self._items.decode(self._turns, left)
        rows -= sum(item.rows for item in items)
        items += self._items.prefill(prompts, rows, mixed=mixed)
        return self._planned(items) if items or self._readings.busy else None

    def plan_next(self) -> StepPlan | None:
        """The step after the outstanding one, whose result is not known yet; ``None`` if what is in
        it depends on that. Its tokens are ``UNKNOWN_TOKENS``: the outstanding step chooses them.

        A sequence that turns out to have ended has a row too many. Nobody hears of that row.
        """
        sequences = self._overlapping()
        if sequences is None:
            return None
        pairs = zip(sequences, self._outstanding[0].items, strict=True)
        return self._planned([self._items.following(*pair) for pair in pairs])

    def commit(self, result: StepResult) -> list[SchedulerEvent]:
        """Apply what became of the outstanding step, of two the first.

        Raises :class:`EngineError`, with nothing changed, if the result does not fit the plan; the
        caller then fails all, since the step cannot be repeated.
        """
        plan = self._outstanding[0] if self._outstanding else None
        if plan is None or result.step_id != plan.step_id:
            self.stale_results += 1
            return []
        outcomes = match_results(plan, result)
        self._kv_cache.arrived(result.arrived)
        self._outstanding.pop(0)
        if not result.readings:
            self._drafts.timed(plan, result.seconds)
        self._drafts.drafted(plan, outcomes)
        events: list[SchedulerEvent] = []
        for item, outcome in zip(plan.items, outcomes, strict=True):
            if item.kind is ItemKind.PREFILL or self._checkpoints.awaits(item.lease):
                self._settle(item.lease, outcome.error)
            sequence = self._alive.get(item.request_id)
            if sequence is None or sequence.lease is not item.lease:
                self.stale_results += 1
            elif outcome.error is not None:
                events.append(self._finish(sequence, FinishReason.ERROR, error=outcome.error))
            elif item.kind is not ItemKind.PREVIEW:
                self._apply(sequence, item, outcome, events.append)
        self._paging.scored(result.scores)  # what may leave depends on the new lengths
        self._readings.commit(result.readings, self._paging)
        self._turns.rotate()
        return events

    def fail_all(self, error: str) -> list[SchedulerEvent]:
        """The state on the device is lost: end all that have a slot, trust nothing stored. The
        caller makes the state forget as well."""
        self._outstanding.clear()
        self._paging.forget()
        self._readings.fail_all(error)
        if self._disk is not None:
            for job in self._disk.forget():
                self._admission.fetched(job, None)
        self._checkpoints.forget_all()
        live = [each for each in self._alive.values() if each.lease or each.kept]
        events: list[SchedulerEvent] = [
            self._finish(sequence, FinishReason.ERROR, error=error) for sequence in live
        ]
        self._kv_cache.forget_operations()
        return events

    def leave_device(self) -> tuple[StateOperation, ...]:
        """Let all checkpoints leave the device: to host memory, or for good. Returns the changes of
        the state. Raises :class:`EngineError` if a request has a slot."""
        if self.running:
            raise EngineError(f"{self.running} requests have state on the device")
        while self._prefixes.evict_one():
            pass
        self._kv_cache.forget_scores()
        return self._kv_cache.take_operations()

    # -- planning -----------------------------------------------------------------------------

    def _begin(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            if sequence.kept is not None:
                self._preemption.drop(sequence)
            else:
                self._choices.started(sequence)
            sequence.status = Status.DECODE if sequence.emitted else Status.PREFILL
            (self._turns.join if sequence.emitted else self._prefilling.append)(sequence)

    def _preempt(self) -> None:
        """Give places of running requests to the first that waits, as long as it needs them."""
        while self.admits and (head := self._admission.head) is not None and head.preempts:
            running = (each for each in self._alive.values() if each.lease is not None)
            victim = self._preemption.victim(head, running)
            if victim is None:
                break
            status = victim.status
            if not self._preemption.preempt(victim):
                break
            if status is Status.PREFILL:
                self._prefilling.remove(victim)
            else:
                self._turns.leave(victim)
            self._paging.ended(victim)
            self._admission.enqueue(victim)
            self._admission.room_changed()
            self._begin(self._admission.admit(self._places))
        if self.running == self._held:
            self._begin(self._admission.go_on(self._places))

    def _planned(self, items: list[Item]) -> StepPlan:
        self._steps += 1
        if self._disk is not None:
            self._disk.spill()
        scores, operations = self._paging.take_requests(), self._kv_cache.take_operations()
        plan = StepPlan(self._steps, tuple(items), operations, scores, self._readings.plan())
        self._outstanding.append(plan)
        return plan

    def _overlapping(self) -> list[Sequence] | None:
        """The sequences of the step after the one under way, if that can be planned now."""
        if len(self._outstanding) != 1 or not self.limits.overlap or self._prefilling:
            return None
        if self._admission.may_admit(self._places) or self._readings.busy:
            return None
        drafts, paging = self._drafts, self._paging
        return goes_on(self._outstanding[0], self._alive, len(self._turns), drafts, paging)

    # -- committing ---------------------------------------------------------------------------

    def _settle(self, lease: SlotLease, error: str | None) -> None:
        self._checkpoints.settle(lease, stored=error is None)
        self._admission.room_changed()

    def _apply(
        self,
        sequence: Sequence,
        item: Item,
        outcome: ItemResult,
        send: Callable[[SchedulerEvent], None],
    ) -> None:
        """Move a sequence on by its item: tokens behind a stop token do not exist."""
        tokens = sequence.request.until_stop(outcome.emitted)
        computed = item.start + outcome.kept
        if item.kind is ItemKind.PREFILL:
            if item.sample:
                self._prefilling.remove(sequence)
                self._enqueue(self._choices.computed(sequence))
                sequence.status = Status.DECODE
                self._turns.join(sequence)
        else:
            computed -= len(outcome.emitted) - len(tokens)
            sequence.steps += 1
            self._paging.committed(sequence, len(tokens))
            sequence.served_in_turn += len(tokens)
            if item.kind is ItemKind.VERIFY:
                accepted = min(len(tokens), outcome.kept - 1)
                depth = draft_depth(item, self.limits.proposed_depth)
                sequence.drafts.add(item.rows - 1, depth, accepted, len(tokens))
                sequence.drafts.trees |= item.is_tree
            self._drafts.verified(sequence, item, outcome)
        self._kv_cache.tables.advance(item.lease, computed)
        sequence.computed = computed
        self._drafts.proposed(sequence, item, outcome)
        if not tokens:
            return
        sequence.known.extend(tokens)
        send(Emitted(item.request_id, tokens, outcome.logprobs[: len(tokens)]))
        stopped = tokens[-1] in sequence.request.stop
        if stopped or sequence.remaining == 0:
            # Recurrent state cannot step back over rows that were kept behind a stop token.
            settled = len(tokens) == len(outcome.emitted) or not self._kv_cache.recurrent
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            send(self._finish(sequence, reason, settled=settled))
        elif sequence.budget <= 0:
            send(self._hold(sequence, item.lease))

    def _hold(self, sequence: Sequence, lease: SlotLease) -> Held:
        """Out of the turns, with slot and state: its pending token stays pending."""
        self._turns.leave(sequence)
        self._held += 1
        sequence.status = Status.HELD
        return Held(sequence.request.id, lease.slot)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        error: str | None = None,
        settled: bool = False,
    ) -> Finished:
        """End a request for good. ``settled``: its state holds exactly ``known[:computed]``."""
        if sequence.emitted:
            self._drafts.release(sequence)
        if sequence.lease is None:
            self._admission.withdraw(sequence)
            self._preemption.drop(sequence)
        else:
            if sequence.status is Status.PREFILL:
                self._prefilling.remove(sequence)
            else:
                if sequence.status is Status.HELD:
                    self._held -= 1
                else:
                    self._turns.leave(sequence)
            if settled and sequence.request.keep:
                self._keep_end(sequence, sequence.lease)
            sequence.exact = self._kv_cache.tables.sequence(sequence.lease).exact
            self._paging.ended(sequence)
            self._kv_cache.tables.release(sequence.lease)
            sequence.lease = None
            self._admission.freed()
        self._enqueue(self._choices.ended(sequence))
        del self._alive[sequence.request.id]
        sequence.status = Status.FINISHED
        sequence.finish = reason
        sequence.error = error
        usage = Usage.of(sequence, self._drafts.counts(sequence))
        return Finished(sequence.request.id, reason, usage, error)

    def _enqueue(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._admission.enqueue(sequence)

    def _keep_end(self, sequence: Sequence, lease: SlotLease) -> None:
        ahead = any(item.lease == lease for plan in self._outstanding for item in plan.items)
        if ahead:
            # The step that is under way puts the pending token into the state.
            sequence.computed += 1
            self._kv_cache.tables.advance(lease, sequence.computed)
        self._checkpoints.keep_end(sequence, lease, pending=ahead)
