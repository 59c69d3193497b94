"""Programmatic dependent launches: a kernel's programs become resident while those before it end.

A kernel takes part by a constant ``PDL`` among its arguments; ``Launch`` fills it in. It calls
``start_dependents``, first of all unless it says why not, reads what no kernel of a step writes,
such as weights, and calls ``wait_for_producers`` before it reads or writes anything else. Every
program has to wait, on every path: the end of a launch says that all launches before it have ended
because it waited for them.

Two things that a step makes may be read before the wait, past the first-level cache (``early``).
Tables of the step: they are there before its first matrix, and matrices never begin early, so what
follows one follows them. And what a launch has waited for, by those that it lets begin only then
and by all behind them.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

FIRST_CAPABILITY = 90
"""The first devices that have the instructions: sm_90."""


@triton.jit
def start_dependents(PDL: tl.constexpr):
    """Lets the next launch begin once all programs have said so."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_producers(PDL: tl.constexpr):
    """Waits until all launches before this one have ended and what they wrote can be read."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch_ahead(pointers):
    """Asks for the lines that hold ``pointers`` to be brought into the second-level cache.

    Nothing is read: it may stand before the wait, whoever still writes there.
    """
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def early(pointer, mask=None):
    """What is read before the wait; see above for what may be. Zero where ``mask`` is not."""
    if mask is None:
        found = tl.load(pointer, cache_modifier=".cg")
    else:
        found = tl.load(pointer, mask=mask, other=0, cache_modifier=".cg")
    return found


@triton.jit
def guess(pointer):
    """A number of the step's tables before the wait: good for ``fetch_ahead`` and nothing else, as
    it may be that of the step before."""
    return tl.load(pointer, cache_modifier=".cg")


def overlaps(device: torch.device) -> bool:
    """Whether launches on ``device`` may begin before the ones before them have ended."""
    return device.type == "cuda" and _has_instructions(device.index)


@cache
def _has_instructions(index: int | None) -> bool:
    if torch.version.hip is not None:
        return False
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor >= FIRST_CAPABILITY
