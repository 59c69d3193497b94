"""Copies between device and host on a stream of their own, in order with the steps.

Steps and changes of state run on the main stream, one after the other; copies run on another, one
after the other too. Between the two, an event orders what touches the same place: a block of a
pool, or a recurrent slot. The host waits for none of it.

- A copy waits for all that the main stream had when it was asked for: a save for the step that
  wrote the place, a load for the last step that could read it.
- Launching the copies of a recurrent state takes the host as long as a step takes the device. So
  the saves of a plan are launched behind its step (:meth:`Copies.launch_saves`), unless something
  must wait for them before.
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

    def main_so_far(self) -> Any:
        """The event that all that is on the main stream now is done."""
        ...

    def copies_wait(self, event: Any) -> None:
        """What follows on the stream of copies waits for an event of the main stream."""
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

    def main_so_far(self) -> None:
        pass

    def copies_wait(self, event: Any) -> None:
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

    def main_so_far(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copies_wait(self, event: torch.cuda.Event) -> None:
        self.copies.wait_event(event)

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


class Copy:
    """A copy that was asked for: the how many-th, what it waits for, and the event that it is done
    once it was launched."""

    __slots__ = ("action", "after", "event", "launched", "number")

    def __init__(self, number: int, action: Action, after: Any) -> None:
        self.number, self.action, self.after = number, action, after
        self.event: Any = None
        self.launched = False


class Copies:
    """Enqueues the operations of plans on two streams, and the waits between them.

    ``saves`` and ``loads`` count copies, ``saved_bytes`` and ``loaded_bytes`` what they move.
    Between :meth:`begin` and :meth:`end` are the operations of one plan; its step is launched
    behind them, and :meth:`launch_saves` follows it.
    """

    def __init__(self, streams: DeviceStreams) -> None:
        self.streams = streams
        self.saves = 0
        self.loads = 0
        self.saved_bytes = 0
        self.loaded_bytes = 0
        self._saved: dict[Location, Copy] = {}
        self._loaded: dict[Location, Copy] = {}
        # Saves that were not launched yet, in order: a later copy may use their host memory.
        self._unlaunched: list[Copy] = []
        # Copies are done in order, so the main stream has waited for all up to this number.
        self._waited = 0
        self._due: Copy | None = None
        self._main_moved = True
        # The last event of the main stream, and the last one that the copies waited for.
        self._main: Any = None
        self._awaited: Any = None

    def begin(self) -> None:
        """A step may have been launched since the last plan."""
        self.launch_saves()
        self._main_moved = True

    def end(self) -> None:
        """The next step waits for the copies of places that it may touch."""
        if self._due is not None:
            self._wait(self._due)
            self._due = None

    def save(self, place: Location, action: Action, nbytes: int) -> Copy:
        """Copy the bytes of a place to the host, as they are before anything else changes them."""
        copy = self._saved[place] = self._new(action)
        self._unlaunched.append(copy)
        self.saves += 1
        self.saved_bytes += nbytes
        return copy

    def load(self, places: Collection[Location], action: Action, nbytes: int) -> None:
        """Copy the bytes of places from the host: one action, and one event for whoever waits."""
        self.launch_saves()
        copy = self._new(action)
        self._launch(copy)
        for place in places:
            self._loaded[place] = copy
        self.loads += len(places)
        self.loaded_bytes += nbytes

    def launch_saves(self) -> None:
        """Launch the saves that were asked for. They do not wait for a step that was launched
        since then."""
        unlaunched, self._unlaunched = self._unlaunched, []
        for copy in unlaunched:
            self._launch(copy)

    def is_done(self, copy: Copy) -> bool:
        """Whether a copy is done; does not wait."""
        return copy.launched and self.streams.is_done(copy.event)

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
        self.launch_saves()
        return self.streams.on_copies(lambda: None)

    def drain(self) -> None:
        """Let the host wait for all copies."""
        self.launch_saves()
        self._saved.clear()
        self._loaded.clear()
        self._due = None
        self.streams.drain()

    def _new(self, action: Action) -> Copy:
        if self._main_moved:
            self._main = self.streams.main_so_far()
            self._main_moved = False
        return Copy(self.saves + self.loads + 1, action, self._main)

    def _launch(self, copy: Copy) -> None:
        if copy.after != self._awaited:
            self.streams.copies_wait(copy.after)
            self._awaited = copy.after
        copy.event = self.streams.on_copies(copy.action)
        copy.launched = True

    def _owe(self, copy: Copy) -> None:
        if self._due is None or self._due.number < copy.number:
            self._due = copy

    def _wait(self, copy: Copy) -> None:
        if not copy.launched:
            self.launch_saves()
        if copy.number > self._waited:
            self.streams.main_waits(copy.event)
            self._waited = copy.number
