"""Matrix times a few rows of float16 on tensor cores, bound by the reading of the matrix.

Weights are the left operand, so that the many rows of the matrix fill the unit's long side and the
few rows of x its short one. A step of the loop takes one group of 64 columns: the low nibbles of 32
bytes meet the first half of the group's x, the high nibbles the second. Codes become float16 by
their bits (0x6400 | code is 1024 + code), then code * scale - minimum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kinfolk_kernels.packed_integers import byte_of, first_half, second_half
from kinfolk_kernels.planes import LAYOUTS, LUT_NL, Planes

Q4_K, Q5_K, Q6_K = (tl.constexpr(LAYOUTS[name].number) for name in ("Q4_K", "Q5_K", "Q6_K"))
Q8_0, Q4_0, Q5_0 = (tl.constexpr(LAYOUTS[name].number) for name in ("Q8_0", "Q4_0", "Q5_0"))
IQ4_XS = tl.constexpr(LAYOUTS["IQ4_XS"].number)
MAX_ROWS = 64


@triton.jit
def _as_half(codes, OFFSET: tl.constexpr):
    """Codes below 1024 as float16, less OFFSET, by setting the bits of 1024."""
    return (codes | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + OFFSET)


@triton.jit
def gemm_small_kernel(
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    table_ptr,
    x_ptr,
    y_ptr,
    N,
    M,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """y float32 [SPLIT, M, N]: partial products of W [N, K] and x float16 [M, K]."""
    WORDS: tl.constexpr = K // 4 if FORMAT == Q8_0 else K // 8
    SMALL_BLOCKS: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    SUPERS: tl.constexpr = K // 64 if SMALL_BLOCKS else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    GROUPS: tl.constexpr = K // 64
    PER: tl.constexpr = (GROUPS + SPLIT - 1) // SPLIT
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    kk = tl.arange(0, 32)
    quad = (n // 4).to(tl.int64)
    there = n < (N + 3) // 4 * 4
    # Bytes of a row inside a tile of four interleaved rows.
    inside = (kk // 4 * 16 + kk % 4)[None, :] + (n % 4 * 4)[:, None]
    acc = tl.zeros([BN, BM], tl.float32)
    first = tl.program_id(1) * PER
    for t in tl.range(first, min(first + PER, GROUPS), num_stages=STAGES):
        step: tl.constexpr = 256 if FORMAT == Q8_0 else 128
        at = quad[:, None] * (WORDS * 16) + t * step + inside
        low_bytes = tl.load(q_ptr + at, mask=there[:, None], other=0, eviction_policy="evict_first")
        if FORMAT == Q8_0:
            high_bytes = tl.load(
                q_ptr + at + 128, mask=there[:, None], other=0, eviction_policy="evict_first"
            )
        super_at = quad * SUPERS + (t if SMALL_BLOCKS else t // 4)
        supers = tl.load(supers_ptr + super_at * 4 + n % 4, mask=there, other=0)
        if not SMALL_BLOCKS:
            scales = tl.load(scales_ptr + (quad * GROUPS + t) * 4 + n % 4, mask=there, other=0)
        if FORMAT == Q8_0:
            w0 = low_bytes.to(tl.int8, bitcast=True).to(tl.float16)
            w1 = high_bytes.to(tl.int8, bitcast=True).to(tl.float16)
        else:
            low = (low_bytes & 15).to(tl.int16)
            top = (low_bytes >> 4).to(tl.int16)
            if FORMAT == Q5_K or FORMAT == Q5_0:
                bits = tl.load(
                    high_ptr + quad[:, None] * (HIGHS * 16) + t // 4 * 128 + inside,
                    mask=there[:, None],
                    other=0,
                ).to(tl.int32) >> (2 * (t % 4))
                low = low | ((bits & 1) << 4).to(tl.int16)
                top = top | ((bits & 2) << 3).to(tl.int16)
            if FORMAT == Q6_K:
                bits = tl.load(
                    high_ptr + quad[:, None] * (HIGHS * 16) + t // 2 * 128 + inside,
                    mask=there[:, None],
                    other=0,
                ).to(tl.int32) >> (4 * (t % 2))
                low = low | ((bits & 3) << 4).to(tl.int16)
                top = top | ((bits & 12) << 2).to(tl.int16)
            if FORMAT == IQ4_XS:
                w0 = tl.load(table_ptr + low.to(tl.int32))
                w1 = tl.load(table_ptr + top.to(tl.int32))
            elif FORMAT == Q6_K:
                w0, w1 = _as_half(low, 32), _as_half(top, 32)
            elif FORMAT == Q5_0:
                w0, w1 = _as_half(low, 16), _as_half(top, 16)
            elif FORMAT == Q4_0:
                w0, w1 = _as_half(low, 8), _as_half(top, 8)
            else:
                w0, w1 = _as_half(low, 0), _as_half(top, 0)
        if FORMAT == Q4_K or FORMAT == Q5_K:
            d, dmin = first_half(supers), second_half(supers)
            s0 = (d * (scales & 255).to(tl.float32)).to(tl.float16)
            s1 = (d * ((scales >> 8) & 255).to(tl.float32)).to(tl.float16)
            m0 = (dmin * ((scales >> 16) & 255).to(tl.float32)).to(tl.float16)
            m1 = (dmin * ((scales >> 24) & 255).to(tl.float32)).to(tl.float16)
            w0 = w0 * s0[:, None] - m0[:, None]
            w1 = w1 * s1[:, None] - m1[:, None]
        elif FORMAT == Q6_K:
            d = first_half(supers)
            a0 = (d * byte_of(scales, 0).to(tl.float32)).to(tl.float16)
            a1 = (d * byte_of(scales, 2).to(tl.float32)).to(tl.float16)
            b0 = (d * byte_of(scales, 1).to(tl.float32)).to(tl.float16)
            b1 = (d * byte_of(scales, 3).to(tl.float32)).to(tl.float16)
            front = (kk < 16)[None, :]
            w0 = w0 * tl.where(front, a0[:, None], a1[:, None])
            w1 = w1 * tl.where(front, b0[:, None], b1[:, None])
        elif FORMAT == IQ4_XS:
            d = first_half(supers)
            w0 = w0 * (d * byte_of(scales, 0).to(tl.float32)).to(tl.float16)[:, None]
            w1 = w1 * (d * byte_of(scales, 1).to(tl.float32)).to(tl.float16)[:, None]
        else:
            w0 = w0 * first_half(supers).to(tl.float16)[:, None]
            w1 = w1 * second_half(supers).to(tl.float16)[:, None]
        x_at = x_ptr + m[None, :].to(tl.int64) * K + t * 64 + kk[:, None]
        x0 = tl.load(x_at, mask=(m < M)[None, :], other=0.0)
        x1 = tl.load(x_at + 32, mask=(m < M)[None, :], other=0.0)
        acc = tl.dot(w0, x0, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(w1, x1, acc=acc, out_dtype=tl.float32)
    out = y_ptr + (tl.program_id(1) * M + m[None, :]).to(tl.int64) * N + n[:, None]
    tl.store(out, acc, mask=(m < M)[None, :] & (n < N)[:, None])


def split_for(rows: int, columns: int) -> int:
    """Parts of the sum over columns: enough programs to fill a large device, by shape alone."""
    split = 1
    while -(-rows // 64) * split < 512 and columns // 64 // (2 * split) >= 8:
        split *= 2
    return split


def gemm_small(
    planes: Planes,
    x: torch.Tensor,
    *,
    tile: int = 64,
    warps: int = 4,
    stages: int = 3,
    split: int | None = None,
) -> torch.Tensor:
    """x float16 [M, K] -> float32 [M, N], M <= 64. Partial sums are added in a fixed order."""
    rows = x.shape[0]
    parts = split or split_for(planes.rows, planes.columns)
    block = max(16, triton.next_power_of_2(rows))
    y = torch.empty(parts, rows, planes.rows, dtype=torch.float32, device=x.device)
    table = _table(x.device) if planes.format == "IQ4_XS" else x
    grid = (triton.cdiv(planes.rows, tile), parts, triton.cdiv(rows, block))
    gemm_small_kernel[grid](
        planes.q.view(torch.uint8),
        planes.q.view(torch.uint8) if planes.high is None else planes.high.view(torch.uint8),
        planes.q if planes.scales is None else planes.scales,
        planes.supers,
        table,
        x,
        y,
        planes.rows,
        rows,
        K=planes.columns,
        FORMAT=LAYOUTS[planes.format].number,
        BN=tile,
        BM=block,
        SPLIT=parts,
        STAGES=stages,
        num_warps=warps,
    )
    return y[0] if parts == 1 else y.sum(0)


_TABLES: dict[torch.device, torch.Tensor] = {}


def _table(device: torch.device) -> torch.Tensor:
    if device not in _TABLES:
        _TABLES[device] = torch.tensor(LUT_NL, dtype=torch.float16, device=device)
    return _TABLES[device]
