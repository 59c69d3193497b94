"""Depthwise causal convolution with SiLU on the GPU.

One launch computes all rows and advances the states of certain segments of one row. A second launch
advances those of slices, after their rows have read the old states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.causal_conv.heads import heads_kernel
from kinfolk_kernels.causal_conv.kernels import commit_kernel, rows_kernel, slices_kernel
from kinfolk_kernels.causal_conv.op import (
    CausalConvCommitArguments,
    DeltaGates,
    DeltaInputsArguments,
    DeltaRows,
)
from kinfolk_kernels.commit_layers import by_launch, pointers_of
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.rows import Rows
from kinfolk_kernels.verdict import YES, Verdict, no

CHANNELS = 256
"""Channels of a program."""

MAX_SINGLE_ROW_PROGRAMS = 32
"""Up to this many rows a program computes one row, so that there are enough programs."""

BLOCK_ROWS = 8
"""Rows of a program in steps of more rows."""

MIN_DIM = 16
"""Numbers of the smallest head."""

HEAD_BLOCK_ROWS = 4
"""Most rows of a program that normalises heads: one row a warp, so that the order of a sum does not
depend on the number of rows."""


def supports_inputs(arguments: DeltaInputsArguments) -> Verdict:
    weight, dim = arguments.weight, arguments.dim
    reason = refuses_device(rows_kernel, arguments.device, arguments.dtype)
    if reason:
        return no(reason)
    if weight.dtype != torch.float32 or not weight.is_contiguous():
        return no(f"the weight is not contiguous float32 ({weight.dtype})")
    if dim & (dim - 1) or dim < MIN_DIM:
        return no(f"heads of {dim} numbers, not a power of two from {MIN_DIM} on")
    return YES


def supports_commit(arguments: CausalConvCommitArguments) -> Verdict:
    reason = refuses_device(commit_kernel, arguments.device, arguments.dtype)
    return no(reason) if reason else YES


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, rows: Rows
) -> torch.Tensor:
    """The convolution alone; see its reference."""
    convolved = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    convolve(x, weight, state, convolved, rows).run()
    if rows.layout.slices.shape[0]:
        advance_slices(x, weight.shape[1], state, rows).run()
    return convolved


def causal_conv_commit(
    arguments: CausalConvCommitArguments,
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """See :class:`CausalConvCommitArguments`."""
    by_step: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for x, state in layers:
        x = _contiguous(x)
        by_step.setdefault(x.stride(0), []).append((x, state))
    for alike in by_step.values():
        for part in by_launch(alike):
            commit(part, path, n_keep, slot).run()


def delta_inputs(
    arguments: DeltaInputsArguments,
    x: torch.Tensor,
    gates: DeltaGates,
    state: torch.Tensor,
    rows: Rows,
) -> DeltaRows:
    """See :class:`DeltaInputsArguments`."""
    x, weight, key_heads, dim = _contiguous(x), arguments.weight, arguments.key_heads, arguments.dim
    count, heads = gates.alpha.shape
    mixed = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    g = torch.empty(count, heads, device=x.device)
    keys = key_heads * dim
    inputs = DeltaRows(
        mixed[:, :keys].view(count, key_heads, dim),
        mixed[:, keys : 2 * keys].view(count, key_heads, dim),
        mixed[:, 2 * keys :].view(count, heads, dim),
        g,
        torch.empty_like(g),
    )
    make_heads(x, weight, state, gates, inputs, arguments.eps, rows).run()
    if rows.layout.slices.shape[0]:
        advance_slices(x, weight.shape[1], state, rows).run()
    return inputs


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    """``x``, copied unless the channels of a row are contiguous."""
    return x if x.stride(1) == 1 else x.contiguous()


def make_heads(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    gates: DeltaGates,
    inputs: DeltaRows,
    eps: float,
    rows: Rows,
) -> Launch:
    """The launch that computes ``inputs`` of all rows, and advances states as ``convolve`` does."""
    count, channels = x.shape
    heads, dim = inputs.v.shape[1:]
    plain = convolve(x, weight, state, inputs.q, rows)
    block = 1 if count <= MAX_SINGLE_ROW_PROGRAMS else HEAD_BLOCK_ROWS
    return Launch(
        heads_kernel,
        (-(-count // block), channels // dim + 1),
        {
            **plain.arguments,
            "alpha_ptr": gates.alpha,
            "beta_ptr": gates.beta,
            "a_ptr": gates.a,
            "dt_ptr": gates.dt,
            "g_ptr": inputs.g,
            "rate_ptr": inputs.beta,
            "alpha_row": gates.alpha.stride(0),
            "beta_row": gates.beta.stride(0),
            "scale": dim**-0.5,
            "eps": eps,
        },
        {
            "HK": inputs.k.shape[1],
            "HV": heads,
            "GATES": 1 << (heads - 1).bit_length(),
            "DIM": dim,
            "TAPS": weight.shape[1],
            "BR": block,
            "SINGLES": rows.layout.traits.single_rows,
            "STORES": rows.store_rows.shape[0] > 0,
        },
        block,
    )


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
    rows: Rows,
) -> Launch:
    """The launch that convolves all rows, advances the states of certain segments of one row, and
    writes checkpoints."""
    count, channels = x.shape
    block = 1 if count <= MAX_SINGLE_ROW_PROGRAMS else BLOCK_ROWS
    stores = rows.store_rows.shape[0]
    return Launch(
        rows_kernel,
        (-(-count // block), -(-channels // CHANNELS)),
        {
            "x_ptr": x,
            "weight_ptr": weight,
            "state_ptr": state,
            "out_ptr": out,
            "parents": rows.parent_row,
            "sequences": rows.sequence_of_row,
            "slots": rows.slot_of_sequence,
            "spans": rows.layout.spans,
            "store_rows": rows.store_rows,
            "store_slots": rows.store_slots,
            "rows": count,
            "stores": stores,
            "channels": channels,
            "x_row": x.stride(0),
        },
        {
            "TAPS": weight.shape[1],
            "BR": block,
            "BC": CHANNELS,
            "SINGLES": rows.layout.traits.single_rows,
            "STORES": stores > 0,
        },
    )


def advance_slices(x: torch.Tensor, taps: int, state: torch.Tensor, rows: Rows) -> Launch:
    """The launch, after ``convolve``, that advances states of certain segments of several rows."""
    channels = x.shape[1]
    return Launch(
        slices_kernel,
        (rows.layout.slices.shape[0], -(-channels // CHANNELS)),
        {
            "x_ptr": x,
            "state_ptr": state,
            "parents": rows.parent_row,
            "slices": rows.layout.slices,
            "channels": channels,
            "x_row": x.stride(0),
        },
        {"TAPS": taps, "BC": CHANNELS},
    )


def commit(
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> Launch:
    """The launch that advances the states of up to ``LAYERS_OF_LAUNCH`` layers, given behind their
    rows, along the kept rows of drafted segments. The rows of all layers are equally far apart."""
    rows, states = zip(*layers, strict=True)
    channels = rows[0].shape[1]
    return Launch(
        commit_kernel,
        (path.shape[0], -(-channels // CHANNELS), len(layers)),
        {
            **pointers_of("x", rows),
            **pointers_of("state", states),
            "path_ptr": path,
            "kept_ptr": n_keep,
            "slot_ptr": slot,
            "channels": channels,
            "x_row": rows[0].stride(0),
            "width": path.shape[1],
        },
        {"TAPS": states[0].shape[1] + 1, "BC": CHANNELS, "SEVERAL": len(layers) > 1},
    )
