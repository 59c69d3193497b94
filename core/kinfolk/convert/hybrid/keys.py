"""The metadata of a hybrid decoder: keys of the architecture, without its prefix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kinfolk.convert.hybrid.shape import SECTIONS, HybridShape
from kinfolk.convert.rope import yarn_keys


def metadata(shape: HybridShape, feed_forward: Mapping[str, object]) -> dict[str, object]:
    """The architecture's keys in file order, without prefix; ``feed_forward`` adds its own."""
    keys: dict[str, object] = {
        "block_count": shape.layers + shape.draft_layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        **feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        **yarn_keys(shape.yarn),
    }
    sections = (*shape.sections, *[0] * (SECTIONS - len(shape.sections)))
    keys |= {
        "rope.dimension_sections": np.array(sections, np.int32),
        "rope.freq_base": float(shape.rope_base),
        "attention.layer_norm_rms_epsilon": shape.epsilon,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "ssm.conv_kernel": shape.kernel,
        "ssm.state_size": shape.key_dim,
        "ssm.group_count": shape.key_heads,
        "ssm.time_step_rank": shape.value_heads,
        "ssm.inner_size": shape.inner,
        "attention.recurrent_layers": np.array([*shape.linear, *[False] * shape.draft_layers]),
        "full_attention_interval": shape.interval,
        "rope.dimension_count": shape.rotary,
    }
    if shape.draft_layers:
        keys["nextn_predict_layers"] = shape.draft_layers
    return keys
