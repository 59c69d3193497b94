"""Listening, serving, and leaving: what Ctrl-C does to a server with work in hand."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from kinfolk.errors import SettingsError, shown
from kinfolk.server.app import create_app
from kinfolk.server.service import Service

logger = logging.getLogger(__name__)

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
PORTS: Final = range(2**16)
_AFTER_GRACE: Final = 3
"""Seconds that streams have to say goodbye once their generations were ended."""


def bind(host: str, port: int) -> socket.socket:
    """A socket on ``host:port``, 0 = any free port; :class:`SettingsError` if it is not to be had.

    Nobody can connect before the server runs.
    """
    if port not in PORTS:
        raise SettingsError(f"--port must be between 0 and {PORTS[-1]}, got {shown(port)}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except UnicodeError:
        raise _not_had(host, port, "this can be no name of a host") from None
    except OSError as error:
        raise _not_had(host, port, error.strerror or str(error)) from None
    return sock


def _not_had(host: str, port: int, reason: str) -> SettingsError:
    place = host if host.isprintable() and len(host) < 80 else shown(host)
    return SettingsError(
        f"cannot listen on {place}:{port}: {reason}; choose another place with --host or --port"
    )


class GracefulServer(uvicorn.Server):
    """First signal: take no new work, let what runs finish for ``grace`` seconds, then end it.

    Second signal: end it now; its clients are told. Third signal: leave at once. ``tell`` hears in
    words what happens; ``exit_code`` is that of a shell's command if it took a second signal.
    """

    def __init__(self, service: Service, tell: Callable[[str], None] = logger.warning):
        super().__init__(
            uvicorn.Config(
                create_app(service),
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=int(service.options.grace) + _AFTER_GRACE,
            )
        )
        self.service = service
        self.exit_code = 0
        self._tell = tell
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        except OSError as error:
            # Somebody else may have begun to listen since the socket was bound.
            host, port = (sockets or [])[0].getsockname()[:2]
            raise _not_had(host, port, error.strerror or str(error)) from None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called between any two instructions: what is more than a flag is left to the loop."""
        if not self.service.draining:
            self.drain()
            self._soon(self._tell_of_grace)
        elif self.exit_code or not self.service.requests:
            os._exit(128 + sig)
        else:
            self.exit_code = 128 + sig
            self._soon(self._cut_off)

    def drain(self) -> None:
        """Begin to leave. For the loop's own thread."""
        self.service.draining = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.draining = True
        loop = asyncio.get_running_loop()
        ending = loop.call_later(self.service.options.grace, self._end_grace)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    # -- on the loop --------------------------------------------------------------------------

    def _soon(self, action: Callable[[], None]) -> None:
        if self._loop is None:
            action()
        else:
            self._loop.call_soon_threadsafe(action)

    def _tell_of_grace(self) -> None:
        count = self.service.requests
        if not count:
            self._tell("stopping: no request is in flight")
            return
        self._tell(
            f"stopping: {_requests(count)} in flight, with {self.service.options.grace:g} s to "
            "finish; Ctrl-C again cuts them off"
        )

    def _end_grace(self) -> None:
        if self.service.requests:
            grace = self.service.options.grace
            self._tell(f"{_requests(self.service.requests)} cut off after {grace:g} s")
        self.service.abort_all()

    def _cut_off(self) -> None:
        self._tell(f"{_requests(self.service.requests)} cut off; Ctrl-C again leaves at once")
        self.service.abort_all()
        asyncio.get_running_loop().call_later(_AFTER_GRACE, os._exit, self.exit_code)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
