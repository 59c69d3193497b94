"""The decode kernel: attention of few rows of a sequence, split into runs of chunks (split-K).

A program processes one key head of one sequence, all query heads that read it, and every
``programs``-th run. Runs and the computation inside them depend only on the sequence, on its length
and its number of rows, and on the ``most`` runs that a step of so many rows allows. Each run stores
a maximum, a sum and weighted values for the combine kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.coded_tiles import CHUNK_POSITIONS, KV_Q4_0, columns
from kinfolk_kernels.dependent import early, start_dependents, wait_for_producers
from kinfolk_kernels.paged_attention.softmax import absorb, load_query, scores

RUNS = ((32, 1), (64, 2), (256, 4))
"""Pairs of a number of chunks, and the chunks of a run for sequences up to that length."""

LONG_RUN = 8
"""Chunks of a run for longer sequences. A run is doubled until there are at most ``MOST_RUNS``."""

MAX_MANY_RUN_ROWS = 8
MOST_RUNS = (256, 32)
"""Most runs of a sequence with at most ``MAX_MANY_RUN_ROWS`` rows, and with more. Every run stores
a result for each row, and with more rows fewer runs fill the device."""

SHORT, MIDDLE, LONG = (tl.constexpr(limit) for limit, _ in RUNS)
RUN_SHORT, RUN_MIDDLE, RUN_LONG = (tl.constexpr(run) for _, run in RUNS)
RUN_LONGEST = tl.constexpr(LONG_RUN)
MOST_FEW, MOST_MANY = (tl.constexpr(most) for most in MOST_RUNS)
MANY_RUN_ROWS = tl.constexpr(MAX_MANY_RUN_ROWS)


MAX_RUN_RESULTS = 4096
"""Most results of runs that a step stores, one for each row, run and head, or one for each row if
there are more rows: so memory has a bound, and a step of many rows fills the device with fewer runs
of each sequence."""


def most_runs_of_step(rows: int) -> int:
    """The most runs of any sequence in a step of ``rows`` rows. The same for all steps of up to 16
    rows, so that their sequences do not depend on the number of rows."""
    return max(1, MAX_RUN_RESULTS >> max(4, (rows - 1).bit_length()))


def most_runs(width: int, rows: int, most_of_step: int) -> int:
    """The largest number of runs of a sequence of at most ``width`` chunks with ``rows`` rows, in a
    step that allows ``most_of_step``."""
    most = -(-width // LONG_RUN) if width > RUNS[-1][0] else 1
    low = 0
    for limit, run in RUNS:
        if width > low:
            most = max(most, -(-min(width, limit) // run))
        low = limit
    return min(most, MOST_RUNS[rows > MAX_MANY_RUN_ROWS], most_of_step)


@triton.jit
def run_length(entries, rows, most_of_step):
    """Chunks in a run of a sequence of ``entries`` chunks, of which a step has ``rows`` rows."""
    most = tl.minimum(tl.where(rows > MANY_RUN_ROWS, MOST_MANY, MOST_FEW), most_of_step)
    run = tl.where(entries > SHORT, RUN_MIDDLE, RUN_SHORT)
    run = tl.where(entries > MIDDLE, RUN_LONG, run)
    run = tl.where(entries > LONG, RUN_LONGEST, run)
    for _ in tl.static_range(0, 12):
        run = tl.where(entries > run * most, run * 2, run)
    return run


@triton.jit
def _leave(
    part_o, part_m, part_l, at, inside, m, total, acc, acc_high, DIM: tl.constexpr,
    SIZE: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Store the results of a run; ``at`` int64 [M] is the index of (row, head, run)."""
    tl.store(part_m + at, m, mask=inside)
    tl.store(part_l + at, total, mask=inside)
    low = columns(SIZE, FORMAT, 0)
    where = part_o + at[:, None] * DIM
    tl.store(where + low[None, :], acc, mask=inside[:, None] & (low < DIM)[None, :])
    if FORMAT == KV_Q4_0:
        high = columns(SIZE, FORMAT, 1)
        tl.store(where + high[None, :], acc_high, mask=inside[:, None] & (high < DIM)[None, :])


@triton.jit
def _arena_run(
    mine, q, q_high, row, inside, newest, rows, start, head, out, positions, ancestors, arena_rows,
    k_ptr, k_scales, k_block, ks_block, v_ptr, v_scales, v_block, vs_block,
    part_o, part_m, part_l, scale, window,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    K_ROW: tl.constexpr, V_ROW: tl.constexpr, K_FORMAT: tl.constexpr, V_FORMAT: tl.constexpr,
    DOT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Attention to the rows of a tree in the arena, as a run of its own, if the run is ``mine``: a
    row sees its ancestors and itself."""
    if mine & (tl.load(arena_rows + start) >= 0):
        VALUE_PART: tl.constexpr = VALUE_SIZE // 2 if V_FORMAT == KV_Q4_0 else VALUE_SIZE
        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, VALUE_PART], tl.float32)
        acc_high = tl.zeros([BLOCK_M, VALUE_PART if V_FORMAT == KV_Q4_0 else 1], tl.float32)
        seen = tl.load(ancestors + row, mask=inside, other=0)
        for step in range(0, tl.cdiv(rows, BLOCK_N)):
            other = step * BLOCK_N + tl.arange(0, BLOCK_N)
            real = other < rows
            held = tl.load(arena_rows + start + other, mask=real, other=0)
            visible = real[None, :] & (((seen[:, None] >> other[None, :]) & 1) != 0)
            if WINDOW:
                place = tl.load(positions + start + other, mask=real, other=0).to(tl.int32)
                visible = visible & (place[None, :] > newest[:, None] - window)
            block = held // CHUNK_POSITIONS
            offset = head * CHUNK_POSITIONS + held % CHUNK_POSITIONS
            s = scores(
                q, q_high, k_ptr, k_scales, block * k_block + offset * K_ROW,
                block * ks_block + offset * (DIM // 32), real, DIM, SIZE, K_FORMAT, True,
            )  # fmt: skip
            s = tl.where(visible, s * scale, float("-inf"))
            m, total, acc, acc_high = absorb(
                s, m, total, acc, acc_high, v_ptr, v_scales, block * v_block + offset * V_ROW,
                block * vs_block + offset * (VALUE_DIM // 32), real, VALUE_DIM, VALUE_SIZE,
                V_FORMAT, DOT, True,
            )  # fmt: skip
        _leave(
            part_o, part_m, part_l, out, inside, m, total, acc, acc_high, VALUE_DIM, VALUE_SIZE,
            V_FORMAT,
        )  # fmt: skip


@triton.jit(do_not_specialize=["table_width", "slots", "tiles", "window", "most"])
def decode_kernel(
    q_ptr, positions, limits, ancestors, arena_rows, spans, entries, short,
    blocks, chunks, table_width,
    k_ptr, k_scales, k_block, ks_block, v_ptr, v_scales, v_block, vs_block,
    ak_ptr, ak_scales, ak_block, aks_block, av_ptr, av_scales, av_block, avs_block,
    part_o, part_m, part_l, slots, tiles, most, q_row, q_head, scale, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, K_ROW: tl.constexpr, V_ROW: tl.constexpr,
    K_FORMAT: tl.constexpr, V_FORMAT: tl.constexpr, DOT: tl.constexpr,
    ABOVE: tl.constexpr, UP_TO: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr, TREES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (key heads x tiles; sequences; programs for runs, plus one for the arena if TREES).

    Tiles of a sequence are neighbours in the grid, so that keys and values are in the cache for the
    second one. The first programs of all sequences come first: later ones may have no run, and the
    device has no room for all at the same time. Processes sequences with more than ABOVE and up to
    UP_TO pairs of a row and a query head of the group. K_ROW and V_ROW are the elements of a stored
    row, or its bytes of codes. ``scale`` includes log2 e.
    """
    start_dependents(PDL)
    sequence = early(short + tl.program_id(1))
    start, rows = early(spans + 4 * sequence), early(spans + 4 * sequence + 1)
    n = early(entries + sequence)
    pairs = rows * GROUP
    head = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    program = tl.program_id(2)
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = pair < pairs
    row = start + pair // GROUP
    newest = early(positions + row, inside).to(tl.int32)
    limit = tl.where(inside, early(limits + row, inside), -1).to(tl.int32)
    run = run_length(n, rows, most)
    table = sequence.to(tl.int64) * table_width
    next_block = early(blocks + table + program * run, program * run < n)
    next_chunk = early(chunks + table + program * run, program * run < n)
    wait_for_producers(PDL)
    if (pairs <= ABOVE) | (pairs > UP_TO) | (tile * BLOCK_M >= pairs):
        return
    q_heads = head * GROUP + pair % GROUP
    q, q_high = load_query(
        q_ptr, row.to(tl.int64) * q_row + q_heads * q_head, inside, DIM, SIZE, K_FORMAT, DOT
    )
    out = (row.to(tl.int64) * (KV_HEADS * GROUP) + q_heads) * slots
    VALUE_PART: tl.constexpr = VALUE_SIZE // 2 if V_FORMAT == KV_Q4_0 else VALUE_SIZE
    HIGH_PART: tl.constexpr = VALUE_PART if V_FORMAT == KV_Q4_0 else 1
    programs = tl.num_programs(2)
    if TREES:
        programs = programs - 1
    if program < programs:
        latest = tl.max(limit)
        # No row sees positions up to this one.
        oldest = tl.min(tl.where(inside, newest, 2147483647)) - window
        parts: tl.constexpr = 64 // BLOCK_N
        for number in range(program, tl.cdiv(n, run), programs):
            m = tl.full([BLOCK_M], float("-inf"), tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            acc = tl.zeros([BLOCK_M, VALUE_PART], tl.float32)
            acc_high = tl.zeros([BLOCK_M, HIGH_PART], tl.float32)
            end = tl.minimum((number + 1) * run, n) * parts
            for step in range(number * run * parts, end):
                block = next_block.to(tl.int64)
                chunk = next_chunk
                # The next block is loaded one step ahead, so that loads of keys do not wait for it.
                entry = tl.where(step + 1 < end, (step + 1) // parts, (number + programs) * run)
                entry = tl.minimum(entry, n - 1)
                next_block = tl.load(blocks + table + entry)
                next_chunk = tl.load(chunks + table + entry)
                offset = step % parts * BLOCK_N + tl.arange(0, BLOCK_N)
                place = chunk * CHUNK_POSITIONS + offset
                seen = place <= latest
                visible = place[None, :] <= limit[:, None]
                if WINDOW:
                    seen = seen & (place > oldest)
                    visible = visible & (place[None, :] > newest[:, None] - window)
                s = scores(
                    q, q_high, k_ptr + block * k_block + head * CHUNK_POSITIONS * K_ROW,
                    k_scales + block * ks_block + head * CHUNK_POSITIONS * (DIM // 32),
                    offset * K_ROW, offset * (DIM // 32), seen, DIM, SIZE, K_FORMAT, True,
                )  # fmt: skip
                s = tl.where(visible, s * scale, float("-inf"))
                m, total, acc, acc_high = absorb(
                    s, m, total, acc, acc_high,
                    v_ptr + block * v_block + head * CHUNK_POSITIONS * V_ROW,
                    v_scales + block * vs_block + head * CHUNK_POSITIONS * (VALUE_DIM // 32),
                    offset * V_ROW, offset * (VALUE_DIM // 32), seen,
                    VALUE_DIM, VALUE_SIZE, V_FORMAT, DOT, True,
                )  # fmt: skip
            _leave(
                part_o, part_m, part_l, out + number, inside, m, total, acc, acc_high, VALUE_DIM,
                VALUE_SIZE, V_FORMAT,
            )  # fmt: skip
    if TREES:
        _arena_run(
            program == programs, q, q_high, row, inside, newest, rows, start, head, out + slots - 1,
            positions, ancestors, arena_rows, ak_ptr, ak_scales, ak_block, aks_block, av_ptr,
            av_scales, av_block, avs_block, part_o, part_m, part_l, scale, window, DIM, VALUE_DIM,
            SIZE, VALUE_SIZE, K_ROW, V_ROW, K_FORMAT, V_FORMAT, DOT, BLOCK_M, BLOCK_N, WINDOW,
        )  # fmt: skip
