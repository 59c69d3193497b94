"""Tickets: how clients hear of their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue

from kinfolk.sched.events import Event, Finished, Pause, SchedulerEvent
from kinfolk.sched.request import FinishReason, Request

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
