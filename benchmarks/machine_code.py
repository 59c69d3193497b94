"""The machine code of the kernels of a step: registers, and what lanes and warps exchange.

    python benchmarks/machine_code.py [--shape NAME] [--layers N] [--sequences N]…
                                      [--capability N]

Needs no GPU. Decodes a position of so many sequences, on a synthetic file of few layers, and
compiles the Triton launches instead of running them. Prints for each kernel how often a step
launches it, its grid, warps, registers of a thread, spilled bytes, bytes of shared memory, and of
its code, as it stands, the instructions, barriers of the program, shuffles, and accesses to shared
memory. Many barriers in a small kernel mean that its operands are loaded in different layouts, or
that it has more warps than work. Kernels in CUDA C++ are compiled on GPUs only: shown is what
replaces them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import torch
from model_files import model_file, outline_of

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.registry import Registry
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.settings import load_settings
from kinfolk_kernels.aot import KernelUsage, compiled_for, instructions_of, usage_of
from kinfolk_kernels.launch import Launch

POSITIONS = 200
"""Length of each sequence. It decides about no kernel of a step that decodes."""

COUNTED = {
    "barriers": r"\bBAR\.SYNC",
    "shuffles": r"\bSHFL",
    "shared": r"\b(LDS|STS|LDSM|STSM)\b",
}
"""What is counted besides all instructions, as it begins in machine code."""

say = sys.stdout.write


@dataclass(frozen=True)
class Code:
    """The code of a kernel: its use of registers and memory, and numbers of instructions."""

    usage: KernelUsage
    instructions: int
    counts: dict[str, int]

    @classmethod
    def of(cls, launch: Launch, capability: int) -> Code:
        compiled = compiled_for(launch, capability)
        code = compiled.asm["cubin"]
        lines = [line for line in instructions_of(code) if re.search(r"/\*[0-9a-f]{4,}\*/", line)]
        counts = {
            name: sum(bool(re.search(pattern, line)) for line in lines)
            for name, pattern in COUNTED.items()
        }
        return cls(usage_of(code, compiled.metadata.shared), len(lines), counts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="qwen3.5-35b-a3b")
    parser.add_argument("--layers", type=int, default=4, help="the file has so many")
    parser.add_argument("--sequences", type=int, action="append", help="default: 1 and 16")
    parser.add_argument("--capability", type=int, default=90, help="of the device: 90 = sm_90")
    options = parser.parse_args()
    sequences = options.sequences or [1, 16]
    with model_file(outline_of(options.shape, options.layers)) as path:
        loaded = loaded_for_kernels(str(path), max(sequences))
        for count in sequences:
            say(f"\n{options.shape}, {options.layers} layers, {count} sequences\n")
            for line in lines_of(decoding(loaded, count), options.capability):
                say(f"{line}\n")
                sys.stdout.flush()


def loaded_for_kernels(path: str, slots: int) -> LoadedModel:
    """The model on the CPU, with the Triton back ends of all ops, which must not be run."""
    ops = sorted({backend.op for backend in OP_BACKENDS if backend.name == "triton"})
    settings = load_settings(
        device="cpu",
        dtype="bf16",
        context=2 * POSITIONS,
        slots=slots,
        graphs="off",
        draft="off",
        weights="packed",
        op=",".join(f"{op}=triton" for op in ops),
    )
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    # Before the back ends are imported, which is when they are bound.
    with patch("kinfolk_kernels.device.refuses_device", lambda *operands: ""):
        return load_model(path, settings, registry)


def decoding(loaded: LoadedModel, sequences: int) -> list[Launch]:
    """The launches of a step that decodes so many sequences."""
    launches: list[Launch] = []

    def record(launch: Launch) -> None:
        launches.append(launch)

    with torch.inference_mode(), patch.object(Launch, "run", record):
        kv_cache, state = loaded.new_state()
        items = []
        for _ in range(sequences):
            lease = kv_cache.open(POSITIONS)
            kv_cache.tables.extend(lease, POSITIONS)
            items.append(Item(lease, "", ItemKind.DECODE, (1,), POSITIONS - 1))
        state.apply(kv_cache.take_operations())
        step = build_input_batch(items, state).batch
        hidden = loaded.model.forward(step, state).hidden
        loaded.model.logits(loaded.model.norm(hidden[step.logit_rows]))
    return launches


def lines_of(launches: list[Launch], capability: int) -> Iterator[str]:
    """A line for each kernel, by the name, in the order of their first launches."""
    times: dict[tuple[object, ...], int] = {}
    first: dict[tuple[object, ...], Launch] = {}
    for launch in launches:
        key = (launch.kernel, launch.grid, launch.warps, tuple(sorted(launch.constants.items())))
        times[key] = times.get(key, 0) + 1
        first.setdefault(key, launch)
    yield (
        f"{'kernel':22} {'times':>5} {'grid':>14} warps regs spilled shared  instructions barriers "
        "shuffles of shared memory"
    )
    for key, launch in first.items():
        code = Code.of(launch, capability)
        usage, counts = code.usage, code.counts
        grid = "x".join(map(str, launch.grid))
        yield (
            f"{launch.kernel.fn.__name__:22} {times[key]:5} {grid:>14} {launch.warps:5} "
            f"{usage.registers:4} {usage.spilled:7} {usage.shared:6} {code.instructions:13} "
            f"{counts['barriers']:8} {counts['shuffles']:8} {counts['shared']:16}"
        )


if __name__ == "__main__":
    main()
