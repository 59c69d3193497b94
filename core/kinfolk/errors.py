"""Errors that a user can cause. Each message says what is wrong, where, and what to do.

The command line prints a :class:`KinfolkError` as one line and exits with ``exit_code``; the server
answers with an error body and ``http_status``. Any other exception that escapes is a bug.
"""

from __future__ import annotations

import errno
import reprlib
from pathlib import Path
from typing import Final

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""``errno`` of a full disk, an exhausted quota, or a file beyond the size limit."""


class KinfolkError(Exception):
    """Base of all errors that are reported without a traceback."""

    exit_code = 2
    http_status = 500


class SettingsError(KinfolkError):
    """An option or environment variable has an invalid value; the message names it.

    ``field`` is the name of the setting or request field at fault, ``None`` if there is no single
    one.
    """

    http_status = 400

    def __init__(self, message: str, *, field: str | None = None):
        self.field = field
        super().__init__(message)


class DrafterAbsent(SettingsError):
    """A file holds no drafter of the name that was asked for."""


# -- model files --------------------------------------------------------------------------------


class ModelFormatError(KinfolkError):
    """A model file is damaged or incomplete.

    ``path`` is the file, ``key`` the metadata key or tensor name at fault; ``None`` if unknown.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, key: str | None = None):
        self.path = None if path is None else Path(path)
        self.key = key
        super().__init__(f"{path}: {message}" if path is not None else message)


class ConversionError(KinfolkError):
    """A model directory cannot be converted; the message names the file and the key or tensor."""


class OutputError(KinfolkError):
    """An output file cannot be written."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> OutputError:
        """The error for an ``OSError`` on ``path``. Its exit code is 1 for a full disk, because the
        command line itself was right, and 2 otherwise."""
        output_error = cls(f"{path}: cannot be written: {error.strerror or error}")
        if error.errno in DISK_FULL:
            output_error.exit_code = 1
        return output_error


class UnsupportedModelError(KinfolkError):
    """A well-formed model needs a feature that this runtime does not implement."""


class UnknownArchitectureError(UnsupportedModelError):
    """No installed family claims the file's ``general.architecture``."""


class FamilyConflictError(KinfolkError):
    """Several installed families claim one architecture and ``--model-family`` was not given."""


# -- plugins ------------------------------------------------------------------------------------


class PluginError(KinfolkError):
    """A plugin is broken. ``kinfolk plugins`` reports it; everything else goes on working."""


class HookValueError(PluginError):
    """A hook returned an invalid value; the message names the hook and the plugins called."""


# -- capacity, requests, running ------------------------------------------------------------------


class CapacityError(KinfolkError):
    """Memory, disk or a pool is too small; the message shows the arithmetic."""

    http_status = 503


class PoolExhausted(CapacityError):
    """A pool of blocks, slots or checkpoints has no free entry."""


class QueueFull(CapacityError):
    """As many requests are in flight as may run and wait."""


class SlotTaken(CapacityError):
    """Another request has the slot that a request asks for."""


class StateError(KinfolkError):
    """Sequence state was used out of order, or an integrity check failed."""


class RequestError(KinfolkError):
    """A request is invalid. ``field`` names the field at fault, if there is a single one."""

    http_status = 400

    def __init__(self, message: str, *, field: str | None = None):
        self.field = field
        super().__init__(message)


class RequestTypeError(RequestError, TypeError):
    """A request field has the wrong type. Also a ``TypeError``, as Python callers expect."""


class ContextLengthExceeded(RequestError):
    """Prompt plus requested tokens exceed the context.

    ``prompt_tokens`` and ``context`` are counts of tokens, ``None`` if unknown.
    """

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
    """The chat template rejected the messages, or failed."""


class EngineError(KinfolkError):
    """A step failed; the requests in it fail with this error."""


# -- messages -------------------------------------------------------------------------------------


class _ShortRepr(reprlib.Repr):
    """``repr`` cut to 60 characters; an integer of too many digits is described by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        digits = int(x.bit_length() * 0.30103) + 1
        return repr(x) if digits <= self.maxlong else f"an integer of about {digits} digits"


_SHORT_REPR: Final = _ShortRepr()


def shown(value: object) -> str:
    """``repr`` of a value for a message, cut short whatever its size."""
    return _SHORT_REPR.repr(value)
