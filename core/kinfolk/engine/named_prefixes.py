"""Prefixes with names on the disk: snapshots that other processes and later ones find."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from kinfolk.errors import CapacityError, EngineError
from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_thread import DiskThread

T = TypeVar("T")


class NamedPrefixes:
    """Any thread but the engine's may use it. ``put`` is called with tokens and a name: it lets the
    engine write the prefix after exactly those tokens, and does not wait for it. Its third argument
    is called once, on any thread: with "" when the prefix is on the disk, where a process that dies
    does not lose it, else with why it is not.

    What asks the disk waits for it, and raises :class:`EngineError` if it cannot be asked.
    """

    def __init__(
        self,
        cache: DiskCache,
        thread: DiskThread,
        put: Callable[[tuple[int, ...], str, Callable[[str], None]], None],
    ) -> None:
        self.put = put
        self._cache = cache
        self._thread = thread

    def tokens(self, name: str) -> tuple[int, ...] | None:
        """The tokens of a named prefix of this model; ``None`` if there is none."""

        def read() -> bytes | None:
            if self._cache.named(name) is None:
                self._cache.refresh()
            point = self._cache.named(name)
            return None if point is None else self._cache.tokens(point)

        packed = self._ask(read)
        return None if packed is None else tuple(array("q", packed))

    def why_not(self, name: str, fits: Callable[[str], bool]) -> str:
        """Why this model has no prefix whose name ``fits``: the difference to another one that
        has."""
        return self._cache.why_elsewhere(name, fits)

    def free(self, name: str) -> bool:
        """Take a name away; false if there is none."""
        return self._ask(lambda: self._cache.forget_name(name))

    def lengths(self) -> dict[str, int]:
        """The tokens of each named prefix of this model."""
        return {name: point.length for name, point in self._cache.names().items()}

    def _ask(self, what: Callable[[], T]) -> T:
        try:
            return self._thread.call(what).result()
        except (CancelledError, InterruptedError):
            raise EngineError("the disk cache was closed") from None
        except (CapacityError, OSError) as error:
            raise EngineError(f"the disk cache cannot be used: {error}") from error
