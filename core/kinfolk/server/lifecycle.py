"""Server lifecycle: bind, serve, drain on a signal."""

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
from kinfolk.server.status_feed import StatusFeed

logger = logging.getLogger(__name__)

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
PORTS: Final = range(2**16)
_CLOSE_SECONDS: Final = 3
"""Seconds for streams to send their error and close, after their generations were aborted."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket on ``host:port``, 0 = any free port. Raises :class:`SettingsError`.

    It does not listen: clients cannot connect before the server runs.
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
        raise _bind_error(host, port, "this is not a valid host name") from None
    except OSError as error:
        raise _bind_error(host, port, error.strerror or str(error)) from None
    return sock


def _bind_error(host: str, port: int, reason: str) -> SettingsError:
    name = host if host.isprintable() and len(host) < 80 else shown(host)
    return SettingsError(
        f"cannot listen on {name}:{port}: {reason}; choose another address with --host or --port"
    )


class GracefulServer(uvicorn.Server):
    """A server that drains on a signal.

    First signal: refuse new requests; running ones have ``grace`` seconds to finish and are then
    aborted. Second signal: abort them now, with an error to their clients; ``exit_code`` becomes
    128 + the signal's number. Third signal: exit immediately. ``notify`` gets a message for each.
    ``listening`` is called when clients can connect. ``feed`` tells the live page what happens, and
    ends before anything else.
    """

    def __init__(
        self,
        service: Service,
        notify: Callable[[str], None] = logger.warning,
        listening: Callable[[], None] = lambda: None,
    ):
        self.feed = StatusFeed(service)
        super().__init__(
            uvicorn.Config(
                create_app(service, self.feed),
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=int(service.options.grace) + _CLOSE_SECONDS,
            )
        )
        self.service = service
        self.exit_code = 0
        self.notify = notify
        self._listening = listening
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        except OSError as error:
            # Another process may have begun to listen since the socket was bound.
            host, port = (sockets or [])[0].getsockname()[:2]
            raise _bind_error(host, port, error.strerror or str(error)) from None
        self._listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler: sets flags only; everything else runs on the loop."""
        if not self.service.draining:
            self.drain()
            self._call_soon(self._announce_grace)
        elif self.exit_code or not self.service.requests:
            os._exit(128 + sig)
        else:
            self.exit_code = 128 + sig
            self._call_soon(self._abort_now)

    def drain(self) -> None:
        """Refuse new requests and stop when the running ones have ended. Call it in the loop's
        thread."""
        self.service.draining = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.draining = True
        await self.feed.close()
        loop = asyncio.get_running_loop()
        ending = loop.call_later(self.service.options.grace, self._end_grace)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    # -- on the loop --------------------------------------------------------------------------

    def _call_soon(self, action: Callable[[], None]) -> None:
        if self._loop is None:
            action()
        else:
            self._loop.call_soon_threadsafe(action)

    def _announce_grace(self) -> None:
        count = self.service.requests
        if not count:
            self.notify("stopping: no request is in flight")
            return
        self.notify(
            f"stopping: {_requests(count)} in flight, with {self.service.options.grace:g} s to "
            "finish; Ctrl-C again aborts them"
        )

    def _end_grace(self) -> None:
        if self.service.requests:
            grace = self.service.options.grace
            self.notify(f"{_requests(self.service.requests)} aborted after {grace:g} s")
        self.service.abort_all()

    def _abort_now(self) -> None:
        self.notify(f"{_requests(self.service.requests)} aborted; Ctrl-C again exits immediately")
        self.service.abort_all()
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, os._exit, self.exit_code)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
