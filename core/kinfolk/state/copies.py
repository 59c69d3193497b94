"""Copies between device and host on a stream of their own, in order with the steps.

Steps and changes of state run on the main stream, one after the other; copies run on another, one
after the other too. Between the two, an event orders what touches the same place: a block of a
pool, or a recurrent slot. The host waits for none of it.

- A copy waits for all that was launched on the main stream before it: a save for the step that
  wrote the place, a load for the last step that could read it.
- The main stream waits for a save before it writes the place again, and for a load before it reads
  or writes it. What a step touches is known before it is launched, so it waits once. A step does
  not wait for a load of its plan into a block that no table has yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import torch

Location = tuple[str, int, int]
"""A block of a pool, ``("block", pool, block)``, or recurrent state, ``("slot", 0, slot)``."""

Action = Callable[[], object]


class DeviceStreams(Protocol):
    """The two streams of a device. An action is enqueued, and done when its turn has come."""

    def on_main(self, action: Action) -> None: ...

    def on_copies(self, action: Action) -> Any:
        """Returns the event that the action is done."""
        ...

    def copies_wait(self) -> None:
        """What follows on the stream of copies waits for all that is on the main stream now."""
        ...

    def main_waits(self, event: Any) -> None:
        """What follows on the main stream waits for an action of the stream of copies."""
        ...

    def is_done(self, event: Any) -> bool:
        """Whether an action is done; does not wait."""
        ...

    def copies_use(self, tensor: torch.Tensor) -> None:
        """Copies read and write the tensor: when it ends, its memory is given to nobody before
        they are done."""
        ...

    def drain(self) -> None:
        """Let the host wait until all copies are done."""
        ...


class HostStreams:
    """For state in host memory: every action is done at once."""

    def on_main(self, action: Action) -> None:
        action()

    def on_copies(self, action: Action) -> None:
        action()

    def copies_wait(self) -> None:
        pass

    def main_waits(self, event: Any) -> None:
        pass

    def is_done(self, event: Any) -> bool:
        return True

    def copies_use(self, tensor: torch.Tensor) -> None:
        pass

    def drain(self) -> None:
        pass


class CudaStreams:
    """The current stream of a CUDA device, on which steps are launched and replayed, and one for
    copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.copies = torch.cuda.Stream(device)

    def on_main(self, action: Action) -> None:
        action()

    def on_copies(self, action: Action) -> torch.cuda.Event:
        with torch.cuda.stream(self.copies):
            action()
        event = torch.cuda.Event()
        event.record(self.copies)
        return event

    def copies_wait(self) -> None:
        self.copies.wait_stream(torch.cuda.current_stream(self._device))

    def main_waits(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def is_done(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())

    def copies_use(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.copies)

    def drain(self) -> None:
        self.copies.synchronize()


def streams_for(device: torch.device) -> DeviceStreams:
    return CudaStreams(device) if device.type == "cuda" else HostStreams()


class _Copy:
    """A copy that was enqueued: the how many-th, and the event that it is done."""

    __slots__ = ("event", "number")

    def __init__(self, number: int, event: Any) -> None:
        self.number, self.event = number, event


class Copies:
    """Enqueues the operations of plans on two streams, and the waits between them.

    ``saves`` and ``loads`` count copies, ``saved_bytes`` and ``loaded_bytes`` what they move.
    Between :meth:`begin` and :meth:`end` are the operations of one plan; its step is launched
    behind them.
    """

    def __init__(self, streams: DeviceStreams) -> None:
        self.streams = streams
        self.saves = 0
        self.loads = 0
        self.saved_bytes = 0
        self.loaded_bytes = 0
        self._saved: dict[Location, _Copy] = {}
        self._loaded: dict[Location, _Copy] = {}
        # Copies are done in order, so the main stream has waited for all up to this number.
        self._waited = 0
        self._due: _Copy | None = None
        self._main_moved = True

    def begin(self) -> None:
        """A step may have been launched since the last plan."""
        self._main_moved = True

    def end(self) -> None:
        """The next step waits for the copies of places that it may touch."""
        if self._due is not None:
            self._wait(self._due)
            self._due = None

    def save(self, place: Location, action: Action, nbytes: int) -> Any:
        """Copy the bytes of a place to the host. Returns the event that they are there."""
        copy = self._saved[place] = self._copy(action)
        self.saves += 1
        self.saved_bytes += nbytes
        return copy.event

    def load(self, places: Collection[Location], action: Action, nbytes: int) -> None:
        """Copy the bytes of places from the host: one action, and one event for whoever waits."""
        copy = self._copy(action)
        for place in places:
            self._loaded[place] = copy
        self.loads += len(places)
        self.loaded_bytes += nbytes

    def step_uses(self, place: Location) -> None:
        """The step that is launched next, or a later one, may read or write the place."""
        for copies in (self._saved, self._loaded):
            if place in copies:
                self._owe(copies[place])

    def change(
        self, action: Action, *, reads: Iterable[Location] = (), writes: Iterable[Location] = ()
    ) -> None:
        """Change places on the main stream."""
        for place in writes:
            if place in self._saved:
                self._wait(self._saved[place])
        for place in (*reads, *writes):
            if place in self._loaded:
                self._wait(self._loaded[place])
        self.streams.on_main(action)
        self._main_moved = True

    def so_far(self) -> Any:
        """The event that all copies up to now are done: then the CPU may write rows that were
        dropped."""
        return self.streams.on_copies(lambda: None)

    def drain(self) -> None:
        """Let the host wait for all copies."""
        self._saved.clear()
        self._loaded.clear()
        self._due = None
        self.streams.drain()

    def _copy(self, action: Action) -> _Copy:
        if self._main_moved:
            self.streams.copies_wait()
            self._main_moved = False
        number = self.saves + self.loads + 1
        return _Copy(number, self.streams.on_copies(action))

    def _owe(self, copy: _Copy) -> None:
        if self._due is None or self._due.number < copy.number:
            self._due = copy

    def _wait(self, copy: _Copy) -> None:
        if copy.number > self._waited:
            self.streams.main_waits(copy.event)
            self._waited = copy.number
