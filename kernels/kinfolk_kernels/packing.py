"""Packs the blocks of a model file into planes, on the device of the blocks.

A matrix is filled from the top in pieces of rows, so that little memory is needed besides it.
"""

from __future__ import annotations

import torch

from kinfolk_kernels.planes import (
    GROUP_WEIGHTS,
    INTERLEAVE,
    LAYOUTS,
    SUPERBLOCK_WEIGHTS,
    Activations,
    Planes,
)


def empty(
    format: str,
    rows: int,
    columns: int,
    device: torch.device | str,
    activations: Activations = "int8",
) -> Planes:
    """Planes to fill; rows of padding are zero."""
    layout = LAYOUTS[format]
    quads = -(-rows // INTERLEAVE)

    def plane(words: int) -> torch.Tensor:
        plane_words = torch.empty(quads, words, INTERLEAVE, dtype=torch.int32, device=device)
        if rows % INTERLEAVE:
            plane_words[-1] = 0
        return plane_words

    return Planes(
        format,
        rows,
        columns,
        plane(layout.words(columns)),
        plane(layout.high_words(columns)) if layout.bits else None,
        plane(columns // GROUP_WEIGHTS) if layout.block == SUPERBLOCK_WEIGHTS else None,
        plane(columns // layout.span),
        activations,
    )


def fill(planes: Planes, first: int, raw: torch.Tensor) -> None:
    """Pack the file's blocks ``raw`` uint8 [rows, row bytes] into rows from ``first`` on.

    ``first`` must be a multiple of four, and so must the number of rows, except at the end of the
    matrix.
    """
    layout = LAYOUTS[planes.format]
    blocks = raw.reshape(raw.shape[0], planes.columns // layout.block, layout.nbytes)
    start = first // INTERLEAVE
    stop = start + -(-raw.shape[0] // INTERLEAVE)
    targets = (planes.q, planes.high, planes.scales, planes.supers)
    runs = (layout.run, layout.high_run, 0, 0)
    for target, part, run in zip(targets, _PACKERS[planes.format](blocks), runs, strict=True):
        if target is not None and part is not None:
            target[start:stop] = _interleaved(part, run)


def pack(format: str, raw: torch.Tensor, columns: int, activations: Activations = "int8") -> Planes:
    """The file's blocks ``raw`` uint8 [N, row bytes] -> planes on the same device."""
    planes = empty(format, raw.shape[0], columns, raw.device, activations)
    fill(planes, 0, raw)
    return planes


def _interleaved(data: torch.Tensor, run: int) -> torch.Tensor:
    """uint8 [N, words * 4] -> int32 [N/4, words, 4]; with a ``run``, units alternate by runs."""
    n = data.shape[0]
    words = data.contiguous().view(torch.int32)
    if n % INTERLEAVE:
        words = torch.nn.functional.pad(words, (0, 0, 0, INTERLEAVE - n % INTERLEAVE))
    rows: torch.Tensor = words.unflatten(0, (-1, INTERLEAVE))
    if not run:
        return rows.transpose(1, 2).contiguous()
    paired = words.shape[1] // (8 * run) * (8 * run)
    pairs = rows[:, :, :paired].unflatten(2, (-1, 2, 4, run))
    pairs = pairs.permute(0, 2, 4, 3, 5, 1).flatten(1, 4)
    return torch.cat([pairs, rows[:, :, paired:].transpose(1, 2)], 1)


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Low four bits of codes uint8 [N, K] -> bytes in canonical groups [N, K/2]."""
    pair = (codes & 15).view(codes.shape[0], -1, 2, 32)
    return (pair[:, :, 0] | pair[:, :, 1] << 4).flatten(1)


def _fifth_bits(codes: torch.Tensor) -> torch.Tensor:
    """Bit 4 of codes [N, K] -> bytes [N, ceil(K/256) * 32]: byte i, bit s = weight 32 s + i."""
    n, k = codes.shape
    padded = torch.nn.functional.pad(codes >> 4 & 1, (0, -k % SUPERBLOCK_WEIGHTS)).view(
        n, -1, 8, 32
    )
    shifts = torch.arange(8, device=codes.device, dtype=torch.uint8)[:, None]
    return (padded << shifts).sum(2, dtype=torch.uint8).flatten(1)


def _top_two_bits(codes: torch.Tensor) -> torch.Tensor:
    """Bits 4-5 of codes [N, K] -> bytes [N, K/4] for pairs of groups."""
    parts = (codes >> 4 & 3).view(codes.shape[0], -1, 4, 32)
    return (
        parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6
    ).flatten(1)


def _six_bit_pairs(packed: torch.Tensor) -> torch.Tensor:
    """The 12 bytes of eight (scale, minimum) pairs [..., 12] -> [..., 4 groups, 4 bytes]."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = torch.cat([first & 63, third & 15 | (first >> 6) << 4], -1)
    minimum = torch.cat([second & 63, third >> 4 | (second >> 6) << 4], -1)
    return torch.cat([scale.unflatten(-1, (4, 2)), minimum.unflatten(-1, (4, 2))], -1)


def _k45(blocks: torch.Tensor, codes_at: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scales = _six_bit_pairs(blocks[..., 4:16]).flatten(1)
    return blocks[..., codes_at:].flatten(1), scales, blocks[..., :4].flatten(1)


Parts = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]


def _q4_k(blocks: torch.Tensor) -> Parts:
    q, scales, supers = _k45(blocks, 16)
    return q, None, scales, supers


def _q5_k(blocks: torch.Tensor) -> Parts:
    q, scales, supers = _k45(blocks, 48)
    return q, blocks[..., 16:48].flatten(1), scales, supers


def _q6_k(blocks: torch.Tensor) -> Parts:
    low = blocks[..., :128].unflatten(-1, (2, 2, 32))
    top = blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    four = torch.cat([low & 15, low >> 4], -2)  # [.., half, 4, 32]
    codes = (four | (top >> shifts & 3) << 4).flatten(1)
    order = torch.tensor([0, 2, 1, 3], device=blocks.device)
    scales = blocks[..., 192:208].unflatten(-1, (4, 4))[..., order]
    pad = torch.zeros_like(blocks[..., :2])
    supers = torch.cat([blocks[..., 208:210], pad], -1)
    return _nibbles(codes), _top_two_bits(codes), scales.flatten(1), supers.flatten(1)


def _q8_0(blocks: torch.Tensor) -> Parts:
    return blocks[..., 2:].flatten(1), None, None, blocks[..., :2].flatten(1)


def _split_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Blocks of 32 with element i and i + 16 in a byte [..., 16] -> codes [N, K]."""
    return torch.cat([packed & 15, packed >> 4], -1).flatten(1)


def _q4_0(blocks: torch.Tensor) -> Parts:
    codes = _split_nibbles(blocks[..., 2:])
    return _nibbles(codes), None, None, blocks[..., :2].flatten(1)


def _q5_0(blocks: torch.Tensor) -> Parts:
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    fifth = (blocks[..., 2:6, None] >> shifts & 1).flatten(1)
    codes = _split_nibbles(blocks[..., 6:]) | fifth << 4
    return _nibbles(codes), _fifth_bits(codes), None, blocks[..., :2].flatten(1)


def _iq4_xs(blocks: torch.Tensor) -> Parts:
    codes = _split_nibbles(blocks[..., 8:].unflatten(-1, (8, 16)).flatten(0, 1)).view(
        blocks.shape[0], -1
    )
    high = blocks[..., 2:4].contiguous().view(torch.int16).int()
    low = blocks[..., 4:8]
    four = torch.stack([low & 15, low >> 4], -1).flatten(-2).int()
    two = high >> (2 * torch.arange(8, device=blocks.device)) & 3
    scales = ((four | two << 4) - 32).to(torch.int8).view(torch.uint8).unflatten(-1, (4, 2))
    scales = torch.cat([scales, torch.zeros_like(scales)], -1)
    pad = torch.zeros_like(blocks[..., :2])
    return (
        _nibbles(codes),
        None,
        scales.flatten(1),
        torch.cat([blocks[..., :2], pad], -1).flatten(1),
    )


_PACKERS = {
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "IQ4_XS": _iq4_xs,
}
