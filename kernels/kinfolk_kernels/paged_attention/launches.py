"""The launches of a call of attention: grids, arguments, constants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kinfolk_kernels.codecs import Coded, Stored, dim_of, heads_of, is_rotated
from kinfolk_kernels.coded_tiles import FORMAT_NUMBERS
from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.paged_attention.combine import FACTORS, combine_kernel
from kinfolk_kernels.paged_attention.decode import decode_kernel, most_runs, most_runs_of_step
from kinfolk_kernels.paged_attention.epilogue import Epilogue, Mixed
from kinfolk_kernels.paged_attention.numbers import numbers_kernel
from kinfolk_kernels.paged_attention.prefill import prefill_kernel
from kinfolk_kernels.paged_attention.tiles import (
    Device,
    Tile,
    combine_tile,
    decode_tile,
    heights,
    prefill_tile,
)
from kinfolk_kernels.row_layout import LaunchTraits, RowLayout
from kinfolk_kernels.row_outputs import int8_kind
from kinfolk_kernels.rows import CHUNK_POSITIONS, Rows, Table
from kinfolk_kernels.sections import format_of, padded, planes_of, row_of, section_arguments

LOG2_E = math.log2(math.e)

SPARE = 16
"""Most bytes of decoded keys and values for each number of the queries: memory plans reserve four
float32 numbers for each. At least one head is decoded at a time."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the op: its operands, and the launches that compute it."""

    q: torch.Tensor
    pools: tuple[Stored, Stored]
    arenas: tuple[Stored, Stored]
    rows: Rows
    table: Table
    window: int | None
    scale: float
    epilogue: Epilogue
    device: Device
    tile: Tile | None = None
    """Replaces the default tile of every kernel but the combine kernel, for tuning."""

    def outputs(self) -> Mixed:
        """Uninitialised memory for the result."""
        count, heads, dim = self.q.shape[0], self.q.shape[1], dim_of(self.pools[1])
        dtype, device = self.epilogue.dtype or self.q.dtype, self.q.device
        values = torch.empty(count, heads, dim, dtype=dtype, device=device)
        if not self.epilogue.int8:
            return Mixed(values)
        return Mixed(values, Int8Rows.make(count, heads * dim, device))

    def launches(self, mixed: Mixed) -> Iterator[Launch]:
        if self._layout.long.shape[0]:
            yield from self.prefill(mixed)
        if self._traits.short_counts:
            width, most = self.table.blocks.shape[1], self._most_runs
            runs = max(most_runs(width, n, most) for n in self._traits.short_counts)
            slots = runs + self._traits.trees
            count, heads = self.q.shape[0], self.q.shape[1]
            shape = (count, heads, slots, dim_of(self.pools[1]))
            parts = torch.empty(shape, device=self.q.device)
            maxima = torch.empty(shape[:3], device=self.q.device)
            sums = torch.empty_like(maxima)
            yield from self.decode(parts, maxima, sums)
            yield self.combine(parts, maxima, sums, mixed)

    # -- one launch each ----------------------------------------------------------------------

    def decode(
        self, parts: torch.Tensor, maxima: torch.Tensor, sums: torch.Tensor
    ) -> Iterator[Launch]:
        """The launches of the decode kernel, one for each height of tile among the sequences."""
        group, sizes = self._group, self._sizes
        runs = parts.shape[2] - self._traits.trees
        pairs = [n * group for n in self._traits.short_counts]
        for height in heights(pairs, *sizes, self._number_bytes):
            tile = self.tile or decode_tile(height.m, *sizes, self._number_bytes, self._coded)
            most = min(max(pairs), height.up_to)
            tiles, kv_heads = triton.cdiv(most, tile.m), heads_of(self.pools[0])
            others = tiles * kv_heads * len(self._layout.short)
            programs = min(runs, triton.cdiv(tile.programs * self.device.processors, others))
            grid = (kv_heads * tiles, len(self._layout.short), programs + self._traits.trees)
            yield Launch(
                decode_kernel,
                grid,
                self._common
                | section_arguments("ak", self.arenas[0])
                | section_arguments("av", self.arenas[1])
                | {
                    "ancestors": self.rows.ancestors,
                    "arena_rows": self.rows.arena_row,
                    "short": self._layout.short,
                    "part_o": parts,
                    "part_m": maxima,
                    "part_l": sums,
                    "slots": parts.shape[2],
                    "most": self._most_runs,
                    "tiles": tiles,
                },
                self._constants
                | self._formats
                | {
                    "ABOVE": height.above,
                    "UP_TO": height.up_to,
                    "BLOCK_M": tile.m,
                    "BLOCK_N": tile.n,
                    "TREES": self._traits.trees,
                },
                tile.warps,
                tile.stages,
            )

    def combine(
        self, parts: torch.Tensor, maxima: torch.Tensor, sums: torch.Tensor, mixed: Mixed
    ) -> Launch:
        dim = dim_of(self.pools[1])
        rotated = is_rotated(self.pools[1])
        tile = combine_tile(dim, rotated)
        int8 = mixed.int8
        heads = self.q.shape[1]
        return Launch(
            combine_kernel,
            (len(self._layout.short_rows), heads, triton.cdiv(dim, tile.size)),
            self._gates
            | {
                "part_o": parts,
                "part_m": maxima,
                "part_l": sums,
                "slots": parts.shape[2],
                "most": self._most_runs,
                "arena_rows": self.rows.arena_row,
                "spans": self._layout.spans,
                "entries": self.table.length,
                "sequences": self.rows.sequence_of_row,
                "short_rows": self._layout.short_rows,
                "y_ptr": mixed.values,
                "words_ptr": mixed.values if int8 is None else int8.words,
                "scale_ptr": mixed.values if int8 is None else int8.scale,
                "scale_step": 0 if int8 is None else int8.scale.stride(0),
            },
            self._gate_constants
            | {
                "HEADS": heads,
                "DIM": dim,
                "SIZE": tile.size,
                "BLOCK_RUNS": tile.runs,
                "TREES": self._traits.trees,
                "ROTATED": rotated,
                "INT8": int8_kind(int8),
            },
            tile.warps,
        )

    def prefill(self, mixed: Mixed) -> Iterator[Launch]:
        """The launches for slices. Quantised keys and values are decoded some heads at a time, each
        time followed by the rows that read these heads."""
        heads = heads_of(self.pools[0])
        if not self._coded:
            yield self._slices(mixed, self.pools, self.table.blocks, 0, heads)
            return
        entries = len(self._layout.long) * self.table.blocks.shape[1]
        dims = [dim_of(pool) for pool in self.pools]
        a_head = entries * CHUNK_POSITIONS * sum(dims) * self._number_bytes
        at_once = min(heads, max(1, SPARE * self.q.numel() // a_head))
        blocks = self.table.blocks
        table = torch.empty(len(blocks), blocks.stride(0), dtype=blocks.dtype, device=blocks.device)
        for first in range(0, heads, at_once):
            count = min(at_once, heads - first)
            k, v = (
                torch.empty(
                    entries, count, CHUNK_POSITIONS, dim, dtype=self._dot, device=self.q.device
                )
                for dim in dims
            )
            yield self._numbers((k, v), table, first)
            yield self._slices(mixed, (k, v), table, first, count)

    def _numbers(
        self, numbers: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor, first: int
    ) -> Launch:
        return Launch(
            numbers_kernel,
            (self.table.blocks.shape[1], numbers[0].shape[1], len(self._layout.long)),
            {
                "entries": self.table.length,
                "long": self._layout.long,
                "blocks": self.table.blocks,
                "table_width": self.table.blocks.stride(0),
                "numbered": table,
                "entries_each": self.table.blocks.shape[1],
                "first_head": first,
                **section_arguments("k", self.pools[0]),
                **section_arguments("v", self.pools[1]),
                "k_out": numbers[0],
                "v_out": numbers[1],
            },
            self._dims | self._formats | {"ROTATED": is_rotated(self.pools[1])},
        )

    def _slices(
        self,
        mixed: Mixed,
        pools: tuple[Stored, Stored],
        table: torch.Tensor,
        first: int,
        heads: int,
    ) -> Launch:
        """The launch for the query heads that read ``heads`` key heads from the ``first`` on;
        ``pools`` holds only these key heads."""
        tile = self.tile or prefill_tile(*self._sizes, self._number_bytes, self.device)
        slices = len(self._layout.long)
        tiles = self.q.shape[0] * self._group // tile.m + slices
        k, v = (planes_of(pool)[0] for pool in pools)
        return Launch(
            prefill_kernel,
            (tiles, heads),
            self._rows
            | self._gates
            | {
                "long": self._layout.long,
                "slices": slices,
                "blocks": table,
                "first_head": first,
                "k_ptr": k,
                "k_block": k.stride(0),
                "v_ptr": v,
                "v_block": v.stride(0),
                "y_ptr": mixed.values,
            },
            self._constants | self._gate_constants | {"BLOCK_M": tile.m, "BLOCK_N": tile.n},
            tile.warps,
            tile.stages,
        )

    # -- what they share ----------------------------------------------------------------------

    @property
    def _layout(self) -> RowLayout:
        return self.rows.layout

    @property
    def _traits(self) -> LaunchTraits:
        return self.rows.layout.traits

    @property
    def _most_runs(self) -> int:
        return most_runs_of_step(self.q.shape[0])

    @property
    def _group(self) -> int:
        return int(self.q.shape[1]) // heads_of(self.pools[0])

    @property
    def _sizes(self) -> tuple[int, int]:
        return padded(dim_of(self.pools[0])), padded(dim_of(self.pools[1]))

    @property
    def _dot(self) -> torch.dtype:
        """The dtype of the operands of products; float16 for quantised keys and values, because
        codes times a float16 scale lose least in it."""
        wide = self._coded and self.q.dtype == torch.bfloat16
        return torch.float16 if wide else self.q.dtype

    @property
    def _coded(self) -> bool:
        return any(isinstance(pool, Coded) for pool in self.pools)

    @property
    def _number_bytes(self) -> int:
        return self._dot.itemsize

    @property
    def _common(self) -> dict[str, Any]:
        return {
            **self._rows,
            "blocks": self.table.blocks,
            **section_arguments("k", self.pools[0]),
            **section_arguments("v", self.pools[1]),
        }

    @property
    def _rows(self) -> dict[str, Any]:
        return {
            "q_ptr": self.q,
            "q_row": self.q.stride(0),
            "q_head": self.q.stride(1),
            "positions": self.rows.positions,
            "limits": self.rows.limit,
            "spans": self._layout.spans,
            "entries": self.table.length,
            "chunks": self.table.chunks,
            "table_width": self.table.blocks.stride(0),
            "scale": self.scale * LOG2_E,
            "window": self.window or 0,
        }

    @property
    def _constants(self) -> dict[str, Any]:
        return self._dims | {
            "KV_HEADS": heads_of(self.pools[0]),
            "GROUP": self._group,
            "DOT": getattr(tl, str(self._dot).removeprefix("torch.")),
            "WINDOW": self.window is not None,
        }

    @property
    def _dims(self) -> dict[str, Any]:
        size, value_size = self._sizes
        return {
            "DIM": dim_of(self.pools[0]),
            "VALUE_DIM": dim_of(self.pools[1]),
            "SIZE": size,
            "VALUE_SIZE": value_size,
        }

    @property
    def _formats(self) -> dict[str, Any]:
        k, v = self.pools
        return {
            "K_ROW": row_of(k),
            "V_ROW": row_of(v),
            "K_FORMAT": FORMAT_NUMBERS[format_of(k)],
            "V_FORMAT": FORMAT_NUMBERS[format_of(v)],
        }

    @property
    def _gates(self) -> dict[str, Any]:
        gate, factor = self.epilogue.gate, self.epilogue.factor
        return {
            "gate_ptr": self.q if gate is None else gate,
            "gate_row": 0 if gate is None else gate.stride(0),
            "gate_head": 0 if gate is None else gate.stride(1),
            "factor_ptr": self.q if factor is None else factor,
            "factor_row": 0 if factor is None else factor.stride(0),
            "factor_head": 0 if factor is None else factor.stride(1),
            "factor_step": 0 if factor is None or factor.shape[2] == 1 else factor.stride(2),
        }

    @property
    def _gate_constants(self) -> dict[str, Any]:
        return {
            "GATE": self.epilogue.gate is not None,
            "FACTOR": 0 if self.epilogue.factor is None else FACTORS[self.epilogue.activation],
        }
