"""The kernels of the depthwise causal convolution: rows, slices' last inputs, and commits.

A state [slots, TAPS - 1, C] is always read whole before it is written: programs own channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.curves import silu


@triton.jit
def _seen(
    x_ptr,
    state_ptr,
    parents,
    row,
    slot,
    inside,
    c,
    x_row,
    channels,
    TAPS: tl.constexpr,
    DISTANCE: tl.constexpr,
):
    """float32 [rows, channels]: the input ``DISTANCE`` steps before each row on its path; before
    the roots stand the committed inputs."""
    up = row
    missing = tl.zeros_like(row)
    for _ in tl.static_range(DISTANCE):
        up = tl.load(parents + up, mask=inside & (up >= 0), other=-1)
        missing = tl.where(up < 0, missing + 1, 0)
    among = (c < channels)[None, :]
    drawn = (inside & (up >= 0))[:, None] & among
    x = tl.load(x_ptr + up[:, None] * x_row + c[None, :], mask=drawn, other=0.0)
    place = slot * (TAPS - 1) + (TAPS - 1) - missing
    kept = (inside & (up < 0))[:, None] & among
    old = tl.load(state_ptr + place[:, None] * channels + c[None, :], mask=kept, other=0.0)
    return tl.where(drawn, x.to(tl.float32), old)


@triton.jit
def _tail(
    x_ptr,
    state_ptr,
    parents,
    row,
    slot,
    inside,
    c,
    x_row,
    channels,
    TAPS: tl.constexpr,
):
    """The state after each row: a tuple of TAPS - 1 tiles, the oldest first."""
    found = ()
    for j in tl.static_range(TAPS - 1):
        seen = _seen(
            x_ptr,
            state_ptr,
            parents,
            row,
            slot,
            inside,
            c,
            x_row,
            channels,
            TAPS,
            TAPS - 2 - j,
        )
        found = found + (seen,)  # type: ignore[assignment]
    return found


@triton.jit
def _leave(state_ptr, slot, tail, inside, c, channels, TAPS: tl.constexpr):
    """Write tails [rows, channels] to slots [rows]."""
    mask = inside[:, None] & (c < channels)[None, :]
    for j in tl.static_range(TAPS - 1):
        at = (slot * (TAPS - 1) + j)[:, None] * channels + c[None, :]
        tl.store(state_ptr + at, tail[j], mask=mask)


@triton.jit
def convolved(
    x_ptr,
    weight_ptr,
    state_ptr,
    parents,
    row,
    slot,
    inside,
    c,
    x_row,
    channels,
    TAPS: tl.constexpr,
):
    """float32 [rows, channels]: the convolution and SiLU of rows."""
    total = tl.zeros([row.shape[0], c.shape[0]], tl.float32)
    for i in tl.static_range(TAPS):
        w = tl.load(weight_ptr + c * TAPS + (TAPS - 1 - i), mask=c < channels, other=0.0)
        total += w[None, :] * _seen(
            x_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS, i
        )
    return silu(total)


@triton.jit
def keep_states(
    x_ptr,
    state_ptr,
    parents,
    spans,
    store_rows,
    store_slots,
    stores,
    row,
    sequence,
    slot,
    inside,
    c,
    x_row,
    channels,
    TAPS: tl.constexpr,
    SINGLES: tl.constexpr,
    STORES: tl.constexpr,
):
    """Stores, and the states of certain segments of one row, which nobody else reads."""
    if STORES:
        tail = _tail(x_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS)
        for index in range(stores):
            hit = inside & (row == tl.load(store_rows + index))
            target = tl.zeros_like(row) + tl.load(store_slots + index)
            _leave(state_ptr, target, tail, hit, c, channels, TAPS)
    if SINGLES:
        count = tl.load(spans + 4 * sequence + 1, mask=inside, other=0)
        drafted = tl.load(spans + 4 * sequence + 3, mask=inside, other=1)
        alone = inside & (count == 1) & (drafted == 0)
        tail = _tail(x_ptr, state_ptr, parents, row, slot, alone, c, x_row, channels, TAPS)
        tl.debug_barrier()
        _leave(state_ptr, slot, tail, alone, c, channels, TAPS)


@triton.jit(do_not_specialize=["rows", "stores"])
def rows_kernel(
    x_ptr,
    weight_ptr,
    state_ptr,
    out_ptr,
    parents,
    sequences,
    slots,
    spans,
    store_rows,
    store_slots,
    rows,
    stores,
    channels,
    x_row,
    TAPS: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    SINGLES: tl.constexpr,
    STORES: tl.constexpr,
):
    """Grid (rows / BR, channels / BC): outputs of all rows, and what ``keep_states`` keeps."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = row < rows
    sequence = tl.load(sequences + row, mask=inside, other=0)
    slot = tl.load(slots + sequence, mask=inside, other=0)
    out = convolved(
        x_ptr, weight_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS
    )
    at = out_ptr + row[:, None] * channels + c[None, :]
    mask = inside[:, None] & (c < channels)[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=mask)
    keep_states(
        x_ptr,
        state_ptr,
        parents,
        spans,
        store_rows,
        store_slots,
        stores,
        row,
        sequence,
        slot,
        inside,
        c,
        x_row,
        channels,
        TAPS,
        SINGLES,
        STORES,
    )


@triton.jit
def slices_kernel(
    x_ptr,
    state_ptr,
    parents,
    slices,
    channels,
    x_row,
    TAPS: tl.constexpr,
    BC: tl.constexpr,
):
    """Grid (S, channels / BC): states after certain segments of several rows, whose rows have read
    the old ones."""
    entry = slices + 4 * tl.program_id(0) + tl.arange(0, 1)
    row = (tl.load(entry) + tl.load(entry + 1) - 1).to(tl.int64)
    slot = tl.load(entry + 2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = row >= 0
    tail = _tail(x_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS)
    tl.debug_barrier()
    _leave(state_ptr, slot, tail, inside, c, channels, TAPS)


@triton.jit(do_not_specialize=["width"])
def commit_kernel(
    x_ptr,
    state_ptr,
    path_ptr,
    kept_ptr,
    slot_ptr,
    channels,
    x_row,
    width,
    TAPS: tl.constexpr,
    BC: tl.constexpr,
):
    """Grid (D, channels / BC): states after the kept rows; who keeps nothing is padding."""
    kept = tl.load(kept_ptr + tl.program_id(0))
    if kept == 0:
        return
    one = tl.arange(0, 1)
    slot = tl.load(slot_ptr + tl.program_id(0) + one)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    among = (c < channels)[None, :]
    tail = ()
    for j in tl.static_range(TAPS - 1):
        # Committed inputs and kept rows in a line: the last TAPS - 1 of them stay.
        place = kept + j + one
        drawn = place >= TAPS - 1
        row = tl.load(path_ptr + tl.program_id(0) * width + place - (TAPS - 1), mask=drawn, other=0)
        x = tl.load(
            x_ptr + row[:, None] * x_row + c[None, :], mask=drawn[:, None] & among, other=0.0
        )
        at = (slot * (TAPS - 1) + place)[:, None] * channels + c[None, :]
        old = tl.load(state_ptr + at, mask=(place < TAPS - 1)[:, None] & among, other=0.0)
        new = tl.where(drawn[:, None], x.to(tl.float32), old)
        tail = tail + (new,)  # type: ignore[assignment]
    tl.debug_barrier()
    _leave(state_ptr, slot, tail, one >= 0, c, channels, TAPS)
