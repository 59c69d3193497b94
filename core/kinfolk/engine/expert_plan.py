"""How many experts are on the device (``--expert-budget``), and host memory for the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from kinfolk.engine.memory import MemoryPlan
from kinfolk.engine.sizing import GIB
from kinfolk.errors import CapacityError, SettingsError
from kinfolk.experts.placement import landing_bays
from kinfolk.experts.profile import ExpertProfile
from kinfolk.hooks import ModelHookCaller
from kinfolk.plans import ExpertStats, Placement
from kinfolk.settings import Settings
from kinfolk.weights.size import Form

log = logging.getLogger(__name__)

STATE_SHARE = 0.25
"""Most of what core weights and work leave that ``--expert-budget auto`` gives to state which
nobody asked for; bays of experts get the rest."""

LANDING_SHARE = 0.125
"""Most bytes of landing bays, as a share of the budget of near ones. Where more were needed, near
bays are so few that each counts, and steps of several rows read far experts where they are."""

_TRIES = 10
"""Halvings in the search for the bays beside state that was asked for."""

R = TypeVar("R")
Divide = Callable[[int | None, int], tuple[MemoryPlan, R]]
"""Divides memory with so many bytes of near bays, ``None`` = ordinary weights, and so many bytes of
homes in host memory. Raises :class:`CapacityError`."""

Ask = Callable[[int], Placement]
"""Answers which experts are in near bays of so many bytes."""


@dataclass(frozen=True, slots=True)
class ExpertRecords:
    """The experts of a model by layer: their number, and the bytes of a record; 0 = no experts, or
    their tensors have not the role ``experts``, and all of them are on the device."""

    layers: tuple[int, ...]
    nbytes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all records."""
        return sum(n * size for n, size in zip(self.layers, self.nbytes, strict=True))


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """Where the experts of a model are. ``placement``: what is in the near bays; ``partial``: some
    experts have none. ``swap``: experts that are chosen come to near bays. ``top_k``: experts that
    a row chooses. ``profile``: how often each was used before, if that is kept. ``landing``: bytes
    of landing bays."""

    sizes: ExpertRecords
    placement: Placement
    swap: bool = True
    top_k: int = 0
    profile: ExpertProfile | None = None
    landing: int = 0

    @property
    def bays(self) -> tuple[int, ...]:
        """Near bays of each layer."""
        return tuple(len(bays) for bays in self.placement.bays)

    @property
    def partial(self) -> bool:
        return self.bays != self.sizes.layers

    @property
    def counted(self) -> bool:
        """Whether uses are counted for a profile."""
        return self.profile is not None and self.sizes.total > 0

    @property
    def steps_count(self) -> bool:
        """Whether steps count which experts they choose."""
        return self.swap or self.counted

    @property
    def in_records(self) -> bool:
        """Whether the loader places experts: some are far, or uses are counted."""
        return self.partial or self.counted

    @property
    def device_bytes(self) -> int:
        """Bytes of near bays."""
        return sum(n * size for n, size in zip(self.bays, self.sizes.nbytes, strict=True))

    @property
    def host_bytes(self) -> int:
        """Bytes of homes: those of all experts of the layers that are not near as a whole."""
        sizes = self.sizes
        each = zip(sizes.layers, self.bays, sizes.nbytes, strict=True)
        return sum(count * size for count, bays, size in each if bays < count)

    @property
    def worst_token_bytes(self) -> int:
        """Most bytes that a row reads or fetches from host memory."""
        each = zip(self.sizes.layers, self.bays, self.sizes.nbytes, strict=True)
        return sum(min(self.top_k, count - bays) * size for count, bays, size in each)

    @property
    def usual_token_bytes(self) -> int | None:
        """The same on average if bays stay and choices are as they were counted; ``None`` without
        counts."""
        counts = None if self.profile is None else self.profile.counts
        if counts is None:
            return None
        total = 0.0
        rows = zip(counts, self.placement.bays, self.sizes.nbytes, strict=True)
        for of_layer, bays, size in rows:
            near = sum(of_layer[expert] for expert in bays)
            if uses := sum(of_layer):
                total += self.top_k * size * (uses - near) / uses
        return int(total)

    def describe(self) -> str:
        """Where experts are, in a line."""
        near, count = sum(self.bays), sum(self.sizes.layers)
        if not self.partial:
            return f"--expert-profile: uses of {count} experts are counted, all are on the device"
        what = "bays stay as they are"
        if not near:
            what = "those that are chosen are read from there"
        elif self.swap:
            what = "those that are chosen come to the device"
        landing = f", {self.landing / GIB:.2f} of landing bays" if self.landing else ""
        layers = zip(self.sizes.layers, self.bays, strict=True)
        home_count = sum(experts for experts, bays in layers if bays < experts)
        homes = "all" if home_count == count else str(home_count)
        return (
            f"--expert-budget: {near} of {count} experts are on the device "
            f"({self.device_bytes / GIB:.2f} GiB{landing}), {homes} have their home in "
            f"{self.host_bytes / GIB:.2f} GiB of host memory; {what}"
        )


def plan_experts(
    settings: Settings,
    sizes: ExpertRecords,
    divide: Divide[R],
    *,
    is_host: bool,
    host_free: int,
    form: Form,
    counted: bool = False,
    landing: Callable[[int], int] | None = None,
) -> tuple[MemoryPlan, R, int | None]:
    """Divide memory; the last answer is the bytes of near bays, ``None`` if all experts are near.
    ``counted``: they are in records even then. ``landing``: the bytes of landing bays for near bays
    of so many bytes. If N % of the experts were asked for, they come on top where there is room;
    other budgets are for both.

    Raises :class:`CapacityError` or :class:`SettingsError` with the arithmetic.
    """
    asked = settings.expert_budget
    budget = _asked_bytes(asked, sizes.total)
    if budget is None or budget >= sizes.total:
        try:
            return *divide(sizes.total if counted else None, 0), None
        except CapacityError as error:
            if asked != "auto" or not sizes.total or is_host:
                raise
            log.info("not all experts fit: %s", error)
    homes = sizes.total
    _check_host(settings, homes, host_free, is_host=is_host)
    if form == "blocks" and not is_host:
        raise SettingsError(
            "--weights blocks: kernels cannot read the blocks of a file from host memory, and "
            f"--expert-budget {asked} leaves experts there: use --weights packed or dense, or "
            "--expert-budget all"
        )
    if budget is not None:
        if landing is not None and isinstance(asked, str):
            try:
                return *divide(budget + landing(budget), homes), budget
            except CapacityError as error:
                log.info("no room for landing bays beside the experts: %s", error)
        return *divide(budget, homes), budget
    found = _largest(sizes.total, lambda bays: divide(bays, homes))
    return *found[1], found[0]


def asks(hooks: ModelHookCaller, sizes: ExpertRecords, profile: ExpertProfile | None) -> Ask:
    """Asks the hook ``place_experts``."""
    counts = None if profile is None else profile.counts
    stats = ExpertStats(sizes.layers, counts, sizes.nbytes)

    def ask(budget: int) -> Placement:
        return hooks.place_experts(stats, budget)

    return ask


def place(
    ask: Ask,
    sizes: ExpertRecords,
    budget: int | None,
    *,
    settings: Settings,
    top_k: int,
    profile: ExpertProfile | None = None,
    beside: int = 0,
) -> ExpertPlan:
    """Ask which experts are in near bays of ``budget`` bytes, ``None`` = of all. Landing bays take
    a part of these bytes if there are not enough ``beside`` them."""
    swap = settings.expert_swap == "on"
    if not any(sizes.layers):
        return ExpertPlan(sizes, Placement(((),) * len(sizes.layers)), swap)
    room = sizes.total if budget is None else budget
    placement, landing = with_landing(sizes, room, ask, beside)
    if budget is None and profile is None:
        # There are no records that could be in order: stacks stay as they are read.
        placement = Placement(tuple(tuple(range(experts)) for experts in sizes.layers))
    if profile is not None and not swap:
        # Steps count uses as they fetch, and what is pinned stays.
        placement = replace(placement, pinned=tuple(map(len, placement.bays)))
    return ExpertPlan(sizes, placement, swap, top_k, profile, landing)


def with_landing(
    sizes: ExpertRecords, room: int, ask: Ask, beside: int = 0
) -> tuple[Placement, int]:
    """What is in near bays, and the bytes of landing bays: ``beside`` the ``room`` bytes of near
    ones, or where that is not enough within them."""
    placement = ask(room)
    needed = landing_bytes(sizes, placement)
    if not 0 < needed <= LANDING_SHARE * room:
        return placement, 0
    if needed <= beside:
        return placement, needed
    # What landing bays take leaves fewer near ones, and so more experts that may have to land:
    # shared by all layers first; by those of one layer, at worst.
    records = [(n, size) for n, size in zip(sizes.layers, sizes.nbytes, strict=True) if n * size]
    shared = max(1, len(records) - 1)
    more = needed + max(size for _, size in records)
    for landing in (-(-more * len(records) // shared), max(n * size for n, size in records)):
        if landing < room:
            placed = ask(room - landing)
            if (found := landing_bytes(sizes, placed)) <= landing:
                return placed, found
    return placement, 0


def landing_bytes(sizes: ExpertRecords, placement: Placement) -> int:
    """Bytes of landing bays for all experts of any one layer that are in no near bay."""
    each = zip(sizes.layers, placement.bays, sizes.nbytes, strict=True)
    return max((landing_bays(count, len(bays)) * size for count, bays, size in each), default=0)


def _asked_bytes(asked: float | str, total: int) -> int | None:
    """Bytes of near bays that the user asked for; ``None`` for words."""
    if isinstance(asked, float):
        return int(asked * GIB)
    return int(total * float(asked[:-1]) / 100) if asked.endswith("%") else None


def _check_host(settings: Settings, homes: int, free: int, *, is_host: bool) -> None:
    """What the user says that the host has is believed: memory of some machines grows with use."""
    asked = settings.expert_host
    if asked is None and is_host:
        return  # it is a part of the plan
    most = free if asked is None else int(asked * GIB)
    if homes <= most:
        return
    has = (
        f"the host has {free / GIB:.2f} GiB free" if asked is None else f"--expert-host is {asked}"
    )
    why, instead = "not all experts fit on the device", "a smaller quantisation"
    if settings.expert_budget != "auto":
        why = f"--expert-budget {settings.expert_budget} leaves experts out"
        instead = f"--expert-budget all or {instead}"
    raise CapacityError(
        f"{why}, so all of them have their home in host memory: {homes / GIB:.2f} GiB, and {has}: "
        f"use {instead}, or set --expert-host to what the host really has"
    )


def _largest(
    total: int, divide: Callable[[int], tuple[MemoryPlan, R]]
) -> tuple[int, tuple[MemoryPlan, R]]:
    """The most bytes of bays with which memory can be divided, less what state may have that nobody
    asked for."""
    nothing = divide(0)  # raises if not even core and state fit
    memory = nothing[0]
    left = memory.usable - sum(memory.parts.values()) + sum(memory.state.values())
    low, best = 0, nothing
    high = min(total, int(left * (1 - STATE_SHARE)))
    for attempt in range(_TRIES):
        # The first try is the most there may be.
        bays = high if attempt == 0 else (low + high) // 2
        try:
            best, low = divide(bays), bays
        except CapacityError:
            high = bays
        if low == high:
            break
    spare = best[0].usable - best[0].total
    if low == high and spare > 0 and low < total:
        # State has all that it could use.
        try:
            more = min(total, low + spare)
            return more, divide(more)
        except CapacityError:
            pass
    return low, best
