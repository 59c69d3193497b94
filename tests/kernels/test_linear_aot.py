"""The kernels of quantised products compile for every GPU we name, and keep to their registers.

Launches of the 27B's shapes, without their memory. They are compiled in a process of their own, as
this tier's interprets kernels; it takes longer than the default tier may.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(600)]

CAPABILITIES = (86, 89, 120)
SHARED = 99 * 1024
SPILLED = 16
"""Bytes a thread, outside loops."""

SUMMED = 32
"""The same of float16 products, where the parts of a tile are added."""

WRITTEN_OUT = 112
"""Bytes of a kernel without loops, whose registers are held down so that more programs run."""

HELD = (96, 32)
"""Bytes, and accesses in a loop of seven hundred instructions or more, where registers are held
down so that more programs run."""

HOPPER = 90
HOPPER_SHARED = 228 * 1024
"""Bytes of shared memory of a multiprocessor, a kilobyte of which is taken from each program."""

HOPPER_SPILLS = (96, 24)
"""Bytes, and accesses: five in a loop of four hundred instructions, the others in the loop that
adds the parts of a tile."""

MATRIX = "mma.sync.aligned"
WIDTH, HIDDEN = 5120, 17408
META = torch.device("meta")


def table(*formats, rows=4096, columns=WIDTH):
    from kinfolk_kernels.packing import empty

    return [empty(name, rows, columns, META) for name in formats]


def results(matrices, rows):
    return [torch.empty(rows, m.rows, dtype=torch.bfloat16, device=META) for m in matrices]


def single_launches():
    from kinfolk_kernels.int8_rows import Int8Rows
    from kinfolk_kernels.linear.gemv import gemv

    def launch(*formats, columns=WIDTH, warps=None, rows=1):
        matrices = table(*formats, columns=columns)
        return gemv(matrices, Int8Rows.make(rows, columns, META), results(matrices, rows), warps)

    yield "one row, delta net's inputs", launch("Q5_K", "Q4_K", "Q8_0", "Q8_0")
    yield "one row, down", launch("Q6_K", columns=HIDDEN)
    yield "one row, no block of 256", launch("Q5_0", columns=704)
    yield "one row, tables", launch("IQ4_XS", "Q4_0")
    yield "two rows, inputs", launch("Q5_K", "Q4_K", "Q8_0", rows=2)
    yield "one row, a warp", launch("Q6_K", warps=1)


def int8_launches():
    from kinfolk_kernels.int8_rows import Int8Rows
    from kinfolk_kernels.linear.gemm_int8 import Int8Tile, gemm_int8

    def launch(rows, *formats, columns=WIDTH, tile=None):
        matrices = table(*formats, columns=columns)
        x = Int8Rows.make(rows, columns, META)
        return gemm_int8(matrices, x, results(matrices, rows), tile)

    yield "unit 2", launch(2, "Q5_K", "Q4_K", "Q8_0", "Q8_0")
    yield "unit 16", launch(16, "Q6_K", columns=HIDDEN)
    yield "unit 16, inputs", launch(16, "Q5_K", "Q4_K", "Q8_0")
    yield "unit 32", launch(32, "Q4_K", "IQ4_XS")
    yield "unit 704", launch(16, "Q5_0", "Q4_0", columns=704, tile=Int8Tile(5, 6))


def f16_launches(warpgroups=False):
    from kinfolk_kernels.linear.gemm_f16 import gemm_f16
    from kinfolk_kernels.linear.prepare import F16Rows

    def launch(rows, *formats, columns=WIDTH):
        matrices = table(*formats, columns=columns)
        x = F16Rows.make(rows, columns, META)
        return gemm_f16(matrices, x, results(matrices, rows), warpgroups=warpgroups)

    yield "f16 9", launch(9, "Q6_K", columns=HIDDEN)
    yield "f16 24", launch(24, "Q5_K", "Q4_K", "Q8_0", "Q8_0")
    yield "f16 64", launch(64, "Q4_K", "Q4_K")
    yield "f16 704", launch(32, "Q5_0", "Q4_0", columns=704)
    if warpgroups:
        yield "f16 32, tables", launch(32, "Q4_0", "IQ4_XS")
        yield "f16 64, down", launch(64, "Q6_K", columns=HIDDEN)


def other_launches():
    from kinfolk_kernels.int8_rows import Int8Rows
    from kinfolk_kernels.linear.dequantize import dequantize, gather
    from kinfolk_kernels.linear.prepare import F16Rows, quantize_rows, round_rows
    from kinfolk_kernels.mma_rows import MmaRows

    x = torch.empty(16, WIDTH, dtype=torch.bfloat16, device=META)
    yield "quantize", quantize_rows(x, Int8Rows.make(16, WIDTH, META))
    yield "round", round_rows(x, F16Rows.make(16, WIDTH, META))
    yield "round for mma", round_rows(x, MmaRows.make(16, WIDTH, META))
    for names in (("Q6_K",), ("Q5_K", "Q4_K", "Q8_0", "Q8_0"), ("IQ4_XS", "Q4_0")):
        matrices = table(*names)
        numbers = torch.empty(4096 * len(names), WIDTH, dtype=torch.bfloat16, device=META)
        yield f"numbers of {', '.join(names)}", dequantize(matrices, numbers.split(4096))
    tokens = torch.empty(16, dtype=torch.int64, device=META)
    (planes,) = table("Q6_K")
    yield "rows of a table", gather(planes, tokens, x.float())


def weights_from_shared_memory(text: str) -> int:
    """The products of warpgroups whose weights do not come straight from registers."""
    products = [line for line in text.splitlines() if "ttng.warp_group_dot " in line]
    assert products
    others = [line for line in products if "#ttg.dot_op<{opIdx = 0" not in line]
    moved = re.findall(r"ttg\.(?:local_load|convert_layout) .*-> .*#ttg\.dot_op", text)
    return len(others) + len(moved)


def products_left_pending(text: str) -> int:
    """The most products of warpgroups that are still running where the program's code waits.

    The left operand of a product is in registers, which the code behind the wait may write. Zero is
    needed and does not suffice: a product may also run on to the next wait.
    """
    waits = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", text)
    assert waits
    return max(map(int, waits))


def layouts_of_matrix_products(text: str) -> list[str]:
    """The distinct layouts of the arguments and results of the matrix unit in Triton's GPU form."""
    named = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    lines = [line for line in text.splitlines() if MATRIX in line]
    assert lines
    used = {name for line in lines for name in re.findall(r"x[if]32, (#[^>]+)>", line)}
    return sorted({_without_width_one(named.get(name, name), named) for name in used})


def _without_width_one(layout: str, named: dict[str, str]) -> str:
    """A slice of a layout that is one element wide is that of its rows."""
    parent = re.match(r"#ttg.slice<{dim = 1, parent = (#\w+)}", layout)
    if parent is None:
        return layout
    return re.sub(r"\[(\d+), 1\]", r"[\1]", named[parent[1]]).replace("[1, 0]", "[0]")


def main(capability: int) -> None:
    """Compile everything and write what it takes, as JSON."""
    from kinfolk_kernels.aot import compile_aot, compiled_for

    found = {}
    every = (
        single_launches(),
        int8_launches(),
        f16_launches(),
        other_launches(),
    )
    if capability == HOPPER:
        every = (f16_launches(warpgroups=True),)
    for launches in every:
        for name, launch in launches:
            usage = compile_aot(launch, capability)
            found[name] = [usage.shared, usage.spilled, usage.loop_spills]
            if capability == HOPPER:
                asm = compiled_for(launch, capability).asm
                found[name] += [usage.registers, weights_from_shared_memory(asm["ttgir"])]
                found[name] += [products_left_pending(asm["ptx"])]
            if name.startswith("unit"):
                text = compiled_for(launch, capability).asm["ttgir"]
                found[name] += [layouts_of_matrix_products(text)]
    sys.stdout.write(json.dumps(found))


def compiled_in_a_process(capability):
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


@pytest.fixture(scope="module", params=CAPABILITIES)
def compiled(request):
    return compiled_in_a_process(request.param)


def test_everything_compiles_into_a_small_shared_memory_without_spills_in_loops(compiled):
    assert len(compiled) >= 17
    bad = {}
    for name, (shared, spilled, loop_spills, *_) in compiled.items():
        most = HELD if name.startswith("unit") else (SPILLED, 0)
        if name.startswith(("one row", "two rows")):
            most = (WRITTEN_OUT, 0)
        if name.startswith("f16"):
            most = (SUMMED, 0)
        if shared > SHARED or spilled > most[0] or loop_spills > most[1]:
            bad[name] = (shared, spilled, loop_spills)
    assert bad == {}


def test_the_matrix_unit_gets_one_element_a_lane_in_order(compiled):
    """What a lane passes to it is decided by the compiler's layout, which no argument states."""
    layouts = [use[3] for use in compiled.values() if len(use) == 4]
    assert len(layouts) == 5
    for found in layouts:
        assert len(found) == 1
        assert "sizePerThread = [1], threadsPerWarp = [32]" in found[0]


def test_warpgroups_get_weights_from_registers_and_fill_a_multiprocessor():
    found = compiled_in_a_process(HOPPER)
    assert len(found) == 6
    bad = {}
    for name, (shared, spilled, loop_spills, registers, moved, pending) in found.items():
        programs = min(HOPPER_SHARED // (shared + 1024), 65536 // (128 * registers))
        few = programs < (2 if name.startswith("f16 64") else 3)
        spills = spilled > HOPPER_SPILLS[0] or loop_spills > HOPPER_SPILLS[1]
        if few or spills or moved or pending:
            bad[name] = (shared, registers, spilled, loop_spills, moved, pending)
    assert bad == {}


if __name__ == "__main__":
    main(int(sys.argv[1]))
