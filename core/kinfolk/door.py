"""The one door through which the core calls what plugins bring.

What a plugin raises becomes an error that names the plugin and the method, and so does an answer
that is not of the declared kind. Whoever asks many goes on without those that fail.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from kinfolk.errors import KinfolkError, PluginError

P = ParamSpec("P")
T = TypeVar("T")
Provider = TypeVar("Provider")

Misfit = Callable[[object], str]
"""What is wrong with an answer, as the rest of a sentence about it; empty if nothing is."""

REFUSALS: Final = (KinfolkError, MemoryError)
"""What passes unchanged where a plugin is asked about something of the user's: it may refuse it."""

_HERE: Final = Path(__file__).parent

logger = logging.getLogger("kinfolk.plugins")


def ask(
    who: str,
    what: str,
    call: Callable[[], T],
    misfit: Misfit | None = None,
    *,
    passing: tuple[type[BaseException], ...] = REFUSALS,
) -> T:
    """What ``call`` answers. ``who`` and ``what`` name plugin and method in messages; ``who`` is
    empty where the plugin is named by whoever shows them.

    Raises :class:`PluginError` for whatever the plugin raises, except ``passing`` and what stops
    the program from outside, and for an answer that ``misfit`` finds something wrong with.
    """
    subject = f"{who}: {what}" if who else what
    try:
        answer = call()
        problem = misfit(answer) if misfit is not None else ""
        shown = label(answer) if problem else ""
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{subject} failed: {cause(error)}") from error
    if problem:
        raise PluginError(f"{subject} returned {shown}, which {problem}")
    return answer


def behind(
    who: str, what: str, function: Callable[P, T], misfit: Misfit | None = None
) -> Callable[P, T]:
    """A function of a plugin as one that asks it."""

    def asking(*args: P.args, **kwargs: P.kwargs) -> T:
        return ask(who, what, lambda: function(*args, **kwargs), misfit)

    return asking


def ask_each(
    providers: Iterable[Provider], question: Callable[[Provider], T]
) -> Iterator[tuple[Provider, T]]:
    """Those who answer, with their answers. One that fails is left out, with a warning."""
    for provider in providers:
        try:
            answer = question(provider)
        except PluginError as error:
            left_out(error)
            continue
        yield provider, answer


def left_out(error: KinfolkError) -> None:
    """Say that others were used without the one that failed."""
    logger.warning("%s; it is left out", error)


def label(value: object) -> str:
    """A short name for an object in a message."""
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    name, kind = getattr(value, "name", None), type(value).__name__
    return f"{kind} {name!r}" if isinstance(name, str) else f"an object of type {kind}"


def cause(error: BaseException) -> str:
    """One line for an exception: type, text, and the last line of the plugin that was running."""
    told = traceback.TracebackException.from_exception(error)  # reads a text that cannot be read
    text = " ".join(str(told).split())
    frames = [
        frame
        for frame in told.stack
        if not frame.filename.startswith("<") and Path(frame.filename).parent != _HERE
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def trace(error: PluginError) -> str:
    """The traceback of what the plugin raised; empty if it raised nothing."""
    raised = error.__cause__
    return "" if raised is None else "".join(traceback.format_exception(raised))
