"""The tensors of a hybrid decoder, and what each is made from.

Names of sources are those of the ``transformers`` implementations, after the family has stripped
the prefix of a multimodal wrapper. The value heads of a checkpoint are grouped by the key head
they belong to; files hold them tiled (:func:`kinfolk.convert.transforms.head_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from kinfolk.convert.feed_forward import gated_mlp
from kinfolk.convert.hybrid.shape import HybridShape
from kinfolk.convert.plan import FloatArray, TensorRecipe, Transform, recipe
from kinfolk.convert.transforms import PLUS_ONE, then, tile_columns, tile_rows

DECAY_TYPES: Final[Mapping[str, str]] = {"ssm_alpha.weight": "Q8_0", "ssm_beta.weight": "Q8_0"}
"""The projections of decay and step size are tiny, and errors in them add up along a text."""

FeedForward = Callable[[str, str], Iterable[TensorRecipe]]
"""``(prefix in the file, prefix in the checkpoint) -> recipes``; prefixes end in a dot."""


def tensors(shape: HybridShape, feed_forward: FeedForward) -> tuple[TensorRecipe, ...]:
    """Recipes of all tensors in file order."""
    return tuple(_tensors(shape, feed_forward))


def _tensors(shape: HybridShape, feed_forward: FeedForward) -> Iterator[TensorRecipe]:
    h, vocabulary = shape.hidden, shape.vocabulary
    if not shape.tied:
        yield recipe("output.weight", "lm_head.weight", vocabulary, h)
    yield recipe("token_embd.weight", "model.embed_tokens.weight", vocabulary, h)
    for index, linear in enumerate(shape.linear):
        file, source = f"blk.{index}.", f"model.layers.{index}."
        mixer = _delta_net if linear else _attention
        yield from _block(shape, file, source, mixer(shape, file, source), feed_forward)
    for index in range(shape.draft_layers):
        file, source = f"blk.{shape.layers + index}.", f"mtp.layers.{index}."
        yield from _block(shape, file, source, _attention(shape, file, source), feed_forward)
        yield from _draft_head(shape, file)
    yield recipe("output_norm.weight", "model.norm.weight", h, transform=PLUS_ONE)


def _block(
    shape: HybridShape,
    file: str,
    source: str,
    mixer: Iterable[TensorRecipe],
    feed_forward: FeedForward,
) -> Iterator[TensorRecipe]:
    h = shape.hidden
    yield recipe(
        f"{file}attn_norm.weight", f"{source}input_layernorm.weight", h, transform=PLUS_ONE
    )
    yield from mixer
    yield from feed_forward(file, source)
    yield recipe(
        f"{file}post_attention_norm.weight",
        f"{source}post_attention_layernorm.weight",
        h,
        transform=PLUS_ONE,
    )


def _attention(shape: HybridShape, file: str, source: str) -> Iterator[TensorRecipe]:
    """``attn_q`` holds query and gate, interleaved by head."""
    h, d = shape.hidden, shape.head_dim
    source += "self_attn."
    yield recipe(f"{file}attn_q.weight", f"{source}q_proj.weight", 2 * shape.heads * d, h)
    yield recipe(f"{file}attn_k.weight", f"{source}k_proj.weight", shape.kv_heads * d, h)
    yield recipe(f"{file}attn_v.weight", f"{source}v_proj.weight", shape.kv_heads * d, h)
    yield recipe(f"{file}attn_output.weight", f"{source}o_proj.weight", h, shape.heads * d)
    yield recipe(f"{file}attn_q_norm.weight", f"{source}q_norm.weight", d, transform=PLUS_ONE)
    yield recipe(f"{file}attn_k_norm.weight", f"{source}k_norm.weight", d, transform=PLUS_ONE)


def _delta_net(shape: HybridShape, file: str, source: str) -> Iterator[TensorRecipe]:
    """The only norm stored without an offset of one."""
    h, d, values = shape.hidden, shape.value_dim, shape.value_heads
    groups, members = shape.key_heads, shape.value_heads // shape.key_heads
    keys = 2 * shape.key_heads * shape.key_dim
    rows, heads = tile_rows(groups, members, d), tile_rows(groups, members)
    channels = tile_rows(groups, members, d, skip=keys)
    source += "linear_attn."
    yield recipe(f"{file}ssm_a", f"{source}A_log", values, transform=then(heads, _DECAY))
    yield recipe(
        f"{file}ssm_conv1d.weight",
        f"{source}conv1d.weight",
        shape.channels,
        shape.kernel,
        transform=then(channels, _DROP_MIDDLE),
        stored=(shape.channels, 1, shape.kernel),
    )
    yield recipe(f"{file}ssm_dt.bias", f"{source}dt_bias", values, transform=heads)
    for name, projection in (("ssm_alpha", "in_proj_a"), ("ssm_beta", "in_proj_b")):
        yield recipe(
            f"{file}{name}.weight", f"{source}{projection}.weight", values, h, transform=heads
        )
    yield recipe(
        f"{file}attn_qkv.weight",
        f"{source}in_proj_qkv.weight",
        shape.channels,
        h,
        transform=channels,
    )
    yield recipe(
        f"{file}attn_gate.weight", f"{source}in_proj_z.weight", shape.inner, h, transform=rows
    )
    yield recipe(f"{file}ssm_norm.weight", f"{source}norm.weight", d)
    yield recipe(
        f"{file}ssm_out.weight",
        f"{source}out_proj.weight",
        h,
        shape.inner,
        transform=tile_columns(groups, members, d),
    )


def _draft_head(shape: HybridShape, file: str) -> Iterator[TensorRecipe]:
    """Projection of the next token's embedding and the hidden state, in this order, and norms."""
    h = shape.hidden
    yield recipe(f"{file}nextn.eh_proj.weight", "mtp.fc.weight", h, 2 * h)
    for name, source in (
        ("enorm", "pre_fc_norm_embedding"),
        ("hnorm", "pre_fc_norm_hidden"),
        ("shared_head_norm", "norm"),
    ):
        yield recipe(f"{file}nextn.{name}.weight", f"mtp.{source}.weight", h, transform=PLUS_ONE)


def dense_feed_forward(hidden: int, width: int) -> FeedForward:
    """Gate, up and down projection."""

    def recipes(file: str, source: str) -> Iterator[TensorRecipe]:
        return gated_mlp(file, f"{source}mlp.", hidden, width)

    return recipes


def _negative_exponential(logarithm: FloatArray) -> FloatArray:
    return -np.exp(logarithm)


_DECAY: Final = Transform(_negative_exponential)
_DROP_MIDDLE: Final = Transform(lambda taps: taps[:, 0, :])
