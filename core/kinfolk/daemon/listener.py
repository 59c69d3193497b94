"""A socket in the file system: each connection is a session of its own."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kinfolk.errors import SettingsError

log = logging.getLogger(__name__)

PASSING: Final = (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` after which those who are served go on: a client that has gone, or too many
open files."""

REFUSED_SECONDS: Final = 0.1
"""Pause after a connection that could not be accepted."""

STALL_SECONDS: Final = 30
"""Longest wait for a client that takes nothing."""


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket that only this user may connect to; its file is removed at the end.

    Raises :class:`SettingsError` if another program listens there, or the path is something else.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A umask belongs to the process: no thread creates files yet.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen()
    except OSError as error:
        listener.close()
        raise SettingsError(f"--socket {path}: {error.strerror or error}") from None
    try:
        yield listener
    finally:
        listener.close()
        with suppress(OSError):
            path.unlink()


def accept(listener: socket.socket, serve: Callable[[socket.socket, int], None]) -> None:
    """Call ``serve`` with each connection and its number, each on a thread of its own. Returns when
    the listener is closed."""
    number = 0
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno not in PASSING:
                return
            log.warning("a connection was not accepted: %s", error.strerror or error)
            time.sleep(REFUSED_SECONDS)
            continue
        number += 1
        threading.Thread(
            target=_serve, args=(serve, connection, number), name=f"kinfolk-{number}", daemon=True
        ).start()


def _serve(
    serve: Callable[[socket.socket, int], None], connection: socket.socket, number: int
) -> None:
    # Of the socket itself: a timeout of Python's would end the wait for lines too.
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STALL_SECONDS, 0)
    )
    with connection:
        try:
            serve(connection, number)
        except Exception:
            log.exception("session %d failed", number)
        finally:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for lines


def _remove_stale(path: Path) -> None:
    """Remove the file of a listener that has gone without removing it."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(f"--socket {path}: there is something that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise SettingsError(f"--socket {path}: {error.strerror or error}") from None
    raise SettingsError(f"--socket {path}: another program listens there")
