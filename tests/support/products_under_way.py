"""Checks that products of warpgroups run while their warps go on."""

from __future__ import annotations

from kinfolk_kernels.aot import instructions_of


def assert_products_run_beside_others(code: bytes, tiles: int) -> None:
    """An assembler without registers for what is under way waits for each product. ``tiles``:
    kinds of tiles, each of which waits for the last of its products only."""
    waits = [line for line in instructions_of(code) if "WARPGROUP.DEPBAR" in line]
    assert sum("gsb0, 0x0" in line for line in waits) == tiles
    assert sum("gsb0, 0x0" not in line for line in waits) >= 8 * tiles
