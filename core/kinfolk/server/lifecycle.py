"""Listening, serving, and leaving: what Ctrl-C does to a server with work in hand."""

from __future__ import annotations

import asyncio
import os
import socket
from types import FrameType
from typing import Final

import uvicorn

from kinfolk.errors import SettingsError
from kinfolk.server.app import create_app
from kinfolk.server.service import Service

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_AFTER_GRACE: Final = 3
"""Seconds that streams have to say goodbye once their generations were ended."""


def bind(host: str, port: int) -> socket.socket:
    """A socket on ``host:port``, 0 = any free port; :class:`SettingsError` if it is not to be had.

    Nobody can connect before the server runs.
    """
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
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(
            f"cannot listen on {host}:{port}: {reason}; choose another place with --host or --port"
        ) from None
    return sock


class GracefulServer(uvicorn.Server):
    """First signal: take no new work, let what runs finish for ``grace`` seconds, then end it.

    Second signal: leave at once.
    """

    def __init__(self, service: Service):
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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.draining:
            os._exit(128 + sig)
        self.drain()

    def drain(self) -> None:
        """Begin to leave. For the loop's own thread."""
        self.service.draining = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.draining = True
        loop = asyncio.get_running_loop()
        ending = loop.call_later(self.service.options.grace, self.service.abort_all)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
