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

The words of ``q`` are not stored in the order of their numbers. The words of a group form four
runs of two words (Q8_0: of four). The runs of two neighbouring groups alternate: first run of the
even group, first of the odd group, second of the even group, and so on. The last of an odd number
of groups is stored without alternation. So lanes that read the same run of neighbouring groups read
neighbouring words, and so do lanes that read one group. The words of ``high`` with two bits a code
are stored in the same way, with the eight words of two groups in the role of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

GROUP_WEIGHTS, SUPERBLOCK_WEIGHTS, INTERLEAVE = 64, 256, 4
LUT_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


Activations = Literal["int8", "f16"]
"""The type that activations of few rows are rounded to before a product with a packed matrix."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a format is packed. ``bits``: of a code above the nibble; ``offset``: to subtract from
    codes."""

    number: int
    block: int
    nbytes: int
    bits: int = 0
    offset: int = 0

    @property
    def span(self) -> int:
        """Weights that share a word of ``supers``."""
        return SUPERBLOCK_WEIGHTS if self.block == SUPERBLOCK_WEIGHTS else GROUP_WEIGHTS

    @property
    def run(self) -> int:
        """Words of a group that are stored side by side."""
        return 4 if self.number == EIGHT_BITS else 2

    @property
    def high_run(self) -> int:
        """``run`` for the bits above the nibbles; 0 if words are stored in order."""
        return 2 if self.bits == 2 else 0

    def words(self, columns: int) -> int:
        """Words of codes in a row."""
        return columns // (4 if self.number == EIGHT_BITS else 8)

    def high_words(self, columns: int) -> int:
        """Words of the bits above the nibble in a row."""
        return (
            columns // 16 if self.bits == 2 else self.bits * -(-columns // SUPERBLOCK_WEIGHTS) * 8
        )


EIGHT_BITS = 3
LAYOUTS = {
    "Q4_K": Layout(0, 256, 144),
    "Q5_K": Layout(1, 256, 176, bits=1),
    "Q6_K": Layout(2, 256, 210, bits=2, offset=32),
    "Q8_0": Layout(EIGHT_BITS, 32, 34),
    "Q4_0": Layout(4, 32, 18, offset=8),
    "Q5_0": Layout(5, 32, 22, bits=1, offset=16),
    "IQ4_XS": Layout(6, 256, 136),
}


@dataclass(frozen=True, slots=True)
class _Packed:
    """Matrices of ``rows`` and ``columns``, with the planes that the module describes.

    ``activations``: the type that few rows may be rounded to in a product: up to 16, and up to 32
    in a product with experts.
    """

    format: str
    rows: int
    columns: int
    q: torch.Tensor
    high: torch.Tensor | None
    scales: torch.Tensor | None
    supers: torch.Tensor
    activations: Activations = "int8"

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The planes that are not ``None``."""
        parts = (self.q, self.high, self.scales, self.supers)
        return tuple(part for part in parts if part is not None)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.tensors)


@dataclass(frozen=True, slots=True)
class Planes(_Packed):
    """A packed matrix [rows, columns] of one format."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def __getitem__(self, rows: slice) -> Planes:
        """A range of rows from a multiple of four, as a view."""
        start, stop, step = rows.indices(self.rows)
        if step != 1 or start % INTERLEAVE:
            raise ValueError(f"rows {rows} of interleaved planes begin inside a group of four")
        quads = slice(start // INTERLEAVE, -(-stop // INTERLEAVE))
        return self._with(stop - start, lambda plane: plane[quads])

    def select(self, rows: torch.Tensor) -> Planes:
        """A copy of the rows ``rows`` int64 [n]."""
        count = rows.shape[0]
        # The last group of four is filled with copies of row 0, which are never read.
        padded = torch.cat([rows, rows.new_zeros(-count % INTERLEAVE)])

        def taken(plane: torch.Tensor) -> torch.Tensor:
            words = plane[padded // INTERLEAVE, :, padded % INTERLEAVE]
            return words.view(-1, INTERLEAVE, plane.shape[1]).transpose(1, 2).contiguous()

        return self._with(count, taken)

    def stacked(self, count: int) -> PlanesStack:
        """The matrix as a stack of ``count`` matrices, each of a multiple of four rows."""
        rows = self.rows // count
        if rows * count != self.rows or rows % INTERLEAVE:
            raise ValueError(f"{self.rows} rows are not {count} times a multiple of four")
        high = None if self.high is None else self.high.unflatten(0, (count, -1))
        scales = None if self.scales is None else self.scales.unflatten(0, (count, -1))
        q, supers = (plane.unflatten(0, (count, -1)) for plane in (self.q, self.supers))
        return PlanesStack(
            self.format, rows, self.columns, q, high, scales, supers, self.activations
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The numbers [rows, columns]."""
        numbers: torch.Tensor = unpack(self).to(dtype)
        return numbers

    def _with(self, rows: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Planes:
        return replace(
            self,
            rows=rows,
            q=change(self.q),
            high=None if self.high is None else change(self.high),
            scales=None if self.scales is None else change(self.scales),
            supers=change(self.supers),
        )


@dataclass(frozen=True, slots=True)
class PlanesStack(_Packed):
    """A stack of matrices [rows, columns] of one format: the experts of a layer.

    Each tensor is that of ``Planes`` with a leading dimension: ``q`` int32 [E, ceil(N/4), words,
    4] and so on; every matrix is padded to a multiple of four rows. Each matrix is contiguous; the
    stride between matrices may be larger than a matrix, as in a view of the upper rows of all.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        return int(self.q.shape[0]), self.rows, self.columns

    def __len__(self) -> int:
        return int(self.q.shape[0])

    def __getitem__(self, index: int) -> Planes:
        """One matrix, as a view."""
        high = None if self.high is None else self.high[index]
        scales = None if self.scales is None else self.scales[index]
        return Planes(
            self.format,
            self.rows,
            self.columns,
            self.q[index],
            high,
            scales,
            self.supers[index],
            self.activations,
        )

    def select(self, order: torch.Tensor) -> PlanesStack:
        """A copy of the matrices ``order`` int64 [n]."""
        return self._with(self.rows, lambda plane: plane[order])

    def part(self, start: int, stop: int) -> PlanesStack:
        """Rows ``start`` to ``stop`` of every matrix, as a view; both multiples of four."""
        if start % INTERLEAVE or (stop % INTERLEAVE and stop != self.rows):
            raise ValueError(f"rows {start} to {stop} cut a group of four interleaved rows")
        quads = slice(start // INTERLEAVE, -(-stop // INTERLEAVE))
        return self._with(stop - start, lambda plane: plane[:, quads])

    def _with(self, rows: int, change: Callable[[torch.Tensor], torch.Tensor]) -> PlanesStack:
        return replace(
            self,
            rows=rows,
            q=change(self.q),
            high=None if self.high is None else change(self.high),
            scales=None if self.scales is None else change(self.scales),
            supers=change(self.supers),
        )


def can_pack(format: str, columns: int) -> str:
    """The reason why a matrix cannot be packed; empty if it can."""
    if format not in LAYOUTS:
        return f"no planes for {format}"
    if columns % GROUP_WEIGHTS:
        return f"rows of {columns} weights are no multiple of {GROUP_WEIGHTS}"
    return ""


# -- unpacking ------------------------------------------------------------------------------------


def unpack(planes: Planes) -> torch.Tensor:
    """float32 [N, K], bit for bit the numbers of the file's blocks."""
    values: torch.Tensor = _numbers(planes)
    return values


def _numbers(planes: Planes) -> Any:
    layout = LAYOUTS[planes.format]
    k = planes.columns
    q = _rows(planes.q, planes.rows, layout.run)
    supers = _rows(planes.supers, planes.rows).view(torch.float16).float()
    if planes.format == "Q8_0":
        return (q.view(torch.int8).float().unflatten(1, (-1, 32)) * supers[..., None]).flatten(1)
    pair = q.view(-1, k // GROUP_WEIGHTS, 32)
    codes = torch.stack([pair & 15, pair >> 4], 2).flatten(1)
    if planes.high is not None:
        high = _rows(planes.high, planes.rows, layout.high_run)
        codes = codes | _high_codes(high, layout.bits, k) << 4
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


def _rows(words: torch.Tensor, rows: int, run: int = 0) -> torch.Tensor:
    """int32 [N/4, words, 4] -> uint8 [rows, words * 4]; undoes the alternation of runs, if ``run``
    is not 0."""
    if run:
        paired = words.shape[1] // (8 * run) * (8 * run)
        pairs = words[:, :paired].unflatten(1, (-1, 4, 2, run)).transpose(2, 3).flatten(1, 4)
        words = torch.cat([pairs, words[:, paired:]], 1)
    # contiguous() would not change the strides of a single word.
    apart = words.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return apart.view(torch.uint8).flatten(0, 1)[:rows]


def _high_codes(data: torch.Tensor, bits: int, columns: int) -> Any:
    n = data.shape[0]
    if bits == 1:
        shifts = torch.arange(8, device=data.device, dtype=torch.uint8)[:, None]
        return (data.view(n, -1, 1, 32) >> shifts & 1).flatten(1)[:, :columns]
    shifts = torch.tensor([0, 2, 4, 6], device=data.device, dtype=torch.uint8)[:, None]
    return (data.view(n, -1, 1, 32) >> shifts & 3).flatten(1)[:, :columns]
