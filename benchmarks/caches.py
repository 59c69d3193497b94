"""What the caches of prefixes cost a decoding sequence: with nothing moving, and with prefixes that
are saved and leave the device beside it.

    python benchmarks/caches.py [--model FILE] [--tokens N] [--every N] [--pairs N] [--device NAME]

The default is the bundled model. Two engines in one process, one without places for prefixes and
one with two on the device and host memory behind them, decode the same text in turns. Then the
second one decodes while short requests come every ``--every`` tokens, in turns with and without
keeping the state at their end, which sends another one to host memory: the difference is what
saving costs.
A ratio is the median of the pairs, with the 95 % interval of the mean.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from resume import opened

from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

PROMPT = 128
SHORT = 70

STUDENT = {5: 2.78, 10: 2.26, 15: 2.14, 20: 2.09}
"""Of the 95 % interval, by the number of pairs."""

say = sys.stdout.write


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--every", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=10, choices=sorted(STUDENT))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measured(options)
    for name, value in figures.items():
        say(f"{name}: {value}\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    shared: dict[str, Any] = {
        "device": options.device,
        "context": PROMPT + options.tokens + 64,
        "slots": 2,
        "draft": "off",
    }
    without, caching = (
        load_settings(**shared, **more)
        for more in ({"checkpoints": 0, "cache_memory": 0.0}, {"checkpoints": 2})
    )
    registry = Registry.discover(without)
    path = options.model or bundled_model(registry)
    models = [load_model(path, settings, registry) for settings in (without, caching)]
    with opened(models[0], without) as plain, opened(models[1], caching) as cached:
        sides = [Decode(engine, models[0].info.vocabulary, options) for engine in (plain, cached)]
        off, on = sides
        for side in sides:
            side.run()
            side.run(beside=True, keep=side is on)
        nothing_moves = pairs(options.pairs, off.run, on.run)
        before = cached.stats()
        saving = pairs(
            options.pairs,
            lambda: on.run(beside=True, keep=False),
            lambda: on.run(beside=True, keep=True),
        )
        after = cached.stats()
    moved = {name: after[name] - before[name] for name in ("steps", "waits", "allocations")}
    return {
        "device": str(models[0].device),
        "ms_a_token": round(1e3 * statistics.median(nothing_moves[0]), 4),
        "nothing_moves": ratio(*nothing_moves),
        "ms_a_token_beside": round(1e3 * statistics.median(saving[0]), 4),
        "a_save_every": options.every,
        "saving": ratio(*saving),
        "demotions": after["demotions"] - before["demotions"],
        "captures": after["captures"] - before["captures"],
        **moved,
    }


def pairs(
    count: int, one: Callable[[], float], other: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Times of both, taken in turns; every other pair begins with the second."""
    found: tuple[list[float], list[float]] = ([], [])
    for pair in range(count):
        order = ((0, one), (1, other))
        for which, run in order if pair % 2 == 0 else order[::-1]:
            found[which].append(run())
    return found


def ratio(base: list[float], other: list[float]) -> dict[str, float]:
    """How much slower the other is, in percent."""
    slower = [100 * (b / a - 1) for a, b in zip(base, other, strict=True)]
    half = STUDENT[len(slower)] * statistics.stdev(slower) / math.sqrt(len(slower))
    mean = statistics.mean(slower)
    return {
        "percent": round(statistics.median(slower), 3),
        "from": round(mean - half, 3),
        "to": round(mean + half, 3),
    }


class Decode:
    """One sequence that decodes, greedily, and short requests beside it."""

    def __init__(self, engine: Engine, vocabulary: int, options: argparse.Namespace) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self._tokens, self._every, self._count = options.tokens, options.every, 0

    def run(self, *, beside: bool = False, keep: bool = False) -> float:
        """Seconds a token, from the first one to the last."""
        main = replace(self._request(PROMPT, self._tokens), keep=False)
        times, others, count = [], [], 0
        for event in self._engine.submit(main):
            if isinstance(event, Emitted):
                times.append(time.perf_counter())
                before, count = count, count + len(event.tokens)
                if beside and before // self._every < count // self._every < self._room():
                    short = replace(self._request(SHORT, 1), keep=keep)
                    others.append(self._engine.submit(short))
            elif isinstance(event, Finished):
                assert event.error is None, event.error
        for ticket in others:
            *_, end = ticket
            assert isinstance(end, Finished)
            assert end.error is None, end.error
        return (times[-1] - times[0]) / (self._tokens - 1)

    def _room(self) -> int:
        """No request comes with the last tokens: it would end behind the timed ones."""
        return self._tokens // self._every

    def _request(self, tokens: int, generate: int) -> Request:
        self._count += 1
        seed = 1 if tokens == PROMPT else 1000 + self._count
        prompt = tuple((seed * 7919 + 31 * n * n + n) % self._vocabulary for n in range(tokens))
        return Request(str(self._count), prompt, generate, Sampling(temperature=0.0))


if __name__ == "__main__":
    main()
