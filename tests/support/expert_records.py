"""Experts in records: near ones in bays, and a far one for each, out of stacks of matrices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kinfolk_kernels.experts.op import ExpertsArguments, FarExperts
from kinfolk_kernels.experts.stacks import Stack
from kinfolk_kernels.land.op import LandArguments
from kinfolk_kernels.planes import PlanesStack

ALIGNMENT = 256
POISON = 0xFF
"""Bytes of bays that no expert is in, and between the planes of a record: NaN as scales."""


def planes_of(stack: Stack) -> dict[str, torch.Tensor]:
    """The planes of a stack by name."""
    if isinstance(stack, torch.Tensor):
        return {"dense": stack}
    names = ("q", "high", "scales", "supers")
    return {name: plane for name in names if (plane := getattr(stack, name)) is not None}


@dataclass(frozen=True)
class RecordLayout:
    """Where each plane of gate, up and down begins in a record."""

    like: tuple[Stack, ...]
    offsets: tuple[dict[str, int], ...]
    record: int

    @staticmethod
    def of(stacks: Sequence[Stack]) -> RecordLayout:
        place, offsets = 0, []
        for stack in stacks:
            mine = {}
            for name, plane in planes_of(stack).items():
                mine[name] = place
                place += -(-plane[0].nbytes // 16) * 16
            offsets.append(mine)
        return RecordLayout(tuple(stacks), tuple(offsets), -(-place // ALIGNMENT) * ALIGNMENT)

    def arena(self, count: int, **options: object) -> torch.Tensor:
        """uint8 [count, record], poisoned, at an aligned address; ``options`` of its allocation."""
        size = count * self.record
        memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8, **options)  # type: ignore[call-overload]
        start = -memory.data_ptr() % ALIGNMENT
        arena = memory[start : start + size].view(count, self.record)
        return arena.fill_(POISON)

    def stacks(self, arena: torch.Tensor) -> tuple[Stack, ...]:
        """Gate, up and down as views of an arena, one record apart."""
        found = []
        for like, offsets in zip(self.like, self.offsets, strict=True):
            views = {}
            for name, plane in planes_of(like).items():
                start, size = offsets[name], plane.shape[1:].numel() * plane.element_size()
                view = arena[:, start : start + size].view(plane.dtype)
                views[name] = view.unflatten(1, tuple(plane.shape[1:]))
            if isinstance(like, PlanesStack):
                found.append(replace(like, **views))
            else:
                found.append(views["dense"])
        return tuple(found)


def put(stack: Stack, index: int, source: Stack, bay: int) -> None:
    """Copy matrix ``bay`` of ``source`` to matrix ``index`` of ``stack``."""
    there = planes_of(source)
    for name, plane in planes_of(stack).items():
        plane[index] = there[name][bay]


def spread(
    full: ExpertsArguments[Stack],
    owners: Sequence[int | None],
    *,
    absent: Sequence[int] = (),
    pin: bool = False,
) -> ExpertsArguments[Stack]:
    """The layer ``full``, where all experts are near, with the experts ``owners`` in the near bays,
    ``None`` = poisoned, and every expert at home in a far one."""
    stacks = (full.gate, full.up, full.down)
    layout = RecordLayout.of(stacks)
    device = full.bay_of_expert.device
    far = layout.stacks(layout.arena(full.count, pin_memory=pin))
    near = layout.stacks(layout.arena(len(owners), device=device))
    bays = full.bay_of_expert.tolist()
    for source, home, here in zip(stacks, far, near, strict=True):
        for expert, bay in enumerate(bays):
            put(home, expert, source, bay)
        for bay, owner in enumerate(owners):
            if owner is not None:
                put(here, bay, source, bays[owner])
    where = [len(owners) + expert for expert in range(full.count)]
    for bay, owner in enumerate(owners):
        if owner is not None:
            where[owner] = bay
    for expert in absent:
        where[expert] = -1
    bay_of = torch.tensor(where, device=device)
    gate, up, down = near
    return replace(full, gate=gate, up=up, down=down, far=FarExperts(*far), bay_of_expert=bay_of)


def landing(
    layer: ExpertsArguments[Stack], *, pin: bool = False
) -> tuple[ExpertsArguments[Stack], LandArguments]:
    """A layer with far bays, which reads landing bays in their place, and the arguments that bring
    its experts there."""
    assert layer.far is not None
    homes = (layer.far.gate, layer.far.up, layer.far.down)
    layout, device = RecordLayout.of(homes), layer.bay_of_expert.device
    far = layout.arena(layer.count, pin_memory=pin)
    for source, home in zip(homes, layout.stacks(far), strict=True):
        for expert in range(layer.count):
            put(home, expert, source, expert)
    places = max(*(2, layer.count - layer.near), int((layer.bay_of_expert >= layer.near).sum()))
    records = layout.arena(places, device=device)
    landed = torch.full_like(layer.bay_of_expert, -1)
    most = torch.iinfo(torch.int32).max
    rows = torch.tensor([most], dtype=torch.int32, device=device)
    rows = rows if layer.rows is None else layer.rows
    made = replace(layer, far=FarExperts(*layout.stacks(records)), bay_of_expert=landed)
    return made, LandArguments(far, records, layer.bay_of_expert, landed, rows, layer.near)


def some(experts: int, bays: int, seed: int, empty: int = 0) -> list[int | None]:
    """Experts for near bays, at random, with ``empty`` bays among them."""
    chance = random.Random(seed)
    owners: list[int | None] = [None] * empty
    owners += chance.sample(range(experts), bays - empty)
    chance.shuffle(owners)
    return owners
