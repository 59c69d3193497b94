"""``qk_rope_write`` on the GPU, in one launch."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import triton
import triton.language as tl

from kinfolk_kernels.codecs import Stored, is_rotated
from kinfolk_kernels.coded_tiles import (
    CHUNK_POSITIONS,
    FORMAT_NUMBERS,
    KV_PLAIN,
    KV_Q8_0,
    encode_q4_0,
    encode_q8_0,
    rotate_rows,
)
from kinfolk_kernels.dependent import (
    early,
    fetch_ahead,
    start_dependents,
    wait_for_producers,
)
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.qk_rope_write.op import QKRopeWriteArguments
from kinfolk_kernels.rows import Rows
from kinfolk_kernels.sections import format_of, padded, section_arguments
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

MAX_SINGLE_HEAD_ROWS, HEADS_AT_ONCE = 64, 8
"""Up to ``FEW_ROWS`` rows have a program for each head. For more rows a program processes
``HEADS_AT_ONCE`` heads, as starting a program takes longer than a head."""


@triton.jit
def _prepared(
    x_ptr, weight_ptr, eps, cos_ptr, sin_ptr, DIM: tl.constexpr, SIZE: tl.constexpr,
    NORM: tl.constexpr, WEIGHT: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A head [SIZE], zero beyond DIM, normed and with rotary embedding; ``cos_ptr`` and ``sin_ptr``
    point at its position."""
    d = tl.arange(0, SIZE)
    x = tl.load(x_ptr + d, mask=d < DIM, other=0.0).to(tl.float32)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 0) / DIM + eps)
    y = x * inverse
    if WEIGHT:
        y = y * tl.load(weight_ptr + d, mask=d < DIM, other=0.0).to(tl.float32)
    if PAIRS > 0:
        # The other number of the pair is loaded again, as it may be in another lane's registers.
        turned = d < 2 * PAIRS
        partner = tl.where(d < PAIRS, d + PAIRS, d - PAIRS)
        z = tl.load(x_ptr + partner, mask=turned, other=0.0).to(tl.float32) * inverse
        if WEIGHT:
            z = z * tl.load(weight_ptr + partner, mask=turned, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + d % PAIRS, mask=turned, other=1.0)
        sin = tl.load(sin_ptr + d % PAIRS, mask=turned, other=0.0)
        y = y * cos + tl.where(d < PAIRS, -z, z) * sin
    return y


@triton.jit
def _rotated(x, SIZE: tl.constexpr):
    return tl.reshape(rotate_rows(tl.reshape(x, [1, SIZE]), 1, SIZE), [SIZE])


@triton.jit
def _put_plain(x, head, to, data, block, DIM: tl.constexpr, SIZE: tl.constexpr):
    """Store a head at place ``to`` of a section of plain numbers."""
    d = tl.arange(0, SIZE)
    at = to // CHUNK_POSITIONS * block + (head * CHUNK_POSITIONS + to % CHUNK_POSITIONS) * DIM
    tl.store(data + at + d, x.to(data.dtype.element_ty), mask=d < DIM)


@triton.jit
def _put_coded(codes, scale, head, to, data, scales, block, s_block, DIM: tl.constexpr):
    """Store codes [DIM / 32, bytes of 32] and scales of a head at place ``to`` of a section."""
    BYTES: tl.constexpr = codes.shape[1]
    vector = head * CHUNK_POSITIONS + to % CHUNK_POSITIONS
    group = tl.arange(0, DIM // 32)
    byte = group[:, None] * BYTES + tl.arange(0, BYTES)[None, :]
    tl.store(data + to // CHUNK_POSITIONS * block + vector * (DIM // 32 * BYTES) + byte, codes)
    tl.store(
        scales + to // CHUNK_POSITIONS * s_block + vector * (DIM // 32) + group,
        scale.to(tl.float16),
    )


@triton.jit
def _put(
    x, head, place, held, data, scales, block, s_block, arena, a_scales, a_block, as_block,
    DIM: tl.constexpr, SIZE: tl.constexpr, FORMAT: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """Store a head in the arena if the row is ``held`` there, else in the pool."""
    if ROTATED:
        x = _rotated(x, SIZE)
    if FORMAT == KV_PLAIN:
        if held >= 0:
            _put_plain(x, head, held, arena, a_block, DIM, SIZE)
        else:
            _put_plain(x, head, place, data, block, DIM, SIZE)
    else:
        if FORMAT == KV_Q8_0:
            codes, scale = encode_q8_0(x, DIM)
            codes = codes.to(tl.uint8, bitcast=True)
        else:
            codes, scale = encode_q4_0(x, DIM)
        if held >= 0:
            _put_coded(codes, scale, head, held, arena, a_scales, a_block, as_block, DIM)
        else:
            _put_coded(codes, scale, head, place, data, scales, block, s_block, DIM)


@triton.jit(do_not_specialize=["write_at"])
def qk_rope_write_kernel(
    q_ptr, q_row, q_head, k_in, k_row, k_head, v_in, v_row, v_head, out_ptr,
    q_weight, k_weight, v_weight, q_eps, k_eps, v_eps, cos_ptr, sin_ptr, positions,
    write_rows, write_at, arena_rows,
    k_ptr, k_scales, k_block, ks_block, v_ptr, v_scales, v_block, vs_block,
    ak_ptr, ak_scales, ak_block, aks_block, av_ptr, av_scales, av_block, avs_block,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, PAIRS: tl.constexpr, K_FORMAT: tl.constexpr,
    V_FORMAT: tl.constexpr, K_ROTATED: tl.constexpr, V_ROTATED: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, V_NORM: tl.constexpr, Q_WEIGHT: tl.constexpr,
    K_WEIGHT: tl.constexpr, V_WEIGHT: tl.constexpr, OWN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, (query heads + key heads + value heads) / OWN): a program processes OWN heads of
    a row, one after the other."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    position = early(positions + row)
    place, held = early(write_rows + write_at + row), early(arena_rows + row)
    cos_ptr += position * PAIRS
    sin_ptr += position * PAIRS
    if PDL and OWN == 1:
        fetch_ahead(cos_ptr)
        fetch_ahead(sin_ptr)
        lines = tl.arange(0, (SIZE + 31) // 32) * 32
        if Q_WEIGHT:
            fetch_ahead(q_weight + lines)
        if K_WEIGHT:
            fetch_ahead(k_weight + lines)
    wait_for_producers(PDL)
    for index in tl.range(0, OWN):
        head = tl.program_id(1) * OWN + index
        if head < HEADS:
            y = _prepared(
                q_ptr + row * q_row + head * q_head, q_weight, q_eps, cos_ptr, sin_ptr, DIM, SIZE,
                Q_NORM, Q_WEIGHT, PAIRS,
            )  # fmt: skip
            if K_ROTATED:
                y = _rotated(y, SIZE)
            d = tl.arange(0, SIZE)
            at = out_ptr + (row * HEADS + head) * DIM + d
            tl.store(at, y.to(out_ptr.dtype.element_ty), mask=d < DIM)
        else:
            other = head - HEADS
            if other < KV_HEADS:
                y = _prepared(
                    k_in + row * k_row + other * k_head, k_weight, k_eps, cos_ptr, sin_ptr,
                    DIM, SIZE, K_NORM, K_WEIGHT, PAIRS,
                )  # fmt: skip
                _put(
                    y, other, place, held, k_ptr, k_scales, k_block, ks_block, ak_ptr, ak_scales,
                    ak_block, aks_block, DIM, SIZE, K_FORMAT, K_ROTATED,
                )  # fmt: skip
            elif other < 2 * KV_HEADS:
                other -= KV_HEADS
                y = _prepared(
                    v_in + row * v_row + other * v_head, v_weight, v_eps, cos_ptr, sin_ptr,
                    VALUE_DIM, VALUE_SIZE, V_NORM, V_WEIGHT, 0,
                )  # fmt: skip
                _put(
                    y, other, place, held, v_ptr, v_scales, v_block, vs_block, av_ptr, av_scales,
                    av_block, avs_block, VALUE_DIM, VALUE_SIZE, V_FORMAT, V_ROTATED,
                )  # fmt: skip


def qk_rope_write(
    arguments: QKRopeWriteArguments,
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
) -> torch.Tensor:
    """See :class:`QKRopeWriteArguments`."""
    query = torch.empty(q.shape, dtype=arguments.dtype, device=q.device)
    q, k, v = _contiguous(q), _contiguous(k), _contiguous(v)
    launch(arguments, q, k, v, pools, arenas, rows, query).run()
    return query


def supports(arguments: QKRopeWriteArguments) -> Verdict:
    keys, values = arguments.keys, arguments.values
    dtypes = [dtype for dtype in (arguments.dtype, keys.dtype, values.dtype) if dtype is not None]
    reason = refuses_device(qk_rope_write_kernel, arguments.device, *dtypes)
    reason = reason or keys.refusal or values.refusal
    if reason:
        return no(reason)
    if arguments.dtype not in FLOATS:
        return no(f"queries of {arguments.dtype}")
    if not arguments.has_values and keys.dim != values.dim:
        return no("values that are the keys need as many dimensions")
    return YES


T = TypeVar("T", torch.Tensor, torch.Tensor | None)


def _contiguous(x: T) -> T:
    """``x``, copied unless the numbers of a head are contiguous."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def launch(
    arguments: QKRopeWriteArguments,
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    query: torch.Tensor,
) -> Launch:
    """The launch that computes ``query`` [R, Hq, D] and stores keys and values."""
    norms, rope_tables = arguments.norms, arguments.rope_tables
    keys = q if k is None else k
    values = keys if v is None else v
    tensors: dict[str, Any] = {
        "out_ptr": query,
        "cos_ptr": q if rope_tables is None else rope_tables[0],
        "sin_ptr": q if rope_tables is None else rope_tables[1],
        "positions": rows.positions,
        "write_rows": rows.write_row,
        "write_at": arguments.pool_index * rows.write_row.stride(0),
        "arena_rows": rows.arena_row,
    }
    constants: dict[str, Any] = {
        "HEADS": q.shape[1],
        "KV_HEADS": 0 if k is None else k.shape[1],
        "DIM": q.shape[2],
        "VALUE_DIM": values.shape[2],
        "SIZE": padded(q.shape[2]),
        "VALUE_SIZE": padded(values.shape[2]),
        "PAIRS": 0 if rope_tables is None else rope_tables[0].shape[1],
        "OWN": 1 if q.shape[0] <= MAX_SINGLE_HEAD_ROWS else HEADS_AT_ONCE,
    }
    inputs = (("q", "q_ptr", q), ("k", "k_in", keys), ("v", "v_in", values))
    for (name, pointer, x), norm in zip(inputs, norms, strict=True):
        weight = None if norm is None else norm.weight
        tensors |= {pointer: x, f"{name}_row": x.stride(0), f"{name}_head": x.stride(1)}
        tensors[f"{name}_weight"] = q if weight is None else weight
        tensors[f"{name}_eps"] = 0.0 if norm is None else norm.eps
        constants[f"{name.upper()}_NORM"] = norm is not None
        constants[f"{name.upper()}_WEIGHT"] = weight is not None
    for name, pool, arena in zip("kv", pools, arenas, strict=True):
        tensors |= section_arguments(name, pool) | section_arguments(f"a{name}", arena)
        constants[f"{name.upper()}_FORMAT"] = FORMAT_NUMBERS[format_of(pool)]
        constants[f"{name.upper()}_ROTATED"] = is_rotated(pool)
    return Launch(
        qk_rope_write_kernel,
        (q.shape[0], triton.cdiv(q.shape[1] + 2 * constants["KV_HEADS"], constants["OWN"])),
        tensors,
        constants,
        warps=1 if max(constants["SIZE"], constants["VALUE_SIZE"]) <= 256 else 2,
        # Codes equal the reference's only if products are rounded before they are added.
        fuse=False,
    )
