"""Every error a user can cause. Each message says what is wrong, where, and what to do.

The command line turns a :class:`KinfolkError` into one line and ``exit_code``; the server turns it
into an error body with ``http_status``. Anything else that escapes is a bug of ours.
"""

from __future__ import annotations

import errno
import reprlib
from pathlib import Path
from typing import Final

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says where a disk, a quota or a limit is full."""


class KinfolkError(Exception):
    """Base of all errors that are answered without a traceback."""

    exit_code = 2
    http_status = 500


class SettingsError(KinfolkError):
    """An option or environment variable has a value that cannot work; the message names it.

    ``field`` is what the option is called where values come from, if one is at fault.
    """

    http_status = 400

    def __init__(self, message: str, *, field: str | None = None):
        self.field = field
        super().__init__(message)


# -- model files --------------------------------------------------------------------------------


class ModelFormatError(KinfolkError):
    """A model file is damaged or incomplete.

    ``path`` is the file, ``key`` the metadata key or tensor name at fault, if one can be named.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, key: str | None = None):
        self.path = None if path is None else Path(path)
        self.key = key
        super().__init__(f"{path}: {message}" if path is not None else message)


class ConversionError(KinfolkError):
    """A model directory cannot be converted; the message names the file and the key or tensor."""


class OutputError(KinfolkError):
    """A file cannot be written where it was asked for."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> OutputError:
        """What the system said of ``path``; a full disk is no mistake of the command, and ends the
        program with 1."""
        made = cls(f"{path}: cannot be written: {error.strerror or error}")
        if error.errno in NO_ROOM:
            made.exit_code = 1
        return made


class UnsupportedModelError(KinfolkError):
    """A well-formed model asks for something this runtime does not implement."""


class UnknownArchitectureError(UnsupportedModelError):
    """No installed family claims the file's ``general.architecture``."""


class FamilyConflictError(KinfolkError):
    """Several installed families claim one architecture and ``--model-family`` was not given."""


# -- plugins ------------------------------------------------------------------------------------


class PluginError(KinfolkError):
    """A plugin is broken. Reported by ``kinfolk plugins``; takes nothing else down."""


class HookValueError(PluginError):
    """A hook returned a value that the core cannot use; names the hook and the plugins asked."""


# -- capacity, requests, running ------------------------------------------------------------------


class CapacityError(KinfolkError):
    """Something does not fit; the message carries the arithmetic."""

    http_status = 503


class PoolExhausted(CapacityError):
    """A pool of blocks, slots or checkpoints has no free place."""


class StateError(KinfolkError):
    """The bookkeeping of sequences was used wrongly, or an integrity check failed."""


class RequestError(KinfolkError):
    """A request cannot be served as it stands. ``field`` names the part at fault, if it is one."""

    http_status = 400

    def __init__(self, message: str, *, field: str | None = None):
        self.field = field
        super().__init__(message)


class RequestTypeError(RequestError, TypeError):
    """A part of a request has the wrong type: Python callers may expect Python's own error."""


class ContextLengthExceeded(RequestError):
    """Prompt plus requested tokens exceed the context; both counts if they are known."""

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        prompt_tokens: int | None = None,
        context: int | None = None,
    ):
        self.prompt_tokens = prompt_tokens
        self.context = context
        super().__init__(message, field=field)


class TemplateError(RequestError):
    """The chat template refused the messages or failed."""


class EngineError(KinfolkError):
    """A step failed; the requests in it end with this error."""


# -- messages -------------------------------------------------------------------------------------


class _Shown(reprlib.Repr):
    """Cuts what is long; an integer with more digits than Python writes is described."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        digits = int(x.bit_length() * 0.30103) + 1
        return repr(x) if digits <= self.maxlong else f"an integer of about {digits} digits"


_SHOWN: Final = _Shown()


def shown(value: object) -> str:
    """A value as a message quotes it: whatever it is, the message stays short."""
    return _SHOWN.repr(value)
