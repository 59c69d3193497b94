"""``park`` and ``unpark`` of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kinfolk.daemon.commands import Line, ParkCommand
from kinfolk.daemon.served import Rotation, Served
from kinfolk.daemon.surroundings import TurnEngine
from kinfolk.errors import KinfolkError, RequestError


def park(
    engine: TurnEngine,
    served: Rotation,
    command: ParkCommand,
    turn: Callable[[Served, int], None],
) -> bool:
    """Park or unpark; with ``--drain`` first let all requests of the session end: false while they
    run.

    ``turn`` gives a request a turn. Raises :class:`KinfolkError` if requests are live, or if it
    cannot be loaded again.
    """
    if command.back:
        engine.unpark(command.what)
        return True
    if served and not command.drain:
        live = ", ".join(str(each.number) for each in served)
        raise RequestError(
            f"park: requests {live} have not ended; cancel them, or write park {command.what} "
            "--drain"
        )
    for each in served:
        if each.held:
            turn(each, each.remaining)
    if served:
        return False
    engine.park(command.what)
    return True


def first_unpark(lines: Iterable[object]) -> tuple[Line, ParkCommand] | None:
    """The first of some lines that unparks something, and its command."""
    for line in lines:
        if isinstance(line, Line):
            command = line.command
            if isinstance(command, ParkCommand) and command.back:
                return line, command
    return None


def unpark(engine: TurnEngine, command: ParkCommand) -> str:
    """Unpark. Returns what went wrong, empty if nothing did."""
    try:
        engine.unpark(command.what)
    except KinfolkError as error:
        return f"err {error}"
    return ""
