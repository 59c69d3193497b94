"""The time to the first token of a chat's last turn against that of the same prompt cold, and the
time of a look-up in a large prefix cache.

    python benchmarks/turns.py [--model FILE] [--turns N] [--context N] [--device NAME]

The default is the bundled model. Questions are of equal length and fill the context with the last
turn. Cold is the same prompt in a process that keeps no checkpoints; each figure is the median of
the repeats. The look-ups are of prompts of 262 144 tokens among 1000 stored prefixes, half of which
begin like the prompt: one that ends with it, and one that parts from all of them at once.
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

say = sys.stdout.write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {**chat(options), **look_ups(options.repeats)}
    for name, value in figures.items():
        say(f"{name}: {value}\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def chat(options: argparse.Namespace) -> dict[str, Any]:
    """First tokens of the last turn, in seconds."""
    warm, cold = [], []
    with opened(options) as kept, opened(options, checkpoints=0) as plain:
        for repeat in range(options.repeats):
            for prompt in prompts(kept, options, repeat):
                end = answered(kept, prompt)
            warm.append(end.timings.prompt)
            cold.append(answered(plain, prompt).timings.prompt)
    one, other = statistics.median(warm), statistics.median(cold)
    return {
        "prompt_tokens": end.usage.prompt,
        "reused_tokens": end.usage.reused,
        "last_turn_seconds": round(one, 4),
        "cold_seconds": round(other, 4),
        "ratio": round(one / other, 3),
    }


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


def look_ups(repeats: int) -> dict[str, float]:
    """Of families that start where all their state is, and of those that start at any chunk."""
    return {
        f"look_up_{kind}_{name}_ms": value
        for kind, recurrent in (("state", True), ("chunk", False))
        for name, value in look_ups_of(repeats, recurrent=recurrent).items()
    }


def look_ups_of(repeats: int, *, recurrent: bool) -> dict[str, float]:
    """Milliseconds of a look-up, the median of ten times ``repeats``; hashing the prompt is not
    part of it, as another thread does that."""
    store = SimpleNamespace(drop=lambda checkpoint: None, recurrent=recurrent, pools=())
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
