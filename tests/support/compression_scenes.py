"""Long texts with a question, and runtimes of a tiny model with a scorer."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch

from kinfolk.engine.compression import Compressor, compressor_of
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.text.chat import ChatTemplate

WORDS = (
    *("the", "river", "stone", "north", "door", "key", "small"),
    *("light", "under", "green", "field", "and", "cold"),
)


def story(count, seed=0):
    """``count`` words, each with its number, so that every one is found again."""
    return " ".join(f"{WORDS[(seed + 7 * n) % len(WORDS)]}{seed}x{n}" for n in range(count))


def ordered(words, source):
    """Whether ``words`` stand in ``source`` in this order."""
    rest = iter(source)
    return all(word in rest for word in words)


@dataclass(frozen=True, slots=True)
class CompressingRuntime(Runtime):
    """A runtime with the compressor of its prompts."""

    compressor: Compressor | None = None


@contextmanager
def compressing_runtime(path, scorer, template, **options):
    """A runtime whose prompts are scored by the model of ``scorer``."""
    torch.set_num_threads(1)
    values = {
        "device": "cpu",
        "dtype": "f32",
        "slots": 4,
        "context": 4096,
        "draft": "off",
        "cache_memory": 0.0,
        "prefill_compression_drafter": scorer,
        "prefill_compression_keep_ratio": 0.2,
        **options,
    }
    settings = load_settings(**values)
    with Runtime.open(path, settings, Registry.discover(settings)) as runtime:
        values = {each.name: getattr(runtime, each.name) for each in fields(Runtime)}
        values["chat"] = ChatTemplate(template, runtime.tokenizer, runtime.chat_format)
        yield CompressingRuntime(**values, compressor=compressor_of(runtime, settings))
