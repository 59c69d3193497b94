"""The one door through which the core calls plugins: it isolates their errors.

An exception of a plugin, or an answer of another type, becomes a :class:`PluginError` that names
the plugin and the method. Where many plugins are asked, those that fail are left out.
"""

from __future__ import annotations

import inspect
import logging
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from kinfolk.errors import KinfolkError, PluginError

P = ParamSpec("P")
T = TypeVar("T")
Provider = TypeVar("Provider")

Misfit = Callable[[object], str]
"""A check of an answer: what is wrong with it, as the end of a sentence; empty if nothing is."""

REFUSALS: Final = (KinfolkError, MemoryError)
"""Errors that pass unchanged where a plugin is asked about a user's input, which it may refuse."""

_HERE: Final = Path(__file__).parent
_PYTHON_FILES: Final = Path(sysconfig.get_path("stdlib"))

logger = logging.getLogger("kinfolk.plugins")


def ask(
    who: str,
    what: str,
    call: Callable[[], T],
    misfit: Misfit | None = None,
    *,
    passing: tuple[type[BaseException], ...] = REFUSALS,
) -> T:
    """The answer of ``call``. ``who`` and ``what`` name plugin and method in messages; ``who`` is
    empty if the caller adds the plugin's name.

    Raises :class:`PluginError` for every exception of the plugin but those in ``passing``, and
    for an answer in which ``misfit`` finds a fault. Ctrl-C and the like pass unchanged.
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
    """The function of a plugin, called through :func:`ask`."""

    def asking(*args: P.args, **kwargs: P.kwargs) -> T:
        return ask(who, what, lambda: function(*args, **kwargs), misfit)

    return asking


def ask_each(
    providers: Iterable[Provider], question: Callable[[Provider], T]
) -> Iterator[tuple[Provider, T]]:
    """The providers that answer, with their answers. One that fails is logged and left out."""
    for provider in providers:
        try:
            answer = question(provider)
        except PluginError as error:
            left_out(error)
            continue
        yield provider, answer


def left_out(error: KinfolkError) -> None:
    """Log that a plugin that failed is left out."""
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
    place = _place(error, told)
    return f"{type(error).__name__}{': ' if text else ''}{text}{f' ({place})' if place else ''}"


def _place(error: BaseException, told: traceback.TracebackException) -> str:
    """The last line that ran in the package that the core called, whatever that called in turn."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in told.stack if not frame.filename.startswith("<")]
    outside = [frame for frame in frames if not _is_core_or_python(Path(frame.filename))]
    if outside:
        package = Path(outside[0].filename).parent
        while (package.parent / "__init__.py").exists():
            package = package.parent
        frames = [each for each in outside if Path(each.filename).is_relative_to(package)]
    else:
        frames = [frame for frame in frames if Path(frame.filename).parent != _HERE]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _is_core_or_python(path: Path) -> bool:
    if path.is_relative_to(_HERE):
        return True
    installed = "site-packages" in path.parts or "dist-packages" in path.parts
    return path.is_relative_to(_PYTHON_FILES) and not installed


def trace(error: PluginError) -> str:
    """The traceback of what the plugin raised; empty if it raised nothing."""
    raised = error.__cause__
    return "" if raised is None else "".join(traceback.format_exception(raised))
