"""What a session writes, in the order of its wire.

In the first tagged version the frames of a turn stand together, as if requests had their turns one
after the other: the request whose token comes first keeps the stream until its turn is over, and
frames of others wait. The second version writes each frame when it comes. In legacy streams the
session itself sees to it that there is one turn at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kinfolk.daemon.frames import ENDED, FAILED, TURN_OVER, Wire, encode, encode_text


@dataclass(frozen=True, slots=True)
class LateReply:
    """In a legacy stream: the reply to a line that was executed at once, in its place."""

    request: int
    text: str = ""
    failed: bool = False


class Output:
    """Tokens, marks and texts as bytes. ``write`` gets the stream, ``say`` the texts if the wire
    has none."""

    def __init__(
        self, wire: Wire, write: Callable[[bytes], None], say: Callable[[str], None]
    ) -> None:
        self.wire = wire
        self._write = write
        self._say = say
        self._turn: int | None = None
        self._waiting: dict[int, list[tuple[bytes, bool]]] = {}

    def token(self, request: int, token: int) -> None:
        self._put(request, encode(self.wire, request, token), ends=False)

    def tokens(self, request: int, tokens: Iterable[int]) -> None:
        """Tokens that come at once, written as one."""
        data = b"".join(encode(self.wire, request, token) for token in tokens)
        self._put(request, data, ends=False)

    def turn_over(self, request: int) -> None:
        self._put(request, encode(self.wire, request, TURN_OVER), ends=True)

    def done(self, request: int, text: str = "", *, failed: bool = False) -> None:
        """The request has ended."""
        self._put(request, self._end(request, text, failed), ends=True)

    def reply(self, request: int, text: str = "", *, failed: bool = False) -> None:
        """A command is done, or has failed. On the stream of a request it comes behind what the
        request has written, and never within a turn."""
        data = self._end(request, text, failed)
        if request == self._turn or request in self._waiting:
            self._waiting.setdefault(request, []).append((data, True))
        else:
            self._write(data)

    def _end(self, request: int, text: str, failed: bool) -> bytes:
        data = b""
        if text and self.wire is Wire.TAGGED_V2:
            data = encode_text(request, text)
        elif text:
            self._say(text)
        if failed and self.wire is Wire.TAGGED_V2:
            data += encode(self.wire, request, FAILED)
        return data + encode(self.wire, request, ENDED)

    def _put(self, request: int, data: bytes, *, ends: bool) -> None:
        if self.wire is not Wire.TAGGED:
            self._write(data)
        elif self._turn not in (None, request):
            self._waiting.setdefault(request, []).append((data, ends))
        else:
            self._write(data)
            self._turn = None if ends else request
            self._go_on()

    def _go_on(self) -> None:
        """After a turn: those that waited, up to one whose turn is not over."""
        while self._turn is None and self._waiting:
            request = next(iter(self._waiting))
            for data, ends in self._waiting.pop(request):
                self._write(data)
                self._turn = None if ends else request
