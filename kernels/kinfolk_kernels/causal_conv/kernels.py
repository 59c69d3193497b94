"""The kernels of the depthwise causal convolution: outputs of rows, states of slices, commits.

A program owns channels, and reads their whole state [slots, TAPS - 1, C] before it writes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import silu
from kinfolk_kernels.commit_layers import of_layer
from kinfolk_kernels.dependent import fetch_ahead, guess, start_dependents, wait_for_producers


@triton.jit
def taps_of(weight_ptr, c, channels, TAPS: tl.constexpr):
    """A tuple of TAPS weights [1, channels]: of a row's own input, of the input before it, and so
    on."""
    taps = ()
    for i in tl.static_range(TAPS):
        w = tl.load(weight_ptr + c * TAPS + (TAPS - 1 - i), mask=c < channels, other=0.0)
        taps = taps + (w[None, :],)  # type: ignore[assignment]
    return taps


@triton.jit
def fetch_state(state_ptr, parents, sequences, slots, spans, row, c, channels, TAPS: tl.constexpr):
    """Prefetch the committed inputs of one row in channels ``c``, and the indices leading there."""
    fetch_ahead(parents + row)
    sequence = guess(sequences + row)
    fetch_ahead(spans + 4 * sequence)
    place = guess(slots + sequence) * (TAPS - 1)
    for j in tl.static_range(TAPS - 1):
        fetch_ahead(state_ptr + (place + j)[:, None] * channels + c[None, :])


@triton.jit
def seen_by(
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
    COUNT: tl.constexpr,
):
    """A tuple of COUNT tiles float32 [rows, channels]: the input of each row, the one before it on
    its path, and so on; before the roots come the TAPS - 1 committed inputs."""
    among = (c < channels)[None, :]
    up = row
    missing = tl.zeros_like(row)
    inputs = ()
    for distance in tl.static_range(COUNT):
        if distance > 0:
            up = tl.load(parents + up, mask=inside & (up >= 0), other=-1)
            missing = tl.where(up < 0, missing + 1, 0)
        drawn = (inside & (up >= 0))[:, None] & among
        at = up[:, None] * x_row + c[None, :]
        seen = tl.load(x_ptr + at, mask=drawn, other=0.0).to(tl.float32)
        if distance > 0:
            place = slot * (TAPS - 1) + (TAPS - 1) - missing
            kept = (inside & (up < 0))[:, None] & among
            at = place[:, None] * channels + c[None, :]
            seen = tl.where(drawn, seen, tl.load(state_ptr + at, mask=kept, other=0.0))
        inputs = inputs + (seen,)  # type: ignore[assignment]
    return inputs


@triton.jit
def convolved(seen, taps, TAPS: tl.constexpr):
    """float32 [rows, channels]: the convolution and SiLU of rows."""
    total = taps[0] * seen[0]
    for i in tl.static_range(1, TAPS):
        total += taps[i] * seen[i]
    return silu(total)


@triton.jit
def _leave(state_ptr, slot, seen, inside, c, channels, TAPS: tl.constexpr):
    """Write the last TAPS - 1 inputs, which ``seen`` lists latest first, to slots [rows]."""
    mask = inside[:, None] & (c < channels)[None, :]
    for j in tl.static_range(TAPS - 1):
        at = (slot * (TAPS - 1) + j)[:, None] * channels + c[None, :]
        tl.store(state_ptr + at, seen[TAPS - 2 - j], mask=mask)


@triton.jit
def keep_states(
    seen,
    state_ptr,
    spans,
    store_rows,
    store_slots,
    stores,
    row,
    sequence,
    slot,
    inside,
    c,
    channels,
    TAPS: tl.constexpr,
    SINGLES: tl.constexpr,
    STORES: tl.constexpr,
):
    """Write checkpoints and the states of certain segments of one row, which no other row reads."""
    if STORES:
        for index in range(stores):
            hit = inside & (row == tl.load(store_rows + index))
            target = tl.zeros_like(row) + tl.load(store_slots + index)
            _leave(state_ptr, target, seen, hit, c, channels, TAPS)
    if SINGLES:
        count = tl.load(spans + 4 * sequence + 1, mask=inside, other=0)
        drafted = tl.load(spans + 4 * sequence + 3, mask=inside, other=1)
        alone = inside & (count == 1) & (drafted == 0)
        tl.debug_barrier()
        _leave(state_ptr, slot, seen, alone, c, channels, TAPS)


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
    PDL: tl.constexpr,
):
    """Grid (rows / BR, channels / BC): outputs of all rows, and the states that ``keep_states``
    writes."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = row < rows
    taps = taps_of(weight_ptr, c, channels, TAPS)
    wait_for_producers(PDL)
    sequence = tl.load(sequences + row, mask=inside, other=0)
    slot = tl.load(slots + sequence, mask=inside, other=0)
    seen = seen_by(x_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS, TAPS)
    out = convolved(seen, taps, TAPS)
    at = out_ptr + row[:, None] * channels + c[None, :]
    mask = inside[:, None] & (c < channels)[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=mask)
    keep_states(
        seen,
        state_ptr,
        spans,
        store_rows,
        store_slots,
        stores,
        row,
        sequence,
        slot,
        inside,
        c,
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
    PDL: tl.constexpr,
):
    """Grid (S, channels / BC): states after certain segments of several rows. The launch comes
    after the one whose rows read the old states."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    entry = slices + 3 * tl.program_id(0) + tl.arange(0, 1)
    row = (tl.load(entry) + tl.load(entry + 1) - 1).to(tl.int64)
    slot = tl.load(entry + 2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = row >= 0
    seen = seen_by(x_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS, TAPS - 1)
    tl.debug_barrier()
    _leave(state_ptr, slot, seen, inside, c, channels, TAPS)


@triton.jit(do_not_specialize=["width"])
def commit_kernel(
    x0, x1, x2, x3, x4, x5, x6, x7,
    state0, state1, state2, state3, state4, state5, state6, state7,
    path_ptr,
    kept_ptr,
    slot_ptr,
    channels,
    x_row,
    width,
    TAPS: tl.constexpr, BC: tl.constexpr, SEVERAL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (D, channels / BC, layers): states after the kept rows; a segment that keeps none is
    padding. SEVERAL: whether there is more than one layer."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    x_ptr = of_layer((x0, x1, x2, x3, x4, x5, x6, x7), SEVERAL)
    state_ptr = of_layer(
        (state0, state1, state2, state3, state4, state5, state6, state7), SEVERAL
    )  # fmt: skip
    kept = tl.load(kept_ptr + tl.program_id(0))
    if kept == 0:
        return
    one = tl.arange(0, 1)
    slot = tl.load(slot_ptr + tl.program_id(0) + one)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    among = (c < channels)[None, :]
    seen = ()
    for j in tl.static_range(TAPS - 1):
        # The new state is the last TAPS - 1 of the committed inputs followed by the kept rows.
        place = kept + (TAPS - 2 - j) + one
        drawn = place >= TAPS - 1
        row = tl.load(path_ptr + tl.program_id(0) * width + place - (TAPS - 1), mask=drawn, other=0)
        x = tl.load(
            x_ptr + row[:, None] * x_row + c[None, :], mask=drawn[:, None] & among, other=0.0
        )
        at = (slot * (TAPS - 1) + place)[:, None] * channels + c[None, :]
        old = tl.load(state_ptr + at, mask=(place < TAPS - 1)[:, None] & among, other=0.0)
        new = tl.where(drawn[:, None], x.to(tl.float32), old)
        seen = seen + (new,)  # type: ignore[assignment]
    tl.debug_barrier()
    _leave(state_ptr, slot, seen, one >= 0, c, channels, TAPS)
