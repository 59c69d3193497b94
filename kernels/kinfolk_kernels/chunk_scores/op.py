"""The op ``chunk_scores``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.chunk_digest.op import CODES_OF_BYTE, KeyDigest, restored
from kinfolk_kernels.codecs import rotate
from kinfolk_kernels.op import Op

UNSCORED = -1.0
"""The score of a chunk without a digest: below all others."""


@dataclass(frozen=True, slots=True)
class ChunkScoresArguments:
    """Scores the chunks of a sequence by the share of attention that its last rows give to them.

    ``heads`` query heads of ``dim`` numbers share ``kv_heads`` key heads evenly. ``scale``
    multiplies products. ``rotated``: whether queries are rotated, as keys stored rotated need them
    to be. Operands: queries [rows, layers, heads, dim] in ``dtype``, all finite, with the rotary
    embedding; a :class:`KeyDigest` [places, layers, kv_heads, ...] of the same layers; ``places``
    int32 [C], the place of each chunk's digest, -1 = it has none. Result: float32 [C].

    For each row, layer and head, attention is estimated as a softmax over all keys that have a
    digest, wherever they stand, and summed in each chunk. The score of a chunk is the largest of
    these sums, between 0 and 1, or ``UNSCORED``.
    """

    heads: int
    kv_heads: int
    dim: int
    scale: float
    rotated: bool
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} query heads do not share {self.kv_heads} key heads evenly"
            )
        if self.dim % CODES_OF_BYTE:
            raise ValueError(f"keys of {self.dim} dimensions have no digest")


def chunk_scores(
    arguments: ChunkScoresArguments,
    queries: torch.Tensor,
    digest: KeyDigest,
    places: torch.Tensor,
) -> torch.Tensor:
    """See :class:`ChunkScoresArguments`."""
    real = places >= 0
    best = torch.full(places.shape, UNSCORED, device=places.device)
    at = places[real].long()
    if not len(at):
        return best
    q = queries.float() if arguments.rotated else rotate(queries)
    q = q.unflatten(2, (arguments.kv_heads, -1))
    for layer in range(q.shape[1]):
        keys = restored(KeyDigest(digest.codes[at, layer], digest.scales[at, layer]))
        products = torch.einsum("rhgd,chnd->rhgcn", q[:, layer], keys) * arguments.scale
        shares = products.flatten(3).softmax(-1).view(products.shape).sum(-1)
        best[real] = torch.maximum(best[real], shares.flatten(0, 2).amax(0))
    return best


CHUNK_SCORES = Op("chunk_scores", ChunkScoresArguments, chunk_scores)
