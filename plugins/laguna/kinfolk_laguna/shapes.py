"""The released sizes.

Sizes are those of the published configurations, except M.1: its width and that of its experts are
derived from its published parameter counts, its other sizes from the implementation's own tests.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kinfolk.config import Yarn
from kinfolk.convert.feed_forward import ExpertSizes
from kinfolk.descriptors import ModelOutline, ReleasedShape, VocabularyOutline
from kinfolk.gguf.file_types import MIXES
from kinfolk_laguna.config import WINDOW_PERIOD
from kinfolk_laguna.layout import ARCHITECTURE, LagunaSizes, RopeSizes, metadata, tensors
from kinfolk_laguna.text import END_OF_TEXT, END_OF_TURN

VOCABULARY: Final = 100352
HEAD_DIM: Final = 128
WINDOW: Final = 512

_USUAL: Final = "q4_k_m"
RANGES: Final = {"exp_probs_b.bias": (-0.05, 0.05)}
"""Range of the bias: large enough to change the chosen experts, too small to fix them."""

_XS: Final = (40, 2048, 8192, 48, 64, ExpertSizes(256, 2048, 512), 8)
_S: Final = (48, 3072, 12288, 48, 72, ExpertSizes(256, 3072, 1024), 10)
_M: Final = (70, 4096, 16384, 64, 64, ExpertSizes(256, 4096, 1024), 16)

# name; layers, hidden, feed-forward, heads of full and of windowed layers, experts, experts of a
# token; context extension; context
_SIZES: Final = (
    ("laguna-xs.2", _XS, Yarn(factor=32, original_context=4096, beta_fast=64), 131072),
    ("laguna-xs-2.1", _XS, Yarn(factor=32, original_context=8192, beta_fast=64), 262144),
    ("laguna-s-2.1", _S, Yarn(factor=128, original_context=8192), 1048576),
    ("laguna-m.1", _M, Yarn(factor=64, original_context=4096), 262144),
)
_WITHOUT_WINDOW: Final = "laguna-m.1"

# The known ones of the first ids.
_KNOWN: Final = {
    2: END_OF_TEXT, 9: "<pad>", 12: "<mask>", 18: "<think>", 19: "</think>", 23: "<assistant>",
    24: END_OF_TURN, 25: "<tool_call>", 26: "</tool_call>",
}  # fmt: skip
_VISIBLE: Final = frozenset((18, 19, 25, 26))

_TEMPLATE: Final = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<' + message.role + '>\\n' + message.content + '\\n</' + message.role + '>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<assistant>\\n</think>' -}}{%- endif -%}"
)

SYNTHETIC_VOCABULARY: Final = VocabularyOutline(
    size=VOCABULARY,
    pre="laguna",
    first_special=0,
    specials=tuple(
        (_KNOWN.get(token, f"<reserved {token}>"), token not in _VISIBLE) for token in range(27)
    ),
    eos=END_OF_TEXT,
    padding="<pad>",
    chat_template=_TEMPLATE,
    bos=END_OF_TEXT,
    padded=False,
)
"""The special tokens of the released models at their ids."""


def shapes() -> tuple[ReleasedShape, ...]:
    return tuple(
        ReleasedShape(
            name=name,
            architecture=ARCHITECTURE,
            layers=size[0],
            outline=partial(_outline, size, yarn, context, name != _WITHOUT_WINDOW),
            vocabulary=SYNTHETIC_VOCABULARY,
            mixes={_USUAL: MIXES[_USUAL]},
        )
        for name, size, yarn, context in _SIZES
    )


def _outline(
    size: tuple[int, int, int, int, int, ExpertSizes, int],
    yarn: Yarn,
    context: int,
    has_window: bool,
    layers: int,
) -> ModelOutline:
    _, hidden, feed_forward, full_heads, window_heads, routed, top_k = size
    windowed = tuple(has_window and layer % WINDOW_PERIOD != 0 for layer in range(layers))
    sizes = LagunaSizes(
        vocabulary=VOCABULARY,
        hidden=hidden,
        context=context,
        heads=tuple(window_heads if flag else full_heads for flag in windowed),
        kv_heads=8,
        head_dim=HEAD_DIM,
        gates=(1 if has_window else HEAD_DIM,) * layers,
        windowed=windowed,
        window=WINDOW,
        rope=RopeSizes(HEAD_DIM // 2, 5e5),
        window_rope=RopeSizes(HEAD_DIM, 1e4),
        yarn=yarn,
        dense=min(1 if has_window else 3, layers),
        feed_forward=feed_forward,
        routed=routed,
        top_k=top_k,
        shared=routed.width,
        scale=2.5 if has_window else 1.0,
    )
    return ModelOutline(
        metadata=metadata(sizes),
        tensors=tuple((recipe.name, recipe.shape) for recipe in tensors(sizes)),
        group=full_heads // sizes.kv_heads,
        ranges=RANGES,
    )
