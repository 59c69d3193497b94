"""The kernel that caps logits softly."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import tanh
from kinfolk_kernels.dependent import start_dependents, wait_for_producers


@triton.jit
def softcap_kernel(logits_ptr, out_ptr, count, cap, TILE: tl.constexpr, PDL: tl.constexpr):
    """Grid (count / TILE,): out [count] = cap * tanh(logits / cap)."""
    start_dependents(PDL)
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < count
    wait_for_producers(PDL)
    x = tl.load(logits_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, tanh(x / cap) * cap, mask=inside)
