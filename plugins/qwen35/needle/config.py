"""Shapes of the needle model, and how each is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pocket.config import ModelConfig

VALUE_WORDS = 32
LENGTHS = (72, 144, 288, 512, 2048, 8192)
"""Rows become longer in these steps. The shortest ones have two facts with short values and two
questions: there the right place is one of few, so a model finds out soon that it has to look for
it."""

ROW_OF_VALUE = 9
"""A value has at most the part of a row that is one by this."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rows of ``length`` tokens; the run goes on to the next lesson at ``until``, a part of its
    time, or before that if answers are right."""

    length: int
    rows: int
    value_words: int
    density: float
    until: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and its training. ``step_tokens``: least and most tokens of a step. ``symbols``: how
    many words keys and values are made of."""

    model: ModelConfig
    symbols: int
    step_tokens: tuple[int, int]
    muon_lr: float
    adam_lr: float
    decay: float = 0.1
    decoys: float = 0.5
    warmup_steps: int = 20
    decay_from: float = 0.5

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lessons(self, length: int) -> tuple[Lesson, ...]:
        """From short rows to rows of ``length`` tokens, which have at least twice the time of
        others."""
        lengths = [each for each in LENGTHS if each < length] + [length]
        least, most = self.step_tokens
        found = []
        for number, each in enumerate(lengths):
            rows = max(1, min(most, max(least, 16 * each)) // each)
            last = number == len(lengths) - 1
            until = 1.0 if last else (number + 1) / (len(lengths) + 1)
            value = VALUE_WORDS if last else min(VALUE_WORDS, each // ROW_OF_VALUE)
            density = min(1.0, (512 / each) ** 0.4)
            found.append(Lesson(each, rows, value, density, until))
        return tuple(found)


_WIDE = ModelConfig(
    vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=2,
    full_attention_interval=2, rope_theta=1e6, max_position_embeddings=65_536,
    initializer_range=0.02,
)  # fmt: skip

SHAPES: Mapping[str, Shape] = {
    # Widths that the kernels of a GPU know from the pocket model.
    "full": Shape(_WIDE, 256, (8192, 65_536), muon_lr=5e-3, adam_lr=6e-4),
    "deep": Shape(replace(_WIDE, num_hidden_layers=4), 256, (8192, 65_536), 5e-3, 6e-4),
    # For a test on two cores.
    "tiny": Shape(
        ModelConfig(
            vocab_size=576, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
            full_attention_interval=2, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
            mrope_section=(3, 3, 2), linear_num_key_heads=1, linear_num_value_heads=2,
            linear_key_head_dim=32, linear_value_head_dim=32, rope_theta=1e6,
            max_position_embeddings=65_536, initializer_range=0.2,
        ),
        symbols=32, step_tokens=(1024, 1024), muon_lr=3e-2, adam_lr=3e-3,
    ),
}  # fmt: skip
