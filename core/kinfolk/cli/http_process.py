"""The HTTP server of ``kinfolk serve`` in a process of its own, beside that of the engine.

The engine's process starts this one, gives it the listening socket and the model's file, from which
it reads tokenizer and chat template while the weights load, and then what else it needs to serve.
It imports no torch. Signals of the terminal go to the engine's process, which passes them on.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

from kinfolk.cli.console import NoteHandler, note
from kinfolk.cli.streams import guard_streams
from kinfolk.engine.remote import SWITCH_SECONDS, EngineClient, EngineServer
from kinfolk.errors import EngineError, KinfolkError
from kinfolk.registry import Registry
from kinfolk.settings import Settings, load_settings

if TYPE_CHECKING:
    from kinfolk.descriptors import ModelCard
    from kinfolk.engine.facts import EngineFacts
    from kinfolk.engine.runtime import Runtime
    from kinfolk.model_api import ModelInfo
    from kinfolk.sched.prompt_scoring import ScorerFacts
    from kinfolk.server.options import ServerOptions
    from kinfolk.text.chat import ChatTemplate
    from kinfolk.text.formats import ChatFormat
    from kinfolk.text.tokenizer import Tokenizer

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_END_SECONDS: Final = 10
"""Seconds for the process to end after its connection has ended."""

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from kinfolk.cli.http_process import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


@dataclass(frozen=True, slots=True)
class Prepare:
    """The first message to the process: the file, and the settings of plugins and logging."""

    path: Path
    settings: dict[str, Any]
    reserved_commands: tuple[str, ...]
    log_levels: dict[str, int]


@dataclass(frozen=True, slots=True)
class Serve:
    """The second message, when the model has been loaded."""

    name: str
    info: ModelInfo
    card: ModelCard | None
    facts: EngineFacts
    slots: int
    options: ServerOptions
    scorer: ScorerFacts | None


@dataclass(frozen=True, slots=True)
class Listening:
    """The answer: clients can connect."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer if the server cannot start."""

    error: KinfolkError


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The last message of a server that has shut down."""


# -- in the engine's process ------------------------------------------------------------------


class HttpProcess:
    """The process, from the engine's side; a context manager that ends it."""

    def __init__(self, sock: socket.socket, prepare: Prepare) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            fds = (theirs.fileno(), sock.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C then comes once, from this process
            )
        self._connection.send(prepare)
        self._answered = threading.Event()
        self._answer: object = None
        self._ended = False
        self._server: EngineServer | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, runtime: Runtime, options: ServerOptions, slots: int) -> None:
        """Serve the model of ``runtime``. Returns when clients can connect; raises
        :class:`KinfolkError` if they cannot."""
        sys.setswitchinterval(SWITCH_SECONDS)
        scorer = None if runtime.scorer is None else runtime.scorer.facts
        name, info, card, facts = runtime.name, runtime.info, runtime.card, runtime.facts
        message = Serve(name, info, card, facts, slots, options, scorer)
        self._server = EngineServer(runtime.engine, self._connection, self._handle)
        self._server.send(message)
        self._answered.wait()
        if isinstance(self._answer, Failed):
            raise self._answer.error
        if not isinstance(self._answer, Listening):
            raise EngineError(f"the HTTP server did not start: exit code {self._process.wait()}")

    def wait(self) -> int:
        """Pass signals on until the process has ended; returns its exit code.

        Raises :class:`EngineError` if it did not end by itself. Ends this process too if the signal
        was one that ends at once.
        """
        with self._signals_passed_on():
            code = self._process.wait()
        if self._ended:
            # A third signal may come when its interpreter has given up the handlers.
            return code if code >= 0 else 128 - code
        if code > 128:
            os._exit(code)
        raise EngineError(f"the HTTP server has ended unexpectedly: exit code {code}")

    def stop(self) -> None:
        """Ask the server to shut down."""
        self._process.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._server is None:
            self._connection.close()
        else:
            self._server.close()

    def _handle(self, message: object) -> None:
        """Take a message of the process; ``None`` is the end of the connection."""
        if isinstance(message, ShutDown):
            self._ended = True
        elif not self._answered.is_set():
            self._answer = message
            self._answered.set()

    @contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            signal.signal(number, lambda given, _: self._process.send_signal(given))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def prepare_message(path: Path, settings: Settings, reserved: tuple[str, ...]) -> Prepare:
    fields = {name: getattr(settings, name) for name in Settings.model_fields}
    for pairs in ("op", "draft_option"):
        fields[pairs] = tuple(f"{name}={option}" for name, option in fields[pairs].items())
    levels = {name: logging.getLogger(name).level for name in ("", "kinfolk.server")}
    return Prepare(path, fields, reserved, levels)


# -- in the process of the server -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteRuntime:
    """What a service needs of a runtime; the engine is in another process."""

    name: str
    engine: EngineClient
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    chat_format: ChatFormat
    card: ModelCard | None
    info: ModelInfo
    facts: EngineFacts


def main(connection_fd: int, socket_fd: int) -> None:
    """Run the server on the inherited connection and socket; ends the process."""
    guard_streams()  # a broken stderr must not end a single answer
    connection = Connection(connection_fd)
    with socket.socket(fileno=socket_fd) as sock:
        try:
            code = _run(connection, sock)
        except KinfolkError as error:
            connection.send(Failed(error))
            code = error.exit_code
        except (EOFError, ConnectionError):
            code = 1  # the engine's process has ended, and has said why
    sys.exit(code)


def _run(connection: Connection, sock: socket.socket) -> int:
    prepare: Prepare = connection.recv()
    logging.basicConfig(format="%(levelname)s: %(name)s: %(message)s", handlers=[NoteHandler()])
    for name, level in prepare.log_levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = load_settings(**prepare.settings)
    registry = Registry.discover(settings, reserved_commands=prepare.reserved_commands)
    from kinfolk.compress.options import CompressionOptions
    from kinfolk.engine.compression import Compressor
    from kinfolk.engine.text import open_text

    text = open_text(prepare.path, settings, registry)
    from kinfolk.server.lifecycle import GracefulServer
    from kinfolk.server.service import Service

    (serve,) = connection.recv()
    assert isinstance(serve, Serve)
    engine = EngineClient(connection, on_lost=lambda: _leave(server))
    compressor, wanted = None, CompressionOptions.of(settings)
    if wanted is not None and serve.scorer is not None:
        own = settings.model_copy(update={"model_family": None})
        scorer_tokenizer, _, _ = open_text(wanted.drafter, own, registry)
        compressor = Compressor(wanted, serve.scorer, engine.scoring, text[0], scorer_tokenizer)
    runtime = RemoteRuntime(serve.name, engine, *text, serve.card, serve.info, serve.facts)
    service = Service(cast("Runtime", runtime), serve.options, serve.slots, compressor)
    server = GracefulServer(service, note, lambda: engine.send(Listening()))
    for number in _SIGNALS:
        signal.signal(number, server.handle_exit)
    engine.start()
    server.run([sock])
    engine.send(ShutDown())
    return server.exit_code


def _leave(server: Any) -> None:
    """The engine has ended: its requests have failed, so there is nothing to wait for."""
    server.should_exit = True
    timer = threading.Timer(_END_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
