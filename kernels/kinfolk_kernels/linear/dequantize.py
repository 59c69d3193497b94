"""Rows of planes as numbers: a range of them, or those of a list."""

from __future__ import annotations

import torch

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.dequantize_kernel import dequantize_kernel
from kinfolk_kernels.planes import INTERLEAVE, LAYOUTS, Planes

GROUPS, WORDS = 8, 64
"""Groups of four rows, and words of each, that a program takes."""


def dequantize(planes: Planes, first: int, out: torch.Tensor, *, asm: bool = True) -> Launch:
    """out [n, K] = rows from ``first``, a multiple of four, on."""
    rows = out.shape[0]
    shape = {"INDEXED": False, "A": GROUPS, "B": INTERLEAVE, "W": WORDS}
    return _launch(
        planes, planes.q, first, rows, out, -(-rows // (GROUPS * INTERLEAVE)), shape, asm
    )


def gather(planes: Planes, rows: torch.Tensor, out: torch.Tensor, *, asm: bool = True) -> Launch:
    """out [n, K] = the rows ``rows`` int64 [n]; what is out of range is brought into it."""
    shape = {"INDEXED": True, "A": 1, "B": 1, "W": 4 * WORDS}
    return _launch(planes, rows, 0, rows.shape[0], out, rows.shape[0], shape, asm)


def _launch(
    planes: Planes,
    index: torch.Tensor,
    first: int,
    rows: int,
    out: torch.Tensor,
    programs: int,
    shape: dict[str, int],
    asm: bool,
) -> Launch:
    layout = LAYOUTS[planes.format]
    return Launch(
        dequantize_kernel,
        (programs, -(-layout.words(planes.columns) // shape["W"])),
        {
            "q_ptr": planes.q,
            "high_ptr": planes.q if planes.high is None else planes.high,
            "scales_ptr": planes.q if planes.scales is None else planes.scales,
            "supers_ptr": planes.supers,
            "index_ptr": index,
            "out_ptr": out,
            "first": first,
            "rows": rows,
            "N": planes.rows,
        },
        {"K": planes.columns, "FORMAT": layout.number, "ASM": asm, **shape},
        # Products and differences are rounded one by one, as the definition does.
        fuse=False,
    )
