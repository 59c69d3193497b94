"""Checks a request before it is queued, on the thread of the sender.

A step serves several requests, so every field that a client sets is checked here: a bad value must
not make a step fail.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from numbers import Integral
from typing import Final

from kinfolk.draft_api import MAX_PROPOSED
from kinfolk.errors import ContextLengthExceeded, RequestError, RequestTypeError, shown
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.paging import Paging
from kinfolk.sched.request import Request, Sampling
from kinfolk.sched.rules import is_whole
from kinfolk.state.sequence_tables import SequenceTables
from kinfolk.types import CHUNK_POSITIONS

LEAST_VALUES: Final[dict[str, int | None]] = {"priority": None, "followers": 0}
"""The least values of whole numbers; others are at least 1."""

DRAFT_MODES: Final = ("auto", "chain", "tree")

_KINDS: Final[tuple[tuple[str, type, str], ...]] = (
    ("id", str, "a text"),
    ("prompt", tuple, "a tuple of token ids"),
    ("sampling", Sampling, "a Sampling"),
    ("stop", Set, "a set of token ids"),
    ("checkpoints", tuple, "a tuple of positions"),
)
"""Fields that are no number, and what they must be."""


def positions_of(request: Request) -> int:
    """Positions to reserve. Drafts add none: they are cut to what may still be emitted."""
    return len(request.prompt) + request.max_new


def check_request(
    request: Request, limits: SchedulerLimits, tables: SequenceTables, paging: Paging
) -> None:
    """Raise :class:`RequestError`, naming the field, for a request that could never run."""
    if not isinstance(request, Request):
        raise RequestTypeError(f"only a Request can be submitted, got {shown(request)}")
    _check_kinds(request)
    where = f"request {shown(request.id)}"
    check_tokens(request.prompt, limits.vocabulary, "prompt", f"{where}: ")
    _check_numbers(request, where)
    if limits.vocabulary is not None:
        request.sampling.check_tokens(limits.vocabulary)
    _check_slot(request, where, limits)
    _check_room(request, where, limits, tables, paging)


def _check_slot(request: Request, where: str, limits: SchedulerLimits) -> None:
    if request.slot is not None and not 1 <= request.slot <= limits.slots:
        raise RequestError(
            f"{where}: slot must be between 1 and {limits.slots}, got {shown(request.slot)}",
            field="slot",
        )


def _check_kinds(request: Request) -> None:
    for name, kind, what in _KINDS:
        value = getattr(request, name)
        if not isinstance(value, kind):
            raise RequestTypeError(
                f"request {shown(request.id)}: {name} must be {what}, got {shown(value)}",
                field=name,
            )
    if request.follows is not None and not isinstance(request.follows, str):
        raise RequestTypeError(
            f"request {shown(request.id)}: follows must be an id or None, got "
            f"{shown(request.follows)}",
            field="follows",
        )
    for name in ("prompt", "stop", "checkpoints"):
        _check_integers(request, name, getattr(request, name))


def _check_integers(request: Request, name: str, values: Collection[object]) -> None:
    """By their types, of which there are few: a prompt may be long."""
    wrong = {kind for kind in set(map(type, values)) if not _is_integer(kind)}
    if wrong:
        value = next(value for value in values if type(value) in wrong)
        raise RequestTypeError(
            f"request {shown(request.id)}: {name} must hold integers, got {shown(value)}",
            field=name,
        )


def _is_integer(kind: type) -> bool:
    return issubclass(kind, Integral) and not issubclass(kind, bool)


def check_tokens(
    tokens: tuple[int, ...], vocabulary: int | None, field: str, where: str = ""
) -> None:
    """Raise :class:`RequestError` for a prompt without tokens, or with ids that the vocabulary does
    not have. ``vocabulary`` may be unknown; ``where`` begins the message."""
    if not tokens:
        raise RequestError(f"{where}the prompt is empty; send at least one token", field=field)
    least, largest = min(tokens), max(tokens)
    if least < 0 or (vocabulary is not None and largest >= vocabulary):
        rule = "not be negative" if vocabulary is None else f"be between 0 and {vocabulary - 1}"
        raise RequestError(
            f"{where}token ids must {rule}, the prompt has {shown(least)}..{shown(largest)}",
            field=field,
        )


def _check_numbers(request: Request, where: str) -> None:
    quantum = 1 if request.quantum is None else request.quantum
    width = 1 if request.draft_width is None else request.draft_width
    grant = 1 if request.grant is None else request.grant
    named = {
        "max_new": request.max_new,
        "priority": request.priority,
        "quantum": quantum,
        "draft_width": width,
        "followers": request.followers,
        "grant": grant,
        "slot": 1 if request.slot is None else request.slot,
    }
    for name, value in named.items():
        if not is_whole(value):
            raise RequestTypeError(
                f"{where}: {name} must be an integer, got {shown(value)}", field=name
            )
        least = LEAST_VALUES.get(name, 1)
        if least is not None and value < least:
            raise RequestError(
                f"{where}: {name} must be at least {least}, got {shown(value)}", field=name
            )
    if width > MAX_PROPOSED:
        raise RequestError(
            f"{where}: draft_width must be at most {MAX_PROPOSED}, got {shown(width)}",
            field="draft_width",
        )
    if request.draft_mode not in DRAFT_MODES:
        raise RequestError(
            f"{where}: draft_mode must be auto, chain or tree, got {shown(request.draft_mode)}",
            field="draft_mode",
        )
    bad = [place for place in request.checkpoints if not 1 <= place <= len(request.prompt)]
    if bad:
        raise RequestError(
            f"{where}: checkpoints must lie in the prompt of {len(request.prompt)} tokens, "
            f"got {shown(bad)}",
            field="checkpoints",
        )


def _check_room(
    request: Request, where: str, limits: SchedulerLimits, tables: SequenceTables, paging: Paging
) -> None:
    prompt, positions = len(request.prompt), positions_of(request)
    resident, message = paging.resident(positions), ""
    if positions > limits.context:
        message = (
            f"{prompt} prompt tokens + {shown(request.max_new)} new tokens (max_new) = "
            f"{shown(positions)}, the context holds {limits.context}; shorten either"
        )
    elif resident is not None and not request.paged:
        raise RequestError(
            f"{where}: kvflash is off, so all of it must stay on the device: {prompt} prompt "
            f"tokens + {shown(request.max_new)} new tokens = {positions}, a sequence has room for "
            f"{resident} chunks of {CHUNK_POSITIONS} = {resident * CHUNK_POSITIONS} (--kvflash); "
            "shorten either",
            field="kvflash",
        )
    elif not tables.fits_ever(positions, resident):
        pages = tables.host_pages(positions, resident)
        message = (
            f"{positions} positions need {tables.needed(positions, 0, resident)} blocks, the pools "
            f"have {tables.limits.blocks}"
            + (f", and {pages} pages of host memory of {tables.host.pages}" if pages else "")
            + "; shorten the prompt or max_new, or give the cache more memory"
        )
    if message:
        raise ContextLengthExceeded(
            f"{where}: {message}", prompt_tokens=prompt, context=limits.context
        )
