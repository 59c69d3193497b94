"""``gated_attention`` on the GPU: a kernel for few, and one for many rows of a sequence."""

from __future__ import annotations

from dataclasses import replace

import torch

from kinfolk_kernels.codecs import Stored, dim_of
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.int8_rows import GROUP_NUMBERS
from kinfolk_kernels.paged_attention.decode import decode_kernel
from kinfolk_kernels.paged_attention.epilogue import Epilogue, Mixed
from kinfolk_kernels.paged_attention.launches import Call
from kinfolk_kernels.paged_attention.op import GatedAttentionArguments
from kinfolk_kernels.paged_attention.tiles import device_of
from kinfolk_kernels.row_forms import most_int8_rows
from kinfolk_kernels.rows import Rows, Table
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

MAX_HEAD_DIM = 512


def gated_attention(
    arguments: GatedAttentionArguments,
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    table: Table,
    epilogue: Epilogue,
) -> Mixed:
    """See :class:`GatedAttentionArguments`. Up to ``most_int8_rows`` are also int8 rows."""
    if q.stride(-1) != 1:
        q = q.contiguous()
    (count, heads), dim = q.shape[:2], dim_of(pools[1])
    if count <= most_int8_rows(heads * dim, q.device) and dim % GROUP_NUMBERS == 0:
        epilogue = replace(epilogue, int8=True)
    window, scale = arguments.window, arguments.scale
    call = Call(q, pools, arenas, rows, table, window, scale, epilogue, device_of(q))
    mixed = call.outputs()
    for launch in call.launches(mixed):
        launch.run()
    return mixed


def supports(arguments: GatedAttentionArguments) -> Verdict:
    keys, values = arguments.keys, arguments.values
    dtypes = [dtype for dtype in (arguments.dtype, keys.dtype, values.dtype) if dtype is not None]
    reason = refuses_device(decode_kernel, arguments.device, *dtypes)
    reason = reason or keys.refusal or values.refusal
    if reason:
        return no(reason)
    if arguments.dtype not in FLOATS:
        return no(f"queries of {arguments.dtype}")
    if arguments.heads % keys.heads:
        return no(f"{arguments.heads} query heads do not share {keys.heads} key heads evenly")
    if max(keys.dim, values.dim) > MAX_HEAD_DIM:
        return no(f"heads of more than {MAX_HEAD_DIM} dimensions")
    return YES
