"""The tensors of a dense decoder, by their names in files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.dense.config import DenseConfig
from kinfolk.plans import WeightSpec

ROPE_FACTORS: Final = "rope_freqs.weight"
"""Divisors of the rotary frequencies, one for each pair, in files of models that scale them."""


def dense_weights(
    config: DenseConfig, inventory: Inventory, *, head_norms: bool = False
) -> Iterator[WeightSpec]:
    """Every weight of the model; ``head_norms``: query and key heads have norms."""
    yield from table_weights(config, inventory)
    for layer in range(config.layers):
        block = f"blk.{layer}"
        yield from attention_weights(config, block, head_norms=head_norms)
        yield from feed_forward_weights(config, block)


def table_weights(config: DenseConfig, inventory: Inventory) -> Iterator[WeightSpec]:
    """Embedding, final norm and head; a file without a head uses the embedding for it."""
    table = (config.vocabulary, config.width)
    tied = "output.weight" not in inventory
    yield WeightSpec("token_embd.weight", table, "embedding")
    yield WeightSpec("output.weight", table, source="token_embd.weight" if tied else "")
    yield WeightSpec("output_norm.weight", (config.width,), "vector")
    if ROPE_FACTORS in inventory:
        yield WeightSpec(ROPE_FACTORS, (config.rope.dims // 2,), "vector")


def attention_weights(
    config: DenseConfig, block: str, *, head_norms: bool = False
) -> Iterator[WeightSpec]:
    """The attention of one layer and the norm before it; ``block`` is ``blk.N``."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield WeightSpec(f"{block}.attn_norm.weight", (config.width,), "vector")
    yield WeightSpec(f"{block}.attn_q.weight", (q, config.width))
    yield WeightSpec(f"{block}.attn_k.weight", (kv, config.width))
    yield WeightSpec(f"{block}.attn_v.weight", (kv, config.width))
    yield WeightSpec(f"{block}.attn_output.weight", (config.width, q))
    for name in ("attn_q_norm", "attn_k_norm") if head_norms else ():
        yield WeightSpec(f"{block}.{name}.weight", (config.head_dim,), "vector")


def feed_forward_weights(config: DenseConfig, block: str) -> Iterator[WeightSpec]:
    """The gated feed-forward network of one layer and the norm before it."""
    up = (config.feed_forward, config.width)
    yield WeightSpec(f"{block}.ffn_norm.weight", (config.width,), "vector")
    yield WeightSpec(f"{block}.ffn_gate.weight", up)
    yield WeightSpec(f"{block}.ffn_up.weight", up)
    yield WeightSpec(f"{block}.ffn_down.weight", up[::-1])
