"""The device layout of quantised matrices: planes of 32-bit words, rows interleaved by four.

Blocks of a model file are aligned to two bytes and mix scales with codes, so they cannot be read in
wide words. A matrix [N, K] is therefore repacked once, when it is loaded:

``q``       int32 [N/4, words, 4]. Formats of four bits a code: word j belongs to group g = j // 8
            of 64 weights, w = j % 8: the low nibbles of its bytes b = 0..3 are the low four bits of
            weights 64 g + 4 w + b, the high nibbles those of 64 g + 32 + 4 w + b. Q8_0: four codes.
``high``    the bits above the fourth, or ``None``. One bit a code: int32 [N/4, blocks * 8, 4]:
            word w of a block of 256, bit s of byte b = weight 32 s + 4 w + b. Two bits a code:
            int32 [N/4, groups / 2 * 8, 4]: word w of a pair of groups, byte b, bits 0-1 the
            low-nibble weight of the even group, 2-3 its high-nibble weight, 4-7 of the odd group.
``scales``  int32 [N/4, K/64, 4], four bytes a group, or ``None``. Q4_K, Q5_K: scale and scale,
            minimum and minimum of its two blocks of 32. Q6_K: signed scales of its blocks of 16 in
            the order 0, 2, 1, 3. IQ4_XS: two signed scales and two zeros.
``supers``  int32, a pair of float16: [N/4, K/256, 4] d and dmin of a block of 256; formats with
            blocks of 32: [N/4, K/64, 4] the two d of a group.

A load of 16 bytes is one word of four rows. N is padded to a multiple of four with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

GROUP, BLOCK, INTERLEAVE = 64, 256, 4
LUT_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a format is packed: ``bits`` a code above the nibble, ``offset`` to be subtracted."""

    number: int
    block: int
    nbytes: int
    bits: int = 0
    offset: int = 0


LAYOUTS = {
    "Q4_K": Layout(0, 256, 144),
    "Q5_K": Layout(1, 256, 176, bits=1),
    "Q6_K": Layout(2, 256, 210, bits=2, offset=32),
    "Q8_0": Layout(3, 32, 34),
    "Q4_0": Layout(4, 32, 18, offset=8),
    "Q5_0": Layout(5, 32, 22, bits=1, offset=16),
    "IQ4_XS": Layout(6, 256, 136),
}


@dataclass(frozen=True, slots=True)
class Planes:
    """A packed matrix [rows, columns] of one format."""

    format: str
    rows: int
    columns: int
    q: torch.Tensor
    high: torch.Tensor | None
    scales: torch.Tensor | None
    supers: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def nbytes(self) -> int:
        parts = (self.q, self.high, self.scales, self.supers)
        return sum(part.nbytes for part in parts if part is not None)


def can_pack(format: str, columns: int) -> str:
    """Why a matrix cannot be packed; empty if it can."""
    if format not in LAYOUTS:
        return f"no planes for {format}"
    if columns % GROUP:
        return f"rows of {columns} weights are no multiple of {GROUP}"
    return ""


def pack(format: str, raw: torch.Tensor, columns: int) -> Planes:
    """raw uint8 [N, row bytes] in blocks of the file -> planes on the same device."""
    layout = LAYOUTS[format]
    n = raw.shape[0]
    blocks = raw.reshape(n, columns // layout.block, layout.nbytes)
    q, high, scales, supers = _PACKERS[format](blocks)
    return Planes(
        format,
        n,
        columns,
        _interleaved(q),
        None if high is None else _interleaved(high),
        None if scales is None else _interleaved(scales),
        _interleaved(supers),
    )


def _interleaved(words: torch.Tensor) -> torch.Tensor:
    """uint8 [N, words * 4] -> int32 [N/4, words, 4]."""
    n = words.shape[0]
    flat = words.contiguous().view(torch.int32)
    if n % INTERLEAVE:
        flat = torch.nn.functional.pad(flat, (0, 0, 0, INTERLEAVE - n % INTERLEAVE))
    return flat.view(-1, INTERLEAVE, flat.shape[1]).transpose(1, 2).contiguous()


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Low four bits of codes uint8 [N, K] -> bytes in canonical groups [N, K/2]."""
    pair = (codes & 15).view(codes.shape[0], -1, 2, 32)
    return (pair[:, :, 0] | pair[:, :, 1] << 4).flatten(1)


def _fifth_bits(codes: torch.Tensor) -> torch.Tensor:
    """Bit 4 of codes [N, K] -> bytes [N, ceil(K/256) * 32]: byte i, bit s = weight 32 s + i."""
    n, k = codes.shape
    padded = torch.nn.functional.pad(codes >> 4 & 1, (0, -k % BLOCK)).view(n, -1, 8, 32)
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


# -- the way back ---------------------------------------------------------------------------------


def unpack(planes: Planes) -> torch.Tensor:
    """float32 [N, K], the same numbers bit for bit as the file's blocks stand for."""
    values: torch.Tensor = _numbers(planes)
    return values


def _numbers(planes: Planes) -> Any:
    layout = LAYOUTS[planes.format]
    k = planes.columns
    q = _rows(planes.q, planes.rows)
    supers = _rows(planes.supers, planes.rows).view(torch.float16).float()
    if planes.format == "Q8_0":
        return (q.view(torch.int8).float().unflatten(1, (-1, 32)) * supers[..., None]).flatten(1)
    pair = q.view(-1, k // GROUP, 32)
    codes = torch.stack([pair & 15, pair >> 4], 2).flatten(1)
    if planes.high is not None:
        codes = codes | _high_codes(_rows(planes.high, planes.rows), layout.bits, k) << 4
    if planes.scales is None:
        values = (codes.int() - layout.offset).float().unflatten(1, (-1, 32))
        return (values * supers[:, : k // 32, None]).flatten(1)
    scales = _rows(planes.scales, planes.rows).unflatten(1, (-1, 4))
    d = supers[:, 0::2].repeat_interleave(4, 1)  # one for each group
    if planes.format in ("Q4_K", "Q5_K"):
        dmin = supers[:, 1::2].repeat_interleave(4, 1)
        factor = (d[..., None] * scales[..., :2].float()).flatten(1)
        least = (dmin[..., None] * scales[..., 2:].float()).flatten(1)
        values = codes.float().unflatten(1, (-1, 32))
        return (factor[..., None] * values - least[..., None]).flatten(1)
    signed = scales.view(torch.int8).float()
    if planes.format == "IQ4_XS":
        table = torch.tensor(LUT_NL, dtype=torch.float32, device=q.device)
        factor = (d[..., None] * signed[..., :2]).flatten(1)
        return (factor[..., None] * table[codes.long()].unflatten(1, (-1, 32))).flatten(1)
    order = torch.tensor([0, 2, 1, 3], device=q.device)
    factor = (d[..., None] * signed[..., order]).flatten(1)
    values = (codes.int() - layout.offset).float().unflatten(1, (-1, 16))
    return (factor[..., None] * values).flatten(1)


def _rows(words: torch.Tensor, rows: int) -> torch.Tensor:
    """int32 [N/4, words, 4] -> uint8 [rows, words * 4]."""
    return words.transpose(1, 2).contiguous().view(torch.uint8).flatten(0, 1)[:rows]


def _high_codes(data: torch.Tensor, bits: int, columns: int) -> Any:
    n = data.shape[0]
    if bits == 1:
        shifts = torch.arange(8, device=data.device, dtype=torch.uint8)[:, None]
        return (data.view(n, -1, 1, 32) >> shifts & 1).flatten(1)[:, :columns]
    shifts = torch.tensor([0, 2, 4, 6], device=data.device, dtype=torch.uint8)[:, None]
    return (data.view(n, -1, 1, 32) >> shifts & 3).flatten(1)[:, :columns]
