"""The matrices of a dense 27B in the published mix of formats, launch by launch of a step."""

from __future__ import annotations

import torch

from kinfolk_kernels.planes import GROUP_WEIGHTS, LAYOUTS, Planes

LAYERS = 64
LAUNCHES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "delta in": (
        ("Q5_K", 10240, 5120),
        ("Q4_K", 6144, 5120),
        ("Q8_0", 48, 5120),
        ("Q8_0", 48, 5120),
    ),
    "delta out": (("Q5_K", 5120, 6144),),
    "attention in": (("Q4_K", 12288, 5120), ("Q4_K", 1024, 5120), ("Q6_K", 1024, 5120)),
    "attention out": (("Q4_K", 5120, 6144),),
    "gate, up": (("Q4_K", 17408, 5120), ("Q4_K", 17408, 5120)),
    "down Q4_K": (("Q4_K", 5120, 17408),),
    "down Q6_K": (("Q6_K", 5120, 17408),),
    "head": (("Q6_K", 248320, 5120),),
}
"""(format, rows, columns) of the matrices of each launch."""


def step() -> list[str]:
    """The launches of a step in order: three layers of four are delta nets."""
    names = []
    for layer in range(LAYERS):
        more = layer < 8 or layer >= 56 or (layer - 8) % 3 == 2
        kind = "delta" if (layer + 1) % 4 else "attention"
        down = "down Q6_K" if more else "down Q4_K"
        names += [f"{kind} in", f"{kind} out", "gate, up", down]
    return [*names, "head"]


def random_planes(name: str, rows: int, columns: int) -> Planes:
    """A packed matrix of random codes with realistic scales, created on the device."""
    layout = LAYOUTS[name]
    quads = -(-rows // 4)

    def words(count: int) -> torch.Tensor:
        shape = (quads, count, 4)
        return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device="cuda")

    halves = torch.rand(quads, columns // layout.span, 4, 2, device="cuda") * 0.01
    return Planes(
        name,
        rows,
        columns,
        words(layout.words(columns)),
        words(layout.high_words(columns)) if layout.bits else None,
        None if layout.block == 32 else words(columns // GROUP_WEIGHTS) & 0x1F1F1F1F,
        halves.half().view(torch.int32).squeeze(-1).contiguous(),
    )


def launch_of(name: str, part: int = 1) -> list[Planes]:
    """The matrices of a launch, or about a ``part``-th of the rows of each. Their order by size,
    which decides the order in the launch, is not changed."""
    shapes = (
        (f, max(48, n // part // 16 * 16) if part > 1 else n, k) for f, n, k in LAUNCHES[name]
    )
    return [random_planes(*shape) for shape in shapes]
