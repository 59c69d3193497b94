"""``compress`` and ``free drafter`` of a session: work of seconds, done in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kinfolk.daemon.commands import CompressCommand
from kinfolk.daemon.served import Rotation
from kinfolk.daemon.token_files import read_tokens
from kinfolk.errors import EngineError, KinfolkError, RequestError

MAX_COMPRESSED_TOKENS: Final = 2**22
"""Tokens of a file that is compressed; it may be longer than the context."""

Kept = tuple[int, ...]


class SessionCompressor(Protocol):
    """What compresses token ids. Sessions share it; both methods block."""

    def compress(
        self,
        path: str,
        tokens: tuple[int, ...],
        ratio: float,
        *,
        park: bool,
        cancelled: threading.Event,
    ) -> Kept:
        """The ``ratio`` of ``tokens`` that the model of ``path`` finds most important, in their
        order. With ``park`` the target is parked meanwhile. Raises :class:`KinfolkError`, also
        soon after ``cancelled`` was set."""
        ...

    def free(self) -> None:
        """Free the model, if one is loaded."""
        ...

    @property
    def parks(self) -> bool:
        """Whether it has parked the target, and is going to unpark it."""
        ...


class Compressing:
    """Does one command after the other. ``post`` calls what it gets on the session's thread, and
    ``go_on`` is called there when a command is done.

    ``waits``: a command was begun and not replied to.
    """

    def __init__(
        self,
        compressor: SessionCompressor | None,
        served: Rotation,
        post: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None],
    ) -> None:
        self.waits = False
        self._compressor = compressor
        self._served = served
        self._post = post
        self._go_on = go_on
        self._result: Kept | KinfolkError | None = None
        self._count = 0
        self._request = 0
        self._cancelled = threading.Event()

    @property
    def parks(self) -> bool:
        """Whether the target is parked for a command, of this session or of another."""
        return self._compressor is not None and self._compressor.parks

    def compress(self, command: CompressCommand, request: int) -> tuple[Kept, str] | None:
        """Begin, or ask again: the tokens that are kept and what to say, ``None`` until they are
        known. ``request`` is the header's, 0 = there is none. Raises :class:`KinfolkError`."""
        compressor = self._require()
        if not self.waits:
            if command.park and self._served:
                live = ", ".join(str(each.number) for each in self._served)
                raise RequestError(
                    f"compress: requests {live} have not ended; cancel them, or write nopark"
                )
            tokens = read_tokens(
                command.path, MAX_COMPRESSED_TOKENS, whose="compress takes at most"
            )
            self._count = len(tokens)
            ratio = command.per_mille / 1000
            self._request, self._cancelled = request, threading.Event()
            work = partial(compressor.compress, park=command.park, cancelled=self._cancelled)
            self._begin(lambda: work(command.scorer, tokens, ratio))
        kept = self._reply()
        return None if kept is None else (kept, f"kept={len(kept)} of={self._count}")

    def cancel(self, request: int | None = None) -> bool:
        """Let what is compressed for a header's request end soon, with an error; ``None`` = for
        any. Whether there is such a command."""
        found = self.waits and request in (None, self._request)
        if found:
            self._cancelled.set()
        return found

    def free(self) -> bool:
        """Begin to free the model, or ask again: whether it is done."""
        compressor = self._require()

        def free() -> Kept:
            compressor.free()
            return ()

        if not self.waits:
            self._request = 0
            self._begin(free)
        return self._reply() is not None

    def _require(self) -> SessionCompressor:
        if self._compressor is None:
            raise RequestError("this session has nothing that compresses")
        return self._compressor

    def _begin(self, work: Callable[[], Kept]) -> None:
        self.waits, self._result = True, None

        def run() -> None:
            result: Kept | KinfolkError
            try:
                result = work()
            except KinfolkError as error:
                result = error
            except Exception as error:
                result = EngineError(f"{type(error).__name__}: {error}")
            self._post(lambda: self._done(result))

        threading.Thread(target=run, name="kinfolk-compress", daemon=True).start()

    def _done(self, result: Kept | KinfolkError) -> None:
        self._result = result
        self._go_on()

    def _reply(self) -> Kept | None:
        """What came of the command; ``None`` until it is known. Ends the wait."""
        result = self._result
        if result is None:
            return None
        self.waits, self._result = False, None
        if isinstance(result, KinfolkError):
            raise result
        return result
