"""``kinfolk bench --http``: streams of a real server, as its clients see them."""

from __future__ import annotations

import asyncio
import math
import random
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from kinfolk.cli.console import ProgressBar, note, table
from kinfolk.cli.http_streams import Address, Round, StreamTimes, fetch_json, play
from kinfolk.errors import EngineError, SettingsError
from kinfolk.settings import Settings, flag
from kinfolk.version import __version__

_ADDRESS: Final = re.compile(r" at (http://\S+)/v1 ")
"""The address in the line by which ``kinfolk serve`` says that it is ready."""

_CONNECT_SECONDS: Final = 60
_STOP_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Streams:
    """``count`` streams at once, each of a prompt of ``prompt`` random tokens and ``generate``
    tokens of answer."""

    count: int
    prompt: int
    generate: int

    def bodies(self, seed: int, vocabulary: int) -> list[dict[str, Any]]:
        """The requests of a round; no two prompts of any rounds begin alike."""
        source = random.Random(f"{seed} {self.count} {self.prompt}")
        return [
            {
                "prompt": [source.randrange(vocabulary) for _ in range(self.prompt)],
                "max_tokens": self.generate,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for _ in range(self.count)
        ]


def percentiles(seconds: Sequence[float], *shares: int) -> dict[str, float] | None:
    """Milliseconds below which so many percent of ``seconds`` lie; ``None`` if there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    last = len(ordered)
    return {
        f"p{share}": round(1e3 * ordered[max(0, math.ceil(share * last / 100) - 1)], 3)
        for share in shares
    }


def report_of(streams: Streams, rounds: Sequence[Round]) -> dict[str, Any]:
    """Figures of several rounds. Failed streams are counted, and left out of everything else."""
    errors, firsts, gaps = [], [], []
    totals, decodes = [], []
    for measured in rounds:
        whole = []
        for answer in measured.answers:
            error = answer.error
            if error is None and answer.tokens != streams.generate:
                error = f"an answer had {answer.tokens} tokens instead of {streams.generate}"
            if error is None and not answer.times:
                error = "an answer had no text"
            if error is not None:
                errors.append(error)
                continue
            whole.append(answer)
            firsts.append(answer.times[0])
            gaps += answer.gaps
        if whole:
            totals.append(len(whole) * streams.generate / measured.seconds)
            decodes += _decode_rate(whole)
    return {
        "prompt": streams.prompt,
        "streams": streams.count,
        "generate": streams.generate,
        "repeats": len(rounds),
        "tokens_per_second": round(statistics.median(totals), 2) if totals else None,
        "generate_tokens_per_second": round(statistics.median(decodes), 2) if decodes else None,
        "first_token_milliseconds": percentiles(firsts, 50, 95),
        "gap_milliseconds": percentiles(gaps, 50, 95, 99),
        "errors": len(errors),
        "error": errors[0] if errors else None,
    }


def _decode_rate(answers: Sequence[StreamTimes]) -> list[float]:
    """Tokens a second while all streams generated; empty if there was no such time."""
    begun = max(answer.times[0] for answer in answers)
    over = min(answer.times[-1] for answer in answers)
    if over <= begun:
        return []
    tokens = 0.0
    for answer in answers:
        events = sum(begun < moment <= over for moment in answer.times)
        tokens += events * answer.tokens / len(answer.times)
    return [tokens / (over - begun)]


def measure_streams(
    address: Address, cases: Sequence[Streams], repeats: int
) -> list[dict[str, Any]]:
    """Measure each case: ``repeats`` rounds after one that does not count, with a progress bar.

    Raises :class:`EngineError` if the server cannot be reached, :class:`SettingsError` if its
    context is too small.
    """
    model = asyncio.run(_model(address))
    vocabulary, context = model["meta"]["n_vocab"], model["max_model_len"]
    needed = max(case.prompt + case.generate for case in cases)
    if needed > context:
        raise SettingsError(
            f"the longest prompt with its answer needs {needed} positions; the server at {address} "
            f"has a context of {context}"
        )
    rows: list[dict[str, Any]] = []
    total = len(cases) * (repeats + 1)
    with ProgressBar("measuring", at_once=True) as progress:
        for case in cases:
            rounds = []
            for repeat in range(repeats + 1):
                what = f"{case.count} streams of {case.prompt} + {case.generate}"
                progress(len(rows) * (repeats + 1) + repeat, total, what)
                bodies = case.bodies(repeat, vocabulary)
                rounds.append(asyncio.run(play(address, bodies)))
            rows.append(report_of(case, rounds[1:]))
    return rows


async def _model(address: Address) -> dict[str, Any]:
    """What a server says of its model. Raises :class:`EngineError` if it is not kinfolk's."""
    try:
        (model,) = (await fetch_json(address, "/v1/models"))["data"]
        _ = model["meta"]["n_vocab"], model["max_model_len"]
    except (KeyError, TypeError, ValueError):
        raise EngineError(
            f"the server at {address} does not say how many tokens its model knows: it is not "
            "'kinfolk serve'"
        ) from None
    return dict(model)


def flags_of(settings: Settings, typed: Mapping[str, Any]) -> list[str]:
    """The flags that give ``kinfolk serve`` the settings of this command; it reads the environment
    itself."""
    options = {
        "log_level": "warning",
        **typed,
        **{name: getattr(settings, name) for name in ("slots", "context", "checkpoints")},
        "draft": ",".join(settings.draft),
    }
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            words += [flag(name)] if value else []
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [word for each in values for word in (flag(name), str(each))]
    return words


@contextmanager
def profile_copy(path: Path | None) -> Iterator[list[str]]:
    """The flags for ``kinfolk serve`` to write a copy of ``--expert-profile`` instead of the file:
    what it measures are random tokens. Raises :class:`SettingsError` if it cannot be read."""
    if path is None:
        yield []
        return
    with TemporaryDirectory(prefix="kinfolk-") as folder:
        copy = Path(folder) / path.name
        try:
            if path.exists():
                shutil.copyfile(path, copy)
        except OSError as error:
            raise SettingsError(
                f"--expert-profile {path}: cannot be read: {error.strerror or error}",
                field="expert_profile",
            ) from error
        yield [flag("expert_profile"), str(copy)]


@contextmanager
def server_process(arguments: Sequence[str]) -> Iterator[Address]:
    """``kinfolk serve`` with ``arguments`` on a free port of this machine, stopped on leaving.

    Raises :class:`EngineError` if it does not start.
    """
    command = [sys.executable, "-m", "kinfolk", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    lines: deque[str] = deque(maxlen=20)
    found: list[str] = []
    ready, stopping = threading.Event(), threading.Event()

    def read() -> None:
        """Take the address from the server's messages, and print the others."""
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip())
            match = _ADDRESS.search(line)
            if match and not found:
                found.append(match[1])
                ready.set()
            elif found and not stopping.is_set():
                note(line.rstrip())
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        with ProgressBar("starting the server", at_once=True):
            ready.wait()
            if not found:
                process.wait()
                reason = lines[-1].removeprefix("error: ") if lines else "it printed nothing"
                raise EngineError(f"the server did not start: {reason}")
            address = Address.parse(found[0])
            _wait_for(address, process)
        yield address
    finally:
        stopping.set()
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()


def _wait_for(address: Address, process: subprocess.Popen[str]) -> None:
    """Return when the server answers."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            asyncio.run(fetch_json(address, "/health"))
        except EngineError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def full_report(address: Address, model: str | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": model,
        "url": str(address),
        "rows": rows,
        "versions": {"kinfolk": __version__, "python": sys.version.split()[0]},
    }


def as_text(report: dict[str, Any]) -> str:
    """The rows of a report as a table; times in milliseconds."""
    head = ("prompt", "streams", "tok/s", "decode tok/s", "first p50", "p95")
    lines: list[Sequence[str]] = [(*head, "gap p50", "p95", "p99", "errors")]
    for row in report["rows"]:
        first = row["first_token_milliseconds"] or {}
        gap = row["gap_milliseconds"] or {}
        cells = [row["prompt"], row["streams"], row["tokens_per_second"]]
        cells += [row["generate_tokens_per_second"], first.get("p50"), first.get("p95")]
        cells += [gap.get("p50"), gap.get("p95"), gap.get("p99")]
        texts = ["-" if cell is None else f"{cell:.4g}" for cell in cells[3:]]
        total = "-" if cells[2] is None else f"{cells[2]:.1f}"
        error = f"{row['errors']}: {row['error']}" if row["errors"] else "0"
        lines.append((str(cells[0]), str(cells[1]), total, *texts, error))
    return table(lines)
