"""The gated delta rule in torch: single rows together, slices and drafts by blocks in closed form.

With G the decay summed along a row's path and anc its ancestors, the rows of a block obey
    (I + A) d = beta (v - e^G S0 k),   A_ij = beta_i e^{G_i - G_j} (k_i . k_j), j a strict ancestor,
    o_i = e^{G_i} S0 q_i + sum_{j in anc and itself} e^{G_i - G_j} (q_i . k_j) d_j,
which needs no intermediate state. A slice is a chain of such blocks of 64 rows. G is float64,
because its differences are used, which after a strong decay would have few digits in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.gated_delta.op import DeltaTrace, GatedDeltaArguments, empty_trace
from kinfolk_kernels.row_layout import Segment
from kinfolk_kernels.rows import Rows

SCAN_BLOCK_ROWS = 64


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
    """See :class:`GatedDeltaArguments`."""
    repeat = v.shape[1] // k.shape[1]
    wide_q, wide_k = q.repeat(1, repeat, 1), k.repeat(1, repeat, 1)
    trace = empty_trace(k, v, g) if rows.layout.traits.draft_rows else None
    out = torch.empty_like(v)
    single = [s for s in rows.layout.segments if not s.drafted and s.rows == 1]
    if single:
        _advance_one(wide_q, wide_k, v, g, beta, state, single, out)
    stores = list(zip(rows.store_rows.tolist(), rows.store_slots.tolist(), strict=True))
    for segment in rows.layout.segments:
        span = slice(segment.start, segment.stop)
        if segment.drafted:
            assert trace is not None
            mask = _ancestor_mask(rows.parent_row[span] - segment.start)
            total = (mask.double() @ g[span].double()).T
            out[span], d, _ = _block(
                wide_q[span], wide_k[span], v[span], beta[span], state[segment.slot], mask, total
            )
            trace.k[span], trace.d[span], trace.total[span] = k[span], d, total.T
        elif segment.stop - segment.start > 1:
            inside = [(r - segment.start, s) for r, s in stores if span.start <= r < span.stop]
            block = (wide_q[span], wide_k[span], v[span], g[span], beta[span])
            out[span] = _slice(*block, state, segment.slot, inside)
    for row, slot in stores:
        for segment in single:
            if row == segment.start:
                state[slot] = state[segment.slot]
    return out, trace


def gated_delta_commit(
    arguments: GatedDeltaArguments,
    layers: Sequence[tuple[DeltaTrace, torch.Tensor]],
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """See :class:`GatedDeltaArguments`; all sequences at once."""
    for trace, state in layers:
        repeat = state.shape[1] // trace.k.shape[1]
        # Padding repeats the path's first row: another sequence's could be NaN, and 0 * NaN is NaN.
        kept = torch.where(path < 0, path[:, :1], path).clamp_min(0)  # [D, T]
        last = kept.gather(1, (n_keep[:, None] - 1).clamp_min(0))[:, 0]
        end = trace.total[last]  # [D, Hv]
        valid = torch.arange(path.shape[1], device=path.device) < n_keep[:, None]
        decay = torch.where(valid[..., None], end[:, None] - trace.total[kept], -torch.inf)
        weight = decay.float().exp()
        update = torch.einsum(
            "ith,ithv,ithk->ihvk", weight, trace.d[kept], trace.k[kept].repeat(1, 1, repeat, 1)
        )
        moved = state[slot] * end.float().exp()[..., None, None] + update
        state[slot] = torch.where((n_keep > 0)[:, None, None, None], moved, state[slot])


def _advance_one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    segments: list[Segment],
    out: torch.Tensor,
) -> None:
    """One certain row of each of several sequences, by the definition."""
    row, slot = torch.tensor([(s.start, s.slot) for s in segments], device=v.device).T
    decayed = state[slot] * g[row].exp()[..., None, None]
    kr = k[row]
    d = beta[row][..., None] * (v[row] - (decayed @ kr[..., None])[..., 0])
    new = decayed + d[..., None] * kr[..., None, :]
    state[slot] = new
    out[row] = (new @ q[row][..., None])[..., 0]


def _slice(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slot: int,
    stores: list[tuple[int, int]],
) -> torch.Tensor:
    """A certain slice [T, ...], block by block; stores the final state in ``slot``."""
    out = torch.empty_like(v)
    entry = state[slot]
    for start in range(0, v.shape[0], SCAN_BLOCK_ROWS):
        span = slice(start, min(start + SCAN_BLOCK_ROWS, v.shape[0]))
        n = span.stop - start
        mask = torch.ones(n, n, dtype=torch.bool, device=v.device).tril()
        total = g[span].double().cumsum(0).T
        out[span], d, end = _block(q[span], k[span], v[span], beta[span], entry, mask, total)
        for row, target in stores:
            if span.start <= row < span.stop:
                state[target] = _state_after(row - start, entry, k[span], d, total)
        entry = end
    state[slot] = entry
    return out


def _block(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    entry: torch.Tensor,
    mask: torch.Tensor,
    total: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Closed form of one block: rows [T, H, .], entry [H, dv, dk], mask [T, T] ancestors and self,
    total [H, T] float64 -> (o [T, H, dv], d [T, H, dv], state after the last row)."""
    qh, kh, vh = (x.transpose(0, 1) for x in (q, k, v))  # [H, T, .]
    rate = beta.T[..., None]  # [H, T, 1]
    # Differences of non-ancestors may be positive: mask before the exponential.
    decay = torch.where(mask, total[:, :, None] - total[:, None, :], -torch.inf).float().exp()
    strict = mask & ~torch.eye(mask.shape[0], dtype=torch.bool, device=mask.device)
    system = torch.where(strict, rate * decay * (kh @ kh.transpose(1, 2)), 0)
    fall = total.float().exp()[..., None]
    right = rate * (vh - fall * (kh @ entry.transpose(1, 2)))
    d = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    o = fall * (qh @ entry.transpose(1, 2)) + (decay * (qh @ kh.transpose(1, 2))) @ d
    rows = d.transpose(0, 1)
    return o.transpose(0, 1), rows, _state_after(mask.shape[0] - 1, entry, k, rows, total)


def _state_after(
    row: int, entry: torch.Tensor, k: torch.Tensor, d: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """State after row ``row`` of a chain: k [T, H, dk], d [T, H, dv], total [H, T] float64."""
    end = total[:, row]
    weight = (end[:, None] - total[:, : row + 1]).float().exp()  # [H, n]
    weighted = (d[: row + 1].transpose(0, 1) * weight[..., None]).transpose(1, 2)  # [H, dv, n]
    return entry * end.float().exp()[:, None, None] + weighted @ k[: row + 1].transpose(0, 1)


def _ancestor_mask(parent: torch.Tensor) -> torch.Tensor:
    """parent [T] inside the segment, negative for roots -> [T, T] ancestors and self."""
    n = parent.shape[0]
    mask = torch.eye(n, dtype=torch.bool, device=parent.device)
    for row, up in enumerate(parent.tolist()):
        if up >= 0:
            mask[row] |= mask[up]
    return mask
