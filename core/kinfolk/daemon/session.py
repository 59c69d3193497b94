"""A session: lines in, frames out. It owns its requests; the engine runs them.

Lines are executed in order. One that cannot be decided while turns run waits for their ends, and so
do those behind it. Only ``CANCEL`` is obeyed at once, and ``unpark`` when lines wait for it. Every
line has one terminal reply: the end of the turn that it started, or a reply of its own. A legacy
stream cannot say whose token it has, so there one line is executed at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from kinfolk.daemon.batching import run_batch
from kinfolk.daemon.commands import (
    BatchCommand,
    CancelCommand,
    CompressCommand,
    ContinueCommand,
    DrainCommand,
    FreeDrafterCommand,
    FreeSnapshotCommand,
    GenerateCommand,
    Line,
    ListCommand,
    Listing,
    ParkCommand,
    QuitCommand,
    SnapshotCommand,
    StartCommand,
    StepCommand,
)
from kinfolk.daemon.compressing import Compressing
from kinfolk.daemon.drain import Drain
from kinfolk.daemon.grammar import LineError, parse
from kinfolk.daemon.keeping import Keeping
from kinfolk.daemon.listing import ending, listing
from kinfolk.daemon.output import LateReply, Output
from kinfolk.daemon.parking import first_unpark, park, unpark
from kinfolk.daemon.served import Rotation, Served
from kinfolk.daemon.snapshots import Snapshot, Snapshots
from kinfolk.daemon.starting import Starting
from kinfolk.daemon.surroundings import SessionOptions, TurnEngine
from kinfolk.daemon.token_files import write_tokens
from kinfolk.errors import EngineError, KinfolkError, RequestError
from kinfolk.sched.events import Blocked, Emitted, Finished, Held, SchedulerEvent
from kinfolk.sched.request import FinishReason

log = logging.getLogger(__name__)

TurnCommand = StartCommand | GenerateCommand | ContinueCommand
"""What begins a turn of the request of its header."""

Withdrawable = TurnCommand | CompressCommand
"""What is a cancelled request's own."""


class Session:
    """Used by one thread. ``post`` is called on any thread with what is to be done next; the caller
    calls that on the session's own thread."""

    def __init__(
        self,
        engine: TurnEngine,
        options: SessionOptions,
        output: Output,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._engine = engine
        self._options = options
        self._output = output
        self._post = post
        self._served = Rotation(options.slots)
        self._lines: deque[Line | LateReply] = deque()
        self._snapshots = Snapshots(options.snapshots)
        self._drain: Drain | None = None
        self._keeping = Keeping(engine, self._snapshots, post, self._go_on)
        self._compressing = Compressing(options.compressor, self._served, post, self._go_on)
        self._starting = Starting(engine, options, self._served, self._snapshots, self._hear)
        self._leaving = False
        self._quit: int | None = None

    @property
    def waiting(self) -> int:
        """Lines that were not executed yet."""
        return len(self._lines)

    @property
    def over(self) -> bool:
        """Whether nothing more will be written."""
        return self._leaving and not self._lines and not self._served

    # -- what arrives -------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Execute a line, or keep it until the turns before it are over."""
        if self._leaving:
            return
        try:
            line = parse(text)
        except LineError as error:
            self._answer(error.request, f"err {error}", failed=True)
        else:
            if isinstance(line.command, CancelCommand):
                self._cancel(line, line.command.request or line.request)
            else:
                self._lines.append(line)
        self._go_on()

    def refuse(self, reason: str) -> None:
        """Answer a line that could not be read."""
        if not self._leaving:
            self._answer(0, f"err {reason}", failed=True)
            self._go_on()

    def end(self) -> None:
        """No more lines come: turns and drains go on to their ends, then held requests end."""
        self._leaving = True
        self._go_on()

    def abandon(self) -> None:
        """Nobody reads any more: end all requests now."""
        self._leaving = True
        self._lines.clear()
        self._drain = None
        self._compressing.cancel()
        for served in self._served:
            self._end(served)

    def _answer(self, number: int, text: str = "", *, failed: bool = False) -> None:
        """Reply to a line that is executed when it arrives."""
        if self._output.wire.tagged:
            self._output.reply(number, text, failed=failed)
        else:
            self._lines.append(LateReply(number, text, failed))

    def _hear(self, served: Served, event: SchedulerEvent) -> None:
        """Called on the engine's thread."""
        self._post(partial(self._take, served, event))

    def _take(self, served: Served, event: SchedulerEvent) -> None:
        """Something has happened to a request."""
        if isinstance(event, Emitted):
            served.blocked = False
            self._emitted(served, event.tokens)
            return
        if isinstance(event, Blocked):
            served.blocked = True
        elif isinstance(event, Held):
            served.running = served.blocked = False
            served.slot = event.slot - 1
            self._output.turn_over(served.number)
        else:
            self._finished(served, event)
            return
        self._over(served)

    def _over(self, served: Served) -> None:
        """A turn is over, or waits for another one."""
        if self._drain is not None:
            self._drain.over(served)
        self._go_on()

    # -- order --------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Execute the lines that can be, then give turns away for a drain."""
        while self._lines:
            line = self._lines[0]
            try:
                if not self._execute(line):
                    if self._unpark_first():
                        continue
                    break
            except KinfolkError as error:
                self._output.reply(line.request, f"err {error}", failed=True)
            self._lines.popleft()
        self._drain_on()
        if self._leaving and self._is_parked:  # nothing would end by itself
            for served in self._served:
                self._end(served)
        if self._leaving and not self._lines and not self._served.busy:
            self._end_rest()

    def _end_rest(self) -> None:
        """After the last line: what is held ends; then also what waited in vain for room."""
        held = [served for served in self._served if served.held]
        if self._drain is None or not held:
            for served in held or self._served:
                self._end(served)
        if not self._served:
            self._finish_drain()
            if self._quit is not None:
                quit_line, self._quit = self._quit, None
                self._output.reply(quit_line)

    def _execute(self, line: Line | LateReply) -> bool:
        """False: ask again when a turn is over, a snapshot is on the disk, or tokens are
        compressed. Never so if nothing of this is under way."""
        if self._served.busy and not self._output.wire.tagged:
            return False
        if isinstance(line, LateReply):
            self._output.reply(line.request, line.text, failed=line.failed)
            return True
        self._check_slot(line.slot)
        command = line.command
        match command:
            case StartCommand():
                return self._starting.start(line, command)
            case GenerateCommand():
                return self._starting.generate(line, command)
            case ContinueCommand():
                return self._continue(line, command)
            case StepCommand():
                return self._step(line)
            case DrainCommand():
                self._begin_drain(line, command)
            case BatchCommand():
                return self._batch(line, command)
            case ListCommand():
                self._output.reply(line.request, self._listing(command.what))
            case ParkCommand():
                if not park(self._engine, self._served, command, self._turn):
                    return False
                self._output.reply(line.request)
            case SnapshotCommand():
                return self._snapshot(line, command)
            case FreeSnapshotCommand():
                self._snapshots.free(command.number)
                self._output.reply(line.request)
            case QuitCommand():
                return self._leave(line.request)
            case CompressCommand():
                return self._compress(line, command)
            case FreeDrafterCommand():
                if not self._compressing.free():
                    return False
                self._output.reply(line.request)
        return True

    @property
    def _is_parked(self) -> bool:
        """Whether nothing runs until a line unparks the target."""
        return "target" in self._engine.parked and not self._compressing.parks

    def _listing(self, what: Listing) -> str:
        if what is Listing.SNAPSHOTS:
            return self._snapshots.listing()
        served = {served.key: served.number for served in self._served}
        return listing(what, self._engine.view(), served, self._options.slots)

    def _check_slot(self, slot: int | None) -> None:
        if slot is not None and slot >= self._options.slots:
            raise RequestError(f"slot {slot} is not below {self._options.slots} (--slots)")

    # -- requests -----------------------------------------------------------------------------

    def _snapshot(self, line: Line, command: SnapshotCommand) -> bool:
        """Without a header for it, that of the request in slot 0. Lines wait until it is on the
        disk, if there is one; turns do not."""
        if not self._keeping.waits:
            self._snapshots.check_number(command.number)
            slot = line.slot or 0
            served = self._served.get(line.request) if line.request else self._served.in_slot(slot)
            if served is None or served.blocked:
                raise RequestError("there is no such request with a slot: REQ <id> SNAPSHOT <n>")
            if served.busy:
                return False
            self._keeping.begin(command, served)
        text = self._keeping.reply()
        if text:
            self._output.reply(line.request, text)
        return bool(text)

    def _compress(self, line: Line, command: CompressCommand) -> bool:
        """The tokens that are kept come like those of a request with the id of the header."""
        if not self._starting.is_free(line.request):
            return False
        found = self._compressing.compress(command, line.request)
        if found is None:
            return False
        kept, text = found
        self._output.tokens(line.request, kept)
        self._output.done(line.request, text)
        return True

    def _continue(self, line: Line, command: ContinueCommand) -> bool:
        served = self._served.get(line.request)
        if served is None:
            raise RequestError(
                f"there is no request {line.request}; what has ended cannot be continued"
            )
        if served.blocked:
            raise RequestError(f"request {line.request} waits for a slot")
        if served.busy:
            return False
        if line.slot is not None and line.slot != served.slot:
            raise RequestError(f"request {line.request} is in slot {served.slot}")
        self._turn(served, command.tokens)
        return True

    def _turn(self, served: Served, tokens: int) -> None:
        self._engine.grant(served.key, min(tokens, served.remaining))
        served.running = True

    def _cancel(self, line: Line, number: int) -> None:
        try:
            self._check_slot(line.slot)
            if not number:
                raise RequestError("CANCEL needs a request: CANCEL <id>")
        except RequestError as error:
            self._answer(line.request, f"err {error}", failed=True)
            return
        self._withdraw(number)
        if self._compressing.cancel(number):
            self._answer(line.request, f"compress {number} is about to end")
            return
        served = self._served.get(number)
        if served is None:
            self._answer(line.request, f"there is no request {number}")
            return
        if self._output.wire.tagged:
            served.cancels.append(line.request)
        else:
            self._answer(line.request)
        self._end(served)

    def _withdraw(self, number: int) -> None:
        """The lines of a request that have not begun are answered where they stand."""
        lines, self._lines = self._lines, deque()
        if self._compressing.waits:  # the first has begun
            self._lines.append(lines.popleft())
        for line in lines:
            later = isinstance(line, Line) and isinstance(line.command, Withdrawable)
            if later and line.request == number:
                self._answer(number, "err cancelled before it began", failed=True)
            else:
                self._lines.append(line)

    def _end(self, served: Served) -> None:
        if served.ending:
            return
        served.ending = True
        try:
            self._engine.cancel(served.key)
        except KinfolkError as error:  # the engine has stopped, and its requests with it
            log.debug("request %d cannot be cancelled: %s", served.number, error)

    def _leave(self, number: int) -> bool:
        """``quit``: end what is held, and answer the lines that come too late."""
        self._finish_drain()
        if self._served.busy:
            return False
        self._leaving, self._quit = True, number
        lines = [self._lines.popleft()]
        for line in self._lines:
            if isinstance(line, LateReply):
                self._output.reply(line.request, line.text, failed=line.failed)
            else:
                self._output.reply(line.request, "err the session ends", failed=True)
        self._lines = deque(lines)
        return True

    # -- events -------------------------------------------------------------------------------

    def _emitted(self, served: Served, tokens: tuple[int, ...]) -> None:
        served.tokens += tokens
        if served.out is not None:
            return
        for token in tokens:
            self._output.token(served.number, token)

    def _finished(self, served: Served, event: Finished) -> None:
        """A snapshot in the prompt comes first: the end of the request says what became of it."""
        if served.keep is None or not served.tokens:
            self._ended(served, event)
            return
        position, number = served.keep

        def done(text: str) -> None:
            self._ended(served, event, f" {text}")

        text = self._keeping.put(number, Snapshot(served.request.prompt[:position]), done)
        if text:
            done(text)

    def _ended(self, served: Served, event: Finished, more: str = "") -> None:
        number, cancels = served.number, served.cancels
        self._served.remove(served)
        text, failed = ending(served.number, event) + more, event.reason is FinishReason.ERROR
        if served.out is not None and not failed:
            try:
                write_tokens(served.out, served.tokens)
            except KinfolkError as error:
                text, failed = f"err {error}", True
        if number in cancels and (event.reason is FinishReason.CANCELLED or not served.running):
            # Two lines wait on one stream: that of the turn, and the one that cancels it.
            if served.running:
                self._output.turn_over(number)
            cancels.remove(number)
        self._output.done(number, text, failed=failed)
        for line in cancels:
            self._output.reply(line)
        self._over(served)

    # -- turns --------------------------------------------------------------------------------

    def _step(self, line: Line) -> bool:
        if self._served.busy:
            return False
        served = self._served.next()
        if served is None:
            self._output.reply(line.request, "idle")
        else:
            self._turn(served, served.quantum)
        return True

    def _begin_drain(self, line: Line, command: DrainCommand) -> None:
        if command.batched:
            self._check_tagged()
        if not self._served:
            self._output.reply(line.request, "idle")
            return
        places = min(command.most or self._options.slots, self._options.slots)
        if not command.batched or not self._output.wire.tagged:
            places = 1
        self._drain = self._drain or Drain(self._served)
        self._drain.places = places
        self._drain.lines.append(line.request)

    def _drain_on(self) -> None:
        # Lines come before turns of a drain, but those that wait for disk or compression.
        waits = self._keeping.waits or self._compressing.waits
        if self._drain is None or (self._lines and not waits):
            return
        if self._served.busy and not self._output.wire.tagged:
            return
        try:
            for served in self._drain.turns():
                self._turn(served, served.quantum)
        except EngineError as error:  # it has stopped, and its requests with it
            log.debug("no more turns: %s", error)
        if not self._served:
            self._finish_drain()

    def _finish_drain(self) -> None:
        """In the first version the ends of the requests are the reply to a drain that had any turn
        to give."""
        drain, self._drain = self._drain, None
        if drain is None:
            return
        for number in drain.lines:
            if self._output.wire.says_more or not drain.worked:
                self._output.reply(number, "drain complete")

    def _batch(self, line: Line, command: BatchCommand) -> bool:
        self._check_tagged()
        if self._served.busy:
            return False
        reply = run_batch(self._engine, self._served, command, self._turn)
        if reply is not None:
            self._output.reply(line.request, reply[0], failed=reply[1])
        return True

    def _check_tagged(self) -> None:
        if not self._output.wire.tagged:
            raise RequestError("batches need a tagged stream (--stream-tagged)")

    def _unpark_first(self) -> bool:
        """A parked model ends no turn that lines wait for: the line that unparks it goes before
        them. False if there is none."""
        found = first_unpark(self._lines) if self._is_parked else None
        if found is None:
            return False
        line, command = found
        self._lines.remove(line)
        fault = unpark(self._engine, command)
        self._answer(line.request, fault, failed=bool(fault))
        return True
