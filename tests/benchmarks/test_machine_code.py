"""The machine code of a step's kernels, without a GPU."""

from __future__ import annotations

import subprocess
import sys


def test_every_kernel_of_a_step_has_a_line(repo):
    script = str(repo / "benchmarks/machine_code.py")
    small = ["--shape", "qwen3.5-0.8b", "--layers", "4", "--sequences", "1"]
    done = subprocess.run([sys.executable, script, *small], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    title, heads, *lines = done.stdout.strip().splitlines()
    assert title == "qwen3.5-0.8b, 4 layers, 1 sequences"
    assert heads.split()[:5] == ["kernel", "times", "grid", "warps", "regs"]
    kernels = {line.split()[0]: line.split()[1:] for line in lines}
    assert {"norm_kernel", "gemv_kernel", "decode_kernel", "advance_kernel"} <= kernels.keys()
    for name, (_, _, warps, registers, spilled, _, instructions, *_) in kernels.items():
        assert int(warps) >= 1, name
        assert 8 <= int(registers) <= 255, name
        assert int(spilled) == 0, name
        assert int(instructions) > 50, name
