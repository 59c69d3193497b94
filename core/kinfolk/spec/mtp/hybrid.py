"""The block of a hybrid decoder as its training sees it. Torch-free."""

from __future__ import annotations

from kinfolk.nn.hybrid.config import HybridConfig
from kinfolk.spec.mtp.block import TrainedLayer


def trained_layer(config: HybridConfig, feed_forward: str) -> TrainedLayer:
    """The layer with the family's ``feed_forward``, like the last one with attention."""
    attending = [layer for layer, recurrent in enumerate(config.recurrent) if not recurrent]
    return TrainedLayer(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        rope=config.rope,
        like=attending[-1] if attending else config.layers - 1,
        feed_forward=feed_forward,
    )
