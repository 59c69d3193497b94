"""What a request costs the streams beside it: one that wants log-probabilities, and a prompt.

    python benchmarks/company.py [--model FILE | --shape NAME] [--streams N] [--tokens N]
                                 [--prompt N] [--mixed-slice N] [--pairs N] [--device NAME]
                                 [--json FILE]

The default is the bundled model; ``--shape`` writes a synthetic file of that size. All streams
decode at once, a request each, and their first has company of three kinds, in turns:

    plain      none
    logprobs   the first stream wants the log-probabilities of its tokens and of five others
    prompt     a request with a new prompt of ``--prompt`` tokens comes when all are decoding

``rate`` is tokens a second of all streams but the first, ``share`` of the plain rate, the median
of pairs that run one after the other. ``gap`` is the longest time in milliseconds between two
tokens of a stream, ``first`` the newcomer's time to its first token: medians, and the largest.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from model_files import model_file, outline_of

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.engine import Engine
from kinfolk.engine.runtime import Runtime
from kinfolk.errors import EngineError
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted, Event, Finished
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

SHORT = 128
"""Tokens of the prompt of a stream."""

ALTERNATIVES = 5
KINDS = ("plain", "logprobs", "prompt")
NEWCOMER = "newcomer"

say = sys.stdout.write


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", type=Path)
    model.add_argument("--shape")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--mixed-slice", type=int, help="see kinfolk serve --help")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.streams < 2:
        parser.error("--streams: two or more, as the first one is not counted")
    with opened(options) as runtime:
        figures = measured(runtime, options)
    say(f"{json.dumps(figures, indent=1)}\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Runtime]:
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    settings = load_settings(
        device=options.device,
        slots=options.streams + 1,
        mixed_slice=options.mixed_slice,
        context=max(SHORT + options.tokens, options.prompt) + 8,
        checkpoints=0,
        draft="off",
    )
    file = model_file(outline_of(options.shape)) if options.shape else nullcontext(options.model)
    with file as path, Runtime.open(path, settings, registry) as runtime:
        yield runtime


def measured(runtime: Runtime, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of each kind; the first pair, which captures graphs, is not counted."""
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    source = random.Random(0)
    for pair in range(1 + options.pairs):
        for kind in KINDS:
            found = streams(runtime, options, kind, source)
            if pair:
                runs[kind].append(found)
    figures: dict[str, Any] = {"model": runtime.info.name, "streams": options.streams}
    for kind, some in runs.items():
        shares = [one.rate / plain.rate for one, plain in zip(some, runs["plain"], strict=True)]
        gaps = [1e3 * one.gap for one in some]
        figures[kind] = {
            "rate": round(statistics.median(one.rate for one in some), 1),
            "share": round(statistics.median(shares), 3),
            "gap": [round(statistics.median(gaps), 2), round(max(gaps), 2)],
        }
    firsts = [1e3 * one.first for one in runs["prompt"]]
    figures["prompt"]["first"] = [round(statistics.median(firsts), 2), round(max(firsts), 2)]
    return figures


@dataclass(frozen=True, slots=True)
class Run:
    """``rate`` in tokens a second, ``gap`` and ``first`` in seconds."""

    rate: float
    gap: float
    first: float


def streams(runtime: Runtime, options: argparse.Namespace, kind: str, source: random.Random) -> Run:
    """Run all streams once, from their first tokens to their last."""

    def prompt(tokens: int) -> tuple[int, ...]:
        return tuple(source.randrange(runtime.info.vocabulary) for _ in range(tokens))

    plain = Sampling()
    wanted = Sampling(logprobs=ALTERNATIVES) if kind == "logprobs" else plain
    requests = [
        Request(str(number), prompt(SHORT), options.tokens, sampling=plain if number else wanted)
        for number in range(options.streams)
    ]
    newcomer = None
    if kind == "prompt":
        newcomer = Request(NEWCOMER, prompt(options.prompt), 2, sampling=plain)
    times, came = _times(runtime.engine, requests, newcomer, options.tokens // 4)
    first = times.pop(NEWCOMER)[0] - came if newcomer else 0.0
    begun = max(each[0] for each in times.values())
    others = [each for name, each in times.items() if name != requests[0].id]
    decoded = [[at for at in each if at >= begun] for each in others]
    seconds = max(each[-1] for each in decoded) - begun
    gap = max(b - a for each in decoded for a, b in pairwise(each))
    return Run(sum(map(len, decoded)) / seconds, gap, first)


def _times(
    engine: Engine, requests: Sequence[Request], newcomer: Request | None, after: int
) -> tuple[dict[str, list[float]], float]:
    """When each request got its tokens, and when the newcomer came: once all streams have
    ``after`` tokens."""
    inbox: SimpleQueue[tuple[float, Event]] = SimpleQueue()

    def hear(event: Event) -> None:
        inbox.put((time.perf_counter(), event))

    for request in requests:
        engine.submit(request, hear)
    times: dict[str, list[float]] = defaultdict(list)
    left, came = len(requests) + (newcomer is not None), 0.0
    while left:
        at, event = inbox.get()
        if isinstance(event, Finished):
            if event.error:
                raise EngineError(event.error)
            left -= 1
        elif isinstance(event, Emitted):
            times[event.request_id] += [at] * len(event.tokens)
        ready = len(times) == len(requests) and min(map(len, times.values())) >= after
        if newcomer is not None and not came and ready:
            came = time.perf_counter()
            engine.submit(newcomer, hear)
    return times, came


if __name__ == "__main__":
    main()
