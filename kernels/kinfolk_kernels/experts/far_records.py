"""How kernels reach the matrices of a bay in near or far records."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.experts import bays

UNIT = tl.constexpr(bays.UNIT)


@triton.jit
def record_of(bay, first_ptr, far_ptr, near, record):
    """Where the record of ``bay`` int64 begins, counted from that of bay 0, in units of 16 bytes.

    ``first_ptr`` and ``far_ptr`` are addresses in bay 0 and in the first far bay, at the same place
    of a record, and ``record`` is the step between bays.
    """
    apart = (far_ptr.to(tl.int64) - first_ptr.to(tl.int64)) // UNIT
    return bay * record + tl.where(bay >= near, apart - near.to(tl.int64) * record, 0)


@triton.jit
def moved(ptr, units):
    """The address ``units`` of 16 bytes behind ``ptr``."""
    return ptr + units * (8 * UNIT // ptr.dtype.element_ty.primitive_bitwidth)
