"""An engine that another process uses: requests go to it, and events come back in batches.

The process of an engine launches its steps from Python, so a thread beside it that encoded
thousands of events a second would take the interpreter's lock from it. :class:`EngineServer` only
passes on what one :class:`EngineClient` sends and what the engine answers. Both ends trust each
other: messages are pickled.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from kinfolk.errors import EngineError, RequestError
from kinfolk.sched.events import Emitted, Event, Finished, Usage
from kinfolk.sched.prompt_scoring import Scored, ScoringRequest
from kinfolk.sched.request import FinishReason, Request

if TYPE_CHECKING:
    from kinfolk.engine.engine import Engine
    from kinfolk.engine.overview import EngineOverview
    from kinfolk.engine.scoring_queue import OnScored, ScoringQueue

log = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]

SWITCH_SECONDS: Final = 0.0005
"""The interpreter's switch interval of both processes: a thread that has a message to pass on waits
so long for one that computes. Python's default is ten times that."""

CLOSING_SECONDS: Final = 5.0
"""Most time that closing a connection waits for its reader."""

_LOST: Final = "the engine's process has ended"


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request; answered by a :class:`Reply`."""

    call: int
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request."""

    request_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class SubmitText:
    """Queue a text that is to be scored; answered by a :class:`Reply`."""

    call: int
    request: ScoringRequest


@dataclass(frozen=True, slots=True)
class CancelText:
    """Give a text up."""

    request_id: str


@dataclass(frozen=True, slots=True)
class AskStats:
    """Report the engine's counters; answered by a :class:`Reply`."""

    call: int


@dataclass(frozen=True, slots=True)
class AskOverview:
    """Report what the engine does, once its running step is over; answered by a
    :class:`Reply`."""

    call: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call: a value, or the exception that the engine raised."""

    call: int
    value: Any = None
    error: Exception | None = None


class EngineServer:
    """Passes on the messages of one client. ``handle`` gets every other message of it, and ``None``
    at the end of the connection; it is called on the reader's thread.

    The engine's thread never waits for the client: its events are put in a queue, and a thread of
    this object sends all that are queued in one message.
    """

    def __init__(
        self, engine: Engine, connection: Connection, handle: Callable[[object], None]
    ) -> None:
        self._engine = engine
        self._connection = connection
        self._handle = handle
        self._sending = threading.Lock()
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._running: set[str] = set()
        self._reader = threading.Thread(target=self._read, name="kinfolk-read", daemon=True)
        self._reader.start()
        threading.Thread(target=self._write, name="kinfolk-write", daemon=True).start()

    def send(self, message: object) -> None:
        """Queue a message for the client. Never blocks."""
        self._outbox.put(message)

    def close(self) -> None:
        """End the connection and wait for its reader."""
        _end(self._connection, self._reader)

    def _on_event(self, event: Event) -> None:
        """Called on the engine's thread."""
        if isinstance(event, Emitted):
            # Tuples are pickled forty times as fast as events: 64 of them in 6 us instead of 257.
            self._outbox.put((event.request_id, event.tokens, event.logprobs))
        else:
            self._running.discard(event.request_id)
            self._outbox.put(event)

    def _write(self) -> None:
        with suppress(OSError):  # the client has ended: the reader sees it too
            while True:
                batch = [self._outbox.get()]
                while not self._outbox.empty():
                    batch.append(self._outbox.get())
                with self._sending:
                    self._connection.send(batch)

    def _read(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                message = self._connection.recv()
                if isinstance(message, Submit):
                    self._answer(message.call, partial(self._submit, message.request))
                elif isinstance(message, AskStats):
                    self._answer(message.call, self._engine.stats)
                elif isinstance(message, AskOverview):
                    self._look(message.call)
                elif isinstance(message, SubmitText):
                    self._answer(message.call, partial(self._submit_text, message.request))
                elif isinstance(message, Cancel):
                    with suppress(EngineError):  # the engine has stopped, and its requests with it
                        self._engine.cancel(message.request_id, message.reason)
                elif isinstance(message, CancelText):
                    with suppress(EngineError):
                        self._scoring().cancel(message.request_id)
                else:
                    self._handle(message)
        for request_id in list(self._running):
            with suppress(EngineError):
                self._engine.cancel(request_id)
        self._handle(None)

    def _answer(self, call: int, work: Callable[[], Any]) -> None:
        """Reply at once: the first token of a request waits for it."""
        reply = _reply(call, work)
        with self._sending:
            self._connection.send([reply])

    def _look(self, call: int) -> None:
        """Reply when the running step is over; the reader goes on meanwhile."""
        try:
            overview = self._engine.overview()
        except EngineError as error:  # it has stopped
            self._outbox.put(Reply(call, error=error))
            return
        overview.add_done_callback(lambda done: self._outbox.put(_reply(call, done.result)))

    def _submit(self, request: Request) -> None:
        self._running.add(request.id)
        try:
            self._engine.submit(request, self._on_event)
        except Exception:
            self._running.discard(request.id)
            raise

    def _submit_text(self, request: ScoringRequest) -> None:
        self._scoring().submit(request, self._outbox.put)

    def _scoring(self) -> ScoringQueue:
        scoring = self._engine.scoring
        if scoring is None:
            raise EngineError("the engine has no model that scores texts")
        return scoring


def _end(connection: Connection, reader: threading.Thread) -> None:
    """Close a connection after its reader has read its end. A reader of a closed connection would
    read whatever the system gives its number to."""
    if connection.closed:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as both:
        both.shutdown(socket.SHUT_RDWR)
    if reader.is_alive():
        reader.join(CLOSING_SECONDS)
    connection.close()


def _reply(call: int, work: Callable[[], Any]) -> Reply:
    try:
        return Reply(call, work())
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            log.exception("a call of the client failed")
            return Reply(call, error=EngineError(f"{type(error).__name__}: {error}"))
        return Reply(call, error=error)


class RemoteTicket:
    """A request that an :class:`EngineClient` has submitted."""

    def __init__(self, client: EngineClient, request_id: str) -> None:
        self.request_id = request_id
        self._client = client

    def cancel(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        self._client.cancel(self.request_id, reason)


class RemoteScoring:
    """The :class:`ScoringQueue` of the engine of another process, with the same methods."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._listeners: dict[str, OnScored] = {}

    def submit(self, request: ScoringRequest, on_scored: OnScored) -> None:
        """Blocks until the engine has accepted it."""
        with self._lock:
            if request.id in self._listeners:
                raise RequestError(f"text {request.id!r} is still being scored; use another id")
            self._listeners[request.id] = on_scored
        try:
            self._client.call(lambda call: SubmitText(call, request))
        except BaseException:
            with self._lock:
                self._listeners.pop(request.id, None)
            raise

    def cancel(self, request_id: str) -> None:
        self._client.send(CancelText(request_id))

    def take(self, event: Scored) -> None:
        """Pass the scores of a text on."""
        with self._lock:
            listener = self._listeners.pop(event.request_id, None)
        if listener is not None:
            listener(event)

    def lost(self) -> None:
        """The connection has ended: no text is scored any more."""
        with self._lock:
            names = list(self._listeners)
        for name in names:
            self.take(Scored(name, error=_LOST))


class EngineClient:
    """The engine of another process, with the methods of :class:`Engine` that a server uses.

    They may be called from any thread. Listeners are called on a thread of this object and must not
    block. When the connection ends, every request fails and ``on_lost`` is called once.
    """

    def __init__(self, connection: Connection, on_lost: Callable[[], None] = lambda: None) -> None:
        self._connection = connection
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._listeners: dict[str, tuple[Request, OnEvent]] = {}
        self.scoring = RemoteScoring(self)
        self._calls: dict[int, Future[Any]] = {}
        self._next_call = 0
        self._lost = False
        self._reader = threading.Thread(target=self._read, name="kinfolk-events", daemon=True)

    def start(self) -> None:
        """Begin to read messages."""
        self._reader.start()

    def close(self) -> None:
        """End the connection and wait for its reader."""
        _end(self._connection, self._reader)

    def submit(self, request: Request, on_event: OnEvent) -> RemoteTicket:
        """Queue a request. Blocks until the engine has accepted it, and raises what it raises."""
        with self._lock:
            if request.id in self._listeners:
                raise RequestError(f"request {request.id!r} is still running; use another id")
            self._listeners[request.id] = (request, on_event)
        try:
            self.call(lambda call: Submit(call, request))
        except BaseException:
            with self._lock:
                self._listeners.pop(request.id, None)
            raise
        return RemoteTicket(self, request.id)

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        self.send(Cancel(request_id, reason))

    def stats(self) -> dict[str, int]:
        """The engine's counters. Blocks until they arrive."""
        return dict(self.call(AskStats))

    def overview(self) -> Future[EngineOverview]:
        """What the engine does, once its running step is over. Raises as :meth:`send` does."""
        return self._begin(AskOverview)

    def send(self, message: object) -> None:
        """Raises :class:`EngineError` if the connection has ended."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            raise EngineError(_LOST) from None

    def call(self, message: Callable[[int], object]) -> Any:
        """Send a message with the number of this call, and return the value of its reply, or raise
        its error."""
        return self._begin(message).result()

    def _begin(self, message: Callable[[int], object]) -> Future[Any]:
        """Send a message with the number of this call; its reply ends the future."""
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # nobody cancels what the engine answers
        with self._lock:
            if self._lost:
                raise EngineError(_LOST)
            self._next_call += 1
            call = self._next_call
            self._calls[call] = answer
        self.send(message(call))
        return answer

    def _read(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                for message in self._connection.recv():
                    self._take(message)
        with self._lock:
            self._lost = True
            listeners, self._listeners = list(self._listeners.values()), {}
            calls, self._calls = list(self._calls.values()), {}
        for answer in calls:
            answer.set_exception(EngineError(_LOST))
        for request, on_event in listeners:
            nothing = Usage(len(request.prompt))
            on_event(Finished(request.id, FinishReason.ERROR, nothing, _LOST))
        self.scoring.lost()
        self._on_lost()

    def _take(self, message: object) -> None:
        if isinstance(message, tuple):
            request_id, tokens, logprobs = message
            listener = self._listeners.get(request_id)
            if listener is not None:
                listener[1](Emitted(request_id, tokens, logprobs))
        elif isinstance(message, Finished):
            with self._lock:
                listener = self._listeners.pop(message.request_id, None)
            if listener is not None:
                listener[1](message)
        elif isinstance(message, Scored):
            self.scoring.take(message)
        elif isinstance(message, Reply):
            with self._lock:
                answer = self._calls.pop(message.call)
            if message.error is not None:
                answer.set_exception(message.error)
            else:
                answer.set_result(message.value)
