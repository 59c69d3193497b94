"""The grammar of the daemon's lines: a pure function from a line to a command.

    line   := [request] [slot] command [sampling]
    request := ("REQ" | "REQUEST") ("=" | blanks) id          id 0..0x3fffffff
    slot    := "SLOT" ("=" | blanks) number blanks            number 0..1024
    sampling := "samp=" temperature,top_p,top_k,repetition,seed[,frequency,presence]

Words may be written in upper or lower case. A line that is no word of the grammar is read as
``PATH COUNT``, if the path has a slash or begins with a dot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, get_args

from kinfolk.daemon.commands import (
    Batch,
    BatchCommand,
    CancelCommand,
    Command,
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
    Restore,
    SnapshotCommand,
    StartCommand,
    StepCommand,
)
from kinfolk.errors import RequestError, SettingsError, shown
from kinfolk.sched.request import Sampling
from kinfolk.types import Parkable

MAX_REQUEST: Final = 0x3FFFFFFF
MAX_SLOT: Final = 1024
MAX_COUNT: Final = 2**31 - 1

_REQUEST: Final = re.compile(r"(REQUEST|REQ)(?=[\s=])(\s*=\s*|\s+)?([0-9]+)?\s*(.*)", re.I | re.S)
_SLOT: Final = re.compile(r"SLOT(?=[\s=])(\s*=\s*|\s+)?([0-9]+)?(?:\s+(.*))?", re.I | re.S)
_BARE_HEADER: Final = re.compile(r"(REQUEST|REQ|SLOT)", re.I)
_SAMPLING: Final = re.compile(r"\s+samp=(\S*)$")
_WORD: Final = re.compile(r"([A-Za-z_]+)(?:[\s=]+(.*))?", re.S)


class LineError(RequestError):
    """A line that is no command. ``request`` is the id of its header, 0 if it has none."""

    def __init__(self, message: str, request: int = 0):
        self.request = request
        super().__init__(message)


def parse(line: str) -> Line:
    """The command of a line. Raises :class:`LineError`."""
    text = line.strip()
    request, text = _header(text, _REQUEST, "REQ", MAX_REQUEST)
    try:
        slot, text = _header(text, _SLOT, "SLOT", MAX_SLOT)
        text, sampling = _sampling(text)
        command = _command(text)
        if sampling is not None:
            if not isinstance(command, StartCommand | GenerateCommand):
                raise LineError("samp= belongs to a line that generates")
            command = replace(command, sampling=sampling)
    except LineError as error:
        raise LineError(str(error), request or 0) from None
    return Line(command, request or 0, slot)


# -- headers ---------------------------------------------------------------------------------------


def _header(text: str, pattern: re.Pattern[str], word: str, largest: int) -> tuple[int | None, str]:
    match = pattern.fullmatch(text)
    if match is None:
        bare = _BARE_HEADER.fullmatch(text)
        if bare is not None and bare[1].upper().startswith(word):
            raise LineError(f"{text} needs a number and a command")
        return None, text
    *_, digits, rest = match.groups()
    if digits is None:
        raise LineError(f"{word} needs a number: {word} <number> <command>")
    number = _number(digits, word, largest=largest)
    if not rest:
        raise LineError(f"{word} {number} has no command")
    return number, rest


def _sampling(text: str) -> tuple[str, Sampling | None]:
    match = _SAMPLING.search(text)
    if match is None:
        return text, None
    parts = match[1].split(",")
    if len(parts) not in (5, 7):
        raise LineError(
            "samp= has 5 or 7 numbers: temperature,top_p,top_k,repetition,seed[,frequency,presence]"
        )
    try:
        temperature, top_p, top_k, repetition, seed = parts[:5]
        frequency, presence = parts[5:] or ("0", "0")
        sampling = Sampling(
            temperature=float(temperature),
            top_p=float(top_p),
            top_k=int(top_k),
            repetition_penalty=float(repetition),
            seed=int(seed),
            frequency_penalty=float(frequency),
            presence_penalty=float(presence),
        )
    except SettingsError as error:
        raise LineError(f"samp=: {error}") from None
    except ValueError:
        raise LineError(f"samp={match[1]}: not all of these are numbers") from None
    return text[: match.start()], sampling


# -- commands --------------------------------------------------------------------------------------


def _command(text: str) -> Command:
    match = _WORD.fullmatch(text)
    if match is not None:
        reader = _COMMANDS.get(match[1].upper())
        if reader is not None:
            return reader((match[2] or "").strip())
    return _generate(text)


def _start(rest: str) -> Command:
    path, total, quantum = _right(rest, 2, "START <path> <total> <quantum>")
    return StartCommand(
        path, _number(total, "total", least=1), _number(quantum, "quantum", least=1)
    )


def _continue(rest: str) -> Command:
    return ContinueCommand(_number(rest, "CONTINUE", least=1))


def _cancel(rest: str) -> Command:
    return CancelCommand(_number(rest, "CANCEL", least=1, largest=MAX_REQUEST) if rest else None)


def _drain(rest: str) -> Command:
    return DrainCommand(batched=True, most=_optional(rest, "SCHED_BATCH_DRAIN"))


def _batch(kind: Batch) -> Callable[[str], Command]:
    return lambda rest: BatchCommand(kind, _optional(rest, kind.value))


def _snapshot(rest: str) -> Command:
    return SnapshotCommand(_number(rest, "SNAPSHOT"))


def _thin(rest: str) -> Command:
    words = rest.split()
    if len(words) != 3:
        raise LineError("write SNAPSHOT_THIN <number> <start> <end>")
    number, start, end = (_number(word, "SNAPSHOT_THIN") for word in words)
    if start >= end:
        raise LineError(f"SNAPSHOT_THIN: {start}..{end} is no range of positions")
    return SnapshotCommand(number, (start, end))


def _free_snapshot(rest: str) -> Command:
    return FreeSnapshotCommand(_number(rest, "FREE_SNAPSHOT"))


def _restore(rest: str) -> Command:
    number, _, tail = rest.partition(" ")
    if not tail.strip():
        raise LineError("write RESTORE <snapshot> <path> <count> [snap=<position>:<snapshot>]")
    command = _generate_from_file(tail.strip())
    return replace(command, restore=Restore(_number(number, "RESTORE")))


def _restore_chain(rest: str) -> Command:
    words = rest.split(maxsplit=2)
    usage = "RESTORE_CHAIN <snapshot or -1> <snapshots, separated by commas, or -> <path> <count>"
    if len(words) != 3:
        raise LineError(f"write {usage}")
    path, count = _right(words[2], 1, usage)
    full = None if words[0] == "-1" else _number(words[0], "RESTORE_CHAIN")
    names = [] if words[1] == "-" else words[1].split(",")
    thin = tuple(_number(name, "RESTORE_CHAIN") for name in names)
    restore = None if full is None and not thin else Restore(full, thin)
    return GenerateCommand(path, _number(count, "count", least=1), restore=restore)


def _park(back: bool) -> Callable[[str], Command]:
    def read(rest: str) -> Command:
        words = rest.lower().split()
        drain = not back and words[-1:] == ["--drain"]
        what = " ".join(words[:-1] if drain else words) or "all"
        for part in get_args(Parkable):
            if what == part:
                return ParkCommand(part, back, drain)
        word = "unpark" if back else "park"
        raise LineError(f"{word} takes all, target or draft, got {shown(rest)}")

    return read


def _compress(rest: str) -> Command:
    words = [word.strip() for word in rest.split("\t")] if "\t" in rest else rest.split()
    park = words[-1:] != ["nopark"]
    words = words if park else words[:-1]
    if len(words) != 3:
        raise LineError("write compress <path> <tokens to keep of 1000> <scorer> [nopark]")
    per_mille = _number(words[1], "compress", least=1, largest=1000)
    return CompressCommand(words[0], per_mille, words[2], park)


def _counted(rest: str) -> Command:
    words = rest.split()
    if len(words) != 3:
        raise LineError("write generate <in> <count> <out>")
    return GenerateCommand(words[0], _number(words[1], "count", least=1), out=words[2])


def _generate(text: str) -> Command:
    if not text:
        raise LineError("the line is empty")
    word = text.split(maxsplit=1)[0]
    if "/" not in word and not word.startswith("."):
        raise LineError(f"unknown_command {shown(word)}")
    return _generate_from_file(text)


def _generate_from_file(text: str) -> GenerateCommand:
    head, _, last = text.rpartition(" ")
    keep = None
    if last.startswith("snap="):
        position, colon, number = last.removeprefix("snap=").partition(":")
        if not colon:
            raise LineError(f"{last}: write snap=<position>:<snapshot>")
        keep = (_number(position, "snap", least=1), _number(number, "snap"))
        text = head
    path, count = _right(text, 1, "<path> <count> [snap=<position>:<snapshot>]")
    return GenerateCommand(path, _number(count, "count", least=1), keep=keep)


def _alone(word: str, command: Command) -> Callable[[str], Command]:
    def read(rest: str) -> Command:
        if rest:
            raise LineError(f"{word} stands alone, got {shown(rest)} behind it")
        return command

    return read


def _words(first: str, second: str, command: Command) -> Callable[[str], Command]:
    def read(rest: str) -> Command:
        if rest.lower() != second:
            raise LineError(f"write {first} {second}")
        return command

    return read


_COMMANDS: Final[Mapping[str, Callable[[str], Command]]] = {
    "START": _start,
    "CONTINUE": _continue,
    "CONT": _continue,
    "SCHED_STEP": _alone("SCHED_STEP", StepCommand()),
    "SCHED_DRAIN": _alone("SCHED_DRAIN", DrainCommand()),
    "SCHED_BATCH_DRAIN": _drain,
    **{kind.value: _batch(kind) for kind in Batch},
    **{what.value: _alone(what.value, ListCommand(what)) for what in Listing},
    "LIST_CACHE_SLOTS": _alone("LIST_CACHE_SLOTS", ListCommand(Listing.CACHE_SLOTS)),
    "CANCEL": _cancel,
    "SNAPSHOT": _snapshot,
    "SNAPSHOT_THIN": _thin,
    "FREE_SNAPSHOT": _free_snapshot,
    "RESTORE": _restore,
    "RESTORE_CHAIN": _restore_chain,
    "PARK": _park(back=False),
    "UNPARK": _park(back=True),
    "FREE": _words("free", "drafter", FreeDrafterCommand()),
    "DRAFTER": _words("drafter", "free", FreeDrafterCommand()),
    "COMPRESS": _compress,
    "GENERATE": _counted,
    "QUIT": _alone("quit", QuitCommand()),
    "EXIT": _alone("exit", QuitCommand()),
}
"""Upper-case word -> what reads the rest of its line."""


# -- numbers ---------------------------------------------------------------------------------------


def _right(rest: str, count: int, usage: str) -> list[str]:
    """The last ``count`` words, and before them a path that may have blanks."""
    words = rest.rsplit(maxsplit=count)
    if len(words) != count + 1:
        raise LineError(f"write {usage}")
    return words


def _optional(rest: str, name: str) -> int | None:
    return _number(rest, name, least=1) if rest else None


def _number(word: str, name: str, *, least: int = 0, largest: int = MAX_COUNT) -> int:
    # No more digits than fit: int() would take its time for a million.
    if not (word.isascii() and word.isdigit() and len(word) <= 18):
        raise LineError(f"{name}: {shown(word)} is no whole number")
    number = int(word)
    if not least <= number <= largest:
        raise LineError(f"{name}: {number} is not between {least} and {largest}")
    return number
