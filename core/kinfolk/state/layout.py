"""Layout of a block: byte offsets of every layer's sections. Torch-free.

A block holds all sections of all layers of a pool one after the other; inside a section the 64
vectors of a head are contiguous: [heads, 64, dim]. A coded section is two such planes, codes and
then scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from kinfolk.dtypes import DTYPE_BYTES
from kinfolk.errors import UnsupportedModelError
from kinfolk.plans import Paged, Recurrent, RecurrentTensor, Section, StatePlan
from kinfolk.types import CHUNK_POSITIONS

SECTION_ALIGNMENT_BYTES = 128
"""Sections start at multiples of this many bytes, so that rows can be read in whole lines."""

CODED = {"q8_0": 1, "q4_0": 2}
"""Numbers in a byte of codes."""

SCALED = 32
"""Coded numbers that share a scale."""

SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """``offset`` of a section inside a block, and the bytes of its planes one after the other: of
    its numbers, or of codes and scales."""

    section: Section
    offset: int
    planes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(self.planes)


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """One pool: the layers with the same window. ``block_bytes`` bytes hold 64 positions."""

    window: int | None
    sections: Mapping[tuple[int, str], SectionLayout]
    block_bytes: int


def plane_bytes(section: Section) -> tuple[int, ...]:
    """Bytes of 64 positions of a section, plane by plane."""
    codec, vectors = section.codec, section.heads * CHUNK_POSITIONS
    if codec.format in DTYPE_BYTES:
        if codec.rotation != "none":
            raise UnsupportedModelError(
                f"section {section.name!r}: numbers stored as {codec.format} are not rotated, "
                f"only those stored as {' or '.join(CODED)}"
            )
        return (vectors * section.dim * DTYPE_BYTES[codec.format],)
    if section.dim % SCALED:
        raise UnsupportedModelError(
            f"section {section.name!r}: vectors of {section.dim} numbers cannot be stored as "
            f"{codec.format}, which takes {SCALED} at a time: use one of {', '.join(DTYPE_BYTES)}"
        )
    codes = vectors * section.dim // CODED[codec.format]
    return codes, vectors * section.dim // SCALED * SCALE_BYTES


def pool_layouts(plan: StatePlan) -> tuple[PoolLayout, ...]:
    """The pools of a plan, in the order of ``plan.windows``."""
    return tuple(_pool(plan, window) for window in plan.windows)


def slot_bytes(plan: StatePlan) -> int:
    """Bytes of recurrent state of one slot."""
    return sum(
        tensor_bytes(tensor)
        for layer in plan.layers
        if isinstance(layer, Recurrent)
        for tensor in layer.tensors
    )


def tensor_bytes(tensor: RecurrentTensor) -> int:
    """Bytes of a recurrent tensor of one slot."""
    return prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]


def _pool(plan: StatePlan, window: int | None) -> PoolLayout:
    offset = 0
    sections = {}
    for index, layer in enumerate(plan.layers):
        if not isinstance(layer, Paged) or layer.window != window:
            continue
        for section in layer.sections:
            placed = SectionLayout(section, offset, plane_bytes(section))
            sections[index, section.name] = placed
            offset += -(-placed.nbytes // SECTION_ALIGNMENT_BYTES) * SECTION_ALIGNMENT_BYTES
    return PoolLayout(window, sections, offset)
