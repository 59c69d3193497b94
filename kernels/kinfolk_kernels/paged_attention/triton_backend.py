"""Attention over block tables on the GPU: kernels for few and for many rows of a sequence."""

from __future__ import annotations

from dataclasses import replace

import torch

from kinfolk_kernels.codecs import Stored, dim_of, heads_of
from kinfolk_kernels.int8_rows import GROUP
from kinfolk_kernels.int8_rows import MAX_INT8_ROWS as INT8_ROWS
from kinfolk_kernels.paged_attention.decode import decode_kernel
from kinfolk_kernels.paged_attention.epilogue import Epilogue, Mixed
from kinfolk_kernels.paged_attention.launches import Call
from kinfolk_kernels.paged_attention.tiles import device_of
from kinfolk_kernels.row_layout import MAX_SHORT_ROWS
from kinfolk_kernels.rows import Rows, Table
from kinfolk_kernels.sections import NUMBERS, out_of_reach, planes_of, refuses
from kinfolk_kernels.verdict import YES, Verdict, no


def gated_attention(
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    table: Table,
    window: int | None,
    scale: float,
    epilogue: Epilogue,
) -> Mixed:
    """See the reference. Few rows get int8 ones beside them, whether they were asked for or not."""
    if q.shape[0] <= INT8_ROWS and dim_of(pools[1]) % GROUP == 0:
        epilogue = replace(epilogue, int8=True)
    call = Call(q, pools, arenas, rows, table, window, scale, epilogue, device_of(q))
    mixed = call.outputs()
    for launch in call.launches(mixed):
        launch.run()
    return mixed


def supports(
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    table: Table,
    window: int | None,
    scale: float,
    epilogue: Epilogue,
) -> Verdict:
    """Whether ``gated_attention`` can do this call."""
    reason = out_of_reach(decode_kernel, q, *planes_of(pools[0]), *planes_of(pools[1]))
    if reason:
        return no(reason)
    if q.dtype not in NUMBERS:
        return no(f"queries of {q.dtype}")
    if q.stride(-1) != 1:
        return no("the dimensions of a query are not contiguous")
    if q.shape[1] % heads_of(pools[0]):
        return no(f"{q.shape[1]} query heads do not share {heads_of(pools[0])} key heads evenly")
    if max(dim_of(pools[0]), dim_of(pools[1])) > 512:
        return no("heads of more than 512 dimensions")
    if any(s.drafted and s.rows > MAX_SHORT_ROWS for s in rows.layout.segments):
        return no(f"more than {MAX_SHORT_ROWS} drafted rows of a sequence")
    for pool, arena in zip(pools, arenas, strict=True):
        reason = refuses(pool, arena)
        if reason:
            return no(reason)
    return _finishes(pools[1], rows, epilogue)


def _finishes(values: Stored, rows: Rows, epilogue: Epilogue) -> Verdict:
    """Whether kernels can do what follows attention."""
    if epilogue.gate is not None and epilogue.gate.stride(-1) != 1:
        return no("the gate's dimensions are not contiguous")
    if epilogue.int8 and dim_of(values) % GROUP:
        return no(f"int8 rows need values of a multiple of {GROUP} dimensions")
    if epilogue.int8 and any(s.rows > MAX_SHORT_ROWS for s in rows.layout.segments):
        return no(f"int8 rows are for steps of at most {MAX_SHORT_ROWS} rows a sequence")
    return YES
