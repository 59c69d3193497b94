"""The released sizes, and the vocabulary they share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from kinfolk.descriptors import ModelOutline, ReleasedShape, VocabularyOutline
from kinfolk.gguf.file_types import MIXES, TypeMix
from kinfolk_gemma4.convert import KEPT_TYPES
from kinfolk_gemma4.layout import (
    ARCHITECTURE,
    AttentionShape,
    Gemma4Shape,
    metadata,
    rope_factors,
    tensors,
)
from kinfolk_gemma4.text import TOKENIZER, VISIBLE

VOCABULARY: Final = 262144
PATTERN: Final = 6
"""One layer of this many has full attention."""

PUBLISHED: Final[TypeMix] = MIXES["q4_k_m"].overridden(KEPT_TYPES, name="published")
"""Q4_K_M; rows of 704 and 2112 numbers are no whole blocks and get fallback types."""


def windowed_layers(layers: int, pattern: int = PATTERN) -> tuple[bool, ...]:
    """Whether each layer is windowed; the last one never is."""
    return (*((index + 1) % pattern != 0 for index in range(layers - 1)), False)


def _local(kv_heads: int) -> AttentionShape:
    return AttentionShape(kv_heads, 256, 1e4)


def _full(kv_heads: int) -> AttentionShape:
    return AttentionShape(kv_heads, 512, 1e6)


_LARGE: Final = Gemma4Shape(
    vocabulary=VOCABULARY,
    hidden=5376,
    context=262144,
    heads=32,
    full=_full(4),
    local=_local(16),
    window=1024,
    windowed=windowed_layers(60),
    feed_forward=21504,
    keys_as_values=True,
)
_SMALL: Final = replace(
    _LARGE,
    context=131072,
    heads=8,
    window=512,
    input_width=256,
    keys_as_values=False,
    unused_keys=True,
)

SIZES: Final = {
    "gemma-4-26b-a4b": replace(
        _LARGE,
        hidden=2816,
        heads=16,
        full=_full(2),
        local=_local(8),
        windowed=windowed_layers(30),
        feed_forward=2112,
        experts=128,
        top_k=8,
        expert_width=704,
    ),
    "gemma-4-31b": _LARGE,
    "gemma-4-e2b": replace(
        _SMALL,
        hidden=1536,
        full=_full(1),
        local=_local(1),
        windowed=windowed_layers(35, 5),
        feed_forward=6144,
        shared=20,
        double_wide=True,
    ),
    "gemma-4-e4b": replace(
        _SMALL,
        hidden=2560,
        full=_full(2),
        local=_local(2),
        windowed=windowed_layers(42),
        feed_forward=10240,
        shared=18,
    ),
    "gemma-4-12b": replace(
        _LARGE,
        hidden=3840,
        heads=16,
        full=_full(1),
        local=_local(8),
        windowed=windowed_layers(48),
        feed_forward=15360,
    ),
}
"""The shapes by name. Numbers are those of the published configurations."""

_CONTROL: Final = {
    0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>",
    46: "<|tool>", 47: "<tool|>", 98: "<|think|>", 105: "<|turn>", 106: "<turn|>",
}  # fmt: skip
_VISIBLE: Final = dict(zip((100, 101, 48, 49, 50, 51, 52), VISIBLE, strict=True))
_KNOWN: Final = _CONTROL | _VISIBLE

_TEMPLATE: Final = (
    "{{ bos_token }}"
    "{%- for message in messages -%}"
    "{{ '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n'"
    " + message.content + '<turn|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|turn>model\\n' }}{%- endif -%}"
)

SYNTHETIC_VOCABULARY: Final = VocabularyOutline(
    size=VOCABULARY,
    pre=TOKENIZER,
    first_special=0,
    specials=tuple((_KNOWN.get(i, f"<unused{i}>"), i in _CONTROL) for i in range(107)),
    eos="<turn|>",
    padding="<pad>",
    chat_template=_TEMPLATE,
    symbols="characters",
    bos="<bos>",
)
"""The special tokens of the released models at their ids, less those for image and sound."""


def shapes() -> tuple[ReleasedShape, ...]:
    return tuple(
        ReleasedShape(
            name=name,
            architecture=ARCHITECTURE,
            layers=shape.layers,
            outline=partial(outline, shape),
            vocabulary=SYNTHETIC_VOCABULARY,
            mixes={PUBLISHED.name: PUBLISHED},
        )
        for name, shape in SIZES.items()
    )


def outline(released: Gemma4Shape, layers: int) -> ModelOutline:
    shape = released if layers == released.layers else _cut(released, layers)
    # Attention scores are not scaled, and the router's input is divided by the root of the width.
    # These norms keep scores near one, as training does, and make the router's choice clear: if
    # rounding swaps the last chosen expert, little changes.
    low, high = 0.9, 1.1
    head, width = shape.local.head_dim**-0.25, 4 * shape.hidden**0.5
    return ModelOutline(
        metadata=metadata(shape),
        tensors=tuple((recipe.name, recipe.shape) for recipe in tensors(shape)),
        group=shape.heads // shape.attention(0).kv_heads,
        ranges={
            "attn_q_norm.weight": (low * head, high * head),
            "attn_k_norm.weight": (low * head, high * head),
            "ffn_gate_inp.scale": (low * width, high * width),
        },
        constants={"rope_freqs.weight": rope_factors(shape)},
    )


def _cut(released: Gemma4Shape, layers: int) -> Gemma4Shape:
    """The shape with another number of layers and the same part of sharing layers. With two layers
    or more, a layer of each kind owns keys and values."""
    shared = min(layers * released.shared // released.layers, max(0, layers - 2))
    pattern = released.windowed.index(False) + 1
    windowed = windowed_layers(layers, min(pattern, layers - shared))
    return replace(released, windowed=windowed, shared=shared)
