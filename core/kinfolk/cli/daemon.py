"""``kinfolk daemon``: several requests over a stream of lines, answered by frames of integers."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kinfolk.cli.console import note
from kinfolk.cli.loading import open_runtime, read_settings, warm_up
from kinfolk.cli.main import BUILT_IN
from kinfolk.cli.options import ENGINE, LOADING, PREFIXES, model_argument, setting, settings_options
from kinfolk.cli.streams import OutputLost
from kinfolk.daemon.frames import Wire
from kinfolk.errors import SettingsError
from kinfolk.registry import Registry
from kinfolk.residency.options import refuse_oracle
from kinfolk.settings import Settings

if TYPE_CHECKING:
    from kinfolk.daemon.connection import LineSource
    from kinfolk.daemon.surroundings import SessionOptions
    from kinfolk.engine.runtime import Runtime


@click.command(
    epilog="""\b
Examples:
  kinfolk daemon -m model.gguf                            one stream of integers
  kinfolk daemon -m model.gguf --stream-tagged --slots 4
  kinfolk daemon -m model.gguf --stream-tagged v2 --socket /run/user/1000/kinfolk
\b
Lines, each with one terminal reply (docs/daemon.md has all of them):
  [REQ <id>] [SLOT <n>] <command>
  REQ 4 START ids.bin 100 16     prefill a file of int32 token ids; 100 tokens, 16 a turn
  REQ 4 CONTINUE 16              another turn
  SCHED_STEP, SCHED_DRAIN        a turn of the next request; turns until all have ended
  SCHED_BATCH_PEEK|TARGET_STEP|TARGET_TAIL|DRAIN [max]
  CANCEL 4, LIST_REQUESTS, LIST_TARGET_CACHE_SLOTS, quit
  ./ids.bin 100                  a request that runs to its end
  compress ids.bin 200 small.gguf [nopark]   keep a fifth of the tokens, by another model
\b
Frames of --stream-tagged: [-2, id, token], [-2, id, -4] = the turn is over,
[-2, id, -1] = the request has ended or the command is done; v2 adds [-2, id, -5] before the last,
if it has failed."""
)
@model_argument
@setting("slots", "--target-cache-slots", "--cache-slots")
@click.option(
    "--stream-tagged",
    "--tagged-stream",
    is_flag=False,
    flag_value="v1",
    type=click.Choice(["v1", "v2"]),
    help="Frames of three integers that name the request; v2 also has failures and texts. "
    "Default: bare integers, and one line is executed at a time.",
)
@click.option(
    "--stream-fd",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write the stream to this open file descriptor, and texts to stdout. Default: the stream "
    "to stdout, texts to stderr.",
)
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Listen on a socket that only this user can open, instead of stdin; each connection is a "
    "session of its own.",
)
@click.option("--ignore-eos", is_flag=True, help="Do not stop at end-of-text tokens.")
@click.option(
    "--no-warmup", is_flag=True, help="Do not prepare likely steps before the first line."
)
@settings_options(*LOADING, *(name for name in ENGINE if name != "slots"), *PREFIXES)
@click.pass_context
def daemon(ctx: click.Context, /, model: str | None, **params: Any) -> None:
    """Serve several requests of token ids over lines on stdin, or on a socket.

    A request keeps its slot between its turns, until it ends or is cancelled. Without --max-queue a
    START that finds no free slot is an error. At the end of the lines, turns and drains go on to
    their ends.
    """
    settings = read_settings(ctx, slots=1, max_queue=0)
    refuse_oracle(settings)
    if params["socket_path"] is not None and params["stream_fd"] is not None:
        raise click.UsageError("--stream-fd belongs to stdin, --socket has streams of its own")
    wire = {None: Wire.LEGACY, "v1": Wire.TAGGED, "v2": Wire.TAGGED_V2}[params["stream_tagged"]]
    write, write_text = _outputs(params["stream_fd"])
    stream = _descriptor(sys.stdout) if params["stream_fd"] is None else params["stream_fd"]
    with open_runtime(settings, model) as runtime:
        if not params["no_warmup"]:
            warm_up(runtime.engine)
        options = _options(runtime, settings, ignore_eos=params["ignore_eos"])
        if params["socket_path"] is not None:
            _listen(params["socket_path"], runtime, wire, options)
        from kinfolk.daemon.connection import Connection

        lost = Connection(
            runtime.engine, options, wire, _lines(), write, write_text, stream=stream
        ).run()
    if lost:
        raise OutputLost(f"the stream cannot be written: {lost}")


def _lines() -> LineSource:
    # A buffer of its own: the thread that waits in it would hold that of stdin when Python ends.
    raw = getattr(sys.stdin.buffer, "raw", None)
    return sys.stdin.buffer if raw is None else io.BufferedReader(raw)


def _outputs(
    stream_fd: int | None,
) -> tuple[Callable[[bytes], int | None], Callable[[bytes], int | None]]:
    """What writes the stream, and what writes texts."""
    stdout, stderr = _unbuffered(sys.stdout), _unbuffered(sys.stderr)
    if stream_fd is None:
        return stdout, stderr
    try:
        os.fstat(stream_fd)
        stream = open(stream_fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 - to the end
    except OSError as error:
        raise SettingsError(f"--stream-fd {stream_fd}: {error.strerror}") from None
    return stream.write, stdout


def _unbuffered(stream: Any) -> Callable[[bytes], int | None]:
    buffer = stream.buffer
    write: Callable[[bytes], int | None] = getattr(buffer, "raw", buffer).write
    return write


def _descriptor(stream: Any) -> int | None:
    try:
        number: int = stream.fileno()
    except (OSError, ValueError):  # it is no file of the system
        return None
    return number


def _options(runtime: Runtime, settings: Settings, *, ignore_eos: bool) -> SessionOptions:
    from kinfolk.daemon.surroundings import SessionOptions
    from kinfolk.engine.token_compressor import TokenCompressor

    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    return SessionOptions(
        name="stdin",
        slots=runtime.loaded.limits.slots,
        context=runtime.loaded.limits.context,
        stop=frozenset() if ignore_eos else frozenset(runtime.tokenizer.eog),
        snapshots=runtime.engine.named_prefixes(),
        compressor=TokenCompressor(runtime.engine, runtime.tokenizer, settings, registry),
    )


def _listen(path: Path, runtime: Runtime, wire: Wire, options: SessionOptions) -> NoReturn:
    """Serve connections until the process is told to end."""
    from kinfolk.daemon.connection import Connection
    from kinfolk.daemon.listener import accept, listening

    _, write_text = _outputs(None)

    def serve(connection: socket.socket, number: int) -> None:
        own = replace(options, name=f"socket-{number}")
        lines = connection.makefile("rb")
        stream = connection.fileno()
        Connection(
            runtime.engine, own, wire, lines, connection.send, write_text, stream=stream
        ).run()

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with listening(path) as listener:
        note(f"{runtime.name} at {path}  (Ctrl-C to stop)")
        accept(listener, serve)
    raise KeyboardInterrupt
