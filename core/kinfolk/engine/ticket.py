"""Tickets: how clients hear of their requests, and whether there is a place for one more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from kinfolk.errors import QueueFull, SlotTaken
from kinfolk.sched.events import Event, Finished, Pause, SchedulerEvent
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import FinishReason, Request

log = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
OnPause = Callable[[Pause], None]


class Ticket:
    """A submitted request. Iterating blocks and yields its events, the last one ``Finished``."""

    def __init__(
        self,
        request: Request,
        cancel: Callable[[str, FinishReason], None],
        on_event: OnEvent | None,
        on_pause: OnPause | None = None,
    ) -> None:
        self.request_id = request.id
        self.slot = request.slot
        self._cancel = cancel
        self._on_event = on_event
        self._on_pause = on_pause
        self._events: SimpleQueue[Event] = SimpleQueue()

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self._events.get()
            yield event
            if isinstance(event, Finished):
                return

    def cancel(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        self._cancel(self.request_id, reason)

    def deliver(self, event: SchedulerEvent) -> None:
        """Called on the engine's thread; must not block."""
        if isinstance(event, Pause):
            if self._on_pause is not None:
                self._on_pause(event)
        elif self._on_event is None:
            self._events.put(event)
        else:
            self._on_event(event)


class Tickets(dict[str, Ticket]):
    """The tickets of requests that have not ended, by id. ``failed`` is called with the id of a
    request whose listener raised an exception."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        super().__init__()
        self._failed = failed

    def require_place(
        self, request: Request, limits: SchedulerLimits, owner: Callable[[int], str | None]
    ) -> None:
        """Raise :class:`QueueFull` or :class:`SlotTaken` if there is no place for a request now.
        Called with the engine's lock held, so that no two get the same place. ``owner``: of a slot,
        among the requests that the scheduler knows."""
        most = limits.most_in_flight
        if most is not None and len(self) >= most:
            raise QueueFull(
                f"the queue is full: {len(self)} requests are in flight, {limits.slots} may run "
                f"(--slots) and {limits.max_queue} may wait (--max-queue); wait until one has ended"
            )
        if request.slot is None:
            return
        # A copy: the engine's thread takes tickets out. The scheduler knows what it has queued.
        posted = (each.request_id for each in list(self.values()) if each.slot == request.slot)
        taken = owner(request.slot) or next(posted, None)
        if taken is not None:
            raise SlotTaken(f"slot {request.slot} is taken by request {taken!r}")

    def tell(self, events: Sequence[SchedulerEvent]) -> None:
        """Call the listeners; an exception in one ends its own request only."""
        for event in events:
            ended = isinstance(event, Finished)
            ticket = (self.pop if ended else self.get)(event.request_id, None)
            if ticket is None:
                continue
            try:
                ticket.deliver(event)
            except Exception:
                log.exception("the listener of request %r failed: cancelling it", ticket.request_id)
                if not ended:
                    self._failed(ticket.request_id)
