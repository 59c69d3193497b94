"""How clients have texts scored: requests go to the engine's thread, and one event comes back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kinfolk.errors import EngineError, RequestError
from kinfolk.sched.events import SchedulerEvent
from kinfolk.sched.prompt_scoring import PromptScoring, Scored, ScoringRequest

log = logging.getLogger(__name__)

OnScored = Callable[[Scored], None]
Post = Callable[[Callable[[], Sequence[SchedulerEvent]]], None]


class ScoringQueue:
    """Texts on their way to the scheduler, and who waits for their scores. ``post`` has an action
    done on the engine's thread."""

    def __init__(self, books: PromptScoring, post: Post) -> None:
        self.books = books
        self._post = post
        self._listeners: dict[str, OnScored] = {}
        self.parked = False

    def submit(self, request: ScoringRequest, on_scored: OnScored) -> None:
        """Queue a text. ``on_scored`` is called once, on the engine's thread, and must not block.
        Any thread may call this. Raises :class:`RequestError` for a text that can never be read,
        :class:`EngineError` if the engine has stopped."""
        self.books.check(request)
        if request.id in self._listeners:
            raise RequestError(f"text {request.id!r} is still being scored; use another id")
        self._listeners[request.id] = on_scored
        try:
            self._post(lambda: self._enter(request))
        except EngineError:
            del self._listeners[request.id]
            raise

    def cancel(self, request_id: str) -> None:
        """Give a text up; unknown ids are ignored. Any thread may call this."""

        def act() -> Sequence[SchedulerEvent]:
            self.books.cancel(request_id)
            self.deliver()
            return ()

        self._post(act)

    def deliver(self) -> None:
        """Tell those who wait what became of their texts. The engine's thread calls it."""
        for event in self.books.take_events():
            listener = self._listeners.pop(event.request_id, None)
            if listener is None:
                continue
            try:
                listener(event)
            except Exception:
                log.exception("the listener of text %r failed", event.request_id)

    def end(self, why: str) -> None:
        """Give all texts up."""
        self.books.fail_all(why)
        self.deliver()

    def _enter(self, request: ScoringRequest) -> Sequence[SchedulerEvent]:
        try:
            if self.parked:
                raise EngineError("the model that scores prompts is parked")
            self.books.submit(request)
        except Exception as error:
            self.books.events.append(Scored(request.id, error=str(error)))
        self.deliver()
        return ()
