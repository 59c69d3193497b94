"""The released dense sizes.

Sizes are those of the published configurations, except that only third parties state that the 4B
model is tied. All share the vocabulary, the sizes of heads, and one full-attention layer in four.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kinfolk.convert.hybrid.keys import metadata
from kinfolk.convert.hybrid.shape import DEFAULT_INTERVAL, HybridShape, interval_layers
from kinfolk.convert.hybrid.tensors import DECAY_TYPES, dense_feed_forward, tensors
from kinfolk.descriptors import ModelOutline, ReleasedShape, VocabularyOutline
from kinfolk.gguf.file_types import MIXES, TypeMix
from kinfolk_qwen35.convert import ARCHITECTURE

VOCABULARY: Final = 248320
CONTEXT: Final = 262144

# name, layers, hidden, feed-forward, query heads, key heads, delta-net value heads, tied
_SIZES: Final = (
    ("qwen3.5-0.8b", 24, 1024, 3584, 8, 2, 16, True),
    ("qwen3.5-2b", 24, 2048, 6144, 8, 2, 16, True),
    ("qwen3.5-4b", 32, 2560, 9216, 16, 4, 32, True),
    ("qwen3.5-9b", 32, 4096, 12288, 16, 4, 32, False),
    ("qwen3.5-27b", 64, 5120, 17408, 24, 4, 48, False),
    ("qwen3.5-27b-mtp", 64, 5120, 17408, 24, 4, 48, False),
)
_WITH_MTP: Final = frozenset({"qwen3.5-27b-mtp"})
"""Files that also have the block for multi-token prediction, which all of these models have and
many published files leave out."""

PUBLISHED: Final[TypeMix] = MIXES["q4_k_m"].overridden(
    {"attn_qkv.weight": "Q5_K", "ssm_out.weight": "Q5_K", **DECAY_TYPES},
    name="published",
)
"""Q4_K_M as in published files, with more bits for delta nets."""

RANGES: Final = {"ssm_a": (-1.5, -0.05), "ssm_dt.bias": (-4.0, -1.0)}
"""Ranges of decays: half of the state is forgotten in one step at the fastest, in hundreds of steps
at the slowest."""

_CONTROL: Final = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_VISIBLE: Final = ("<tool_call>", "</tool_call>")
_CODE: Final = (
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>",
)  # fmt: skip
_ALSO_VISIBLE: Final = ("<tool_response>", "</tool_response>", "<think>", "</think>")

_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

SYNTHETIC_VOCABULARY: Final = VocabularyOutline(
    size=VOCABULARY,
    pre="qwen35",
    first_special=248044,
    specials=(
        *((text, True) for text in _CONTROL),
        *((text, False) for text in _VISIBLE),
        *((text, True) for text in _CODE),
        *((text, False) for text in _ALSO_VISIBLE),
    ),
    eos="<|im_end|>",
    padding="<|endoftext|>",
    chat_template=_TEMPLATE,
)
"""The special tokens of the released models at their ids, except those for sound."""


def shapes() -> tuple[ReleasedShape, ...]:
    return tuple(
        ReleasedShape(
            name=name,
            architecture=ARCHITECTURE,
            layers=layers,
            outline=partial(
                _outline,
                hidden,
                width,
                heads,
                kv_heads,
                value_heads,
                tied,
                name in _WITH_MTP,
            ),
            vocabulary=SYNTHETIC_VOCABULARY,
            mixes={PUBLISHED.name: PUBLISHED},
        )
        for name, layers, hidden, width, heads, kv_heads, value_heads, tied in _SIZES
    )


def _outline(
    hidden: int,
    width: int,
    heads: int,
    kv_heads: int,
    value_heads: int,
    tied: bool,
    mtp: bool,
    layers: int,
) -> ModelOutline:
    # A model of few layers has at least one of each kind, which some readers require.
    interval = min(DEFAULT_INTERVAL, layers)
    shape = HybridShape(
        vocabulary=VOCABULARY,
        hidden=hidden,
        context=CONTEXT,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=256,
        rotary=64,
        rope_base=1e7,
        key_heads=16,
        value_heads=value_heads,
        key_dim=128,
        value_dim=128,
        linear=interval_layers(layers, interval),
        interval=interval,
        tied=tied,
        draft_layers=int(mtp),
    )
    recipes = tensors(shape, dense_feed_forward(hidden, width))
    return ModelOutline(
        metadata=metadata(shape, {"feed_forward_length": width}),
        tensors=tuple((recipe.name, recipe.shape) for recipe in recipes),
        group=heads // kv_heads,
        ranges=RANGES,
    )
