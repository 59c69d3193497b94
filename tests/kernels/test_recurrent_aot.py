"""The kernels of the delta net and those between matrices compile for every GPU we name.

Launches of the 27B's shape, without their memory. They are compiled in a process of their own, as
this tier's interprets kernels; it takes longer than the default tier may.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(600)]

CAPABILITIES = (86, 89, 120)
LARGE = 90
SHARED, LARGE_SHARED = 99 * 1024, 227 * 1024
SPILLED = 128
"""Bytes a thread: some registers of the longest kernel, of thousands of instructions."""

LONG_SPILLED = 2304
"""The same for chunks of the delta rule, whose matrices of 64 x 64 numbers fill all registers. Most
is spilled once for several products."""

KEY_HEADS, VALUE_HEADS, DIM, WIDTH, HIDDEN = 16, 48, 128, 5120, 17408
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
ROWS, SEQUENCES, VOCABULARY = 16, 4, 262144


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def ids(*shape):
    return empty(*shape, dtype=torch.int64)


def step(stores=0, longest=16):
    """A batch."""
    from kinfolk_kernels.row_layout import LaunchTraits, RowLayout

    table = empty(SEQUENCES, 4, dtype=torch.int32)
    traits = LaunchTraits(True, longest, True, (1, longest))
    layout = RowLayout(table, ids(ROWS), table, table, table, table, traits)
    return SimpleNamespace(
        positions=ids(ROWS),
        store_rows=ids(stores),
        store_slots=ids(stores),
        parent_row=ids(ROWS),
        sequence_of_row=ids(ROWS),
        slot_of_sequence=ids(SEQUENCES),
        layout=layout,
    )


def delta_launches(capability):
    from kinfolk_kernels.gated_delta import launches
    from kinfolk_kernels.gated_delta.op import DeltaTrace
    from kinfolk_kernels.gated_delta.tiles import chunk_tile

    mixed, keys = empty(ROWS, CHANNELS), KEY_HEADS * DIM
    q, k = (mixed[:, i * keys : (i + 1) * keys].view(ROWS, KEY_HEADS, DIM) for i in range(2))
    out = empty(ROWS, VALUE_HEADS, DIM)
    inputs = launches.DeltaInputs(
        q,
        k,
        mixed[:, 2 * keys :].view(out.shape),
        empty(ROWS, VALUE_HEADS),
        empty(ROWS, VALUE_HEADS),
        empty(SEQUENCES + 1, VALUE_HEADS, DIM, DIM),
    )
    trace = DeltaTrace(
        empty(ROWS, KEY_HEADS, DIM), out, empty(ROWS, VALUE_HEADS, dtype=torch.float64)
    )
    for stores in (0, 2):
        rows = step(stores)
        yield f"advance, {stores} stores", launches.advance(inputs, out, rows)
        tile = chunk_tile(LARGE_SHARED if capability == LARGE else SHARED)
        for launch in launches.slices(inputs, out, rows, tile):
            yield f"{launch.kernel.__name__}, {stores} stores", launch
        one = replace(tile, paired=False, stages=3 if capability == LARGE else 1)
        for launch in launches.slices(inputs, out, rows, one):
            yield f"{launch.kernel.__name__}, {stores} stores, one pass", launch
    for longest in (4, 16, 32, 64):
        for launch in launches.drafts(inputs, out, trace, step(0, longest).layout, tile):
            yield f"{launch.kernel.__name__} {longest}", launch
    path = ids(SEQUENCES, ROWS + 1)
    yield "commit", launches.commit([(trace, inputs.state)], path, ids(SEQUENCES), ids(SEQUENCES))


def conv_launches():
    from kinfolk_kernels.causal_conv import triton_backend as conv

    weight, state = empty(CHANNELS, 4), empty(SEQUENCES + 1, 3, CHANNELS)
    rows = step(2)
    for count in (ROWS, 2048):
        x = empty(count, CHANNELS, dtype=torch.bfloat16)
        yield f"convolve {count}", conv.convolve(x, weight, state, x, rows)
    heads = empty(ROWS, VALUE_HEADS)
    gates = conv.DeltaGates(heads, heads, heads[0], heads[0])
    mixed, keys = empty(ROWS, CHANNELS), KEY_HEADS * DIM
    q, k = (mixed[:, i * keys : (i + 1) * keys].view(ROWS, KEY_HEADS, DIM) for i in range(2))
    v = mixed[:, 2 * keys :].view(ROWS, VALUE_HEADS, DIM)
    made = conv.DeltaRows(q, k, v, heads, heads)
    few = x[:ROWS]
    yield "heads", conv.make_heads(few, weight, state, gates, made, 1e-6, rows)
    yield "convolve slices", conv.advance_slices(x, 4, state, rows)
    path = ids(SEQUENCES, ROWS + 1)
    yield "convolve commit", conv.commit([(x, state)], path, ids(SEQUENCES), ids(SEQUENCES))


def row_launches():
    from kinfolk_kernels.act_and_mul.triton_backend import launch as product
    from kinfolk_kernels.rms_norm import triton_backend as norm
    from kinfolk_kernels.rms_norm.branch import NormedRows
    from kinfolk_kernels.row_outputs import RowOutputs
    from kinfolk_kernels.softcap.triton_backend import launch as softcap

    def outputs(width, rows=ROWS):
        """int8 rows too, or, of more rows, those for tensor cores."""
        mma = rows > ROWS
        return RowOutputs.make(rows, width, torch.float16, not mma, torch.device("meta"), mma)

    residual, weight = empty(ROWS, WIDTH), empty(WIDTH)
    branch = norm.Branch(residual, weight, 1e-6)
    one, three = (weight,), (weight, None, weight)
    yield "norm", norm.norm(residual, one, 1e-6, [outputs(WIDTH)], branch, residual)
    part = NormedRows(residual, weight, 1e-6)
    sums, each = norm.Branch((part, part), weight, 1e-6), [outputs(WIDTH)] * 3
    yield "norms of parts", norm.norm(residual, three, 1e-6, each, sums, residual)
    heads, gate = empty(ROWS, VALUE_HEADS, DIM), empty(ROWS, VALUE_HEADS * DIM)
    yield "head norm", norm.norm(heads, (empty(DIM),), 1e-6, [outputs(DIM)])
    mixed = outputs(VALUE_HEADS * DIM)
    yield "gated norm", norm.gated_norm(heads, empty(DIM), gate, 1e-6, mixed)
    half = empty(ROWS, HIDDEN, dtype=torch.float16)
    for activation in ("silu", "gelu_tanh"):
        yield f"product {activation}", product(activation, half, half, outputs(HIDDEN))
    for rows in (24, 64):
        residual = empty(rows, WIDTH)
        branch, made = norm.Branch(residual, weight, 1e-6), [outputs(WIDTH, rows)]
        yield f"norm {rows}", norm.norm(residual, one, 1e-6, made, branch, residual)
        heads, gate = empty(rows, VALUE_HEADS, DIM), empty(rows, VALUE_HEADS * DIM)
        mixed = outputs(VALUE_HEADS * DIM, rows)
        yield f"gated norm {rows}", norm.gated_norm(heads, empty(DIM), gate, 1e-6, mixed)
        half = empty(rows, HIDDEN, dtype=torch.float16)
        yield f"product {rows}", product("silu", half, half, outputs(HIDDEN, rows))
    logits = empty(ROWS, VOCABULARY)
    yield "softcap", softcap(30.0, logits, logits)


CHUNKS = ("prepare_", "scan_kernel")
"""The kernels of chunks of the delta rule."""


ROW_LAUNCHES = ("norm", "gated norm", "product")
FOR_EACH_WARP = 4 * 32
"""Bytes of shared memory: a number for each of the most warps."""


def main(capability: int) -> None:
    """Compile everything, or chunks only where shared memory is large, and write what it takes, as
    JSON."""
    from kinfolk_kernels.aot import compile_aot

    found = {}
    large = capability == LARGE
    for launches in (delta_launches(capability), conv_launches(), row_launches()):
        for name, launch in launches:
            if not large or name.startswith(CHUNKS):
                usage = compile_aot(launch, capability)
                found[name] = [usage.shared, usage.registers, usage.spilled]
    sys.stdout.write(json.dumps(found))


def usage(capability):
    """{name: [shared, registers, spilled]} of what is compiled."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__, str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def too_large(found, shared):
    most = {name: LONG_SPILLED if name.startswith(CHUNKS) else SPILLED for name in found}
    return {name: use for name, use in found.items() if use[0] > shared or use[2] > most[name]}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_everything_compiles_into_a_small_shared_memory(capability):
    found = usage(capability)
    assert len(found) == 35
    assert too_large(found, SHARED) == {}
    # Sums and largest numbers of warps; more would be rows that are exchanged between lanes.
    of_rows = [use[0] for name, use in found.items() if name.startswith(ROW_LAUNCHES)]
    assert len(of_rows) == 11
    assert max(of_rows) <= FOR_EACH_WARP


def test_chunks_fit_where_shared_memory_is_large():
    found = usage(LARGE)
    assert len(found) == 10
    assert too_large(found, LARGE_SHARED) == {}


if __name__ == "__main__":
    main(int(sys.argv[1]))
