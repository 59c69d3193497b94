"""Where everything lies in a chunk: byte offsets of every layer's sections. Torch-free.

A block holds all sections of all layers of a pool one after the other; inside a section the 64
vectors of a head are contiguous: [heads, 64, dim].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinfolk.errors import UnsupportedModelError
from kinfolk.plans import Paged, Section, StatePlan
from kinfolk.types import CHUNK

ALIGNMENT = 128
"""Sections start at multiples of this many bytes, so that rows can be read in whole lines."""

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """``offset`` and ``nbytes`` of a section inside a block."""

    section: Section
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """One pool: the layers with the same window. ``block_bytes`` bytes hold 64 positions."""

    window: int | None
    sections: Mapping[tuple[int, str], SectionLayout]
    block_bytes: int


def section_bytes(section: Section) -> int:
    """Bytes of 64 positions of a section."""
    if section.codec.format not in ELEMENT_BYTES or section.codec.rotation != "none":
        raise UnsupportedModelError(
            f"keys and values cannot be stored as {section.codec.format} yet: "
            f"use one of {', '.join(ELEMENT_BYTES)}"
        )
    return section.heads * CHUNK * section.dim * ELEMENT_BYTES[section.codec.format]


def pool_layouts(plan: StatePlan) -> tuple[PoolLayout, ...]:
    """The pools of a plan, in the order of ``plan.windows``."""
    return tuple(_pool(plan, window) for window in plan.windows)


def _pool(plan: StatePlan, window: int | None) -> PoolLayout:
    offset = 0
    sections = {}
    for index, layer in enumerate(plan.layers):
        if not isinstance(layer, Paged) or layer.window != window:
            continue
        for section in layer.sections:
            nbytes = section_bytes(section)
            sections[index, section.name] = SectionLayout(section, offset, nbytes)
            offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return PoolLayout(window, sections, offset)
