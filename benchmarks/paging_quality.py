"""Rows of ``benchmarks/paging.py`` with texts: what is found again, and prompts that are
compressed."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from paging_engine import Row
from policies import DECODING, cases_of, measured
from recall import CHUNKS

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.compression import Compressor, TextSource, compressor_of
from kinfolk.engine.prompt import Prompt, text_prompt
from kinfolk.engine.runtime import Runtime
from kinfolk.errors import SettingsError
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.types import CHUNK_POSITIONS

SOURCE = 8
"""Of the source that texts are made of, as a multiple of the length of one."""

WORDS = ("river", "stone", "north", "door", "key", "small", "light", "under", "green", "field")

WARM = 4096
"""Tokens of a prompt that is read and compressed first, so that no kernel compiles later."""


def recalled(options: argparse.Namespace) -> Row:
    """Right tokens of given answers of the bundled model, with everything on the device and with a
    budget, behind prompts that were read with everything on the device and with the budget."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    path, most = bundled_model(registry), SOURCE * CHUNKS * CHUNK_POSITIONS
    cases = cases_of(path, registry, options.places, options.each, most=most)
    with TemporaryDirectory() as folder:
        stored = Path(folder)
        resident = measured(path, registry, options.device, cases, stored=stored)
        exact = measured(path, registry, options.device, cases, "qk", stored)
    pooled = measured(path, registry, options.device, cases, "qk")
    most_right = sum(resident.right.values())
    if not most_right:
        raise SettingsError("no token is right with everything on the device")
    return {
        "texts": len(cases),
        "resident_share": round(DECODING / CHUNKS, 3),
        "recalls": {"exact": exact.recalled, "pooled": pooled.recalled},
        "total": resident.total,
        "resident": resident.right,
        "exact": exact.right,
        "pooled": pooled.right,
        "of_resident_exact": round(sum(exact.right.values()) / most_right, 4),
        "of_resident_pooled": round(sum(pooled.right.values()) / most_right, 4),
    }


# -- compressed prompts ---------------------------------------------------------------------------


def compressed(options: argparse.Namespace) -> Row:
    """Seconds to the first token of a long prompt, compressed and in full."""
    drafter = options.drafter or options.model
    settings = load_settings(
        device=options.device,
        context=options.compressed + CHUNK_POSITIONS,
        slots=1,
        draft="off",
        checkpoints=0,
        prefill_compression="always",
        prefill_compression_drafter=drafter,
        prefill_compression_keep_ratio=options.keep_ratio,
    )
    with Runtime.open(options.model, settings, Registry.discover(settings)) as runtime:
        compressor = compressor_of(runtime, settings)
        assert compressor is not None
        for tokens, name in ((min(WARM, options.compressed), "warm"), (options.compressed, "long")):
            text, prompt = long_text(runtime, tokens)
            scoring, short = timed_compression(runtime, compressor, prompt, text)
            sooner = scoring + first_token(runtime, short, f"{name} compressed")
            full = first_token(runtime, prompt, f"{name} full")
    return {
        "drafter": drafter.name,
        "tokens": len(prompt.tokens),
        "compressed_tokens": len(short.tokens),
        "scoring_s": round(scoring, 3),
        "compressed_s": round(sooner, 3),
        "full_s": round(full, 3),
        "times_sooner": round(full / sooner, 2),
    }


def long_text(runtime: Runtime, tokens: int) -> tuple[str, Prompt]:
    """A text of at most so many tokens, in which no word stands twice, with a question."""
    question = "\n\nWhich door does the stone of the river open?"
    words = [f"{WORDS[number % len(WORDS)]}{number}" for number in range(tokens)]
    each = len(runtime.tokenizer.encode(" ".join(words[:500]))) / min(500, len(words))
    count = int(tokens / each)
    while True:
        text = " ".join(words[:count]) + question
        prompt = text_prompt(runtime, text, "prompt")
        if len(prompt.tokens) <= tokens:
            return text, prompt
        count = int(count * 0.97 * tokens / len(prompt.tokens))


def timed_compression(
    runtime: Runtime, compressor: Compressor, prompt: Prompt, text: str
) -> tuple[float, Prompt]:
    began = time.perf_counter()
    short = compressor.compressed(runtime, prompt, TextSource(text), "always")
    seconds = time.perf_counter() - began
    if short.compression is None or short.compression.skipped is not None:
        raise SettingsError(f"the prompt was read in full: {short.compression}")
    return seconds, short


def first_token(runtime: Runtime, prompt: Prompt, name: str) -> float:
    began, seconds = time.perf_counter(), 0.0
    request = Request(name, tuple(prompt.tokens), 1, keep=False)
    for event in runtime.engine.submit(request):
        if isinstance(event, Emitted):
            seconds = time.perf_counter() - began
        elif event.error is not None:
            raise SettingsError(event.error)
    return seconds
