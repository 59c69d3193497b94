"""Rotary embeddings: as ``config.json`` states them, and as keys of a file say the same."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, floor, isclose, log, pi
from typing import Final

from kinfolk.config import Yarn
from kinfolk.convert.checkpoint import Config

_ROUNDING: Final = 1e-6
_OLD_NAME: Final = "rope_scaling"
_NAME: Final = "rope_parameters"
_SCALES: Final = ("mscale", "mscale_all_dim")


def rope_section(config: Config) -> Config:
    """The model's only rotary section: ``rope_parameters`` or the older ``rope_scaling``."""
    if _OLD_NAME not in config:
        return config.section(_NAME)
    if _NAME in config:
        raise config.fail(_OLD_NAME, f"stands beside '{_NAME}', which says the same; remove one")
    return config.section(_OLD_NAME)


def rope_number(
    rope: Config, key: str, default: float | None = None, beside: Config | None = None
) -> float:
    """A number in the section of an embedding, in older files ``beside`` it."""
    if beside is None or key not in beside:
        return rope.number(key, default)
    number = beside.number(key)
    if key in rope and rope.number(key) != number:
        raise beside.fail(
            key, f"is {number}, but in the embedding's own section {rope.number(key)}; remove one"
        )
    return number


def rope_base(rope: Config, default: float | None = None, beside: Config | None = None) -> float:
    """The base of the frequencies."""
    base = rope_number(rope, "rope_theta", default, beside)
    if base <= 1:
        raise rope.fail("rope_theta", f"is {base}, expected more than 1")
    return base


def rope_kind(rope: Config, known: Collection[str]) -> str:
    """How the embedding is stretched, under its key old or new; refuses what is not known."""
    key = "rope_type" if "rope_type" in rope else "type"
    kind = rope.text(key, "default")
    if rope.text("type", kind) != kind:
        raise rope.fail(
            "type", f"is {rope.text('type')!r}, but 'rope_type' is {kind!r}; remove one"
        )
    if kind not in known:
        listed = " and ".join(map(repr, known))
        raise rope.fail(key, f"is {kind!r}; only {listed} can be converted")
    return kind


def rotary_dims(
    rope: Config, head_dim: int, default: float = 1.0, beside: Config | None = None
) -> int:
    """How many of a head's dimensions turn, ``default`` times all if nothing is stated."""
    part = rope_number(rope, "partial_rotary_factor", default, beside)
    dims = int(head_dim * part)
    if dims < 2 or dims % 2 or dims > head_dim:
        raise rope.fail(
            "partial_rotary_factor",
            f"is {part}: {dims} dimensions would turn, expected an even number from 2 to the "
            f"{head_dim} of a head",
        )
    return dims


def read_yarn(rope: Config, dims: int, base: float) -> Yarn:
    """The YaRN stretch of an embedding of ``dims`` turning dimensions, as transformers reads it.

    Raises :class:`ConversionError` for what no key of a file says.
    """
    for key in ("factor", "beta_fast", "beta_slow", "attention_factor", *_SCALES):
        if key in rope and rope.number(key) < 0:
            raise rope.fail(key, f"is {rope.number(key)}, expected no less than 0")
    if rope.number("factor") == 0:
        raise rope.fail("factor", "is 0, expected more than 0")
    rope.require("truncate", True, True)
    yarn = Yarn(
        factor=rope.number("factor"),
        original_context=rope.integer("original_max_position_embeddings"),
        # As for transformers, 0 means the usual value.
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
    )
    _check_range(rope, yarn, dims, base)
    return yarn.model_copy(update={"magnitude": _magnitude(rope, yarn)})


def _check_range(rope: Config, yarn: Yarn, dims: int, base: float) -> None:
    """Refuse a range of pairs that ends before it begins: readers disagree about such."""

    def pair(rotations: float) -> float:
        return dims * log(yarn.original_context / (rotations * 2 * pi)) / (2 * log(base))

    if max(0, floor(pair(yarn.beta_fast))) > min(dims - 1, ceil(pair(yarn.beta_slow))):
        raise rope.fail(
            "beta_fast",
            f"{yarn.beta_fast} and 'beta_slow' {yarn.beta_slow} enclose no pair of dimensions for "
            f"an original context of {yarn.original_context}",
        )


def _magnitude(rope: Config, yarn: Yarn) -> float | None:
    """The factor on cosine and sine, ``None`` for the usual one."""
    if "attention_factor" in rope:
        rope.ignore(dict.fromkeys(_SCALES, "'attention_factor' states what would follow from it"))
        return rope.number("attention_factor")
    above, below = (rope.number(key, 0.0) for key in _SCALES)
    if not (above and below):
        rope.ignore(dict.fromkeys(_SCALES, "has an effect with the other one only"))
        return None
    stretch = yarn.usual_magnitude - 1
    return (1 + above * stretch) / (1 + below * stretch)


def yarn_keys(yarn: Yarn | None) -> dict[str, object]:
    """The keys of a file, without the architecture's prefix; none without YaRN.

    A magnitude that is not the usual one is stated as a multiplier too: that is what readers of all
    kinds apply, while they disagree about ``yarn_attn_factor``.
    """
    if yarn is None:
        return {}
    keys: dict[str, object] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": yarn.factor,
        "rope.scaling.original_context_length": yarn.original_context,
        "rope.scaling.yarn_beta_fast": yarn.beta_fast,
        "rope.scaling.yarn_beta_slow": yarn.beta_slow,
    }
    if yarn.magnitude is not None:
        keys["rope.scaling.yarn_attn_factor"] = yarn.magnitude
        if not isclose(yarn.magnitude, yarn.usual_magnitude, rel_tol=_ROUNDING):
            keys["rope.scaling.attn_factor"] = yarn.magnitude / yarn.usual_magnitude
    return keys
