"""The tensors of a hybrid decoder, by their names and variants in files."""

from __future__ import annotations

from collections.abc import Iterator

from kinfolk.errors import UnsupportedModelError
from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.hybrid.config import HybridConfig
from kinfolk.nn.projections import projection_weights
from kinfolk.plans import Role, WeightSpec


def trunk_weights(config: HybridConfig, inventory: Inventory) -> Iterator[WeightSpec]:
    """Embedding, head, norms and mixers of the trunk; the family adds its feed-forward weights.

    Raises :class:`UnsupportedModelError` for a file that holds only draft blocks.
    """
    first = "blk.0.attn_norm.weight"
    if config.draft_layers and first not in inventory:
        raise UnsupportedModelError(
            f"{inventory.path} holds only blocks of a drafter, not a model: tensor {first!r} is "
            "missing; pass the model's own file"
        )
    width, table = config.width, (config.vocabulary, config.width)
    yield WeightSpec("token_embd.weight", table, "embedding")
    tied = "output.weight" not in inventory
    yield WeightSpec("output.weight", table, source="token_embd.weight" if tied else "")
    yield WeightSpec("output_norm.weight", (width,), "vector")
    for layer, recurrent in enumerate(config.recurrent):
        block = f"blk.{layer}"
        yield WeightSpec(f"{block}.attn_norm.weight", (width,), "vector")
        yield WeightSpec(f"{block}.post_attention_norm.weight", (width,), "vector")
        if recurrent:
            yield from _delta(config, inventory, block)
        else:
            yield from _attention(config, inventory, layer)


def mtp_weights(config: HybridConfig, inventory: Inventory) -> Iterator[WeightSpec]:
    """Norms and attention of the block behind the trunk (MTP); the family adds its feed-forward
    weights."""
    block = f"blk.{config.layers}"
    yield WeightSpec(f"{block}.attn_norm.weight", (config.width,), "vector")
    yield WeightSpec(f"{block}.post_attention_norm.weight", (config.width,), "vector")
    yield from _attention(config, inventory, config.layers)


def ignored_tensors(config: HybridConfig, inventory: Inventory) -> dict[str, str]:
    """Tensors of the file that this runtime does not use, with the reason."""
    ahead = {f"blk.{layer}." for layer in range(config.layers, config.layers + config.draft_layers)}
    ignored = {}
    for name in inventory:
        if any(name.startswith(prefix) for prefix in ahead):
            ignored[name] = "predicts further tokens; used by drafters only"
        elif name.startswith(("v.", "mm.", "vision.", "a.")):
            ignored[name] = "vision or audio part; text only here"
    return ignored


def _delta(config: HybridConfig, inventory: Inventory, block: str) -> Iterator[WeightSpec]:
    width, heads = config.width, config.value_heads
    inner = heads * config.state_dim
    channels = 2 * config.key_heads * config.state_dim + inner
    dt = f"{block}.ssm_dt.bias"
    shapes: tuple[tuple[str, tuple[int, ...], Role], ...] = (
        ("attn_qkv.weight", (channels, width), "matrix"),
        ("attn_gate.weight", (inner, width), "matrix"),
        ("ssm_alpha.weight", (heads, width), "matrix"),
        ("ssm_beta.weight", (heads, width), "matrix"),
        ("ssm_conv1d.weight", (channels, config.conv), "vector"),
        ("ssm_a", (heads,), "vector"),
        ("ssm_norm.weight", (config.state_dim,), "vector"),
        ("ssm_out.weight", (width, inner), "matrix"),
    )
    for name, shape, role in shapes:
        yield WeightSpec(f"{block}.{name}", shape, role)
    # Older files lack the suffix.
    yield WeightSpec(dt, (heads,), "vector", source="" if dt in inventory else f"{block}.ssm_dt")


def _attention(config: HybridConfig, inventory: Inventory, layer: int) -> Iterator[WeightSpec]:
    width = config.width
    kv = config.kv_heads * config.head_dim
    yield from projection_weights(
        inventory, layer, width, query=2 * config.heads * config.head_dim, key=kv, value=kv
    )
    block = f"blk.{layer}"
    yield WeightSpec(f"{block}.attn_output.weight", (width, config.heads * config.head_dim))
    yield WeightSpec(f"{block}.attn_q_norm.weight", (config.head_dim,), "vector")
    yield WeightSpec(f"{block}.attn_k_norm.weight", (config.head_dim,), "vector")
