"""Programmatic dependent launches: a kernel's programs become resident while those before it end.

A kernel takes part if it has a constant ``PDL``, which ``Launch`` fills in. It first calls
``start_dependents`` (a kernel that calls it later says why), then reads data that no kernel of a
step writes, such as weights, and calls ``wait_for_producers`` before it reads or writes anything
else. Every program must wait, on every path: only then does the end of a launch imply the end of
all launches before it.

Three kinds of data that a step writes may be read before the wait, bypassing the first-level cache
(``early``). First, tables of the step: they are written before its first matrix product, and a
product never starts early or lets others start only after its own wait, so launches after a product
come after the tables. Second, data that a launch has waited for: launches that it starts only after
its wait, and all later ones, may read it. Third, data that every program of the launch before has
stored before ``release``, if it calls ``start_dependents`` after that.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

FIRST_CAPABILITY = 90
"""The first compute capability with the instructions: sm_90."""


@triton.jit
def start_dependents(PDL: tl.constexpr):
    """Let the next launch start once all programs have called this."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_producers(PDL: tl.constexpr):
    """Wait until all launches before this one have ended and their writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Make what all threads of the program have stored visible to launches that it starts after
    this, if they read it past the first-level cache."""
    if PDL:
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; mov.b32 $0, $1;",
            "=r,r",
            [tl.arange(0, tl.extra.cuda.num_threads())],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.debug_barrier()


@triton.jit
def fetch_ahead(pointers):
    """Prefetch the lines of ``pointers`` into the second-level cache.

    It reads no value, so it may come before the wait even if other kernels still write there.
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
    """Load before the wait, only data that the module docstring permits; zero outside ``mask``."""
    if mask is None:
        value = tl.load(pointer, cache_modifier=".cg")
    else:
        value = tl.load(pointer, mask=mask, other=0, cache_modifier=".cg")
    return value


@triton.jit
def guess(pointer):
    """Load a number of the step's tables before the wait. It may be that of the previous step, so
    use it for ``fetch_ahead`` only."""
    return tl.load(pointer, cache_modifier=".cg")


def overlaps(device: torch.device) -> bool:
    """Whether launches on ``device`` may start before the launches before them have ended."""
    return device.type == "cuda" and _has_instructions(device.index)


@cache
def _has_instructions(index: int | None) -> bool:
    if torch.version.hip is not None:
        return False
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor >= FIRST_CAPABILITY
