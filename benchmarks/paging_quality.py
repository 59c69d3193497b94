"""Rows of ``benchmarks/paging.py`` with texts: what is found again, and prompts that are
compressed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

from paging_engine import Row
from recall import Text, texts
from resume import opened

from kinfolk.engine.compression import Compressor, TextSource, compressor_of
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.prompt import Prompt, text_prompt
from kinfolk.engine.runtime import Runtime
from kinfolk.engine.text import open_text
from kinfolk.errors import SettingsError
from kinfolk.plans import SlotMapping
from kinfolk.registry import Registry
from kinfolk.residency.rules import ResidencyRules, least_chunks
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.types import CHUNK_POSITIONS

SINK, TAIL, CHOSEN, BURST = 1, 2, 2, 2
"""Chunks on the device: 5 of 63 are 8 %."""

SOURCE = 8
"""Of the source that texts are made of, as a multiple of the length of one."""

WORDS = ("river", "stone", "north", "door", "key", "small", "light", "under", "green", "field")
WARM = 4096
"""Tokens of a prompt that is read and compressed first, so that no kernel compiles later."""


def recalled(options: argparse.Namespace) -> Row:
    """Tokens that the bundled model repeats right, with a budget and with all chunks there."""
    settings = load_settings()
    registry = Registry.discover(settings)
    path = registry.bundled_model()
    if path is None:
        raise SettingsError("no installed family ships a model")
    tokenizer, _, _ = open_text(path, settings, registry)
    sizes = {"device": options.device, "slots": 1, "draft": "off", "checkpoints": 0}
    context = (options.chunks + 2) * CHUNK_POSITIONS
    budget = least_chunks(SINK, 4, BURST) * CHUNK_POSITIONS  # replaced below
    paging = {"kvflash": budget, "kvflash_burst": BURST, "kvflash_policy": "qk"}
    vocabulary, most = tokenizer.vocab_size, SOURCE * options.chunks * CHUNK_POSITIONS
    cases = [
        replace(each, rest=each.rest[: options.needle])
        for each in texts(
            *(tokenizer, vocabulary, options.places, options.each, 0, options.chunks, most)
        )
    ]
    right, seen = {}, {}
    for name, more in (("resident", {}), ("pooled", paging)):
        own = load_settings(**sizes, context=context, **more)
        loaded = load_model(path, own, registry)
        if more:
            loaded = with_chosen(loaded)
        with opened(loaded, own) as engine:
            answers = []
            for number, case in enumerate(cases):
                request = Request(str(number), tuple(case.tokens), len(case.rest), keep=False)
                events = list(engine.submit(request))
                if events[-1].error is not None:
                    raise SettingsError(events[-1].error)
                answers.append([token for event in events[:-1] for token in event.tokens])
            seen[name] = engine.stats()["kvflash_recalls"]
        right[name] = of_kinds(cases, answers)
        loaded.file.close()
    total = sum(len(case.rest) for case in cases)
    pooled, resident = (sum(right[name].values()) for name in ("pooled", "resident"))
    return {
        "tokens": total,
        "right": right,
        "recalls": seen["pooled"],
        "of_resident": round(pooled / max(1, resident), 4),
    }


def with_chosen(loaded: LoadedModel) -> LoadedModel:
    """The model with a budget for two chosen chunks and fewer at the end than by default."""
    chunks = SINK + TAIL + CHOSEN + BURST + 1
    pool = loaded.plan.windows.index(None)
    rules = list(loaded.mapping.rules)
    rules[pool] = replace(rules[pool], sink=SINK, tail=TAIL)
    residency = loaded.residency
    assert isinstance(residency, ResidencyRules)
    return replace(
        loaded,
        mapping=SlotMapping(tuple(rules)),
        residency=replace(residency, chunks=chunks, sink=SINK, tail=TAIL),
    )


def of_kinds(cases: Sequence[Text], answers: Sequence[list[int]]) -> dict[str, int]:
    """Tokens that are right, by the kind of their text."""
    right = dict.fromkeys((case.kind for case in cases), 0)
    for case, answer in zip(cases, answers, strict=True):
        right[case.kind] += sum(a == b for a, b in zip(answer, case.rest, strict=True))
    return right


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
