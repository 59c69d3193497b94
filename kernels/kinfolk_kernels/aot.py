"""Compiles launches ahead of time for any device, and reports shared memory and registers.

Needs no GPU. Arguments are specialised as in a launch of Triton: multiples of 16 are marked, and
ones are compiled in.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kinfolk_kernels.dependent import FIRST_CAPABILITY
from kinfolk_kernels.launch import Launch

TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.int8: "i8",
}


TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """Bytes of shared memory a program, registers and spilled bytes a thread.

    ``loop_spills``: accesses to spilled registers inside innermost loops, where they cost.
    """

    shared: int
    registers: int
    spilled: int
    loop_spills: int


def compile_aot(launch: Launch, capability: int) -> KernelUsage:
    """The usage of a launch compiled for ``capability``, 86 for sm_86."""
    compiled = compiled_for(launch, capability)
    return usage_of(compiled.asm["cubin"], compiled.metadata.shared)


def usage_of(code: bytes, shared: int) -> KernelUsage:
    """The usage of machine code with one kernel, whose programs take ``shared`` bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        resources = _run("cuobjdump", "--dump-resource-usage", file.name)
        usage = re.search(r"REG:(\d+) STACK:(\d+)", resources)
        if usage is None:
            raise ValueError(f"cuobjdump names no registers: {resources}")
        registers, spilled = int(usage[1]), int(usage[2])
        loop_spills = _loop_spills(_run("nvdisasm", "-c", file.name)) if spilled else 0
    return KernelUsage(shared, registers, spilled, loop_spills)


def instructions_of(code: bytes) -> list[str]:
    """The lines of machine code, disassembled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        return _run("nvdisasm", "-c", file.name).splitlines()


def compiled_for(launch: Launch, capability: int) -> Any:
    """The kernel that Triton compiles for a launch; ``asm`` holds all its intermediate forms."""
    compiled_in, options = launch.compiled_in(capability >= FIRST_CAPABILITY)
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(launch.kernel.arg_names):
        if name in compiled_in:
            signature[name] = "constexpr"
            constants[(index,)] = compiled_in[name]
            continue
        value = launch.arguments[name]
        free = name in (launch.kernel.do_not_specialize or ())
        if not free and isinstance(value, int) and value == 1:
            signature[name] = "constexpr"
            constants[(index,)] = 1
            continue
        signature[name] = _type(value)
        if not free and _divisible(value):
            attributes[(index,)] = [["tt.divisibility", 16]]
    return triton.compile(
        ASTSource(launch.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _divisible(value: Any) -> bool:
    """Whether an argument is a multiple of 16: torch aligns memory, so a view's offset decides."""
    if isinstance(value, torch.Tensor):
        return value.storage_offset() * value.element_size() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run(
        [TOOLS / tool, *arguments], check=True, capture_output=True, text=True
    ).stdout


def _loop_spills(code: str) -> int:
    """Loads from and stores to local memory between the ends of innermost backward branches."""
    lines = code.splitlines()
    labels = {
        label[1]: n for n, line in enumerate(lines) if (label := re.match(r"(\.L_\w+):", line))
    }
    branches = ((n, re.search(r"BRA\b.*`\((\.L_\w+)\)", line)) for n, line in enumerate(lines))
    loops = [(labels[branch[1]], n) for n, branch in branches if branch and labels[branch[1]] < n]
    inner = [
        loop
        for loop in loops
        if not any(loop[0] <= other[0] and other[1] < loop[1] for other in loops)
    ]
    return sum(
        bool(re.search(r"\b(LDL|STL)\b", line))
        for start, stop in inner
        for line in lines[start:stop]
    )
