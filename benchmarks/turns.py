"""The time to the first token of a chat's last turn against that of the same prompt cold, and the
time of a look-up in a large prefix cache.

    python benchmarks/turns.py [--model FILE] [--turns N] [--context N] [--device NAME] [--part P]

The default is the bundled model. Questions are of equal length and fill the context with the last
turn. Cold is the same prompt with an engine that keeps no checkpoints. Both engines have answered a
whole chat before, so that nothing is compiled or captured in what is timed. The look-ups are of
prompts of 262 144 tokens among 1000 stored prefixes, half of which begin like the prompt: one that
ends with it, and one that parts from all of them at once. They need no GPU.

A row is a line of JSON, written as soon as it is known; the rows of figures that have a goal say it
and whether it is met. ``--json FILE`` writes them all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kinfolk.engine.answer import Ended
from kinfolk.engine.generation import Generation
from kinfolk.engine.options import GenerationOptions
from kinfolk.engine.prompt import Prompt, chat_prompt
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Checkpoint
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import PrefixCache

ANSWER = 16
LOOKED_UP = 262_144
STORED = 1000
WORDS = ("def", "add", "(a, b):", "return", "a + b", "# a list of numbers", "for x in", "items:")

MOST_OF_COLD = 0.15
MOST_LOOK_UP_MS = 1.0

say = sys.stdout.write
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=("chat", "look-ups"), help="default: both")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for row in measured(options):
        say(json.dumps(row) + "\n")
        sys.stdout.flush()
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measured(options: argparse.Namespace) -> Iterator[Row]:
    if options.part != "look-ups":
        yield from chat(options)
    if options.part != "chat":
        yield from look_ups(options.repeats)


def with_goal(row: Row, name: str, most: float) -> Row:
    """The row, with the goal of one of its figures."""
    return {**row, "goal": f"{name} <= {most}", "met": row[name] <= most}


def chat(options: argparse.Namespace) -> Iterator[Row]:
    """First tokens of the last turn: of each repeat, and their medians."""
    warm, cold = [], []
    with opened(options) as kept, opened(options, checkpoints=0) as plain:
        for repeat in range(-1, options.repeats):
            began = time.perf_counter()
            for prompt in prompts(kept, options, repeat):
                end = answered(kept, prompt)
            other = answered(plain, prompt).timings.prompt
            row = {
                "what": f"turn {options.turns}" + ("" if repeat >= 0 else ", not counted"),
                "device": str(kept.loaded.device),
                "prompt_tokens": end.usage.prompt,
                "reused_tokens": end.usage.reused,
                "reused_from": end.usage.reused_from,
                "first_token_ms": round(1e3 * end.timings.prompt, 2),
                "cold_ms": round(1e3 * other, 2),
                "row_took_s": round(time.perf_counter() - began, 1),
            }
            yield row
            if repeat >= 0:
                warm.append(end.timings.prompt)
                cold.append(other)
    one, other = statistics.median(warm), statistics.median(cold)
    found = {
        "what": f"turn {options.turns}, median of {options.repeats}",
        "first_token_ms": round(1e3 * one, 2),
        "cold_ms": round(1e3 * other, 2),
        "of_cold": round(one / other, 3),
    }
    yield with_goal(found, "of_cold", MOST_OF_COLD)


def opened(options: argparse.Namespace, **more: Any) -> Runtime:
    settings = load_settings(device=options.device, context=options.context, slots=1, **more)
    return Runtime.open(options.model, settings, Registry.discover(settings))


def prompts(runtime: Runtime, options: argparse.Namespace, seed: int) -> Iterator[Prompt]:
    """The prompts of a chat that fills the context."""
    room = options.context // options.turns - 2 * ANSWER
    messages: list[dict[str, str]] = []
    for turn in range(options.turns):
        said = f"{seed} {turn}"
        while len(runtime.tokenizer.encode(said)) < room:
            said += " " + WORDS[(len(said) * 7 + turn) % len(WORDS)]
        messages.append({"role": "user", "content": said})
        yield chat_prompt(runtime, messages)
        messages.append({"role": "assistant", "content": "return a + b"})


def answered(runtime: Runtime, prompt: Prompt) -> Ended:
    limits = GenerationOptions(max_tokens=ANSWER, temperature=0)
    *_, end = Generation(runtime, replace(prompt, think=None), limits)
    assert isinstance(end, Ended)
    return end


def look_ups(repeats: int) -> Iterator[Row]:
    """Of families that start where all their state is, and of those that start at any chunk."""
    for kind, recurrent in (("where all state is", True), ("at any chunk", False)):
        for name, value in look_ups_of(repeats, recurrent=recurrent).items():
            row = {"what": f"look-up, {name}, families that start {kind}", "ms": value}
            yield with_goal(row, "ms", MOST_LOOK_UP_MS)


def look_ups_of(repeats: int, *, recurrent: bool) -> dict[str, float]:
    """Milliseconds of a look-up, the median of ten times ``repeats``; hashing the prompt is not
    part of it, as another thread does that."""
    store = SimpleNamespace(drop=lambda checkpoint: None, any_chunk=not recurrent, pools=())
    cache = PrefixCache(cast(CheckpointStore, store), STORED)
    text = HashedTokens(range(LOOKED_UP))
    for number in range(STORED // 2):
        cache.insert(text, Checkpoint(LOOKED_UP - 1 - 500 * number, 0, ()))
        other = HashedTokens(range(number + 1, 4096))
        cache.insert(other, Checkpoint(len(other), 0, ()))
    missed = HashedTokens((7, *range(1, LOOKED_UP)))

    def milliseconds(prompt: HashedTokens) -> float:
        times = []
        for _ in range(10 * repeats):
            started = time.perf_counter()
            cache.find(prompt)
            times.append(time.perf_counter() - started)
        return round(1000 * statistics.median(times), 3)

    return {"hit": milliseconds(text), "miss": milliseconds(missed)}


if __name__ == "__main__":
    main()
