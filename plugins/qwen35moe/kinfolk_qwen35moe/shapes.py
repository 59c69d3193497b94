"""The released sizes.

Sizes are those of the published configurations. All share the vocabulary, the sizes of heads, and
one full-attention layer in four.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kinfolk.convert.feed_forward import ExpertSizes
from kinfolk.convert.hybrid.keys import metadata
from kinfolk.convert.hybrid.shape import DEFAULT_INTERVAL, HybridShape, interval_layers
from kinfolk.convert.hybrid.tensors import DECAY_TYPES, tensors
from kinfolk.descriptors import ModelOutline, ReleasedShape, VocabularyOutline
from kinfolk.gguf.file_types import MIXES, TypeMix
from kinfolk_qwen35moe.convert import ARCHITECTURE, MixtureSizes

VOCABULARY: Final = 248320
CONTEXT: Final = 262144

# name, layers, hidden, query heads, delta-net value heads, experts, experts of a token, their width
_SIZES: Final = (
    ("qwen3.5-35b-a3b", 40, 2048, 16, 32, 256, 8, 512),
    ("qwen3.5-35b-a3b-mtp", 40, 2048, 16, 32, 256, 8, 512),
    ("qwen3.5-122b-a10b", 48, 3072, 32, 64, 256, 8, 1024),
    ("qwen3.5-397b-a17b", 60, 4096, 32, 64, 512, 10, 1024),
)

_WITH_MTP: Final = frozenset({"qwen3.5-35b-a3b-mtp"})
"""Files that also have the block for multi-token prediction, which all of these models have and
many published files leave out."""

_WIDE: Final = ("ffn_down_shexp", "ffn_gate_shexp", "ffn_up_shexp", "attn_qkv")
PUBLISHED: Final[TypeMix] = MIXES["q4_k_m"].overridden(
    {f"{name}.weight": "Q8_0" for name in _WIDE} | {"ssm_out.weight": "Q5_K", **DECAY_TYPES},
    name="published",
)
"""Q4_K_M as in published files, with more bits for weights that every token uses."""

RANGES: Final = {"ssm_a": (-1.5, -0.05), "ssm_dt.bias": (-4.0, -1.0)}
"""Ranges of decays: half of the state is forgotten in one step at the fastest, in hundreds of steps
at the slowest."""

# The texts of the ids from 248044 on, and whether each is a control token.
_SPECIALS: Final = (
    *((f"<|{name}|>", True) for name in (
        "endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start",
        "box_end", "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad",
        "image_pad", "video_pad",
    )),
    ("<tool_call>", False), ("</tool_call>", False),
    *((f"<|{name}|>", True) for name in (
        "fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep",
    )),
    ("<tool_response>", False), ("</tool_response>", False),
    ("<think>", False), ("</think>", False),
)  # fmt: skip

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
    specials=_SPECIALS,
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
                heads,
                value_heads,
                MixtureSizes(ExpertSizes(experts, hidden, width), top_k, shared=width),
                name in _WITH_MTP,
            ),
            vocabulary=SYNTHETIC_VOCABULARY,
            mixes={PUBLISHED.name: PUBLISHED},
        )
        for name, layers, hidden, heads, value_heads, experts, top_k, width in _SIZES
    )


def _outline(
    heads: int, value_heads: int, mixture: MixtureSizes, mtp: bool, layers: int
) -> ModelOutline:
    # A model of few layers has at least one of each kind, which some readers require.
    interval = min(DEFAULT_INTERVAL, layers)
    shape = HybridShape(
        vocabulary=VOCABULARY,
        hidden=mixture.routed.hidden,
        context=CONTEXT,
        heads=heads,
        kv_heads=2,
        head_dim=256,
        rotary=64,
        rope_base=1e7,
        key_heads=16,
        value_heads=value_heads,
        key_dim=128,
        value_dim=128,
        linear=interval_layers(layers, interval),
        interval=interval,
        draft_layers=int(mtp),
    )
    recipes = tensors(shape, partial(mixture.recipes, fused=True))
    return ModelOutline(
        metadata=metadata(shape, mixture.metadata()),
        tensors=tuple((recipe.name, recipe.shape) for recipe in recipes),
        group=heads // shape.kv_heads,
        ranges=RANGES,
    )
