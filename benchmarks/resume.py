"""The time to the first token of a request that goes on from a kept prefix: on the device, in host
memory, and on the disk after a restart, against the same prompt cold.

    python benchmarks/resume.py [--model FILE] [--tokens N] [--device NAME] [--disk FOLDER]

The default is the bundled model. With one place on the device (``--checkpoints 1``), a short prompt
in between sends the long one's prefix to host memory. The bounds are the bytes that move at 0.7 of
a rate that is measured here, and 10 ms: from the host that of one large copy from pinned memory to
the device, from the disk that of reading the files and summing them up, with the pages of the files
dropped from the system's cache before. Every figure is the median of the repeats; the disk is read
once for each, by a new engine. ``host_parts_ms`` says where the time from host memory goes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kinfolk.engine.disk_tier import open_disk
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.runtime import scheduler_limits
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request
from kinfolk.settings import Settings, load_settings

ENDING = 8
"""Tokens behind the kept prefix."""

PAUSE_SECONDS = 0.5

RATE_SHARE = 0.7
FIXED_SECONDS = 0.010
COPIED = 1 << 29

say = sys.stdout.write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--disk", type=Path, help="an empty folder; default: a temporary one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = measured(options, options.disk or Path(temporary))
    for name, value in figures.items():
        say(f"{name}: {value}\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = load_settings(
        device=options.device,
        context=options.tokens + 512,
        slots=1,
        checkpoints=1,
        cache_disk=64.0,
        cache_dir=folder,
        draft="off",
    )
    registry = Registry.discover(settings)
    path = options.model or bundled(registry)
    loaded = load_model(path, settings, registry)
    chat = Chat(loaded, options.tokens)
    figures: dict[str, Any] = {"device": str(loaded.device), "tokens": options.tokens}
    with opened(loaded, settings) as engine:
        chat.first_token(engine, cold=True)  # kernels, captures
        cold = [chat.first_token(engine, cold=True)[0] for _ in range(options.repeats)]
        short = [chat.first_token_alone(engine) for _ in range(options.repeats)]
        chat.keep(engine)
        near = [chat.first_token_from(engine, "device") for _ in range(options.repeats)]
        before = engine.stats()["host_bytes"]
        host, nbytes = [], 0
        for repeat in range(options.repeats):
            chat.push_out(engine, repeat)
            nbytes = nbytes or engine.stats()["host_bytes"] - before
            wait_for_copies(loaded.device)
            host.append(chat.first_token_from(engine, "host"))
    files = [each for each in folder.rglob("*") if each.is_file() and each.stat().st_size > 4096]
    disk: dict[bool, list[float]] = {False: [], True: []}
    for cached in [True] * options.repeats + [False] * options.repeats:
        if not cached:
            forget_pages(files)
        with opened(loaded, settings) as engine:
            chat.warm(engine)
            disk[cached].append(chat.first_token_from(engine, "disk"))
    copied, read = copy_rate(loaded.device), read_rate(files)
    forget_pages(files)
    read_cold = read_rate(files)
    medians = {
        name: statistics.median(times)
        for name, times in (
            *(("cold", cold), ("alone", short)),
            *(("device", near), ("host", host)),
            *(("disk", disk[True]), ("disk_cold", disk[False])),
        )
    }
    figures |= {f"{name}_ms": round(1000 * value, 2) for name, value in medians.items()}
    figures |= {
        "kept_bytes": nbytes,
        "copy_GB_s": round(copied / 1e9, 2),
        "read_and_check_GB_s": round(read / 1e9, 2),
        "read_and_check_cold_GB_s": round(read_cold / 1e9, 2),
        "host_bound_ms": round(1000 * (nbytes / RATE_SHARE / copied + FIXED_SECONDS), 2),
        "disk_bound_ms": round(1000 * (nbytes / RATE_SHARE / read + FIXED_SECONDS), 2),
        "disk_cold_bound_ms": round(1000 * (nbytes / RATE_SHARE / read_cold + FIXED_SECONDS), 2),
        "host_parts_ms": parts(medians, nbytes / copied),
        "host_of_cold": round(medians["host"] / medians["cold"], 3),
        "disk_of_cold": round(medians["disk"] / medians["cold"], 3),
        "disk_cold_of_cold": round(medians["disk_cold"] / medians["cold"], 3),
    }
    return figures


def parts(medians: dict[str, float], copying: float) -> dict[str, float]:
    """What the time to the first token from host memory consists of, in milliseconds. ``copying``:
    seconds of one large copy of the kept bytes."""
    seconds = {
        "the ending alone": medians["alone"],
        "its prefix on the device": medians["device"] - medians["alone"],
        "the bytes from the host": copying,
        "the rest of copying": medians["host"] - medians["device"] - copying,
    }
    return {name: round(1000 * value, 2) for name, value in seconds.items()}


def bundled(registry: Registry) -> Path:
    from kinfolk.engine.bundled import bundled_model

    return bundled_model(registry)


@contextmanager
def opened(loaded: LoadedModel, settings: Settings) -> Iterator[Engine]:
    limits, disk = scheduler_limits(loaded, settings), open_disk(loaded, settings)
    with Engine(loaded, limits, None, disk) as engine:
        yield engine


class Chat:
    """A long prompt, its kept prefix, and short ones that push it out."""

    def __init__(self, loaded: LoadedModel, tokens: int) -> None:
        self.vocabulary = loaded.info.vocabulary
        self.prompt = self.text(tokens, 1)
        self.count = 0

    def text(self, tokens: int, seed: int) -> tuple[int, ...]:
        draw = torch.Generator().manual_seed(seed)
        return tuple(torch.randint(0, self.vocabulary, (tokens,), generator=draw).tolist())

    def request(self, prompt: tuple[int, ...], answer: int = 1, **more: Any) -> Request:
        self.count += 1
        return Request(str(self.count), prompt, answer, **more)

    def keep(self, engine: Engine) -> None:
        tokens = (*self.prompt, 1)
        ended(engine, self.request(tokens, checkpoints=(len(self.prompt),)))

    def push_out(self, engine: Engine, seed: int) -> None:
        before = engine.stats()["demotions"]
        ended(engine, self.request(self.text(70, 1000 + seed), checkpoints=(64,)))
        assert engine.stats()["demotions"] > before

    def warm(self, engine: Engine) -> None:
        """A step of each kind that the measured request takes."""
        ended(engine, self.request(self.text(ENDING, 7)))

    def first_token_from(self, engine: Engine, place: str) -> float:
        """Seconds, where the prefix is in this place."""
        seconds, found = self.first_token(engine)
        assert found == place, f"reused from {found}, not from {place}"
        return seconds

    def first_token_alone(self, engine: Engine) -> float:
        """Seconds of a prompt that is just an ending."""
        return self._first_token(engine, self.text(ENDING, 9000 + self.count))[0]

    def first_token(self, engine: Engine, *, cold: bool = False) -> tuple[float, str | None]:
        """Seconds, and the place of what was reused."""
        start = self.text(len(self.prompt), 2 + self.count) if cold else self.prompt
        return self._first_token(engine, (*start, *self.text(ENDING, 5000 + self.count)))

    def _first_token(self, engine: Engine, prompt: tuple[int, ...]) -> tuple[float, str | None]:
        # An answer that goes on: the end of a request is not a part of its first token.
        request = self.request(prompt, 2, keep=False)
        began = time.perf_counter()
        seconds = 0.0
        for event in engine.submit(request):
            if isinstance(event, Emitted):
                seconds = seconds or time.perf_counter() - began
            elif isinstance(event, Finished):
                assert event.error is None, event.error
                return seconds, event.usage.reused_from
        raise AssertionError("the request has not ended")


def wait_for_copies(device: torch.device) -> None:
    """Those of the prefix that has just been sent away, and the memory that is pinned for the next
    one: a user's pause leaves time for both."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        time.sleep(PAUSE_SECONDS)


def ended(engine: Engine, request: Request) -> None:
    *_, end = engine.submit(request)
    assert isinstance(end, Finished)
    assert end.error is None, end.error


def copy_rate(device: torch.device) -> float:
    """Bytes a second of a large copy from host memory, pinned for a GPU."""
    cuda = device.type == "cuda"
    source = torch.ones(COPIED, dtype=torch.uint8, pin_memory=cuda)
    target = torch.empty_like(source, device=device)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if cuda:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return COPIED / statistics.median(times)


def read_rate(files: list[Path]) -> float:
    """Bytes a second of reading files and summing them up."""
    began = time.perf_counter()
    nbytes = 0
    for path in files:
        data = path.read_bytes()
        zlib.crc32(data)
        nbytes += len(data)
    return nbytes / (time.perf_counter() - began)


def forget_pages(files: list[Path]) -> None:
    """Drop the files' pages from the system's cache, as far as it follows the advice."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
