"""How much state fits beside the weights: a context length and blocks for every pool."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from kinfolk.errors import CapacityError
from kinfolk.plans import Recurrent, RecurrentTensor, StateLimits, StatePlan
from kinfolk.state.chunks import chunks_for
from kinfolk.state.layout import pool_layouts

DEFAULT_CONTEXT = 32768
"""Context of a sequence when nobody asks for one and the model would take more."""

STATE_SHARE = 0.5
"""Part of the free memory that state may take."""

_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
GIB = 2**30


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def slot_bytes(plan: StatePlan) -> int:
    """Bytes of recurrent state of one slot."""

    def size(tensor: RecurrentTensor) -> int:
        numbers = 1
        for extent in tensor.shape:
            numbers *= extent
        return numbers * _BYTES[tensor.dtype]

    return sum(
        size(tensor)
        for layer in plan.layers
        if isinstance(layer, Recurrent)
        for tensor in layer.tensors
    )


def size_state(
    plan: StatePlan, wanted: StateLimits, model_context: int, free: int, asked: int | None
) -> StateLimits:
    """``wanted`` with a context and pool sizes that fit ``free`` bytes.

    ``asked`` is the context the user wants: it is refused when it does not fit, while the default
    shrinks. All slots together may use the pool: one of them can have the whole context, all of
    them their share. Raises :class:`CapacityError` with the arithmetic.
    """
    context = min(asked or DEFAULT_CONTEXT, model_context)
    budget = int(free * STATE_SHARE)
    while True:
        fixed = (wanted.slots + wanted.checkpoints + 1) * slot_bytes(plan)
        least = fixed + _bytes(plan, _one(plan, wanted, context))
        if least <= budget:
            blocks = _shrunk(plan, wanted, context, budget - fixed)
            return replace(wanted, context=context, blocks=blocks)
        if asked is not None or context <= 256:
            raise CapacityError(
                f"a context of {context} needs {least / GIB:.2f} GiB of state ({fixed / GIB:.2f} "
                f"GiB recurrent for {wanted.slots} slots and {wanted.checkpoints} checkpoints), "
                f"{budget / GIB:.2f} GiB can be used: lower --context, --slots or --checkpoints"
            )
        context //= 2


def _one(plan: StatePlan, wanted: StateLimits, context: int) -> tuple[int, ...]:
    """Blocks of each pool that a single sequence of full length needs."""
    return tuple(
        chunks_for(context)
        if window is None
        else min(chunks_for(context), chunks_for(window + wanted.step_rows - 1) + 2)
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


def _shrunk(plan: StatePlan, wanted: StateLimits, context: int, budget: int) -> tuple[int, ...]:
    """Room for every slot, scaled down to the budget, never below one sequence of full length."""
    blocks = _blocks(plan, wanted, context)
    total = _bytes(plan, blocks)
    if total <= budget:
        return blocks
    return tuple(
        max(one, int(n * budget / total))
        for n, one in zip(blocks, _one(plan, wanted, context), strict=True)
    )
