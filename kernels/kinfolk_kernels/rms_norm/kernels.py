"""The kernels of root-mean-square normalisation.

Rows are processed in tiles of groups of 64 columns, four columns in each lane; see ``columns_of``.
The order of arguments is not that of other kernels: with inputs before weights, the compiler
schedules ``norm_kernel`` so that it takes 1.69 us instead of 1.60 us (one row of 2048, H200).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import ACTIVATION_BOUND, silu
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.mma_rows import largest, power_of_two, store_mma
from kinfolk_kernels.row_outputs import columns_of, lanes_of, load_groups, store_groups


@triton.jit
def _sum(x):
    """The sums [rows] of a tile's rows."""
    return tl.sum(tl.sum(tl.sum(x, 3), 2), 1)


@triton.jit
def _factors(weight_ptr, first, width, GROUPS: tl.constexpr, ROWS: tl.constexpr):
    """Weights of GROUPS groups from column ``first`` on as float32 [1, GROUPS, 16, 4], 0 outside,
    in the lanes of tiles of ROWS rows."""
    column = lanes_of(first, GROUPS) if ROWS == 1 else columns_of(first, GROUPS)
    weights = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    return tl.reshape(weights, [1, GROUPS, 16, 4])


@triton.jit
def _tiles_of_factors(
    weight_ptr,
    first,
    width,
    TILES: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    WEIGHT: tl.constexpr,
):
    """Weights of TILES tiles from the ``first`` on; an empty tuple without WEIGHT."""
    weights = ()
    if WEIGHT:
        for i in tl.static_range(TILES):
            tile = _factors(weight_ptr, (first + i) * (GROUPS * 64), width, GROUPS, ROWS)
            weights = weights + (tile,)  # type: ignore[assignment]
    return weights


@triton.jit
def _load_rows(pointer, at, live, width, TILES: tl.constexpr, GROUPS: tl.constexpr):
    """Rows as a tuple of TILES tiles."""
    tiles = ()
    for i in tl.static_range(TILES):
        tile = load_groups(pointer, at, live, i * GROUPS * 64, width, GROUPS, False)
        tiles = tiles + (tile,)  # type: ignore[assignment]
    return tiles


@triton.jit
def _inverse(tiles, width, eps, TILES: tl.constexpr):
    """The inverse root mean square of rows in tiles, [rows, 1, 1, 1]."""
    squares = tiles[0] * tiles[0]
    for i in tl.static_range(1, TILES):
        squares += tiles[i] * tiles[i]
    return tl.rsqrt(_sum(squares) / width + eps)[:, None, None, None]


@triton.jit
def _normed(tiles, weights, width, eps, TILES: tl.constexpr, WEIGHT: tl.constexpr):
    """The norm of rows in tiles: rows over their root mean square, times the weights."""
    inverse = _inverse(tiles, width, eps, TILES)
    normed = ()
    for i in tl.static_range(TILES):
        y = tiles[i] * inverse
        if WEIGHT:
            y *= weights[i]
        normed = normed + (y,)  # type: ignore[assignment]
    return normed


@triton.jit
def _sums(a, b, factor, TILES: tl.constexpr):
    """(a + b) * factor, tile by tile."""
    total = ()
    for i in tl.static_range(TILES):
        total = total + ((a[i] + b[i]) * factor,)  # type: ignore[assignment]
    return total


@triton.jit
def _store_factor(amax, row, live, factor_ptr):
    """What rows are multiplied by for ``MmaRows``, [rows, 1, 1, 1], from their largest size [rows].
    Stores their factors."""
    factor, inverse = power_of_two(amax)
    tl.store(factor_ptr + row, inverse, mask=live)
    return factor[:, None, None, None]


@triton.jit
def _mma_factor(
    x, inverse, weights, row, live, factor_ptr,
    TILES: tl.constexpr, WEIGHT: tl.constexpr, MMA: tl.constexpr, THERE: tl.constexpr,
):  # fmt: skip
    """``_store_factor`` of the norms of rows in tiles, if they are stored as ``MmaRows``."""
    factor = 1.0
    if MMA and THERE:
        most = tl.abs(x[0] * weights[0]) if WEIGHT else tl.abs(x[0])
        for i in tl.static_range(1, TILES):
            most = tl.maximum(most, tl.abs(x[i] * weights[i]) if WEIGHT else tl.abs(x[i]))
        # Before the inverse is known: both reductions can run at the same time.
        amax = largest(most) * tl.reshape(inverse, [x[0].shape[0]])
        factor = _store_factor(amax, row, live, factor_ptr)
    return factor


@triton.jit
def _store_norm(
    y, weights, i: tl.constexpr, factor, row, live, first, width, out_ptr, words_ptr, scale_ptr,
    scale_step, WEIGHT: tl.constexpr, VALUES: tl.constexpr, INT8: tl.constexpr, MMA: tl.constexpr,
):  # fmt: skip
    """Store a tile of normalised rows ``y``, times the weights of tile ``i``; ``factor``: see
    ``_mma_factor``."""
    if WEIGHT:
        y = y * weights[i]
    store_groups(
        y, row * width, live, first, width, out_ptr, words_ptr, scale_ptr, row, scale_step,
        VALUES, INT8, False,
    )  # fmt: skip
    if MMA:
        store_mma(y * factor, row, live, first, width, words_ptr, MMA)


@triton.jit(do_not_specialize=["rows", "scale_step"])
def norm_kernel(
    x_ptr, weight0_ptr, weight1_ptr, weight2_ptr,
    branch_ptr, branch_weight_ptr, second_ptr, first_weight_ptr, second_weight_ptr, factor_ptr,
    sum_ptr,
    out0_ptr, words0_ptr, scale0_ptr,
    out1_ptr, words1_ptr, scale1_ptr,
    out2_ptr, words2_ptr, scale2_ptr, scale_step,
    rows, inner, width,
    outer_stride, inner_stride, branch_row, second_row,
    eps, branch_eps, first_eps, second_eps,
    NORMS: tl.constexpr, WEIGHT0: tl.constexpr, WEIGHT1: tl.constexpr, WEIGHT2: tl.constexpr,
    BRANCH: tl.constexpr, BRANCH_NORM: tl.constexpr, BRANCH_WEIGHT: tl.constexpr,
    PARTS: tl.constexpr, FIRST_WEIGHT: tl.constexpr, SECOND_WEIGHT: tl.constexpr,
    FACTOR: tl.constexpr, VALUES: tl.constexpr, INT8: tl.constexpr,
    MMA: tl.constexpr,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, TILES: tl.constexpr, OWN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows / ROWS, TILES / OWN): NORMS norms of the rows of x [rows / inner, inner, width],
    each with its own weight; with BRANCH, norms of (x + branch) * factor, which is stored in
    ``sum``. With PARTS, the branch is the sum of two rows, each normed. With BRANCH_NORM, the
    branch itself is normed. Every program reads whole rows and writes OWN of their TILES tiles of
    GROUPS * 64 columns. With MMA tiles of eight rows, norms are also stored as ``MmaRows``, by
    programs that own all tiles."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    mine = tl.program_id(1) * OWN
    weights0 = _tiles_of_factors(weight0_ptr, mine, width, OWN, GROUPS, ROWS, WEIGHT0)
    weights1 = _tiles_of_factors(weight1_ptr, mine, width, OWN, GROUPS, ROWS, WEIGHT1)
    weights2 = _tiles_of_factors(weight2_ptr, mine, width, OWN, GROUPS, ROWS, WEIGHT2)
    after = _tiles_of_factors(branch_weight_ptr, 0, width, TILES, GROUPS, ROWS, BRANCH_WEIGHT)
    first_weights = _tiles_of_factors(first_weight_ptr, 0, width, TILES, GROUPS, ROWS, FIRST_WEIGHT)
    second_weights = _tiles_of_factors(
        second_weight_ptr, 0, width, TILES, GROUPS, ROWS, SECOND_WEIGHT
    )
    factor = 1.0
    if FACTOR:
        factor = tl.load(factor_ptr).to(tl.float32)
    wait_for_producers(PDL)
    at = row // inner * outer_stride + row % inner * inner_stride
    x = _load_rows(x_ptr, at, live, width, TILES, GROUPS)
    if BRANCH:
        branch = _load_rows(branch_ptr, row * branch_row, live, width, TILES, GROUPS)
        if PARTS:
            second = _load_rows(second_ptr, row * second_row, live, width, TILES, GROUPS)
            branch = _sums(
                _normed(branch, first_weights, width, first_eps, TILES, FIRST_WEIGHT),
                _normed(second, second_weights, width, second_eps, TILES, SECOND_WEIGHT),
                1.0, TILES,
            )  # fmt: skip
        if BRANCH_NORM:
            branch = _normed(branch, after, width, branch_eps, TILES, BRANCH_WEIGHT)
        x = _sums(x, branch, factor, TILES)
    inverse = _inverse(x, width, eps, TILES)
    factor0 = _mma_factor(
        x, inverse, weights0, row, live, scale0_ptr, TILES, WEIGHT0, MMA, NORMS > 0
    )
    factor1 = _mma_factor(
        x, inverse, weights1, row, live, scale1_ptr, TILES, WEIGHT1, MMA, NORMS > 1
    )
    factor2 = _mma_factor(
        x, inverse, weights2, row, live, scale2_ptr, TILES, WEIGHT2, MMA, NORMS > 2
    )
    for i in tl.static_range(OWN):
        first = (mine + i) * (GROUPS * 64)
        y = x[i]
        if OWN < TILES:
            for other in tl.static_range(1, TILES):
                y = tl.where(mine + i == other, x[other], y)
        if BRANCH:
            store_groups(
                y, row * width, live, first, width, sum_ptr, sum_ptr,
                sum_ptr, row, scale_step, True, False, False,
            )  # fmt: skip
        y = y * inverse
        if NORMS > 0:
            _store_norm(
                y, weights0, i, factor0, row, live, first, width, out0_ptr, words0_ptr,
                scale0_ptr, scale_step, WEIGHT0, VALUES, INT8, MMA,
            )  # fmt: skip
        if NORMS > 1:
            _store_norm(
                y, weights1, i, factor1, row, live, first, width, out1_ptr, words1_ptr,
                scale1_ptr, scale_step, WEIGHT1, VALUES, INT8, MMA,
            )  # fmt: skip
        if NORMS > 2:
            _store_norm(
                y, weights2, i, factor2, row, live, first, width, out2_ptr, words2_ptr,
                scale2_ptr, scale_step, WEIGHT2, VALUES, INT8, MMA,
            )  # fmt: skip


@triton.jit
def _head_weight(weight_ptr, DIM: tl.constexpr, HEADS: tl.constexpr):
    """The weight [DIM] of each of HEADS heads, float32 [HEADS, DIM / 64, 16, 4]."""
    column = lanes_of(0, HEADS * DIM // 64) % DIM
    return tl.reshape(tl.load(weight_ptr + column).to(tl.float32), [HEADS, DIM // 64, 16, 4])


@triton.jit
def _gated(
    x_ptr, gate_ptr, weight, row, first, width, gate_row, eps,
    DIM: tl.constexpr, HEADS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Norms of HEADS heads of a row [1] from column ``first`` on, times silu(gate), as one line:
    [1, HEADS * DIM / 64, 16, 4]."""
    GROUPS: tl.constexpr = HEADS * DIM // 64
    x = load_groups(x_ptr, row * width, row >= 0, first, width, GROUPS, False)
    gate = load_groups(gate_ptr, row * gate_row, row >= 0, first, width, GROUPS, WIDE)
    heads = tl.reshape(x, [HEADS, DIM // 64, 16, 4])
    heads = heads * _inverse((heads,), DIM, eps, 1) * weight
    return tl.reshape(heads, [1, GROUPS, 16, 4]) * silu(gate)


@triton.jit(do_not_specialize=["scale_step"])
def gated_norm_kernel(
    x_ptr, weight_ptr, gate_ptr,
    out_ptr, words_ptr, scale_ptr, scale_step,
    width,
    gate_row,
    eps,
    DIM: tl.constexpr, VALUES: tl.constexpr, INT8: tl.constexpr, HEADS: tl.constexpr,
    WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, width / DIM / HEADS): norms of the heads of DIM numbers of the rows of x
    [rows, width], times silu(gate)."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    first = tl.program_id(1) * (HEADS * DIM)
    weight = _head_weight(weight_ptr, DIM, HEADS)
    wait_for_producers(PDL)
    y = _gated(x_ptr, gate_ptr, weight, row, first, width, gate_row, eps, DIM, HEADS, WIDE)
    store_groups(
        y, row * width, row >= 0, first, width, out_ptr, words_ptr, scale_ptr, row, scale_step,
        VALUES, INT8, WIDE,
    )  # fmt: skip


@triton.jit
def gated_row_kernel(
    x_ptr, weight_ptr, gate_ptr, out_ptr, words_ptr, scale_ptr,
    width,
    gate_row,
    eps,
    DIM: tl.constexpr, VALUES: tl.constexpr, HEADS: tl.constexpr, TILES: tl.constexpr,
    OWN: tl.constexpr, MMA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, TILES / OWN): the same, also stored as ``MmaRows`` of MMA tiles. A program
    computes OWN of a row's TILES tiles of HEADS heads, and reads all of its gates.

    The factor is that of a bound of the row's numbers: a normed number is at most sqrt(DIM) times
    the weight, and silu as in ``act_and_mul_row_kernel``."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    mine = tl.program_id(1) * OWN
    weight = _head_weight(weight_ptr, DIM, HEADS)
    GROUPS: tl.constexpr = HEADS * DIM // 64
    wait_for_producers(PDL)
    most = tl.zeros([1, GROUPS, 16, 4], tl.float32)
    for i in tl.static_range(TILES):
        first = i * (HEADS * DIM)
        gate = load_groups(gate_ptr, row * gate_row, row >= 0, first, width, GROUPS, False)
        most = tl.maximum(most, tl.maximum(gate, ACTIVATION_BOUND))
    most *= tl.reshape(tl.abs(weight), most.shape)
    factor, inverse = power_of_two(largest(most) * tl.sqrt(tl.cast(DIM, tl.float32)))
    if mine == 0:
        tl.store(scale_ptr + row, inverse)
    for i in tl.static_range(OWN):
        first = (mine + i) * (HEADS * DIM)
        y = _gated(x_ptr, gate_ptr, weight, row, first, width, gate_row, eps, DIM, HEADS, False)
        store_groups(
            y, row * width, row >= 0, first, width, out_ptr, words_ptr, scale_ptr, row, 0,
            VALUES, False, False,
        )  # fmt: skip
        store_mma(y * factor[:, None, None, None], row, row >= 0, first, width, words_ptr, MMA)
