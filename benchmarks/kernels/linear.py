"""A quantised matrix times few rows, on the shapes of a dense 27B: time against reading the matrix.

    python benchmarks/kernels/linear.py [--rows N] [--tune] [--json FILE]

Up to four rows are int8 (`gemv`), more are float16 on tensor cores (`gemm_small`).

Every shape rotates over enough copies to leave the cache, inside one CUDA graph; the last line is
all linears of the model in one graph. Prints TB/s of plane bytes and their share of the copy
bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels.int8_rows import dequantize, quantize
from kinfolk_kernels.linear.gemm_small import gemm_small
from kinfolk_kernels.linear.gemv import MAX_ROWS, gemv
from kinfolk_kernels.planes import LAYOUTS, Planes, unpack

CACHE = 300e6
"""Bytes of copies a shape rotates over: several times the second-level cache."""

SHAPES = {
    "gate+up": ("Q4_K", 34816, 5120),
    "down Q4_K": ("Q4_K", 5120, 17408),
    "down Q6_K": ("Q6_K", 5120, 17408),
    "delta qkv": ("Q5_K", 10240, 5120),
    "delta z": ("Q4_K", 6144, 5120),
    "delta out": ("Q5_K", 5120, 6144),
    "q+gate": ("Q4_K", 12288, 5120),
    "k": ("Q4_K", 1024, 5120),
    "v": ("Q6_K", 1024, 5120),
    "o": ("Q4_K", 5120, 6144),
    "alpha": ("Q8_0", 48, 5120),
    "head": ("Q6_K", 248320, 5120),
}
GEMV_CONFIGS = [
    {"groups": g, "words": w, "warps": n}
    for g, w, n in ((1, 128, 4), (1, 64, 2), (1, 64, 1), (2, 64, 4), (2, 128, 4), (1, 128, 2))
]
GEMM_CONFIGS = [
    {"tile": t, "warps": n, "stages": s}
    for t, n, s in ((64, 4, 3), (64, 4, 2), (128, 4, 3), (128, 8, 3), (64, 4, 4), (64, 8, 3))
]


def random_planes(name: str, rows: int, columns: int) -> Planes:
    """Planes of random codes with sane scales, made on the device."""
    layout = LAYOUTS[name]
    groups, quads = columns // 64, -(-rows // 4)

    def words(count: int) -> torch.Tensor:
        return torch.randint(
            -(2**31), 2**31 - 1, (quads, count, 4), dtype=torch.int32, device="cuda"
        )

    small = layout.block == 32
    halves = torch.rand(quads, groups if small else columns // 256, 4, 2, device="cuda") * 0.01
    supers = halves.half().view(torch.int32).squeeze(-1)
    high = {0: None, 1: -(-columns // 256) * 8, 2: groups // 2 * 8}[layout.bits]
    return Planes(
        name,
        rows,
        columns,
        words(columns // (4 if name == "Q8_0" else 8)),
        None if high is None else words(high),
        None if small else words(groups) & 0x1F1F1F1F,
        supers.contiguous(),
    )


Product = Callable[..., torch.Tensor]


def product(rows: int, columns: int) -> tuple[torch.Tensor, Product]:
    """Activations as numbers, and the product of planes with them: (planes, **config) -> [M, N]."""
    x = torch.randn(rows, columns, device="cuda")
    if rows > MAX_ROWS:
        half = x.half()
        return half.double(), lambda planes, **config: gemm_small(planes, half, **config)
    packed = quantize(x)
    out = torch.full((rows, 248320), torch.nan, device="cuda")

    def multiply(planes: Planes, **config: int) -> torch.Tensor:
        y = out.flatten()[: rows * planes.rows].view(rows, planes.rows)
        gemv(planes, packed, y, **config)
        return y

    return dequantize(packed).double(), multiply


def measure(name: str, n: int, columns: int, rows: int, tune: bool) -> dict[str, object]:
    first = random_planes(name, n, columns)
    more = range(int(CACHE // first.nbytes))
    copies = [first, *(random_planes(name, n, columns) for _ in more)]
    x, multiply = product(rows, columns)
    best: dict[str, object] = {}
    configs = GEMV_CONFIGS if rows <= MAX_ROWS else GEMM_CONFIGS
    for config in configs if tune else configs[:1]:
        y = multiply(first, **config)
        if n <= 20000:
            expected = x @ unpack(first).double().T
            error = float((y - expected).norm() / expected.norm())
            assert error < (2e-6 if rows <= MAX_ROWS else 2e-3), (name, n, columns, config, error)

        def step(config: dict[str, int] = config) -> None:
            for planes in copies:
                multiply(planes, **config)

        seconds = replay_seconds(step) / len(copies)
        if not best or seconds < best["seconds"]:
            best = {"seconds": seconds, "config": config, "bytes": first.nbytes}
    return best


def whole_model(best: dict[str, dict[str, object]], rows: int) -> dict[str, object]:
    """All linears of 64 layers and the head, in one graph."""
    plan: list[str] = []
    for layer in range(64):
        half = layer < 8 or layer >= 56 or (layer - 8) % 3 == 2
        if (layer + 1) % 4:
            plan += ["delta qkv", "delta z", "alpha", "alpha", "delta out"]
        else:
            plan += ["q+gate", "k", "v", "o"]
        plan += ["gate+up", "down Q6_K" if half else "down Q4_K"]
    plan.append("head")
    matrices = [(random_planes(*SHAPES[name]), best[name]["config"]) for name in plan]
    products = {k: product(rows, k)[1] for k in (5120, 6144, 17408)}

    def step() -> None:
        for planes, config in matrices:
            products[planes.columns](planes, **config)

    nbytes = sum(planes.nbytes for planes, _ in matrices)
    return {"seconds": replay_seconds(step), "bytes": nbytes, "launches": len(plan)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tune", action="store_true", help="try several tile shapes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    copy = copy_bandwidth()
    say = sys.stdout.write
    say(f"copy {copy / 1e12:.2f} TB/s\n")
    best = {}
    for name, shape in SHAPES.items():
        best[name] = found = measure(*shape, options.rows, options.tune)
        rate = found["bytes"] / found["seconds"]
        say(
            f"{name:10} {shape[0]} {shape[1]}x{shape[2]}: {found['seconds'] * 1e6:.1f} us "
            f"{rate / 1e12:.2f} TB/s {rate / copy:.0%} {found['config']}\n"
        )
        sys.stdout.flush()
    total = whole_model(best, options.rows)
    rate = total["bytes"] / total["seconds"]
    say(
        f"all linears: {total['seconds'] * 1e3:.3f} ms, {total['bytes'] / 1e9:.2f} GB, "
        f"{rate / 1e12:.2f} TB/s {rate / copy:.0%} of copy, {total['launches']} launches\n"
    )
    if options.json:
        options.json.write_text(json.dumps({"copy": copy, "shapes": best, "all": total}, indent=1))


if __name__ == "__main__":
    main()
