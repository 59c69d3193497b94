"""``config.json`` of DFlash checkpoints, in the spellings that exist."""

from __future__ import annotations

from typing import Any

from dflash_reference import Shape


def sizes(shape: Shape) -> dict[str, Any]:
    """The keys that all spellings share."""
    windows = [window for window in shape.windows if window is not None]
    keys = {
        "model_type": "any",
        "hidden_size": shape.width,
        "intermediate_size": shape.ff,
        "num_hidden_layers": len(shape.windows),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.dim,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": shape.eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 4096,
        "initializer_range": 0.02,
        "layer_types": [
            "full_attention" if window is None else "sliding_attention" for window in shape.windows
        ],
    }
    if windows:
        keys |= {"use_sliding_window": True, "sliding_window": windows[0], "max_window_layers": 9}
    return keys


def authors_config(shape: Shape, **nested: Any) -> dict[str, Any]:
    """As the authors write it today: feature_layers, mask and block in a section of their own."""
    section: dict[str, Any] = {
        "target_layer_ids": list(shape.feature_layers),
        "mask_token_id": shape.mask,
        "block_size": shape.block,
        **nested,
    }
    if shape.conv is not None:
        section["conv_kernel_size"], section["conv_group_size"] = shape.conv
    if shape.selector is not None:
        section["selector_rank"], section["selector_top_k"] = shape.selector
    return {
        **sizes(shape),
        "architectures": ["DFlashDraftModel"],
        "num_target_layers": 6,
        "rope_theta": shape.theta,
        "rope_scaling": None,
        "dflash_config": section,
    }


def library_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    """As the speculators library writes it: feature layers count from 1."""
    inner = {**sizes(shape), "model_type": "any", "rope_theta": shape.theta}
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": "dflash"},
        "transformer_layer_config": inner,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in shape.feature_layers],
        "mask_token_id": shape.mask,
        "block_size": shape.block,
        "draft_vocab_size": len(shape.d2t) or shape.vocabulary,
        "target_hidden_size": None,
        "sliding_window_non_causal": False,
        "max_anchors": 512,
        "tie_word_embeddings": False,
        **changes,
    }
