"""The gated delta rule on the GPU: one kernel for each kind of segment.

The kinds are certain segments of one row, certain slices, and drafted segments. The launches depend
only on which kinds a step has and on whether a draft is long; each program finds its segment on the
device. Rows of no segment are not written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.commit_layers import by_launch
from kinfolk_kernels.device import refuses_device, shared_memory
from kinfolk_kernels.gated_delta.advance import advance_kernel
from kinfolk_kernels.gated_delta.launches import (
    DeltaInputs,
    advance,
    commit,
    drafts,
    slices,
)
from kinfolk_kernels.gated_delta.op import DeltaTrace, GatedDeltaArguments
from kinfolk_kernels.gated_delta.tiles import chunk_tile
from kinfolk_kernels.rows import Rows
from kinfolk_kernels.verdict import YES, Verdict, no

KEY_DIMS = (32, 64, 128)


def supports(arguments: GatedDeltaArguments) -> Verdict:
    key_dim, value_dim = arguments.key_dim, arguments.value_dim
    reason = refuses_device(advance_kernel, arguments.device)
    if reason:
        return no(reason)
    if arguments.value_heads % arguments.key_heads:
        heads = f"{arguments.value_heads} value heads"
        return no(f"{heads} are no multiple of {arguments.key_heads} key heads")
    if key_dim not in KEY_DIMS:
        return no(f"key dimension {key_dim} is none of {KEY_DIMS}")
    if value_dim % 32:
        return no(f"value dimension {value_dim} is no multiple of 32")
    return YES


def gated_delta(
    arguments: GatedDeltaArguments,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Rows,
) -> tuple[torch.Tensor, DeltaTrace | None]:
    """See :class:`GatedDeltaArguments`. Rows may have any stride; checkpoints are stored after
    certain rows only. Trace rows of certain segments are not written."""
    layout = rows.layout
    inputs = DeltaInputs(q, k, v, g, beta, state)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if layout.traits.single_rows:
        advance(inputs, out, rows).run()
    tile = chunk_tile(shared_memory(v.device), paired=arguments.dtype == torch.float32)
    if layout.slices.shape[0]:
        for launch in slices(inputs, out, rows, tile):
            launch.run()
    if not layout.traits.draft_rows:
        return out, None
    trace = DeltaTrace(
        torch.empty(k.shape, dtype=torch.float32, device=k.device),
        torch.empty(v.shape, dtype=torch.float32, device=v.device),
        torch.empty(g.shape, dtype=torch.float64, device=g.device),
    )
    for launch in drafts(inputs, out, trace, layout, tile):
        launch.run()
    return out, trace


def gated_delta_commit(
    arguments: GatedDeltaArguments,
    layers: Sequence[tuple[DeltaTrace, torch.Tensor]],
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """See :class:`GatedDeltaArguments`."""
    for part in by_launch(layers):
        commit(part, path, n_keep, slot).run()
