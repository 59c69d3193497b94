"""Recipes of feed-forward parts: gated networks, and routed experts in the layouts in use."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from kinfolk.convert.plan import Source, TensorRecipe, Transform, recipe

PARTS: Final = ("down", "gate", "up")
_FUSED: Final = "gate_up_proj"


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """``experts`` networks of ``width`` channels each, on ``hidden`` inputs."""

    experts: int
    hidden: int
    width: int


def gated_mlp(
    file: str, source: str, hidden: int, width: int, suffix: str = ""
) -> Iterator[TensorRecipe]:
    """``ffn_{down,gate,up}<suffix>`` from ``{down,gate,up}_proj``; prefixes end in a dot."""
    for part in PARTS:
        shape = (hidden, width) if part == "down" else (width, hidden)
        yield recipe(f"{file}ffn_{part}{suffix}.weight", f"{source}{part}_proj.weight", *shape)


def is_fused(names: Collection[str], source: str) -> bool:
    """Whether the experts under the prefix ``source`` are one tensor each for all of them."""
    return f"{source}{_FUSED}" in names


def routed_experts(
    file: str, source: str, sizes: ExpertSizes, *, fused: bool
) -> Iterator[TensorRecipe]:
    """``ffn_{down,gate,up}_exps``, the matrices of all experts stacked.

    Fused checkpoints hold ``gate_up_proj`` [experts, 2 width, hidden], gate rows first, and
    ``down_proj`` [experts, hidden, width]; others three matrices for every expert.
    """
    for part in PARTS:
        matrix = (sizes.hidden, sizes.width) if part == "down" else (sizes.width, sizes.hidden)
        name, shape = f"{file}ffn_{part}_exps.weight", (sizes.experts, *matrix)
        if not fused:
            matrices = (f"{source}{n}.{part}_proj.weight" for n in range(sizes.experts))
            sources = tuple(Source(stored, matrix) for stored in matrices)
            yield TensorRecipe(name, shape, sources, stacked=True)
        elif part == "down":
            yield recipe(name, f"{source}down_proj", *shape)
        else:
            both = (sizes.experts, 2 * sizes.width, sizes.hidden)
            transform = _half(0 if part == "gate" else sizes.width, sizes.width)
            yield recipe(name, f"{source}{_FUSED}", *shape, transform=transform, stored=both)


def _half(start: int, width: int) -> Transform:
    return Transform(lambda both: both[:, start : start + width])
