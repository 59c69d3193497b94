"""Sizes the state to fit beside the weights: a context length and blocks for every pool."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from kinfolk.errors import CapacityError
from kinfolk.plans import StateLimits, StatePlan
from kinfolk.state.eviction import PrefixBytes
from kinfolk.state.geometry import blocks_for_sequence, chunks_for
from kinfolk.state.layout import pool_layouts, slot_bytes
from kinfolk.types import CHUNK_POSITIONS

DEFAULT_CONTEXT = 32768
"""Default context of a sequence, unless the model supports less."""

LEAST_CONTEXT = 256
"""A default context is not halved below this."""

LEAST_COUNTS = {"checkpoints": 2, "slots": 1}
"""Least values of defaults that are lowered before the context is, in this order."""

MOST_FOR_SPARE = 1 / 64
"""Most of what pools would have without spare slots that these may take, as a part of it."""

GIB = 2**30


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return host_memory()


def host_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """Available bytes of the host, or of the container that this is; half of the host's memory
    where that is not reported (macOS).

    On Linux this is ``MemAvailable``, not free pages: the page cache is given up when needed.
    """
    left = _container_memory(cgroup)
    available = _available_memory(meminfo)
    return available if left is None else min(available, left)


def _container_memory(cgroup: Path) -> int | None:
    """Bytes that the limit of a container leaves (cgroup v2), its page cache included; ``None``
    without a limit."""
    try:
        limit = (cgroup / "memory.max").read_text("ascii").strip()
        used = int((cgroup / "memory.current").read_text("ascii"))
        lines = (cgroup / "memory.stat").read_text("ascii").splitlines()
        cached = dict(line.split() for line in lines).get("inactive_file", "0")
        return None if limit == "max" else max(0, int(limit) - used + int(cached))
    except (OSError, ValueError):
        return None


def _available_memory(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def size_state(
    plan: StatePlan,
    wanted: StateLimits,
    model_context: int,
    budget: int,
    asked: int | None,
    flexible: frozenset[str] = frozenset(),
) -> StateLimits:
    """``wanted`` with a context and pool sizes that fit ``budget`` bytes.

    ``asked`` is the context the user asked for: it is never lowered. A default context is lowered,
    after the fields of ``wanted`` that ``flexible`` names. Slots share the pools: one sequence can
    have the whole context, all at once may have less. Spare slots are the first to go: nothing is
    lowered for them, and pools get at most ``MOST_FOR_SPARE`` less. Raises :class:`CapacityError`
    with the arithmetic if the state does not fit.
    """
    context = min(asked or DEFAULT_CONTEXT, model_context)
    first = replace(wanted, context=context, spare_slots=0)
    for limits in _candidates(plan, first, flexible | ({"context"} if asked is None else set())):
        fitting = _fitting(plan, limits, budget)
        if fitting is not None:
            spare = _fitting(plan, replace(limits, spare_slots=wanted.spare_slots), budget)
            enough = _bytes(plan, fitting.blocks) * (1 - MOST_FOR_SPARE)
            return fitting if spare is None or _bytes(plan, spare.blocks) < enough else spare
    recurrent = _recurrent(plan, limits)
    least = _fixed(plan, limits) + _least(plan, limits)
    raise CapacityError(
        f"a context of {limits.context} needs {least / GIB:.2f} GiB of state "
        f"({recurrent / GIB:.2f} GiB recurrent for {limits.slots} slots and "
        f"{limits.checkpoints} checkpoints), {budget / GIB:.2f} GiB can be used: "
        "lower --context, --slots or --checkpoints"
        + ("" if wanted.resident is None else f", or --kvflash {wanted.resident * CHUNK_POSITIONS}")
    )


def _fitting(plan: StatePlan, limits: StateLimits, budget: int) -> StateLimits | None:
    """``limits`` with pools that fit ``budget`` bytes; ``None`` if one sequence of full length does
    not."""
    left = budget - _fixed(plan, limits)
    if _least(plan, limits) > left:
        return None
    return replace(limits, blocks=_shrunk(plan, limits, limits.context, left))


def _fixed(plan: StatePlan, limits: StateLimits) -> int:
    """Bytes beside the blocks of sequences."""
    spare = (_spare(limits),) * len(plan.windows)
    return _recurrent(plan, limits) + _query_bytes(limits) + _bytes(plan, spare)


def _least(plan: StatePlan, limits: StateLimits) -> int:
    """Bytes of the blocks of a single sequence of full length."""
    return _with_digests(plan, limits, _one(plan, limits, limits.context))


def _candidates(
    plan: StatePlan, limits: StateLimits, flexible: frozenset[str]
) -> Iterator[StateLimits]:
    """Limits in the order in which they are tried: the ``flexible`` fields get lower and lower."""
    yield limits
    for field, fewest in LEAST_COUNTS.items():
        # Without recurrent state or queries a slot costs nothing by itself.
        costs = plan.has_recurrent or (field == "slots" and limits.scored is not None)
        while field in flexible and costs and getattr(limits, field) > fewest:
            limits = replace(limits, **{field: max(fewest, getattr(limits, field) // 2)})
            yield limits
    while "context" in flexible and limits.context > LEAST_CONTEXT:
        limits = replace(limits, context=limits.context // 2)
        yield limits


def state_bytes(plan: StatePlan, limits: StateLimits) -> dict[str, int]:
    """Bytes of state by kind, dummies and the arena of drafted trees included."""
    bytes_by_kind: dict[str, int] = {}
    for layout, blocks in zip(pool_layouts(plan), limits.blocks, strict=True):
        name = "keys and values" if layout.window is None else f"window of {layout.window}"
        bytes_by_kind[name] = (blocks + _spare(limits)) * layout.block_bytes
    if plan.has_recurrent:
        bytes_by_kind["recurrent state"] = _recurrent(plan, limits)
    if limits.scored is not None:
        digests = limits.digests * limits.scored.chunk_bytes
        bytes_by_kind["scores of chunks"] = digests + _query_bytes(limits)
    return bytes_by_kind


def prefix_bytes(plan: StatePlan) -> PrefixBytes:
    """Bytes that eviction weighs a stored prefix by."""
    blocks = tuple((layout.window, layout.block_bytes) for layout in pool_layouts(plan))
    return PrefixBytes(slot_bytes(plan) if plan.has_recurrent else 0, blocks)


def _spare(limits: StateLimits) -> int:
    """Blocks of each pool that belong to no sequence: the dummy, and the arena of trees."""
    return 1 + chunks_for(limits.tree_rows)


def _recurrent(plan: StatePlan, limits: StateLimits) -> int:
    return limits.recurrent_slots * slot_bytes(plan)


def _one(plan: StatePlan, wanted: StateLimits, context: int) -> tuple[int, ...]:
    """Blocks of each pool that a single sequence of full length needs."""
    return tuple(
        blocks_for_sequence(window, context, wanted.step_rows, wanted.resident)
        for window in plan.windows
    )


def _blocks(plan: StatePlan, wanted: StateLimits, context: int) -> tuple[int, ...]:
    """Blocks with which every slot can have the full context, and every checkpoint its window."""
    return tuple(
        one * wanted.slots + (0 if window is None else wanted.checkpoints * one)
        for one, window in zip(_one(plan, wanted, context), plan.windows, strict=True)
    )


def _bytes(plan: StatePlan, blocks: tuple[int, ...]) -> int:
    layouts = pool_layouts(plan)
    return sum(n * layout.block_bytes for n, layout in zip(blocks, layouts, strict=True))


def _with_digests(plan: StatePlan, limits: StateLimits, blocks: tuple[int, ...]) -> int:
    """Bytes of ``blocks``, with the compressed keys of all chunks of the sequences that may have
    them: those of one for each ``limits.resident`` blocks of full attention."""
    keys, scored = 0, limits.scored
    if scored is not None and limits.resident:
        each = chunks_for(limits.context) * scored.chunk_bytes
        keys = blocks[0] * -(-each // limits.resident)
    return _bytes(plan, blocks) + keys


def _query_bytes(limits: StateLimits) -> int:
    """Bytes of the last queries of all slots, and for scores while they are computed."""
    scored = limits.scored
    return 0 if scored is None else limits.query_slots * scored.slot_bytes + scored.work_bytes


def _shrunk(plan: StatePlan, wanted: StateLimits, context: int, budget: int) -> tuple[int, ...]:
    """Blocks of each pool within ``budget`` bytes, enough for one sequence of full length.

    ``budget`` must cover that sequence; the rest is divided in proportion to the blocks that all
    slots could use.
    """
    least, most = _one(plan, wanted, context), _blocks(plan, wanted, context)
    total, fixed = (_with_digests(plan, wanted, blocks) for blocks in (most, least))
    if total <= budget:
        return most
    share = (budget - fixed) / (total - fixed)
    return tuple(one + int((n - one) * share) for n, one in zip(most, least, strict=True))
