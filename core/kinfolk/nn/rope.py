"""Rotary embeddings: frequencies, YaRN, and tables of cosines and sines."""

from __future__ import annotations

import math

import torch

from kinfolk.config import Rope, Yarn
from kinfolk.nn.context import BuildContext
from kinfolk.weights.loader import Weight


def frequencies(rope: Rope) -> torch.Tensor:
    """The angle of each pair, in radians per position, float64 [dims / 2]."""
    exponent = torch.arange(0, rope.dims, 2, dtype=torch.float64) / rope.dims
    plain = rope.base**-exponent / rope.linear_factor
    return plain if rope.yarn is None else _yarn(plain, rope, rope.yarn)


def magnitude(rope: Rope) -> float:
    """The factor on cosines and sines (YaRN's attention factor)."""
    if rope.yarn is None:
        return 1.0
    return rope.yarn.usual_magnitude if rope.yarn.magnitude is None else rope.yarn.magnitude


def _yarn(plain: torch.Tensor, rope: Rope, yarn: Yarn) -> torch.Tensor:
    """YaRN: slow pairs are interpolated by the factor, fast ones unchanged, with a ramp between."""

    def pair(rotations: float) -> float:
        turns = yarn.original_context / (rotations * 2 * math.pi)
        return rope.dims * math.log(turns) / (2 * math.log(rope.base))

    low = max(0, math.floor(pair(yarn.beta_fast)))
    high = min(rope.dims - 1, math.ceil(pair(yarn.beta_slow)))
    index = torch.arange(rope.dims // 2, dtype=torch.float64)
    ramp = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - ramp) + plain / yarn.factor * ramp


class RotaryEmbedding:
    """The rope tables that attention reads.

    ``cos`` and ``sin`` [context, dims / 2] are computed in float64 and stored in float32.
    ``divisors`` [dims / 2], if the file has such a tensor, divide the frequencies of the pairs.
    """

    def __init__(
        self, context: BuildContext, rope: Rope, divisors: torch.Tensor | None = None
    ) -> None:
        angle = frequencies(rope)
        if divisors is not None:
            angle = angle / divisors.double().cpu()
        turns = torch.arange(context.context, dtype=torch.float64)[:, None] * angle
        scale = magnitude(rope)
        self.cos = (turns.cos() * scale).float().to(context.device)
        self.sin = (turns.sin() * scale).float().to(context.device)


def half_split(weight: Weight, heads: int, dims: int | None = None) -> Weight:
    """Rows of a query or key projection reordered from neighbouring pairs to half-split ones.

    Files of some architectures rotate dimensions 2i and 2i + 1 of a head as a pair; our kernels
    rotate i and i + dims / 2. Attention scores do not change if queries and keys are both
    reordered. The first ``dims`` dimensions of a head are rotated, by default all.
    """
    size = weight.shape[0] // heads
    dims = size if dims is None else dims
    inside = torch.cat([torch.arange(0, dims, 2), torch.arange(1, dims, 2)])
    head = torch.cat([inside, torch.arange(dims, size)])
    rows = (torch.arange(heads)[:, None] * size + head).flatten().to(weight.device)
    return weight[rows] if isinstance(weight, torch.Tensor) else weight.select(rows)
