"""The launches of an experts call of few rows: each pair of a row and an expert for itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton

from kinfolk_kernels.experts import pair_kernels
from kinfolk_kernels.experts.layer import CURVES, Choice, Experts
from kinfolk_kernels.experts.stacks import format_of, pointers, steps
from kinfolk_kernels.int8_rows import GROUP, Int8Rows, made_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.prepare import quantize_rows
from kinfolk_kernels.planes import EIGHT_BITS, INTERLEAVE
from kinfolk_kernels.row_outputs import RowOutputs


def pair_launches(
    x: torch.Tensor, choice: Choice, experts: Experts, y: torch.Tensor, *, asm: bool = True
) -> Iterator[Launch]:
    """y float32 [R, W] of x [R, W], rounded to int8."""
    device = x.device
    rows = made_int8(x)
    if rows is None:
        rows = _int8(x.shape[0], experts.width, device)
        yield quantize_rows(x, rows)
    inner = _int8(choice.ids.numel(), experts.channels, device)
    yield gate_up_pairs(rows, choice, experts, inner, asm=asm)
    yield down_pairs(inner, choice, experts, y, asm=asm)


def _int8(rows: int, width: int, device: torch.device) -> Int8Rows:
    made = RowOutputs.make(rows, width, None, True, device).int8
    assert made is not None
    return made


def _lanes(format: int, columns: int) -> int:
    """Lanes that share a group of four rows of a matrix."""
    return columns // GROUP * (4 if format == EIGHT_BITS else 2)


def gate_up_pairs(
    rows: Int8Rows, choice: Choice, experts: Experts, inner: Int8Rows, *, asm: bool = True
) -> Launch:
    """inner [R K, F] of rows [R, W]."""
    form, width, channels = format_of(experts.gate), experts.width, experts.channels
    # One or two rows have too few programs to hide a load behind another's arithmetic.
    most = 32 if rows.words.shape[0] <= 2 else 16
    needed = _lanes(form, width)
    lanes = min(most, triton.next_power_of_2(needed))
    return Launch(
        pair_kernels.gate_up_kernel,
        (channels // 64, choice.ids.numel()),
        {
            "ids_ptr": choice.ids,
            "bay_ptr": experts.bays,
            "x_ptr": rows.words,
            "d_ptr": rows.scale,
            **pointers("gate", experts.gate, as_bytes=False),
            **pointers("up", experts.up, as_bytes=False),
            **steps(experts.gate, as_bytes=False),
            "words_ptr": inner.words,
            "scale_ptr": inner.scale,
            "sums_ptr": inner.sums,
        },
        {
            "K": width,
            "F": channels,
            "TOP_K": choice.top_k,
            "FORMAT": form,
            "CURVE": CURVES[experts.activation],
            "LANES": lanes,
            "MASKED": needed % lanes != 0,
            "ASM": asm,
        },
        warps=max(1, lanes // 2),
    )


def down_pairs(
    inner: Int8Rows, choice: Choice, experts: Experts, y: torch.Tensor, *, asm: bool = True
) -> Launch:
    """y [R, W] of inner [R K, F]."""
    form, width, channels = format_of(experts.down), experts.width, experts.channels
    needed = _lanes(form, channels)
    lanes = min(32, triton.next_power_of_2(needed))
    places = triton.next_power_of_2(choice.top_k)
    quads = width // INTERLEAVE
    at_once = min(16, max(1, 256 // (places * lanes)))
    while quads % at_once:
        at_once //= 2
    return Launch(
        pair_kernels.down_kernel,
        (quads // at_once, choice.ids.shape[0]),
        {
            "ids_ptr": choice.ids,
            "weights_ptr": choice.weights,
            "bay_ptr": experts.bays,
            "x_ptr": inner.words,
            "d_ptr": inner.scale,
            **pointers("down", experts.down, as_bytes=False),
            **steps(experts.down, as_bytes=False),
            "y_ptr": y,
        },
        {
            "F": channels,
            "W": width,
            "TOP_K": choice.top_k,
            "PLACES": places,
            "FORMAT": form,
            "NR": at_once,
            "LANES": lanes,
            "MASKED": needed % lanes != 0 or places != choice.top_k,
            "ASM": asm,
        },
        warps=min(8, max(1, at_once * places * lanes // 32)),
    )
