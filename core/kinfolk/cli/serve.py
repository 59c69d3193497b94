"""``kinfolk serve``: serves a model with the OpenAI API."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kinfolk.cli.console import note
from kinfolk.cli.loading import open_runtime, read_settings, warm_up
from kinfolk.cli.main import BUILT_IN
from kinfolk.cli.options import (
    COMPRESSION,
    ENGINE,
    LOADING,
    PREFIXES,
    FiniteRange,
    model_argument,
    settings_options,
)
from kinfolk.errors import SettingsError
from kinfolk.residency.options import refuse_oracle

if TYPE_CHECKING:
    from kinfolk.server.options import ServerOptions

_MAX_SECONDS: Final = 86400


@click.command(
    epilog="""\b
Examples:
  kinfolk serve -m model.gguf
  kinfolk serve -m model.gguf --port 9000 --slots 16 --context 32768
  kinfolk serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt
\b
  curl localhost:8080/v1/chat/completions -d '{"messages":
    [{"role": "user", "content": "Hello"}]}'"""
)
@model_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on, 0 = any free port.",
)
@click.option("--name", help="Model name in the API. Default: the name in the file.")
@click.option("--api-key", multiple=True, metavar="KEY", help="Require this key. May be repeated.")
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of keys, one per line; unlike --api-key not visible in the list of processes.",
)
@click.option(
    "--cors",
    default="localhost",
    show_default=True,
    metavar="off|localhost|*|ORIGIN,...",
    help="Origins of web pages that may read answers.",
)
@click.option("--strict-model", is_flag=True, help="Answer 404 to other model names.")
@click.option("--metrics-public", is_flag=True, help="Serve /metrics without a key.")
@click.option(
    "--max-body-mb",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="MIB",
    help="Largest request body; larger ones are refused with 413.",
)
@click.option(
    "--ping",
    type=FiniteRange(0.1, _MAX_SECONDS),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Silence after which a stream sends a comment.",
)
@click.option(
    "--shutdown-grace",
    type=FiniteRange(0, _MAX_SECONDS),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for running answers to finish after Ctrl-C.",
)
@click.option(
    "--no-warmup",
    is_flag=True,
    help="Open the port at once; the first requests wait for kernels and captures.",
)
@settings_options(*LOADING, *ENGINE, "preempt", "checkpoint_every", *PREFIXES, *COMPRESSION)
@click.pass_context
def serve(ctx: click.Context, /, model: str | None, **params: Any) -> None:
    """Serve the model in FILE to OpenAI clients: /v1/chat/completions, /v1/completions, /v1/models.

    /status is a live page: slots and waiting requests, stored prefixes, speculation, speeds. It
    shows numbers, never a prompt or an answer. With --api-key it asks for the key.

    Up to --slots answers run at once and --max-queue others wait; further ones are refused with
    429. Each finished request is logged on stderr, unless --log-level is above info. On a GPU, the
    port opens when the steps that --slots and --step-tokens make likely are compiled and captured.
    Ctrl-C lets running answers finish; a second Ctrl-C aborts them with an error, and the exit code
    is 130.
    """
    settings = read_settings(ctx)
    refuse_oracle(settings)
    if "log_level" not in settings.model_fields_set:
        logging.getLogger("kinfolk.server").setLevel(logging.INFO)
    keys = _keys(params["api_key"], params["api_key_file"])
    from kinfolk.cli.http_process import HttpProcess, prepare_message
    from kinfolk.server.lifecycle import LOOPBACK, bind

    # A port that is taken is worth knowing before a model is loaded.
    with ExitStack() as stack:
        sock = stack.enter_context(bind(params["host"], params["port"]))
        http: list[HttpProcess] = []

        def before(path: Path) -> None:
            prepare = prepare_message(path, settings, tuple(BUILT_IN))
            http.append(stack.enter_context(HttpProcess(sock, prepare)))

        runtime = stack.enter_context(open_runtime(settings, model, before=before))
        name = params["name"] or runtime.name or "kinfolk"
        options = _options(params, keys, name, settings.max_queue)
        host, port = sock.getsockname()[:2]
        if not params["no_warmup"]:
            warm_up(runtime.engine)
        http[0].start(runtime, options, runtime.loaded.limits.slots)
        sock.close()  # that of the HTTP process alone decides who can connect
        if not keys and params["host"] not in LOOPBACK:
            note("warning: anyone who can reach this address can send requests; set --api-key")
        where = f"[{host}]" if ":" in host else host
        url = f"http://{where}:{port}"
        note(f"{options.model_name} at {url}/v1  (live page: {url}/status, Ctrl-C to stop)")
        code = http[0].wait()
        if code:  # a second signal: nothing more is written to the disk
            runtime.engine.close(flush=False)
    if code:
        ctx.exit(code)


def _keys(flags: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    keys = list(flags)
    if file is not None:
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--api-key-file {file}: cannot be read: {error}") from None
        keys += [line.strip() for line in text.splitlines() if line.strip()]
        if not keys:
            raise SettingsError(f"--api-key-file {file}: holds no key")
    if any(not key.strip() for key in keys):
        raise SettingsError("--api-key: a key must not be empty")
    if not all(key.isascii() for key in keys):
        raise SettingsError("--api-key: a key is sent in a header and must be ASCII")
    return tuple(keys)


def _options(
    params: dict[str, Any], keys: tuple[str, ...], name: str, max_queue: int
) -> ServerOptions:
    from kinfolk.server.options import ServerOptions

    return ServerOptions(
        model_name=name,
        api_keys=keys,
        cors=params["cors"],
        strict_model=params["strict_model"],
        public_metrics=params["metrics_public"],
        max_body=params["max_body_mb"] * 2**20,
        max_queue=max_queue,
        ping_after=params["ping"],
        grace=params["shutdown_grace"],
    )
