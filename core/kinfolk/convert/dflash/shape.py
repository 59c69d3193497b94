"""What a DFlash checkpoint is: read from its tensors and from ``config.json`` in all its spellings.

The authors' configurations have a section ``dflash_config``, older ones the same keys beside the
sizes. Configurations of the speculators library have the sizes in ``transformer_layer_config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kinfolk.config import Yarn
from kinfolk.convert.checkpoint import Config
from kinfolk.convert.config_keys import pass_over_common
from kinfolk.convert.plan import Shape
from kinfolk.convert.rope import read_yarn, rope_base, rope_kind, rope_section, rotary_dims
from kinfolk.spec.dflash.config import spread_layers

T = TypeVar("T")

FUSED_QKV: Final = "self_attn.qkv_proj.weight"

_NESTED: Final = "dflash_config"
_SIZES: Final = "transformer_layer_config"
_SLIDING: Final = "sliding_attention"
_FULL: Final = "full_attention"
_ACTIVATIONS: Final = {"silu": "silu", "gelu_pytorch_tanh": "gelu_pytorch_tanh"}

_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    "muse_glimmer_assistant": {
        "block_size": 16,
        "mask_token_id": 201818,
        "target_layer_ids": [1, 13, 25, 37, 49],
        "sliding_window": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
    }
}
"""What transformers leaves out of ``config.json`` because its class has it as a default."""

_TRAINING: Final = dict.fromkeys(
    (
        *("max_anchors", "auf", "lambda_base_start"),
        *("lambda_base_decay_ratio", "emb_dim", "gru_hidden_dim", "pure_draft_prefix_len"),
    ),
    "counts in training, or for the heads of other drafters",
)
_NAMES: Final = dict.fromkeys(
    (
        *("model_type", "speculators_config", "speculators_model_type", "speculators_version"),
        "config_class",
    ),
    "names of software and of the model",
)
_FROM_TENSORS: Final = dict.fromkeys(
    ("gating", "draft_vocab_size", "tie_word_embeddings"),
    "the tensors show it",
)
_UNUSED: Final = {
    "vocab_size": "the target's vocabulary is written",
    "max_window_layers": "'layer_types' says which layers have windows",
}


@dataclass(frozen=True, slots=True)
class DFlashShape:
    """The sizes of a drafter, and what its file must say.

    ``windows`` has an entry for each layer. ``causal`` is ``None`` where windowed layers are causal
    and the others are not, which files leave unsaid. ``interleaved``: neighbouring rows of queries
    and keys turn together, where files have halves. ``scales`` are keys of the file for factors.
    ``convolution`` is kernel and group size, ``selector`` rank and candidates. ``vocabulary`` is 0
    if the configuration does not say.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    context: int
    epsilon: float
    rope_base: float
    yarn: Yarn | None
    windows: tuple[int | None, ...]
    causal: bool | None
    block: int
    mask_token: int
    feature_layers: tuple[int, ...]
    vocabulary: int
    activation: str = "silu"
    scales: Mapping[str, float] = field(default_factory=dict)
    convolution: tuple[int, int] | None = None
    selector: tuple[int, int] | None = None
    interleaved: bool = False

    @property
    def layers(self) -> int:
        return len(self.windows)


class ShapeReader:
    """Reads one checkpoint; ``shapes`` are those of its tensors by the authors' names."""

    def __init__(self, config: Config, shapes: Mapping[str, Shape]) -> None:
        self.config, self.shapes = config, shapes
        self.sizes = config.section(_SIZES) if _SIZES in config else config
        self.nested = config.section(_NESTED)
        self.defaults = _DEFAULTS.get(config.text("model_type", ""), {})
        self.by_library = _SIZES in config

    def read(self) -> DFlashShape:
        """Raises :class:`ConversionError` naming file and key for what a file cannot express."""
        self.account_for_keys()
        hidden, inputs = self.shapes["fc.weight"]
        head_dim = self.shapes["layers.0.self_attn.q_norm.weight"][0]
        heads, kv_heads = self.heads(head_dim)
        feed_forward = self.shapes["layers.0.mlp.gate_proj.weight"][0]
        self.compare("hidden_size", hidden, "fc.weight")
        self.compare("head_dim", head_dim, "layers.0.self_attn.q_norm.weight")
        self.compare("intermediate_size", feed_forward, "layers.0.mlp.gate_proj.weight")
        self.compare("num_attention_heads", heads, "layers.0.self_attn")
        self.compare("num_key_value_heads", kv_heads, "layers.0.self_attn")
        layers = self.layers()
        windows = self.windows(layers)
        rope = self.rope(windows)
        base = rope_base(rope, self.default("rope_theta", 0.0) or None, beside=self.sizes)
        if rotary_dims(rope, head_dim, beside=self.sizes) != head_dim:
            raise rope.fail("partial_rotary_factor", "is not 1; only whole heads can turn")
        kind = rope_kind(rope, ("default", "yarn"))
        return DFlashShape(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            feed_forward=feed_forward,
            context=self.sizes.integer(
                "max_position_embeddings", self.default("max_position_embeddings", 0) or None
            ),
            epsilon=self.sizes.number("rms_norm_eps", self.default("rms_norm_eps", 1e-6)),
            rope_base=base,
            yarn=read_yarn(rope, head_dim, base) if kind == "yarn" else None,
            windows=windows,
            causal=self.causal(),
            block=self.of("block_size", Config.integer, 8 if self.by_library else 16),
            mask_token=self.mask_token(),
            feature_layers=self.feature_layers(inputs, hidden),
            vocabulary=self.vocabulary(),
            activation=self.sizes.choice("hidden_act", _ACTIVATIONS, "silu"),
            scales=self.scales(),
            convolution=self.pair("conv_kernel_size", "conv_group_size"),
            selector=self.pair("selector_rank", "selector_top_k"),
            interleaved=not self.of("rope_is_neox_style", Config.flag, True),
        )

    def account_for_keys(self) -> None:
        """Keys without an effect on the file, and those that must have their usual value."""
        for part in (self.config, self.sizes, self.nested):
            pass_over_common(part)
            part.ignore({**_TRAINING, **_NAMES, **_FROM_TENSORS, **_UNUSED})
            part.require_usual(
                {"projector_type": "dflash", "shift_label": False, "sample_from_anchor": False}
            )
            part.require_usual({"attention_bias": False, "mlp_bias": False})
        if "target_hidden_size" in self.config:
            self.config.require("target_hidden_size", self.shapes["fc.weight"][0], None)

    # -- where a value may stand --------------------------------------------------------------

    def default(self, key: str, usual: T) -> T:
        found: T = self.defaults.get(key, usual)  # type: ignore[assignment]
        return found

    def of(self, key: str, read: Callable[..., T], usual: T | None) -> T:
        """A value of ``dflash_config``, or beside it."""
        if key in self.nested:
            if key in self.config:
                read(self.config, key)
            return read(self.nested, key)
        return read(self.config, key, self.default(key, usual))

    def stated(self, key: str) -> bool:
        return key in self.nested or key in self.config

    def compare(self, key: str, found: int, tensor: str) -> None:
        if key in self.sizes and self.sizes.integer(key) != found:
            raise self.sizes.fail(
                key, f"is {self.sizes.integer(key)}, but tensor '{tensor}' has {found}"
            )

    # -- sizes --------------------------------------------------------------------------------

    def layers(self) -> int:
        found = 0
        while f"layers.{found}.input_layernorm.weight" in self.shapes:
            found += 1
        self.compare("num_hidden_layers", found, "layers.*.input_layernorm.weight")
        return found

    def heads(self, head_dim: int) -> tuple[int, int]:
        fused = self.shapes.get(f"layers.0.{FUSED_QKV}")
        output = self.shapes["layers.0.self_attn.o_proj.weight"][1]
        if fused is None:
            keys = self.shapes["layers.0.self_attn.k_proj.weight"][0]
        else:
            keys = (fused[0] - output) // 2
        return output // head_dim, keys // head_dim

    def vocabulary(self) -> int:
        """That of the target; 0 if the configuration does not say."""
        part = self.sizes if "vocab_size" in self.sizes else self.config
        return part.integer("vocab_size", 0, minimum=0)

    def mask_token(self) -> int:
        key = "mask_token_id"
        if not self.stated(key) and key not in self.defaults:
            raise self.config.fail(
                f"{_NESTED}.{key}", "is missing: the drafter cannot run without its mask"
            )
        token: int = self.of(key, lambda part, k, *usual: part.integer(k, *usual, minimum=0), None)
        return token

    def feature_layers(self, inputs: int, hidden: int) -> tuple[int, ...]:
        """Outputs of layers, from 0."""
        count = inputs // hidden
        key, library = "target_layer_ids", "aux_hidden_state_layer_ids"
        if self.stated(key) or key in self.defaults:
            stated = self.of(key, lambda part, k, *usual: part.items(k, int, *usual), None)
            if library in self.config:
                self.config.ignore({library: f"'{key}' says the same"})
            found = tuple(stated)
        elif library in self.config:
            key = library
            found = tuple(layer - 1 for layer in self.config.items(library, int))
        else:
            return spread_layers(count, self.of("num_target_layers", Config.integer, None))
        reason = f"'{key}' lists the feature layers"
        for part in (self.config, self.nested):
            part.ignore({"num_target_layers": reason})
        if len(found) != count or inputs % hidden:
            raise self.config.fail(
                key,
                f"lists {len(found)} layers, but tensor 'fc.weight' takes {inputs} numbers, rows "
                f"of {hidden}",
            )
        if min(found) < 0 or len(set(found)) < len(found):
            raise self.config.fail(key, f"is {list(found)}, expected outputs of different layers")
        return found

    # -- layers -------------------------------------------------------------------------------

    def windows(self, layers: int) -> tuple[int | None, ...]:
        window = self.window()
        if self.of("use_swa", Config.flag, False):
            reason = "'use_swa' gives all layers a window"
            self.sizes.ignore({"layer_types": reason, "use_sliding_window": reason})
            return (self.of("swa_window_size", Config.integer, window),) * layers
        default = [_SLIDING if self.defaults else _FULL] * layers
        kinds = self.sizes.items("layer_types", str, default)
        if len(kinds) != layers or not set(kinds) <= {_SLIDING, _FULL}:
            raise self.sizes.fail(
                "layer_types",
                f"has {len(kinds)} entries of the kinds {sorted(set(kinds))}, expected {layers} of "
                f"'{_FULL}' and '{_SLIDING}'",
            )
        if not self.sizes.flag("use_sliding_window", True):
            return (None,) * layers
        if _SLIDING in kinds and window is None:
            raise self.sizes.fail("sliding_window", f"is missing, and layers are '{_SLIDING}'")
        return tuple(window if kind == _SLIDING else None for kind in kinds)

    def window(self) -> int | None:
        key = "sliding_window"
        part = self.sizes if key in self.sizes else self.config
        stated = part.integer(key, self.default(key, 0), minimum=0) or None
        # A class of transformers counts the distance, so that one more position is seen.
        return stated + 1 if stated and self.defaults else stated

    def causal(self) -> bool | None:
        if "is_causal" in self.config:
            return self.config.flag("is_causal")
        if "causal" in self.nested:
            return self.nested.flag("causal")
        if self.config.flag("sliding_window_non_causal", False) or self.defaults:
            return False
        return None

    def rope(self, windows: Sequence[int | None]) -> Config:
        """The section of the only rotary embedding, which may stand under the kind of layers."""
        section = rope_section(self.sizes)
        sliding = "swa_rope_parameters"
        if len(set(windows)) > 1:
            if sliding in self.sizes:
                raise self.sizes.fail(sliding, "is not for all layers; only one can be converted")
            return section
        kind, other = (_SLIDING, _FULL) if windows[0] else (_FULL, _SLIDING)
        unused = "no layer is of this kind"
        if sliding in self.sizes:
            if windows[0]:
                self.sizes.ignore({"rope_parameters": unused, "rope_scaling": unused})
                return self.sizes.section(sliding)
            self.sizes.ignore({sliding: unused})
        if kind in section:
            section.ignore({other: unused})
            return section.section(kind)
        return section

    # -- numbers ------------------------------------------------------------------------------

    def scales(self) -> dict[str, float]:
        """Keys of the file for factors that are not 1, and for the softcap."""
        found = {}
        for key, name in (
            ("input_embedding_scale", "embedding_scale"),
            ("output_multiplier", "logit_scale"),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("attention_value_scale", "attention.value_scale"),
        ):
            if self.stated(key):
                value = self.of(key, Config.number, None)
                if value < 0:
                    raise self.config.fail(key, f"is {value}, expected no less than 0")
                found[name] = value
        return found

    def pair(self, first: str, second: str) -> tuple[int, int] | None:
        """Two numbers that are there together."""
        if not (self.stated(first) or self.stated(second)):
            return None
        return self.of(first, Config.integer, None), self.of(second, Config.integer, None)
