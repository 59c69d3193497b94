"""What other threads want of the engine's thread: actions and questions, in the order of their
arrival."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from kinfolk.errors import EngineError
from kinfolk.sched.events import SchedulerEvent

T = TypeVar("T")
Action = Callable[[], Sequence[SchedulerEvent]]
"""Something that is done on the engine's thread; returns what clients are to be told."""


class Inbox:
    """Any thread may post, ask and look; the engine's thread takes. ``wake`` is notified of each.

    Once ``closing`` is set, nothing more is taken in, and :class:`EngineError` says so.
    """

    def __init__(self) -> None:
        self.wake = threading.Condition()
        self.closing = False
        self._actions: deque[Action] = deque()
        self._looks: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """Actions that wait."""
        return len(self._actions)

    @property
    def looks(self) -> bool:
        """Whether somebody wants to look."""
        return bool(self._looks)

    def post(self, action: Action) -> None:
        """Have an action done between two steps, none of which is launched early before it."""
        with self.wake:
            self._require_open()
            self._actions.append(action)
            self.wake.notify()

    def ask(self, question: Callable[[], T]) -> T:
        """Post a question and wait for its answer."""
        answer: Future[T] = Future()

        def act() -> Sequence[SchedulerEvent]:
            _answer(answer, question)
            return ()

        self.post(act)
        return answer.result()

    def look(self, question: Callable[[], T]) -> Future[T]:
        """Ask something that changes nothing: it delays no step, and may be asked while the next
        one runs already. The future's callbacks are called on the engine's thread."""
        answer: Future[T] = Future()
        with self.wake:
            self._require_open()
            self._looks.append(lambda: _answer(answer, question))
            self.wake.notify()
        return answer

    def take(self) -> Action | None:
        """The next action, if there is one."""
        return self._actions.popleft() if self._actions else None

    def show(self) -> None:
        """Answer those who want to look."""
        while self._looks:
            self._looks.popleft()()

    def later(self, action: Action) -> None:
        """Post an action on the engine's thread, even to an engine that is closing."""
        self._actions.append(action)

    def close(self) -> None:
        """Take nothing more in."""
        with self.wake:
            self.closing = True
            self.wake.notify()

    def _require_open(self) -> None:
        if self.closing:
            raise EngineError("the engine has stopped")


def _answer(answer: Future[T], question: Callable[[], T]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(question())
    except Exception as error:
        answer.set_exception(error)
