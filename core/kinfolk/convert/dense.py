"""Conversion of plain decoders: full attention and a gated feed-forward part in every layer.

Names of sources are those that ``transformers`` uses for nearly all such models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kinfolk.convert.checkpoint import TIED, Config, HFCheckpoint
from kinfolk.convert.config_keys import pass_over_common
from kinfolk.convert.feed_forward import gated_mlp
from kinfolk.convert.plan import AS_STORED, Conversion, FloatArray, TensorRecipe, Transform, recipe
from kinfolk.convert.rope import rope_base, rope_kind, rope_section, rotary_dims
from kinfolk.convert.tokenizer import byte_level
from kinfolk.descriptors import ModelOutline
from kinfolk.text.formats import PreTokenizer

HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rotations of long waves made slower, as Llama 3.1 does it (``rope_type`` ``llama3``).

    Waves longer than ``context`` divided by ``low`` turn slower by ``factor``, those shorter than
    it divided by ``high`` are left alone, with a ramp in between.
    """

    factor: float
    low: float
    high: float
    context: int

    def divisors(self, base: float, dim: int) -> tuple[float, ...]:
        """Divisors of the frequencies, pair by pair [dim / 2]."""
        waves = 2 * np.pi * base ** (np.arange(0, dim, 2) / dim)
        ramp = np.clip((self.context / waves - self.low) / (self.high - self.low), 0, 1)
        return tuple((1 / ((1 - ramp) / self.factor + ramp)).tolist())


@dataclass(frozen=True, slots=True)
class DenseShape:
    """The sizes of one model.

    ``head_norms``: the heads of queries and keys are normalised. ``neighbours``: files store the
    rows of query and key projections so that neighbours turn together, as llama.cpp wants them for
    some architectures; undone by :func:`kinfolk.nn.rope.half_split`. ``stretch`` makes long waves
    slower, in files by a tensor of divisors.
    """

    vocabulary: int
    hidden: int
    context: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    rope_base: float = 10000.0
    epsilon: float = 1e-6
    tied: bool = False
    head_norms: bool = False
    neighbours: bool = False
    stretch: Stretch | None = None


def read_shape(config: Config, *, head_norms: bool = False, neighbours: bool = False) -> DenseShape:
    """The shape that a configuration describes; refuses, by key, what the file cannot express.

    Keys that no file needs are accounted for; what else the model has is up to its family.
    """
    pass_over_common(config)
    config.require("hidden_act", "silu", "silu")
    config.require("attention_bias", False, False)
    config.require("mlp_bias", False, False)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim, layers = config.integer("head_dim", hidden // heads), config.layers()
    _refuse_windows(config, layers)
    rope = rope_section(config)
    if rotary_dims(rope, head_dim, beside=config) != head_dim:
        raise rope.fail("partial_rotary_factor", "is not 1; only whole heads can turn")
    return DenseShape(
        vocabulary=config.integer("vocab_size"),
        hidden=hidden,
        context=config.integer("max_position_embeddings"),
        layers=layers,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        feed_forward=config.integer("intermediate_size"),
        rope_base=rope_base(rope, 10000.0, beside=config),
        epsilon=config.number("rms_norm_eps"),
        tied=config.flag(TIED, False),
        head_norms=head_norms,
        neighbours=neighbours,
        stretch=_stretch(rope),
    )


def _refuse_windows(config: Config, layers: int) -> None:
    config.require("layer_types", [_FULL] * layers, None)
    config.require("use_sliding_window", False, None)
    if "use_sliding_window" in config:
        unused = "'use_sliding_window' is false"
        config.ignore({"sliding_window": unused, "max_window_layers": unused})
    else:
        config.require("sliding_window", None, None)


def _stretch(rope: Config) -> Stretch | None:
    if rope_kind(rope, ("default", "llama3")) == "default":
        return None
    factor, low, high = (
        rope.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    if factor <= 0:
        raise rope.fail("factor", f"is {factor}, expected more than 0")
    if not 0 < low < high:
        raise rope.fail("high_freq_factor", f"is {high}, expected more than {low}, the low one")
    return Stretch(
        factor=factor,
        low=low,
        high=high,
        context=rope.integer("original_max_position_embeddings"),
    )


def metadata(shape: DenseShape) -> dict[str, object]:
    """The architecture's keys in file order, without prefix."""
    return {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": float(shape.rope_base),
    }


def tensors(shape: DenseShape) -> tuple[TensorRecipe, ...]:
    """Recipes of all tensors in file order."""
    return tuple(_tensors(shape))


def outline(
    shape: DenseShape,
    extra_metadata: Mapping[str, object] | None = None,
    extra_tensors: Iterable[TensorRecipe] = (),
) -> ModelOutline:
    """What a file of the shape holds, for a synthetic one."""
    recipes = (*tensors(shape), *extra_tensors)
    return ModelOutline(
        metadata={**metadata(shape), **(extra_metadata or {})},
        tensors=tuple((recipe.name, recipe.shape) for recipe in recipes),
        group=shape.heads // shape.kv_heads,
    )


def conversion(
    architecture: str,
    shape: DenseShape,
    pretokenizers: Iterable[PreTokenizer],
    extra_metadata: Mapping[str, object] | None = None,
    extra_tensors: Iterable[TensorRecipe] = (),
) -> Conversion:
    """The conversion of a checkpoint; ``extra_*`` is what the family adds to a plain decoder."""
    return Conversion(
        architecture=architecture,
        metadata={**metadata(shape), **(extra_metadata or {})},
        tensors=(*tensors(shape), *extra_tensors),
        vocabulary=shape.vocabulary,
        tokenizer=byte_level(shape.vocabulary, pretokenizers),
        repeated={HEAD: _EMBEDDING} if shape.tied else {},
        group=shape.heads // shape.kv_heads,
    )


def is_of_type(checkpoint: HFCheckpoint, *model_types: str) -> bool:
    """Whether the checkpoint's ``config.json`` names one of the model types."""
    return checkpoint.config.text("model_type", "") in model_types


def _tensors(shape: DenseShape) -> Iterator[TensorRecipe]:
    h, vocabulary = shape.hidden, shape.vocabulary
    if not shape.tied:
        yield recipe("output.weight", HEAD, vocabulary, h)
    yield recipe("token_embd.weight", _EMBEDDING, vocabulary, h)
    if shape.stretch:
        factors = np.array(shape.stretch.divisors(shape.rope_base, shape.head_dim), np.float32)
        constant = Transform(lambda: factors, rowwise=False)
        yield TensorRecipe("rope_freqs.weight", factors.shape, (), constant)
    for index in range(shape.layers):
        file, source = f"blk.{index}.", f"model.layers.{index}."
        yield recipe(f"{file}attn_norm.weight", f"{source}input_layernorm.weight", h)
        yield from _attention(shape, file, f"{source}self_attn.")
        yield recipe(f"{file}ffn_norm.weight", f"{source}post_attention_layernorm.weight", h)
        yield from gated_mlp(file, f"{source}mlp.", h, shape.feed_forward)
    yield recipe("output_norm.weight", "model.norm.weight", h)


def _attention(shape: DenseShape, file: str, source: str) -> Iterator[TensorRecipe]:
    h, d = shape.hidden, shape.head_dim
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads)):
        order = _neighbours(heads, d) if shape.neighbours else AS_STORED
        yield recipe(
            f"{file}attn_{name}.weight", f"{source}{name}_proj.weight", heads * d, h,
            transform=order,
        )  # fmt: skip
    yield recipe(f"{file}attn_v.weight", f"{source}v_proj.weight", shape.kv_heads * d, h)
    yield recipe(f"{file}attn_output.weight", f"{source}o_proj.weight", h, shape.heads * d)
    for name in ("q_norm", "k_norm") if shape.head_norms else ():
        yield recipe(f"{file}attn_{name}.weight", f"{source}{name}.weight", d)


def _neighbours(heads: int, dim: int) -> Transform:
    """Half-split pairs of rows become neighbours: row i and i + dim / 2 -> 2i and 2i + 1."""

    def apply(rows: FloatArray) -> FloatArray:
        halves = rows.reshape(heads, 2, dim // 2, -1)
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)

    return Transform(apply, rowwise=False)
