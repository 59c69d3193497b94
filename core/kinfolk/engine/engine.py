"""The engine: one thread that runs steps, and tickets through which clients receive events."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from kinfolk.draft_api import Drafter
from kinfolk.engine.disk_tier import DiskTier
from kinfolk.engine.expert_policy import ExpertPolicy
from kinfolk.engine.facts import EngineFacts
from kinfolk.engine.failures import explain
from kinfolk.engine.history import History
from kinfolk.engine.inbox import Inbox
from kinfolk.engine.loading import LoadedModel, Progress
from kinfolk.engine.model_runner import ModelRunner, PendingStep
from kinfolk.engine.named_prefixes import NamedPrefixes
from kinfolk.engine.overview import EngineOverview
from kinfolk.engine.parking import Parking
from kinfolk.engine.probe import probe
from kinfolk.engine.readers import Readers
from kinfolk.engine.scoring_queue import ScoringQueue
from kinfolk.engine.sizing import prefix_bytes
from kinfolk.engine.ticket import OnEvent, OnPause, Ticket, Tickets
from kinfolk.errors import (
    EngineError,
    RequestError,
    RequestTypeError,
    shown,
)
from kinfolk.residency.read_tokens import ReadTokens
from kinfolk.sched.events import Emitted, Finished, SchedulerEvent, Usage
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import StepPlan
from kinfolk.sched.request import FinishReason, Request
from kinfolk.sched.rules import is_whole
from kinfolk.sched.scheduler import Scheduler
from kinfolk.sched.view import SequenceView
from kinfolk.state.disk import DiskCache
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.integrity import require
from kinfolk.state.prefix import PrefixCache
from kinfolk.types import Parkable

log = logging.getLogger(__name__)

T = TypeVar("T")


class Engine:
    """Runs the requests of one loaded model.

    ``submit`` and ``cancel`` may be called from any thread. ``close`` cancels all requests and
    stops the thread; the engine is a context manager. With a ``disk`` prefixes are kept there too.
    With ``readers`` that score prompts, :attr:`scoring` takes texts whose tokens are to be scored.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        limits: SchedulerLimits,
        drafter: Drafter | None = None,
        disk: DiskCache | None = None,
        readers: Readers | None = None,
    ) -> None:
        if limits.vocabulary is None:
            limits = replace(limits, vocabulary=loaded.info.vocabulary)
        with_weights = loaded.drafter
        if drafter is None:
            limits = replace(limits, max_draft=0)
        limits = replace(
            limits,
            proposed_chain=0 if with_weights is None else with_weights.chain,
            proposed_tree=0 if with_weights is None else with_weights.tree,
            proposed_depth=None if with_weights is None else with_weights.plan.depth,
            previews=loaded.residency is not None and loaded.residency.previews,
        )
        self._kv_cache, state = loaded.new_state()
        self._runner = ModelRunner(loaded, state, readers := readers or Readers())
        self._experts = ExpertPolicy(loaded)
        self._inbox = Inbox()
        prefixes = PrefixCache(
            self._kv_cache.checkpoints, loaded.limits.checkpoints, prefix_bytes(loaded.plan)
        )
        self._disk: DiskTier | None = None
        if disk is not None:
            paging = "" if loaded.residency is None else loaded.residency.salt
            tier = (disk, self._kv_cache, prefixes, self._runner, self._inbox.wake, paging)
            self._disk = DiskTier(*tier)
        books = None if self._disk is None else self._disk.books
        self._root = 0 if disk is None else disk.root
        self._readings, post = readers.books(), self._inbox.post
        texts = self._readings.texts
        self.scoring = None if texts is None else ScoringQueue(texts, post)
        rules = loaded.residency, self._readings
        scheduler = Scheduler(limits, self._kv_cache, prefixes, drafter, books, *rules)
        self._scheduler, inbox = scheduler, self._inbox
        self._parking = Parking(self._runner, self._scheduler, readers, self.scoring)
        self._to_park: deque[tuple[Parkable, Future[None]]] = deque()
        # Without the engine in it: one that is closed is then freed at once, with its state.
        self._tickets = Tickets(lambda name: inbox.later(lambda: scheduler.cancel(name)))
        self._histories: dict[str, History] = {}
        self._warm = False
        self._thread = threading.Thread(target=self._loop, name="kinfolk-engine", daemon=True)
        self._thread.start()

    # -- clients ------------------------------------------------------------------------------

    def submit(
        self, request: Request, on_event: OnEvent | None = None, on_pause: OnPause | None = None
    ) -> Ticket:
        """Queue a request. ``on_event`` is called on the engine's thread and must not block;
        ``on_pause`` likewise, each time that the request has emitted what it was granted, or waits
        for one that has.

        Raises :class:`RequestError` at once when the request could never run, and
        :class:`QueueFull` or :class:`SlotTaken` when there is no place for it now.
        """
        self._scheduler.check(request)
        history, prompt = History(request), HashedTokens(request.prompt, root=self._root)
        read = self._readings.read(request, self.loaded.residency)
        ticket = Ticket(request, self.cancel, on_event, on_pause)
        with self._inbox.wake:
            if request.id in self._tickets:
                raise RequestError(f"request {request.id!r} is still running; use another id")
            self._tickets.require_place(request, self._scheduler.limits, self._scheduler.owner)
            self._tickets[request.id] = ticket
        try:
            self._inbox.post(lambda: self._enter(request, history, prompt, read))
        except EngineError:
            del self._tickets[request.id]
            raise
        return ticket

    def warm_up(self, progress: Progress) -> None:
        """Compile and capture the steps that clients are likely to need, so that no step waits for
        it later. Blocks; call it before requests are submitted. ``progress`` is called on the
        engine's thread. Raises the error of a step that cannot be captured."""
        self._inbox.ask(lambda: self._warm_up(progress))

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request; unknown and finished ids are ignored."""
        if not isinstance(request_id, str):
            raise RequestTypeError(f"the id of a request is a text, got {shown(request_id)}")
        self._inbox.post(lambda: self._scheduler.cancel(request_id, reason))

    def grant(self, request_id: str, tokens: int | None = None) -> None:
        """Let a request that was submitted with a grant emit ``tokens`` more, ``None`` = all;
        unknown and finished ids are ignored. Raises :class:`RequestError` for less than one."""
        if tokens is not None and not (is_whole(tokens) and tokens >= 1):
            raise RequestError(f"a grant is of at least 1 token, got {shown(tokens)}")
        self._inbox.post(lambda: self._scheduler.grant(request_id, tokens))

    def keep(self, request_id: str, length: int | None = None) -> bool:
        """Keep the state of a held request as a checkpoint for later prompts that begin with its
        tokens, or with the first ``length`` of them; false if there is no room. Blocks until the
        running step is over. Raises :class:`RequestError` with the name of the family if it has no
        state there any more."""
        try:
            return self._inbox.ask(lambda: self._scheduler.keep(request_id, length))
        except RequestError as error:
            raise RequestError(f"{self.loaded.family.name}: {error}") from None

    def named_prefixes(self) -> NamedPrefixes | None:
        """Prefixes with names on the disk; ``None`` without one."""
        disk = self._disk
        if disk is None:
            return None

        def put(tokens: tuple[int, ...], name: str, heard: Callable[[str], None]) -> None:
            hashed = HashedTokens(tokens, root=disk.root)

            def act() -> Sequence[SchedulerEvent]:
                disk.name(hashed, name, heard)
                return ()

            try:
                self._inbox.post(act)
            except EngineError as error:
                heard(str(error))

        return NamedPrefixes(disk.cache, disk.thread, put)

    def probe(self, request_ids: Sequence[str]) -> list[tuple[int, int]]:
        """For each of some held requests the token after the pending one: computed in one step of
        all, and alone. Copies compute it, so nothing changes. Blocks until it is done; raises
        :class:`PoolExhausted` if there are no slots or blocks for the copies."""
        books = self._scheduler, self._runner, self._histories
        return self._inbox.ask(
            lambda: probe(request_ids, *books, self._fail_all, self._kv_cache.arrived)
        )

    def view(self) -> tuple[SequenceView, ...]:
        """All requests that have not ended. Blocks until the running step is over."""
        return self._inbox.ask(self._scheduler.view)

    def overview(self) -> Future[EngineOverview]:
        """What the engine does now, as soon as the running step is over. Delays no step: the next
        one may be running already."""
        return self._inbox.look(lambda: EngineOverview(self.stats(), self._scheduler.view()))

    def between_steps(self, work: Callable[[], T]) -> T:
        """Do something that needs the device on the engine's thread, while no step is under way.
        Blocks, raises what ``work`` raises, and may be used while the model is parked."""
        return self._inbox.ask(work)

    def park(self, part: Parkable = "all", *, drain: bool = False) -> None:
        """Free the weights of the ``target``, of its ``draft``er or of ``all``, and with the target
        the state and captured steps, until :meth:`unpark`. Blocks.

        Raises :class:`EngineError` with the live requests if there are any; with ``drain`` those
        that have a slot are run to their ends first. Requests that wait, or are submitted
        meanwhile, run after unparking.
        """
        parked: Future[None] = Future()
        self._inbox.post(lambda: self._begin_parking(part, drain, parked))
        parked.result()

    def unpark(self, part: Parkable = "all", progress: Progress | None = None) -> None:
        """Read the weights of a parked part again. Blocks. An error leaves it parked. Captures the
        likely steps again if :meth:`warm_up` had."""

        def act() -> None:
            self._parking.unpark(part, progress)
            self._readings.loaded_again()
            if self._warm:
                self._warm_up(progress or _silently)

        self._inbox.ask(act)

    @property
    def parked(self) -> frozenset[str]:
        """The parked parts: "target", "draft"."""
        return self._parking.parked

    @property
    def loaded(self) -> LoadedModel:
        """The model; without weights while they are parked."""
        return self._runner.loaded

    @property
    def facts(self) -> EngineFacts:
        """What does not change."""
        return EngineFacts.of(self.loaded, 0 if self._disk is None else self._disk.cache.limit)

    def stats(self) -> dict[str, int]:
        """Counters since the start, those of experts and failed drafts since the model was last
        loaded; the host memory that state takes; and the numbers of requests: ``running`` have a
        slot, of which ``held`` wait for a grant; ``waiting`` have none."""
        host = self._kv_cache.host
        return {
            **self._runner.counters,
            "demotions": self._kv_cache.checkpoints.demotions,
            "host_rows": host.rows,
            "host_bytes": host.used_bytes,
            "running": self._scheduler.running,
            "held": self._scheduler.held,
            "waiting": self._scheduler.waiting,
            "preemptions": self._scheduler.preemptions,
            "parked": int("target" in self.parked),
            **self._scheduler.prefix_stats(),
            "swap_experts_failures": self._experts.failures,
            "draft_failures": self._scheduler.draft_failures + self._runner.draft_failures,
        }

    def expert_use(self) -> Mapping[int, tuple[int, ...]]:
        """How often rows have chosen each expert, by layer; empty if all experts are on the device
        or nothing counts. Blocks until the running step is over, and brings :meth:`stats` up to
        date."""
        return self._inbox.ask(self._runner.expert_use)

    def uncapturable_ops(self) -> Mapping[str, str]:
        """Uncapturable ops with the reason; if there are any, every step runs eagerly."""
        return dict(self._runner.uncapturable_ops)

    @property
    def closed(self) -> bool:
        """Whether the engine's thread has ended."""
        return not self._thread.is_alive()

    @property
    def pending_calls(self) -> bool:
        """Whether a call of a client (submit, cancel, close), or what the disk has done, waits for
        the engine's thread."""
        disk = self._disk is not None and self._disk.busy
        return bool(self._inbox) or disk or self._inbox.closing

    def check_integrity(self) -> None:
        """Recount blocks and slots, compare experts with their homes, and for a closed engine also
        check that nothing is held. Not while a step runs. Raises :class:`StateError` at the first
        disagreement."""
        self._kv_cache.check_integrity()
        self._runner.check_integrity()
        if self.closed:
            free = len(self._kv_cache.tables.free)
            require(free == self._kv_cache.limits.slots, "slots of a closed engine are free")
            require(not self._tickets and not self._histories, "requests of a closed engine")
            require(self._scheduler.idle, "the scheduler of a closed engine is idle")

    def close(self, *, flush: bool = True) -> None:
        """Cancel everything and stop. Safe to call twice. With ``flush`` what the disk is to keep
        is written first; an interrupt of this wait, such as Ctrl-C, ends that."""
        if self._disk is not None and not flush:
            self._disk.abort()
        self._inbox.close()
        if threading.current_thread() is self._thread:
            return
        try:
            self._thread.join()
        except BaseException:
            if self._disk is not None:
                self._disk.abort()
            self._thread.join()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the loop -----------------------------------------------------------------------------

    def step(self) -> bool:
        """Plan, launch, collect, commit. With overlap the next step is launched before this one is
        collected; without it, if this one only decodes, before anybody hears of it: who listens
        takes time of this thread. Returns false when no step was planned."""
        plan = self._scheduler.plan()
        if plan is None:
            return False
        events: Sequence[SchedulerEvent] = ()
        try:
            step: PendingStep | None = self._launch(plan)
            while step is not None:
                try:
                    following = self._launch_next(step)
                finally:  # this step is collected even if the next one fails
                    events = self._scheduler.commit(self._runner.collect(step))
                    self._note(events)
                following = following or self._launch_again(step)
                self._tell(events)
                events = ()
                self._experts.harvest(self._runner)
                self._inbox.show()
                step = following
        except (Exception, SystemExit) as error:
            log.exception("a step failed")
            self._tell(events)
            self._fail_all(error)
        return True

    def _launch_again(self, step: PendingStep) -> PendingStep | None:
        """The step after a collected one, if nothing but events is to be dealt with before."""
        if not step.only_decodes or self.pending_calls or self._to_park:
            return None
        plan = self._scheduler.plan()
        return None if plan is None else self._launch(plan)

    def _launch(self, plan: StepPlan, after: PendingStep | None = None) -> PendingStep:
        return self._runner.launch(self._experts.with_swaps(plan), self._histories, after)

    def _fail_all(self, error: BaseException) -> None:
        """Nobody knows which operations of a step were carried out: books and state forget all."""
        if self._disk is not None:
            self._disk.forget()
        events = self._scheduler.fail_all(explain(error))
        self._runner.forget_state()
        self._dispatch(events)

    def _launch_next(self, step: PendingStep) -> PendingStep | None:
        """Overlap: launch the step after the running one, unless its tokens are not on the device
        or a client has posted an action."""
        if step.next_tokens is None or self.pending_calls:
            return None
        plan = self._scheduler.plan_next()
        return None if plan is None else self._launch(plan, step)

    def _loop(self) -> None:
        worked = monotonic()
        while True:
            try:
                if not self._take_inbox():
                    break
                self._park_when_drained()
                if self.step():
                    worked = monotonic()
                else:
                    self._dispatch(self._scheduler.blocked())
                    self._rest(worked)
            except Exception as error:
                log.exception("the scheduler failed")
                self._fail_all(error)
        for _, parked in self._to_park:
            parked.set_exception(EngineError("the engine has stopped"))
        for request_id in list(self._tickets):
            self._dispatch(self._scheduler.cancel(request_id))
        if self.scoring is not None:
            self.scoring.end("the engine has stopped")
        if self._disk is not None:
            self._disk.finish(self._scheduler)
        self._experts.close(self._runner)

    def _rest(self, since: float) -> None:
        """Nothing can run, and has not since some time: wait for a client, and let the disk
        work."""
        while not (self.pending_calls or self._inbox.looks):
            rested = monotonic() - since
            waits = [self._experts.rest(self._runner, rested)]
            if self._disk is not None:
                waits.append(self._disk.rest(self._scheduler, rested))
            seconds = min((each for each in waits if each is not None), default=None)
            wake = self._inbox.wake
            with wake:
                wake.wait_for(lambda: self.pending_calls or self._inbox.looks, seconds)

    def _warm_up(self, progress: Progress) -> None:
        self._warm = True
        self._runner.warm_up(self._scheduler.limits, progress, lambda: self._inbox.closing)

    def _begin_parking(
        self, part: Parkable, drain: bool, parked: Future[None]
    ) -> Sequence[SchedulerEvent]:
        live = list(self._scheduler.alive)
        try:
            self._parking.check(part)
            if live and not drain:
                names = ", ".join(live)
                raise EngineError(f"requests {names} have not ended: cancel or drain them first")
        except EngineError as error:
            parked.set_exception(error)
            return ()
        self._scheduler.admits = False
        self._to_park.append((part, parked))
        there = [each.request_id for each in self._scheduler.view() if each.slot is not None]
        return [event for each in there for event in self._scheduler.grant(each)]

    def _park_when_drained(self) -> None:
        while self._to_park and not self._scheduler.running:
            part, parked = self._to_park.popleft()
            self._experts.close(self._runner)  # with the weights go their counters
            try:
                self._parking.park(part)
            except Exception as error:
                parked.set_exception(error)
                self._fail_all(error)
            else:
                parked.set_result(None)
            self._parking.resume()

    def _take_inbox(self) -> bool:
        """Execute the actions that clients posted; false when the engine is to stop."""
        closing = self._inbox.closing  # read first: once it is set, nothing more is posted
        while (action := self._inbox.take()) is not None:
            self._dispatch(action())
        self._inbox.show()
        if self._disk is not None:
            self._disk.take(self._scheduler)
        return not closing

    def _enter(
        self, request: Request, history: History, prompt: HashedTokens, read: ReadTokens | None
    ) -> Sequence[SchedulerEvent]:
        """Queue a request. An error here ends this request only."""
        try:
            self._scheduler.submit(request, prompt, read)
        except Exception as error:
            log.exception("request %r cannot be queued", request.id)
            nothing = Usage(len(request.prompt))
            return [Finished(request.id, FinishReason.ERROR, nothing, explain(error))]
        self._histories[request.id] = history
        return ()

    def _dispatch(self, events: Sequence[SchedulerEvent]) -> None:
        self._note(events)
        self._tell(events)

    def _note(self, events: Sequence[SchedulerEvent]) -> None:
        """What the next step has to know."""
        for event in events:
            if isinstance(event, Emitted):
                self._histories[event.request_id].extend(event.tokens)
            elif isinstance(event, Finished):
                self._histories.pop(event.request_id, None)

    def _tell(self, events: Sequence[SchedulerEvent]) -> None:
        if self.scoring is not None:
            self.scoring.deliver()
        self._tickets.tell(events)


def _silently(done: int, total: int, what: str) -> None:
    """Progress that nobody watches."""
