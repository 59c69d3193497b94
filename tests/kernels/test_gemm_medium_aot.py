"""The kernels of products of 65 to 512 rows compile for every GPU we name, and keep to its limits.

They are compiled in a process of their own, as this tier's interprets kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(600)]

SHARED = {86: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}
SPILLED = 16
"""Bytes a thread, outside loops."""

META = torch.device("meta")
CASES = {
    "gate and up": (("Q4_K", "Q4_K"), 5120),
    "delta net's inputs": (("Q5_K", "Q4_K", "Q8_0", "Q8_0"), 5120),
    "down": (("Q6_K",), 17408),
    "no block of 256": (("Q5_0", "Q4_0"), 704),
    "tables": (("IQ4_XS",), 5120),
}


def launches(capability: int):
    from kinfolk_kernels.linear.gemm_medium import (
        IN_REGISTERS,
        IN_SHARED_MEMORY,
        Division,
        gemm_medium,
    )
    from kinfolk_kernels.linear.prepare import OperandRows, convert_rows
    from kinfolk_kernels.packing import empty

    tile = IN_REGISTERS if capability == 90 else IN_SHARED_MEMORY
    for name, (formats, columns) in CASES.items():
        matrices = [empty(format, 4096, columns, META) for format in formats]
        outs = [torch.empty(200, 4096, dtype=torch.bfloat16, device=META) for _ in matrices]
        x = OperandRows.make(200, columns, tile.batch, META)
        product, total = gemm_medium(matrices, x, outs, tile, Division(3, 6))
        yield name, product
        yield f"{name}, parts", total
        rows = torch.empty(200, columns, dtype=torch.bfloat16, device=META)
        yield f"{name}, rows", convert_rows(rows, x)


def loops(ptx: str) -> list[str]:
    """The blocks of the assembly that multiply on tensor cores from registers of four warps."""
    return [block for block in ptx.split("\n$L__") if "wgmma.mma_async" in block]


def main(capability: int) -> None:
    """Compile everything and write what it takes, as JSON."""
    from kinfolk_kernels.aot import compile_aot, compiled_for

    found = {}
    for name, launch in launches(capability):
        usage = compile_aot(launch, capability)
        ptx = compiled_for(launch, capability).asm["ptx"]
        found[name] = [usage.shared, usage.spilled, usage.loop_spills, loops(ptx)]
    sys.stdout.write(json.dumps(found))


@pytest.fixture(scope="module")
def compile_all():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}

    def compiled(capability):
        done = subprocess.run(
            [sys.executable, __file__, str(capability)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return compiled


@pytest.mark.parametrize("capability", SHARED)
def test_kernels_fit_the_device_without_spills(compile_all, capability):
    found = compile_all(capability)
    assert len(found) == 3 * len(CASES)
    bad = {
        name: use[:3]
        for name, use in found.items()
        if use[0] > SHARED[capability] or use[1] > SPILLED or use[2] > 0
    }
    assert bad == {}
    if capability == 90:
        # A weight stays in the lane that has unpacked it.
        for name, (formats, _) in CASES.items():
            bodies = found[name][3]
            assert len(bodies) == len(set(formats))
            for body in bodies:
                assert not any(moves in body for moves in ("st.shared", "shfl.sync", "stmatrix"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
