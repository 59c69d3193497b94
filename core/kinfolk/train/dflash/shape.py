"""The shape of a DFlash drafter that is to be trained, chosen for its target. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kinfolk.config import ModelConfig
from kinfolk.errors import SettingsError
from kinfolk.spec.dflash.config import spread_layers
from kinfolk.train.options import usual_gamma

EPS: Final = 1e-6
ROPE_BASE: Final = 1e6
_HEAD_DIM: Final = 128
_SMALL_HEAD_DIM: Final = 32
_MOST_HEADS: Final = 32
_MOST_FEATURES: Final = 5
_LAYERS: Final = 5
_SHARED_BY: Final = 4
"""Query heads that share a key head, where there are as many."""


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """Sizes of a drafter; ``windows`` has an entry for each layer, and windowed ones are causal.

    ``gamma``: the loss of the row o of a block weighs exp(-(o - 1) / gamma).
    """

    width: int
    windows: tuple[int | None, ...]
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    feature_layers: tuple[int, ...]
    block: int
    mask_token: int
    vocabulary: int
    context: int
    gamma: float

    @property
    def depth(self) -> int:
        """Tokens that a block predicts."""
        return self.block - 1

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes, as in the safetensors files of released drafters."""
        h, queries, keys = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {
            "fc.weight": (h, len(self.feature_layers) * h),
            "hidden_norm.weight": (h,),
            "norm.weight": (h,),
        }
        for layer in range(len(self.windows)):
            own = {
                "input_layernorm": (h,),
                "post_attention_layernorm": (h,),
                "self_attn.q_proj": (queries, h),
                "self_attn.k_proj": (keys, h),
                "self_attn.v_proj": (keys, h),
                "self_attn.o_proj": (h, queries),
                "self_attn.q_norm": (self.head_dim,),
                "self_attn.k_norm": (self.head_dim,),
                "mlp.gate_proj": (self.feed_forward, h),
                "mlp.up_proj": (self.feed_forward, h),
                "mlp.down_proj": (h, self.feed_forward),
            }
            found |= {f"layers.{layer}.{name}.weight": shape for name, shape in own.items()}
        return found

    def config_json(self) -> dict[str, Any]:
        """``config.json`` of the drafter, as its authors write it."""
        windows = [window for window in self.windows if window is not None]
        keys: dict[str, Any] = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "dflash",
            "hidden_size": self.width,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": len(self.windows),
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": EPS,
            "hidden_act": "silu",
            "attention_bias": False,
            "max_position_embeddings": self.context,
            "rope_theta": ROPE_BASE,
            "layer_types": [
                "full_attention" if window is None else "sliding_attention"
                for window in self.windows
            ],
            "dflash_config": {
                "target_layer_ids": list(self.feature_layers),
                "mask_token_id": self.mask_token,
                "block_size": self.block,
            },
        }
        if windows:
            keys |= {"use_sliding_window": True, "sliding_window": windows[0]}
        return keys


def choose_shape(
    target: ModelConfig,
    *,
    mask_token: int,
    vocabulary: int,
    block: int,
    layers: int | None = None,
    window: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    feed_forward: int | None = None,
    feature_layers: tuple[int, ...] = (),
    gamma: float | None = None,
) -> DrafterShape:
    """The shape for a target; what is not stated follows the released drafters.

    ``vocabulary`` counts the tokens of the target's file. Raises :class:`SettingsError` with the
    option at fault.
    """
    head_dim = head_dim or min(_HEAD_DIM, max(_SMALL_HEAD_DIM, target.width // 8))
    heads = heads or max(1, min(_MOST_HEADS, target.width // head_dim))
    kv_heads = kv_heads or (heads // _SHARED_BY if heads % _SHARED_BY == 0 else heads)
    layers = layers or _LAYERS
    if heads % kv_heads:
        raise SettingsError(f"--kv-heads {kv_heads} does not divide the {heads} heads (--heads)")
    if head_dim % 2:
        raise SettingsError(f"--head-dim {head_dim} is odd; its numbers turn in pairs")
    if window is not None and window < block:
        raise SettingsError(f"--window {window} is smaller than the {block} rows of a block")
    if window is None:
        windows: tuple[int | None, ...] = (None,) * layers
    else:
        # As in released drafters: the last layer sees everything.
        windows = (*(window,) * (layers - 1), None)
    return DrafterShape(
        width=target.width,
        windows=windows,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=feed_forward or 3 * target.width,
        feature_layers=_feature_layers(feature_layers, target.layers),
        block=block,
        mask_token=mask_token,
        vocabulary=vocabulary,
        context=target.context,
        gamma=gamma or usual_gamma(block),
    )


def _feature_layers(stated: tuple[int, ...], layers: int) -> tuple[int, ...]:
    if not stated:
        count = min(_MOST_FEATURES, layers - 3)
        return spread_layers(count, layers) if count > 1 else tuple(range(layers))
    wrong = [layer for layer in stated if not 0 <= layer < layers or stated.count(layer) > 1]
    if wrong:
        raise SettingsError(
            f"--feature-layers {','.join(map(str, stated))}: {wrong[0]} is named twice or is no "
            f"layer of the model, which has 0 to {layers - 1}"
        )
    return stated
