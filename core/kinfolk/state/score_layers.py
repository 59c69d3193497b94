"""The layers whose attention scores chunks: as many as their compressed keys have room for."""

from __future__ import annotations

from kinfolk.errors import SettingsError
from kinfolk.plans import Paged, Section, StatePlan
from kinfolk.state.layout import pool_layouts
from kinfolk.types import CHUNK_POSITIONS

POOL_SHARE = 4
"""Compressed keys take at most one part in POOL_SHARE of the memory of the pool that they serve."""

DIGEST_BITS, DIGEST_SCALE_BYTES = 2, 2
"""Of a number, and of a vector of them."""


def digest_chunk_bytes(keys: Section) -> int:
    """Bytes of the compressed keys of a chunk, of one layer."""
    return CHUNK_POSITIONS * keys.heads * (keys.dim * DIGEST_BITS // 8 + DIGEST_SCALE_BYTES)


def scored_layers(plan: StatePlan, blocks: int, chunks: int, count: int | None) -> tuple[int, ...]:
    """Layers of full attention, evenly chosen, whose keys are compressed for sequences of up to
    ``chunks`` chunks beside a pool of ``blocks`` blocks; at least one. ``count``: how many there
    are to be, instead of as many as a quarter of the pool has room for.

    All chosen layers store keys of one shape in one way: that of most layers. Raises
    :class:`SettingsError` if there is no such layer, or not as many as ``count``.
    """
    layers = scoring_layers(plan)
    if not layers:
        raise SettingsError(
            "no layer attends to all positions: there are no chunks to score, and none to page out"
        )
    if count is None:
        pool = next(pool for pool in pool_layouts(plan) if pool.window is None)
        room = blocks * pool.block_bytes // POOL_SHARE
        each = chunks * digest_chunk_bytes(plan.paged(layers[0]).section("k"))
        count = max(1, min(len(layers), room // max(1, each)))
    if not 1 <= count <= len(layers):
        raise SettingsError(
            f"{count} layers cannot score chunks: 1 to {len(layers)} can, those that attend to all "
            "positions and have keys of the same shape"
        )
    # The middle of each of ``count`` equal parts.
    return tuple(layers[(2 * part + 1) * len(layers) // (2 * count)] for part in range(count))


def scoring_layers(plan: StatePlan) -> list[int]:
    """The layers of full attention with keys of their own, stored as those of most layers are."""
    alike: dict[Section, list[int]] = {}
    for index, layer in enumerate(plan.layers):
        if isinstance(layer, Paged) and layer.window is None:
            for section in layer.sections:
                if section.name == "k":
                    alike.setdefault(section, []).append(index)
    return max(alike.values(), key=len, default=[])
