"""The op ``chunk_digest``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.codecs import Stored, is_rotated, numbers, rotate
from kinfolk_kernels.op import Op
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import StoredKind

CODES_OF_BYTE = 4

BEST_STEP = 0.996
"""Distance of four evenly spaced levels that suits normal numbers best, in units of their
deviation."""

MAX_DIGEST_SCALE = 65504.0
"""The largest finite float16."""


@dataclass(frozen=True, slots=True)
class KeyDigest:
    """Compressed keys of chunks: ``codes`` uint8 [..., heads, 64, D / 4], ``scales`` float16
    [..., heads, 64].

    The code c of a number, two bits, stands for (c - 1.5) times the scale of its vector. Byte j of
    a vector holds the codes of the numbers j, j + D / 4, j + D / 2 and j + 3 D / 4, from the lowest
    bits up.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], dim: int, device: torch.device | str) -> KeyDigest:
        """Zeros for ``shape`` (places, layers and heads) and vectors of ``dim`` numbers."""
        codes = (*shape, CHUNK_POSITIONS, dim // CODES_OF_BYTE)
        return cls(
            torch.zeros(codes, dtype=torch.uint8, device=device),
            torch.zeros(codes[:-1], dtype=torch.float16, device=device),
        )

    def layer(self, index: int) -> KeyDigest:
        """The view of one layer; places come first, then layers."""
        return KeyDigest(self.codes[:, index], self.scales[:, index])


def digest_bytes(heads: int, dim: int) -> int:
    """Bytes of a layer and position."""
    return heads * (dim // CODES_OF_BYTE + 2)


def restored(digest: KeyDigest) -> torch.Tensor:
    """The numbers that codes and scales stand for, float32 [..., heads, 64, D]."""
    parts = [digest.codes >> 2 * part & 3 for part in range(CODES_OF_BYTE)]
    levels: torch.Tensor = torch.cat(parts, -1).float() - 1.5
    return levels * digest.scales.float()[..., None]


@dataclass(frozen=True, slots=True)
class ChunkDigestArguments:
    """Compresses the keys of chunks that will not change any more, for ``chunk_scores``.

    ``keys`` describes how the section is stored. Operands: the section, keys [blocks, heads, 64,
    D]; ``blocks`` int32 [N], the block of each chunk; ``firsts`` int32 [N], the block of the first
    chunk of each chunk's sequence; ``places`` int32 [N], the place of the digest, -1 = padding; a
    :class:`KeyDigest` [places, heads, ...] of one layer, which is written. D is a multiple of four.

    The mean of the first chunk's keys is taken from every key: products of a query with all keys
    then change by the same number, which a softmax does not see. The rest is rotated by ``rotate``,
    unless keys are stored rotated, which spreads large numbers over the vector. A digest depends on
    the chunk and the first chunk alone, so sequences with the same beginning may share it. A vector
    with a number that is not finite becomes zero.
    """

    keys: StoredKind
    device: torch.device

    def __post_init__(self) -> None:
        if self.keys.dim % CODES_OF_BYTE:
            raise ValueError(
                f"keys of {self.keys.dim} dimensions have no digest: "
                f"it packs {CODES_OF_BYTE} numbers into a byte"
            )


def chunk_digest(
    arguments: ChunkDigestArguments,
    keys: Stored,
    blocks: torch.Tensor,
    firsts: torch.Tensor,
    places: torch.Tensor,
    digest: KeyDigest,
) -> None:
    """See :class:`ChunkDigestArguments`."""
    real = places >= 0
    own, first = blocks[real].long(), firsts[real].long()
    centre = numbers(keys, lambda plane: plane[first]).float().mean(2, keepdim=True)
    x = numbers(keys, lambda plane: plane[own]).float() - centre
    if not is_rotated(keys):
        x = rotate(x)
    squares = x.square().mean(-1, keepdim=True)
    x = torch.where(squares < torch.inf, x, 0)
    step = squares.nan_to_num(0, 0).sqrt() * BEST_STEP
    codes = (torch.where(step > 0, x / step, 0).floor() + 2).clamp(0, 3)
    levels = codes - 1.5
    scales = (x * levels).sum(-1) / levels.square().sum(-1)
    parts = codes.to(torch.uint8).chunk(CODES_OF_BYTE, -1)
    at = places[real].long()
    digest.codes[at] = parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6
    digest.scales[at] = scales.clamp_max(MAX_DIGEST_SCALE).half()


CHUNK_DIGEST = Op("chunk_digest", ChunkDigestArguments, chunk_digest)
