"""The ops ``gated_delta`` and ``gated_delta_commit``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.gated_delta.reference import gated_delta, gated_delta_commit
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class GatedDeltaArguments:
    """The gated delta rule (Yang et al., 2024) for rows with parents, and its commit.

    State S [dv, dk] of a value head, per row with decay g <= 0 and rate beta:
    S <- e^g S;  d = beta (v - S k);  S <- S + d k^T;  o = S q.
    Value head h reads key head h mod Hk. A row starts from its parent's state, a root from the
    slot's.

    Operands of ``gated_delta``, all float32: q (scaled) and k [R, Hk, dk], v [R, Hv, dv], g and
    beta [R, Hv]; state [slots, Hv, dv, dk]; the rows of the step. Result: o [R, Hv, dv], and the
    :class:`DeltaTrace` if rows are drafted. Certain segments advance the state in place, drafted
    ones do not change it; the state after each of ``store_rows`` is copied to ``store_slots``.

    Operands of ``gated_delta_commit``: the trace; state; path int64 [D, T], kept rows padded with
    -1; n_keep and slot int64 [D]. S <- e^{G_n} S + sum_j e^{G_n - G_j} d_j k_j^T over the kept
    rows; a segment with ``n_keep`` 0 does not change the state.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    device: torch.device


GATED_DELTA = Op("gated_delta", GatedDeltaArguments, gated_delta)
GATED_DELTA_COMMIT = Op("gated_delta_commit", GatedDeltaArguments, gated_delta_commit)
