"""The launches of ``experts`` for few rows: each (row, expert) pair is computed separately."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any, Protocol

import torch
import triton

from kinfolk_kernels.act_and_mul.triton_backend import CODES
from kinfolk_kernels.experts import pair_kernels
from kinfolk_kernels.experts.bays import base, places, rows_pointer, switches
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.experts.stacks import Stack, format_of, pointers
from kinfolk_kernels.int8_rows import GROUP_NUMBERS, Int8Rows, made_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.prepare import quantize_rows
from kinfolk_kernels.planes import EIGHT_BITS, INTERLEAVE, Planes

QUADS = 1
"""Groups of four channels of a pair that a program computes, if it divides their number."""

CHANNEL_LANES, FEW_CHANNEL_LANES = 64, 32
"""Most lanes that compute four channels of a pair: up to ``FEW_ROWS`` rows, and for more."""

DOWN_QUADS = 2
"""Groups of four numbers of the result that a program computes."""

ALL_LANES, FEW_LANES = 256, 64
"""Most lanes that sum a row's experts: up to ``FEW_ROWS`` rows, and for more."""

MAX_UNROUNDED_ROWS = 2
"""Up to this many rows there are so few programs that neither registers limit them nor a rounding
launch for all of them pays."""


@dataclass(frozen=True, slots=True)
class Inner:
    """Intermediate results between the two products, float32: ``pairs`` [R K, F] and ``shared``
    [R, F'] in the order of ``place_between``, and ``open`` [R], the gate of the shared expert. For
    more than ``FEW_ROWS`` rows also the pairs' numbers rounded to int8: int32 ``words``, and a
    ``scale`` for each lane.
    """

    pairs: torch.Tensor
    shared: torch.Tensor
    open: torch.Tensor
    words: torch.Tensor | None = None
    scale: torch.Tensor | None = None

    @staticmethod
    def make(choice: Choice, experts: ExpertsArguments[Stack]) -> Inner:
        device, rows = experts.bay_of_expert.device, choice.ids.shape[0]
        pairs = torch.empty(choice.ids.numel(), experts.channels, device=device)
        shared = shared_gate = pairs
        if experts.shared is not None:
            shared = torch.empty(rows, experts.shared_channels, device=device)
            shared_gate = torch.empty(rows, device=device)
        if rows <= MAX_UNROUNDED_ROWS:
            return Inner(pairs, shared, shared_gate)
        words = torch.empty(pairs.shape[0], experts.channels // 4, dtype=torch.int32, device=device)
        lanes = _lanes(format_of(experts.down), experts.channels)
        return Inner(
            pairs, shared, shared_gate, words, torch.empty(len(pairs), lanes, device=device)
        )


class GateUp(Protocol):
    """Makes the launch that computes ``inner``, as ``gate_up_pairs`` does."""

    def __call__(
        self,
        x: torch.Tensor,
        rows: Int8Rows,
        choice: Choice,
        experts: ExpertsArguments[Stack],
        inner: Inner,
        *,
        asm: bool = True,
    ) -> Launch: ...


def joins(experts: ExpertsArguments[Stack], choice: Choice) -> bool:
    """Whether the shared expert can be computed as one more pair of every row."""
    shared = experts.shared
    if shared is None:
        return False
    matrices = [m for m in (shared.gate, shared.up, shared.down) if isinstance(m, Planes)]
    if len(matrices) < 3 or any(matrix.activations != "int8" for matrix in matrices):
        return False
    gate, up, down = matrices
    fits = _span(down) * DOWN_QUADS <= _down_lanes(choice, experts)
    return fits and gate.format == up.format


def pair_launches(
    x: torch.Tensor,
    choice: Choice,
    experts: ExpertsArguments[Stack],
    y: torch.Tensor,
    *,
    asm: bool = True,
    gate_up: GateUp | None = None,
) -> Iterator[Launch]:
    """The launches that compute y float32 [R, W] from x [R, W], which is rounded to int8.
    ``gate_up`` makes the first of the two products, instead of ``gate_up_pairs``."""
    rows = made_int8(x)
    if rows is None:
        rows = Int8Rows.make(x.shape[0], experts.width, x.device)
        yield quantize_rows(x, rows)
    inner = Inner.make(choice, experts)
    yield (gate_up or gate_up_pairs)(x, rows, choice, experts, inner, asm=asm)
    if inner.words is not None:
        yield round_pairs(inner, experts, asm=asm)
    yield down_pairs(inner, choice, experts, y, asm=asm)


def gate_up_pairs(
    x: torch.Tensor,
    rows: Int8Rows,
    choice: Choice,
    experts: ExpertsArguments[Stack],
    inner: Inner,
    *,
    asm: bool = True,
) -> Launch:
    """The launch that computes ``inner`` from ``rows`` [R, W], which are x in int8."""
    form, width, pairs = format_of(experts.gate), experts.width, choice.ids.numel()
    shared, shared_gate, shared_form = experts.shared, None, pair_kernels.NO_SHARED_EXPERT.value
    far = experts.far
    gate = pointers("gate", base(experts.gate, far.gate if far else None), as_bytes=False)
    up = pointers("up", base(experts.up, far.up if far else None), as_bytes=False)
    needed = [_lanes(form, width)]
    at_once = gcd(QUADS, experts.channels // INTERLEAVE, experts.shared_channels // INTERLEAVE)
    programs, parts = pairs, experts.channels // INTERLEAVE // at_once
    if shared is not None:
        shared_gate, shared_form = shared.shared_gate, format_of(shared.gate)
        needed.append(_lanes(shared_form, width))
        programs += choice.ids.shape[0]
        own = experts.shared_channels // INTERLEAVE // at_once
        parts = max(parts, own + (shared_gate is not None))
    most = CHANNEL_LANES if choice.ids.shape[0] <= MAX_UNROUNDED_ROWS else FEW_CHANNEL_LANES
    lanes = min(most, triton.next_power_of_2(max(needed)))
    return Launch(
        pair_kernels.gate_up_kernel,
        (programs, parts),
        {
            "x_ptr": rows.words,
            "d_ptr": rows.scale,
            "numbers_ptr": x,
            "ids_ptr": choice.ids,
            "bay_ptr": experts.bay_of_expert,
            **rows_pointer(experts),
            **gate,
            **up,
            **pointers("shared_gate", shared.gate if shared else experts.gate, as_bytes=False),
            **pointers("shared_up", shared.up if shared else experts.up, as_bytes=False),
            "shared_gate_ptr": inner.open if shared_gate is None else shared_gate,
            "inner_ptr": inner.pairs,
            "shared_inner_ptr": inner.shared,
            "open_ptr": inner.open,
            "pairs": pairs,
            "d_step": rows.scale.stride(0),
            "numbers_row": x.stride(0),
            **places(experts.gate, far.gate if far else None, gate["gate_q"], as_bytes=False),
        },
        {
            "K": width,
            "F": experts.channels,
            "SHARED_F": experts.shared_channels,
            "TOP_K": choice.top_k,
            "FORMAT": form,
            "SHARED": shared_form,
            "ACTIVATION": CODES[experts.activation],
            "GATED": shared_gate is not None,
            "MASKED": any(count % lanes for count in needed),
            **switches(experts),
            "NR": at_once,
            "LANES": lanes,
            "ASM": asm,
        },
        warps=max(1, at_once * lanes // 32),
    )


def round_pairs(inner: Inner, experts: ExpertsArguments[Stack], *, asm: bool = True) -> Launch:
    """The launch that rounds ``inner.pairs`` to ``inner.words`` and ``inner.scale``."""
    form, channels = format_of(experts.down), experts.channels
    lanes = int(triton.next_power_of_2(_lanes(form, channels)))
    return Launch(
        pair_kernels.round_kernel,
        (inner.pairs.shape[0],),
        {"inner_ptr": inner.pairs, "words_ptr": inner.words, "scale_ptr": inner.scale},
        {"F": channels, "FORMAT": form, "LANES": lanes, "ASM": asm},
        warps=max(1, lanes // 32),
    )


def down_pairs(
    inner: Inner,
    choice: Choice,
    experts: ExpertsArguments[Stack],
    y: torch.Tensor,
    *,
    asm: bool = True,
) -> Launch:
    """The launch that computes y [R, W] from ``inner``."""
    form, width, channels = format_of(experts.down), experts.width, experts.channels
    rows, shared = choice.ids.shape[0], experts.shared
    lanes = _down_lanes(choice, experts)
    at_once = gcd(DOWN_QUADS, width // INTERLEAVE)
    far = experts.far.down if experts.far else None
    down = pointers("down", base(experts.down, far), as_bytes=False)
    skips = switches(experts)
    return Launch(
        pair_kernels.down_kernel,
        (rows, width // INTERLEAVE // at_once),
        {
            "inner_ptr": inner.pairs,
            "words_ptr": inner.pairs if inner.words is None else inner.words,
            "scale_ptr": inner.pairs if inner.scale is None else inner.scale,
            "shared_inner_ptr": inner.shared,
            "open_ptr": inner.open,
            "ids_ptr": choice.ids,
            "weights_ptr": choice.weights,
            "bay_ptr": experts.bay_of_expert,
            **rows_pointer(experts),
            **down,
            **pointers("shared", shared.down if shared else experts.down, as_bytes=False),
            "y_ptr": y,
            **places(experts.down, far, down["down_q"], as_bytes=False),
        },
        {
            "F": channels,
            "W": width,
            "SHARED_F": experts.shared_channels,
            "TOP_K": choice.top_k,
            "FORMAT": form,
            "SHARED": format_of(shared.down) if shared else pair_kernels.NO_SHARED_EXPERT.value,
            "GATED": shared is not None and shared.shared_gate is not None,
            "EARLY": rows <= MAX_UNROUNDED_ROWS,
            "ROUNDED": inner.words is not None,
            "MASKED": skips["GAPS"] or choice.top_k * _lanes(form, channels) % lanes != 0,
            **skips,
            "NR": at_once,
            "LANES": lanes,
            "SPAN": _span(shared.down) if shared else 1,
            "ASM": asm,
        },
        warps=max(1, lanes // 32),
    )


def _span(down: Any) -> int:
    """Lanes that process a group of four rows of a shared expert."""
    return int(triton.next_power_of_2(_lanes(format_of(down), down.columns)))


def _down_lanes(choice: Choice, experts: ExpertsArguments[Stack]) -> int:
    """Lanes of a program that sums a row's experts. For one row, one lane for each word, up to a
    limit. With many programs fewer lanes are faster, as their sums cost less."""
    needed = choice.top_k * _lanes(format_of(experts.down), experts.channels)
    most = ALL_LANES if choice.ids.shape[0] <= MAX_UNROUNDED_ROWS else FEW_LANES
    return min(most, int(triton.next_power_of_2(needed)))


def _lanes(format: int, columns: int) -> int:
    """Lanes that share a group of four rows of a matrix of ``columns`` columns."""
    return columns // GROUP_NUMBERS * (4 if format == EIGHT_BITS else 2)
