"""Lines that begin a request: ``START``, and those that generate to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kinfolk.daemon.commands import GenerateCommand, Line, StartCommand
from kinfolk.daemon.served import Rotation, Served
from kinfolk.daemon.snapshots import Snapshots
from kinfolk.daemon.surroundings import SessionOptions, TurnEngine
from kinfolk.daemon.token_files import read_tokens
from kinfolk.errors import QueueFull, RequestError, SlotTaken
from kinfolk.sched.events import SchedulerEvent
from kinfolk.sched.request import Request, Sampling


class Starting:
    """Makes the requests of a session and submits them. ``hear`` is called on the engine's thread
    with what happens to each."""

    def __init__(
        self,
        engine: TurnEngine,
        options: SessionOptions,
        served: Rotation,
        snapshots: Snapshots,
        hear: Callable[[Served, SchedulerEvent], None],
    ) -> None:
        self._engine, self._options = engine, options
        self._served, self._snapshots = served, snapshots
        self._hear = hear
        self._count = 0

    def start(self, line: Line, command: StartCommand) -> bool:
        """Begin a request in turns; false: ask again when a turn is over. Raises
        :class:`KinfolkError`."""
        if not line.request:
            raise RequestError("START needs a request: REQ <id> START ...")
        if not self.is_free(line.request):
            return False
        prompt = read_tokens(command.path, self._options.context)
        request = self._request(prompt, command.total, command.sampling)
        quantum = min(command.quantum, command.total)
        slot = None if line.slot is None else line.slot + 1
        request = replace(request, quantum=quantum, grant=quantum, slot=slot)
        return self._submit(Served(line.request, request, line.slot))

    def generate(self, line: Line, command: GenerateCommand) -> bool:
        """Begin a request that runs to its end, without a header for it in slot 0; otherwise as
        :meth:`start`."""
        if not self.is_free(line.request):
            return False
        counted = command.out is not None
        prompt = read_tokens(command.path, self._options.context, counted=counted)
        if command.restore is not None:
            if self._served.taking(command.restore.numbers):
                return False
            self._snapshots.check_prompt(command.restore, prompt)
        request = self._request(prompt, command.total, command.sampling)
        marks: tuple[int, ...] = ()
        if command.keep is not None:
            self._snapshots.check_number(command.keep[1])
            marks = command.keep[:1]
        slot = line.slot or 0
        request = replace(request, slot=slot + 1, checkpoints=marks)
        served = Served(line.request, request, slot, out=command.out, keep=command.keep)
        return self._submit(served)

    def is_free(self, number: int) -> bool:
        """Whether an id is that of no request; false while that may change. Raises
        :class:`RequestError` if it cannot by itself."""
        served = self._served.get(number)
        if served is not None and (served.held or served.blocked):
            raise RequestError(f"request {number} has not ended; use another id, or cancel it")
        return served is None

    def _request(self, prompt: tuple[int, ...], total: int, sampling: Sampling) -> Request:
        self._count += 1
        name = f"{self._options.name}-{self._count}"
        return Request(name, prompt, total, sampling, self._options.stop)

    def _submit(self, served: Served) -> bool:
        hear = partial(self._hear, served)
        try:
            self._engine.submit(served.request, hear, hear)
        except (QueueFull, SlotTaken) as error:
            if self._served.busy:
                return False
            if isinstance(error, QueueFull):
                raise
            owner = self._served.in_slot(served.slot or 0)
            whose = "another session" if owner is None else f"request {owner.number}"
            raise RequestError(f"slot {served.slot} is taken by {whose}") from None
        self._served.add(served)
        return True
