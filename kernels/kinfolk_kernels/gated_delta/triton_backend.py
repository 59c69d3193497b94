"""The gated delta rule on the GPU: each kind of segment by kernels of its own, all in one step.

A certain row alone is advanced, certain slices are scanned row by row, drafted rows leave a trace.
Launches depend on which kinds a step has and on whether a draft is long, nothing else; which
programs act is read on the device. Rows of no segment are not written.
"""

from __future__ import annotations

import torch

from kinfolk_kernels.gated_delta.advance import advance_kernel
from kinfolk_kernels.gated_delta.launches import (
    DeltaInputs,
    advance,
    commit,
    draft,
    scan,
)
from kinfolk_kernels.gated_delta.reference import DeltaTrace
from kinfolk_kernels.row_layout import MAX_DRAFT_ROWS
from kinfolk_kernels.rows import Rows
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no

KEY_DIMS = (32, 64, 128)


def supports(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Rows,
) -> Verdict:
    """Whether ``gated_delta`` can do this call."""
    verdict = _supports_state(state)
    if not verdict:
        return verdict
    if v.shape[1] % k.shape[1]:
        return no(f"{v.shape[1]} value heads are no multiple of {k.shape[1]} key heads")
    if not g.dtype == beta.dtype == torch.float32:
        return no(f"decays and rates are {g.dtype} and {beta.dtype}, not float32")
    inside = all(x.stride()[1:] == (x.shape[2], 1) for x in (q, k, v))
    if not inside or g.stride(1) != 1 or beta.stride(1) != 1:
        return no("the heads of a row are not contiguous")
    longest = rows.layout.traits.draft_rows
    if longest > MAX_DRAFT_ROWS:
        return no(f"a sequence has {longest} drafted rows, more than {MAX_DRAFT_ROWS}")
    return YES


def supports_commit(
    trace: DeltaTrace,
    state: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> Verdict:
    """Whether ``gated_delta_commit`` can do this call."""
    verdict = _supports_state(state)
    if not verdict:
        return verdict
    if not all(x.is_contiguous() for x in (trace.k, trace.d, trace.total)):
        return no("the trace is not contiguous")
    if not all(x.is_contiguous() for x in (path, n_keep, slot)):
        return no("the path is not contiguous")
    return YES


def _supports_state(state: torch.Tensor) -> Verdict:
    values, keys = state.shape[2:]
    reason = out_of_reach(advance_kernel, state)
    if reason:
        return no(reason)
    if state.dtype != torch.float32 or not state.is_contiguous():
        return no(f"the state is not contiguous float32 ({state.dtype})")
    if keys not in KEY_DIMS:
        return no(f"key dimension {keys} is none of {KEY_DIMS}")
    if values % 32:
        return no(f"value dimension {values} is no multiple of 32")
    return YES


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Rows,
) -> tuple[torch.Tensor, DeltaTrace | None]:
    """See the reference. Rows may be views with a stride of their own; stores are taken after
    certain rows only. Trace rows of certain segments are not written."""
    layout = rows.layout
    inputs = DeltaInputs(q, k, v, g, beta, state)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if layout.traits.single_rows:
        advance(inputs, out, rows).run()
    if layout.slices.shape[0]:
        scan(inputs, out, rows).run()
    if not layout.traits.draft_rows:
        return out, None
    trace = DeltaTrace(
        torch.empty(k.shape, dtype=torch.float32, device=k.device),
        torch.empty(v.shape, dtype=torch.float32, device=v.device),
        torch.empty(g.shape, dtype=torch.float64, device=g.device),
    )
    draft(inputs, out, trace, layout).run()
    return out, trace


def gated_delta_commit(
    trace: DeltaTrace,
    state: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """See the reference; a row of ``path`` of which nothing is kept is padding."""
    commit(trace, state, path, n_keep, slot).run()
