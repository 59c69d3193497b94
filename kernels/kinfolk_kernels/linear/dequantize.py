"""Launches that dequantise packed matrices: whole matrices, or rows selected by index."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.dequantize_kernel import dequantize_kernel, gather_kernel
from kinfolk_kernels.linear.segments import Segments
from kinfolk_kernels.planes import INTERLEAVE, LAYOUTS, Planes

GROUPS, PROGRAM_WORDS = 4, 64
"""Groups of four rows of a program, and words of each."""

FUSE = False
"""Products and differences are rounded separately, as the format defines."""


def dequantize(
    matrices: Sequence[Planes], outs: Sequence[torch.Tensor], *, asm: bool = True
) -> Launch:
    """The launch that dequantises up to four matrices of K columns into outs[i] [N_i, K]."""
    rows = GROUPS * INTERLEAVE
    segments = Segments.make(matrices, outs, lambda planes: -(-planes.rows // rows))
    shape = {"K": matrices[0].columns, "GROUPS": GROUPS, "W": PROGRAM_WORDS, "ASM": asm}
    return Launch(
        dequantize_kernel,
        (segments.programs, max(_parts(planes, PROGRAM_WORDS) for planes in matrices)),
        segments.arguments,
        {**segments.constants, **shape},
        fuse=FUSE,
    )


def gather(
    planes: Planes,
    rows: torch.Tensor,
    out: torch.Tensor,
    scale: float = 1.0,
    *,
    asm: bool = True,
) -> Launch:
    """The launch that computes out [n, K], the rows ``rows`` int64 [n] times ``scale``; indices out
    of range are clamped."""
    words, layout = PROGRAM_WORDS * INTERLEAVE, LAYOUTS[planes.format]
    return Launch(
        gather_kernel,
        (rows.shape[0], _parts(planes, words)),
        {
            "q_ptr": planes.q,
            "high_ptr": planes.q if planes.high is None else planes.high,
            "scales_ptr": planes.q if planes.scales is None else planes.scales,
            "supers_ptr": planes.supers,
            "index_ptr": rows,
            "out_ptr": out,
            "rows": rows.shape[0],
            "N": planes.rows,
            "scale": float(scale),
        },
        {"K": planes.columns, "FORMAT": layout.number, "W": words, "ASM": asm},
        fuse=FUSE,
    )


def _parts(planes: Planes, words: int) -> int:
    return -(-LAYOUTS[planes.format].words(planes.columns) // words)
