"""Streams of a CPU on which one of the two is as late as its order with the other allows.

A wait that is missing shows in the bytes: what should have waited comes first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class LazyCopies:
    """The main stream is never behind; a copy is done when the main stream waits for it."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], object]] = []
        self._done = 0

    @property
    def pending(self) -> int:
        return len(self._actions) - self._done

    def on_main(self, action: Callable[[], object]) -> None:
        action()

    def on_copies(self, action: Callable[[], object]) -> int:
        self._actions.append(action)
        return len(self._actions)

    def main_so_far(self) -> None:
        """The main stream is never behind."""

    def copies_wait(self, event: None) -> None:
        """The main stream is never behind."""

    def main_waits(self, event: int) -> None:
        while self._done < event:
            self._actions[self._done]()
            self._done += 1

    def is_done(self, event: int) -> bool:
        return event <= self._done

    def copies_use(self, tensor: torch.Tensor) -> None:
        pass

    def drain(self) -> None:
        self.main_waits(len(self._actions))


class LazyMain:
    """A copy is never behind; what is on the main stream is done when a copy waits for it, or the
    host does (:meth:`finish`)."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], object]] = []
        self._done = 0

    def on_main(self, action: Callable[[], object]) -> None:
        self._actions.append(action)

    def on_copies(self, action: Callable[[], object]) -> None:
        action()

    def main_so_far(self) -> int:
        return len(self._actions)

    def copies_wait(self, event: int) -> None:
        while self._done < event:
            self._actions[self._done]()
            self._done += 1

    def main_waits(self, event: None) -> None:
        """Copies are never behind."""

    def is_done(self, event: None) -> bool:
        return True

    def copies_use(self, tensor: torch.Tensor) -> None:
        pass

    def drain(self) -> None:
        pass

    def finish(self) -> None:
        self.copies_wait(len(self._actions))
