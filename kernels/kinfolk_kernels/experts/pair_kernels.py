"""Expert kernels for few rows: int8 dot products of each row with the matrices of its experts.

A pair is a row and one of its experts; the shared expert is one more pair of every row, with
matrices of its own. A lane's 16-byte load is one word of four rows of a matrix. All words of a lane
are loaded before any is used: the row of x is read behind a barrier, which keeps the compiler from
moving each load to its use. Neither the order of a sum nor the rounding depends on other rows of
the step. Programs of different rows process the same part of the matrices at the same time, so an
expert that several rows chose is read from memory once.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import activation, sigmoid
from kinfolk_kernels.dependent import early, start_dependents, wait_for_producers
from kinfolk_kernels.experts.far_records import moved, record_of
from kinfolk_kernels.linear.int8_dots import Q8_0, scaled_dots
from kinfolk_kernels.plane_words import codes_of, columns, load, matrix_words, row_words
from kinfolk_kernels.row_outputs import WHOLE

NO_SHARED_EXPERT = tl.constexpr(-1)
"""The format that stands for "no shared expert"."""


@triton.jit
def _packed(values, inverse, ASM: tl.constexpr):
    """Numbers [lanes, 4] times ``inverse`` -> words of four signed bytes [lanes, 1]."""
    bits = (values * inverse + WHOLE).to(tl.int32, bitcast=True)
    even, odd = tl.split(tl.reshape(bits, [bits.shape[0], 2, 2]))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    if ASM:
        word = tl.inline_asm_elementwise(
            """{
            .reg .b32 low, high;
            prmt.b32 low, $1, $2, 0x0040; prmt.b32 high, $3, $4, 0x0040;
            prmt.b32 $0, low, high, 0x5410;
            }""",
            "=r,r,r,r,r",
            [a, b, c, d],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        word = (a & 255) | ((b & 255) << 8) | ((c & 255) << 16) | (d << 24)
    return word[:, None]


@triton.jit
def place_between(channel, F: tl.constexpr):
    """The place of a channel in a row of ``inner``, between the two products: numbers that
    neighbouring lanes read at once are contiguous."""
    word = channel % 64 // 4
    lane = channel // 64 * 2 + word % 2
    return (word // 2 * (F // 32) + lane) * 4 + channel % 4


@triton.jit
def row_numbers(
    inner_ptr, group, t, there, F: tl.constexpr, FORMAT: tl.constexpr, MASKED: tl.constexpr
):
    """The numbers of a row of F float32 to multiply a lane's words with, [lanes, 4] each."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    values = ()
    for i in tl.static_range(4 if EIGHT else 8):
        # 8-bit codes: words t, t + 4, t + 8 and t + 12 of a group; 4-bit codes: every second word.
        word = t + 4 * i if EIGHT else t + 2 * i
        at = place_between(64 * group + 4 * word, F) + tl.arange(0, 4)[None, :]
        values = values + (load(inner_ptr + at, there, MASKED),)
    return values


@triton.jit
def rounded(values, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """``row_numbers`` rounded to int8 words, as ``row_words`` returns them, with one scale for the
    numbers of each lane."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    COUNT: tl.constexpr = 4 if EIGHT else 8
    largest = tl.abs(values[0])
    for i in tl.static_range(1, COUNT):
        largest = tl.maximum(largest, tl.abs(values[i]))
    scale = tl.max(largest, 1)[:, None] / 127.0
    inverse = tl.where(scale > 0, 1.0 / tl.where(scale > 0, scale, 1.0), 0.0)
    x = (_packed(values[0], inverse, ASM),)
    for i in tl.static_range(1, 4):
        x = x + (_packed(values[i], inverse, ASM),)
    top = x
    if not EIGHT:
        top = (_packed(values[4], inverse, ASM),)
        for i in tl.static_range(5, 8):
            top = top + (_packed(values[i], inverse, ASM),)
    return x, top, scale


@triton.jit
def round_kernel(
    inner_ptr, words_ptr, scale_ptr,
    F: tl.constexpr, FORMAT: tl.constexpr, LANES: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (pairs,): round ``inner`` to int8 once, for all programs of the product with down."""
    start_dependents(PDL)
    SHARE: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    OWN: tl.constexpr = F // 64 * SHARE
    lane = tl.arange(0, LANES)[:, None]
    pair = tl.program_id(0).to(tl.int64)
    there = lane < OWN
    wait_for_producers(PDL)
    values = row_numbers(
        inner_ptr + pair * F, lane // SHARE, lane % SHARE, there, F, FORMAT, LANES != OWN
    )
    x, top, scale = rounded(values, FORMAT, ASM)
    at = pair * OWN + lane
    for i in tl.static_range(4):
        if FORMAT == Q8_0:
            tl.store(words_ptr + at * 4 + i, x[i], mask=there)
        else:
            tl.store(words_ptr + at * 8 + i, x[i], mask=there)
            tl.store(words_ptr + at * 8 + 4 + i, top[i], mask=there)
    tl.store(scale_ptr + at, scale, mask=there)


@triton.jit
def made_before(words_ptr, scale_ptr, at, there, FORMAT: tl.constexpr, MASKED: tl.constexpr):
    """The words and scale that ``round_kernel`` stored for lane ``at``."""
    word = tl.arange(0, 4)[None, :]
    scale = load(scale_ptr + at, there, MASKED)
    if FORMAT == Q8_0:
        x = columns(load(words_ptr + at * 4 + word, there, MASKED))
        return x, x, scale
    x = columns(load(words_ptr + at * 8 + word, there, MASKED))
    return x, columns(load(words_ptr + at * 8 + 4 + word, there, MASKED)), scale


@triton.jit
def dots(words, row, group, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """Dot products of the words of ``matrix_words`` with those of a row, times its scale:
    [lanes, 4]."""
    q, high, scales, supers = words
    x, top, d = row
    codes, tops = codes_of(q, high, group, FORMAT, ASM)
    return scaled_dots(codes, tops, x, top, scales, supers, FORMAT, ASM) * d


@triton.jit
def gate_up(
    gate_q, gate_high, gate_scales, gate_supers,
    up_q, up_high, up_scales, up_supers,
    x_row, d_row, d_step, first, inner_row,
    K: tl.constexpr, F: tl.constexpr, FORMAT: tl.constexpr, ACTIVATION: tl.constexpr,
    NR: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """activation(gate x) * up x of NR groups of four channels of a pair, each in LANES lanes."""
    SHARE: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    lane = tl.arange(0, NR * LANES)[:, None]
    quad = first
    if NR > 1:
        quad = first + lane // LANES
        lane = lane % LANES
    t = lane % SHARE
    gate = tl.zeros([NR * LANES, 4], tl.float32)
    up = tl.zeros([NR * LANES, 4], tl.float32)
    for start in tl.range(0, K // 64, LANES // SHARE):
        group = start + lane // SHARE
        there = group < K // 64
        gate_words = matrix_words(gate_q, gate_high, gate_scales, gate_supers,
                                  quad, group, t, there, K, FORMAT, MASKED)  # fmt: skip
        up_words = matrix_words(up_q, up_high, up_scales, up_supers,
                                quad, group, t, there, K, FORMAT, MASKED)  # fmt: skip
        tl.debug_barrier()
        x, top = row_words(x_row, group, t, there, FORMAT, MASKED)
        row = (x, top, load(d_row + group * d_step, there, MASKED))
        gate += dots(gate_words, row, group, FORMAT, ASM)
        up += dots(up_words, row, group, FORMAT, ASM)
    both = tl.reshape(tl.join(gate, up), [NR, LANES, 4, 2])
    gate, up = tl.split(tl.sum(both, 1))
    channel = (first + tl.arange(0, NR)[:, None]) * 4 + tl.arange(0, 4)[None, :]
    tl.store(inner_row + place_between(channel, F), activation(gate, ACTIVATION) * up)


@triton.jit
def openness(x_row, gate_ptr, K: tl.constexpr, LANES: tl.constexpr):
    """The sigmoid of the product of a row with a vector, both of K numbers."""
    column = tl.arange(0, 16 * LANES)
    total = tl.zeros([16 * LANES], tl.float32)
    for start in tl.range(0, K, 16 * LANES):
        inside = start + column < K
        x = tl.load(x_row + start + column, mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(gate_ptr + start + column, mask=inside, other=0.0)
    return sigmoid(tl.sum(total, 0))


@triton.jit(do_not_specialize=["pairs", "near", "d_step", "record"])
def gate_up_kernel(
    x_ptr, d_ptr, numbers_ptr, ids_ptr, bay_ptr, rows_ptr,
    gate_q, gate_high, gate_scales, gate_supers,
    up_q, up_high, up_scales, up_supers,
    shared_gate_q, shared_gate_high, shared_gate_scales, shared_gate_supers,
    shared_up_q, shared_up_high, shared_up_scales, shared_up_supers,
    far_ptr, shared_gate_ptr,
    inner_ptr, shared_inner_ptr, open_ptr,
    pairs, near,
    d_step, numbers_row, record, q_step, high_step, scales_step, supers_step,
    K: tl.constexpr, F: tl.constexpr, SHARED_F: tl.constexpr, TOP_K: tl.constexpr,
    FORMAT: tl.constexpr, SHARED: tl.constexpr,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, MASKED: tl.constexpr,
    FAR: tl.constexpr, GAPS: tl.constexpr, PADDED: tl.constexpr,
    NR: tl.constexpr, LANES: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (pairs + rows, parts): inner float32 [pairs, F] of the pairs and [rows, SHARED_F] of the
    shared expert, and open float32 [rows], its gate, computed by the part after its last channel.

    ``bays`` describes what leads to far bays, and FAR, GAPS and PADDED. Nothing is stored for
    absent experts and padding rows.
    """
    pair = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * NR
    wait_for_producers(PDL)
    start_dependents(PDL)
    if pair < pairs:
        row = pair // TOP_K
        there = first < F // 4
        # Neither load waits for the other, and both find in the first-level cache what the
        # programs before have read.
        expert = tl.load(ids_ptr + pair)
        if PADDED:
            there &= row < tl.load(rows_ptr)
        bay = tl.load(bay_ptr + expert, mask=there, other=-1).to(tl.int64)
        if GAPS:
            there &= bay >= 0
        if there:
            if FAR:
                at = record_of(bay, gate_q, far_ptr, near, record)
                gate = (moved(gate_q, at), moved(gate_high, at),
                        moved(gate_scales, at), moved(gate_supers, at))  # fmt: skip
                up = (moved(up_q, at), moved(up_high, at),
                      moved(up_scales, at), moved(up_supers, at))  # fmt: skip
            else:
                q_at, high_at = bay * q_step, bay * high_step
                scales_at, supers_at = bay * scales_step, bay * supers_step
                gate = (gate_q + q_at, gate_high + high_at,
                        gate_scales + scales_at, gate_supers + supers_at)  # fmt: skip
                up = (up_q + q_at, up_high + high_at,
                      up_scales + scales_at, up_supers + supers_at)  # fmt: skip
            gate_up(
                gate[0], gate[1], gate[2], gate[3],
                up[0], up[1], up[2], up[3],
                x_ptr + row * (K // 4), d_ptr + row, d_step, first, inner_ptr + pair * F,
                K, F, FORMAT, ACTIVATION, NR, LANES, MASKED, ASM,
            )  # fmt: skip
    elif SHARED != NO_SHARED_EXPERT:
        row = pair - pairs
        if first < SHARED_F // 4:
            gate_up(
                shared_gate_q, shared_gate_high, shared_gate_scales, shared_gate_supers,
                shared_up_q, shared_up_high, shared_up_scales, shared_up_supers,
                x_ptr + row * (K // 4), d_ptr + row, d_step, first,
                shared_inner_ptr + row * SHARED_F,
                K, SHARED_F, SHARED, ACTIVATION, NR, LANES, MASKED, ASM,
            )  # fmt: skip
        elif GATED and first == SHARED_F // 4:
            share = openness(numbers_ptr + row * numbers_row, shared_gate_ptr, K, LANES)
            tl.store(open_ptr + row, share)


@triton.jit
def _pair_at(row, lane, OWN: tl.constexpr, TOP_K: tl.constexpr):
    """The pair of a row whose words lane ``lane`` has, of OWN lanes for each; the last one for
    lanes behind."""
    return row * TOP_K + tl.minimum(lane // OWN, TOP_K - 1)


@triton.jit
def _bay_of(bay_ptr, expert, real, FAR: tl.constexpr, GAPS: tl.constexpr):
    """The bays of experts; -1 for padding rows. Only a map with far experts changes, in a launch
    that the one of gate and up has waited for, or in that one, which releases it."""
    if not GAPS:
        bay = tl.load(bay_ptr + expert)
    elif FAR:
        bay = tl.where(real, early(bay_ptr + expert, real), -1)
    else:
        bay = tl.load(bay_ptr + expert, mask=real, other=-1)
    return bay.to(tl.int64)


@triton.jit(do_not_specialize=["near", "record"])
def down_kernel(
    inner_ptr, words_ptr, scale_ptr, shared_inner_ptr, open_ptr,
    ids_ptr, weights_ptr, bay_ptr, rows_ptr,
    down_q, down_high, down_scales, down_supers,
    shared_q, shared_high, shared_scales, shared_supers,
    far_ptr,
    y_ptr,
    near,
    record, q_step, high_step, scales_step, supers_step,
    F: tl.constexpr, W: tl.constexpr, SHARED_F: tl.constexpr, TOP_K: tl.constexpr,
    FORMAT: tl.constexpr, SHARED: tl.constexpr,
    GATED: tl.constexpr, EARLY: tl.constexpr, ROUNDED: tl.constexpr, MASKED: tl.constexpr,
    FAR: tl.constexpr, GAPS: tl.constexpr, PADDED: tl.constexpr,
    NR: tl.constexpr, LANES: tl.constexpr, SPAN: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, W / 4 / NR): y float32 [rows, W], the weighted sum over a row's experts.

    The words of a row's experts are distributed over the lanes one after the other, and one sum of
    fixed shape adds columns and experts. SPAN lanes process the shared expert. EARLY: its words are
    loaded before ``inner`` is available. ROUNDED: ``round_kernel`` has rounded ``inner``. ``bays``
    describes what leads to far bays, and FAR, GAPS and PADDED.
    """
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * NR
    lane = tl.arange(0, LANES)[:, None]
    sums = (tl.zeros([LANES, 4], tl.float32),)
    for _ in tl.static_range(1, NR):
        sums = sums + (tl.zeros([LANES, 4], tl.float32),)
    # Each lane reads words of the shared expert for one group of four rows only.
    SHARED_SHARE: tl.constexpr = 4 if SHARED == Q8_0 else 2
    part, shared_t = lane // SPAN, lane % SHARED_SHARE
    shared_group = lane % SPAN // SHARED_SHARE
    shared_there = (part < NR) & (shared_group < SHARED_F // 64)
    shared_quad = first + tl.minimum(part, NR - 1)
    if SHARED != NO_SHARED_EXPERT and EARLY:
        shared_words = matrix_words(shared_q, shared_high, shared_scales, shared_supers,
                                    shared_quad, shared_group, shared_t, shared_there,
                                    SHARED_F, SHARED, True)  # fmt: skip
    SHARE: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    OWN: tl.constexpr = F // 64 * SHARE
    # The step may have written near bays: in a launch that gate and up have waited for, or in that
    # launch itself, which may still run, but has released this matrix.
    CACHE: tl.constexpr = ".cg" if FAR else ""
    # The ids are written: the gate and up launch waited for them before it let this one start.
    # Those of the next turn are loaded while this one's words are on their way.
    expert = early(ids_ptr + _pair_at(row, lane, OWN, TOP_K))
    real = lane >= 0
    if PADDED:
        real = lane < tl.where(row < early(rows_ptr), LANES, 0)
    bay = _bay_of(bay_ptr, expert, real, FAR, GAPS)
    for start in tl.range(0, TOP_K * OWN, LANES):
        place, inside = (start + lane) // OWN, (start + lane) % OWN
        group, t = inside // SHARE, inside % SHARE
        there = place < TOP_K
        pair = _pair_at(row, start + lane, OWN, TOP_K)
        expert = early(ids_ptr + _pair_at(row, start + LANES + lane, OWN, TOP_K))
        if GAPS:
            there &= bay >= 0
        if FAR:
            at = record_of(bay, down_q, far_ptr, near, record)
            planes = (moved(down_q, at), moved(down_high, at),
                      moved(down_scales, at), moved(down_supers, at))  # fmt: skip
        else:
            planes = (down_q + bay * q_step, down_high + bay * high_step,
                      down_scales + bay * scales_step, down_supers + bay * supers_step)  # fmt: skip
        words = ()
        for n in tl.static_range(NR):
            words = words + (
                matrix_words(
                    planes[0], planes[1], planes[2], planes[3],
                    first + n, group, t, there, F, FORMAT, MASKED, CACHE,
                ),
            )  # fmt: skip
        wait_for_producers(PDL)
        tl.debug_barrier()
        bay = _bay_of(bay_ptr, expert, real, FAR, GAPS)
        weight = load(weights_ptr + pair, there, GAPS)
        if ROUNDED:
            x, top, d = made_before(
                words_ptr, scale_ptr, pair * OWN + inside, there, FORMAT, MASKED
            )
        else:
            values = row_numbers(inner_ptr + pair * F, group, t, there, F, FORMAT, MASKED)
            x, top, d = rounded(values, FORMAT, ASM)
        mine = (x, top, d * weight)
        added = ()
        for n in tl.static_range(NR):
            added = added + (sums[n] + dots(words[n], mine, group, FORMAT, ASM),)
        sums = added
    wait_for_producers(PDL)
    if SHARED != NO_SHARED_EXPERT:
        if not EARLY:
            shared_words = matrix_words(shared_q, shared_high, shared_scales, shared_supers,
                                        shared_quad, shared_group, shared_t, shared_there,
                                        SHARED_F, SHARED, True)  # fmt: skip
            tl.debug_barrier()
        values = row_numbers(shared_inner_ptr + row * SHARED_F, shared_group, shared_t,
                             shared_there, SHARED_F, SHARED, True)  # fmt: skip
        x, top, d = rounded(values, SHARED, ASM)
        if GATED:
            d = d * tl.load(open_ptr + row)
        product = dots(shared_words, (x, top, d), shared_group, SHARED, ASM)
        added = ()
        for n in tl.static_range(NR):
            added = added + (sums[n] + tl.where(part == n, product, 0.0),)
        sums = added
    for n in tl.static_range(NR):
        out = y_ptr + row * W + (first + n) * 4 + tl.arange(0, 4)
        tl.store(out, tl.sum(sums[n], 0))
