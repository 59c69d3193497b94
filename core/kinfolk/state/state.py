"""The tensors that sequences keep. ``State.apply`` is the only thing that changes their layout.

Pools are bytes [blocks + 1, block bytes], block 0 for padding rows; recurrent tensors are
[slots + checkpoints + 1, ...], slot 0 for padding rows. Trees write to an arena with the same
sections, from which accepted rows are copied as raw bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from kinfolk.errors import StateError
from kinfolk.plans import Paged, Recurrent, StateLimits, StatePlan
from kinfolk.state.layout import CODED, PoolLayout, SectionLayout, pool_layouts
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    DropSaved,
    LoadBlock,
    MapChunk,
    SaveBlock,
    StateOperation,
    UnmapChunk,
)
from kinfolk.state.tables import BlockTables
from kinfolk.torch_dtypes import TORCH_DTYPES
from kinfolk.types import CHUNK_POSITIONS, DUMMY
from kinfolk_kernels.codecs import Coded, Stored


class Pool:
    """Blocks of one pool, the arena of drafted trees, and every slot's table."""

    def __init__(self, layout: PoolLayout, blocks: int, limits: StateLimits, device: torch.device):
        self.layout = layout
        # Memory that was never written is read and masked: it must be finite.
        self.data = torch.zeros(blocks + 1, layout.block_bytes, dtype=torch.uint8, device=device)
        arena = -(-limits.tree_rows // CHUNK_POSITIONS)
        self.arena = torch.zeros(arena, layout.block_bytes, dtype=torch.uint8, device=device)
        self.tables: list[dict[int, int]] = [{} for _ in range(limits.slots + 1)]

    def planes(self, data: torch.Tensor, section: SectionLayout) -> list[torch.Tensor]:
        """Planes of a section [blocks, heads, 64, n]: its numbers, or codes and scales."""
        spec, offset, planes = section.section, section.offset, []
        plain = TORCH_DTYPES.get(spec.codec.format)
        kinds = (torch.uint8, torch.float16) if plain is None else (plain,)
        for nbytes, kind in zip(section.planes, kinds, strict=True):
            flat = data[:, offset : offset + nbytes].view(kind)
            width = flat.shape[1] // (spec.heads * CHUNK_POSITIONS)
            planes.append(flat.view(data.shape[0], spec.heads, CHUNK_POSITIONS, width))
            offset += nbytes
        return planes

    def view(self, data: torch.Tensor, section: SectionLayout) -> Stored:
        """A section [blocks, heads, 64, dim] as ops get it."""
        codec, planes = section.section.codec, self.planes(data, section)
        if codec.format in TORCH_DTYPES:
            return planes[0]
        codes, scales = planes
        return Coded(codec.format, codes, scales, rotated=codec.rotation == "hadamard")

    def place(self, slot: int, position: int) -> int:
        """Row of the pool in which a position of a slot is stored: block * 64 + offset."""
        block = self.tables[slot].get(position // CHUNK_POSITIONS)
        if block is None:
            raise StateError(f"position {position} of slot {slot} has no block")
        return block * CHUNK_POSITIONS + position % CHUNK_POSITIONS

    def copy_from_arena(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy arena rows ``source`` to pool rows ``target``, both int64 [n]."""
        for section in self.layout.sections.values():
            planes = self.planes(self.data, section), self.planes(self.arena, section)
            for pool, arena in zip(*planes, strict=True):
                pool[target // CHUNK_POSITIONS, :, target % CHUNK_POSITIONS] = arena[
                    source // CHUNK_POSITIONS, :, source % CHUNK_POSITIONS
                ]


class PagedLayer:
    """What one layer may touch of the paged state."""

    def __init__(self, pool: Pool, pool_index: int, layer: int) -> None:
        self.pool_index = pool_index
        self.window = pool.layout.window
        sections = {name: s for (owner, name), s in pool.layout.sections.items() if owner == layer}
        self._pool = {name: pool.view(pool.data, section) for name, section in sections.items()}
        self._arena = {name: pool.view(pool.arena, section) for name, section in sections.items()}

    def pool(self, section: str) -> Stored:
        return self._pool[section]

    def arena(self, section: str) -> Stored:
        return self._arena[section]


class State:
    """All sequences of one model on one device."""

    def __init__(self, plan: StatePlan, limits: StateLimits, device: torch.device) -> None:
        self.plan = plan
        self.limits = limits
        self.device = device
        self.pools = tuple(
            Pool(layout, blocks, limits, device)
            for layout, blocks in zip(pool_layouts(plan), limits.blocks, strict=True)
        )
        rows = limits.slots + limits.checkpoints + 1
        self._recurrent: dict[int, dict[str, torch.Tensor]] = {
            index: {
                tensor.name: torch.zeros(
                    rows, *tensor.shape, dtype=TORCH_DTYPES[tensor.dtype], device=device
                )
                for tensor in layer.tensors
            }
            for index, layer in enumerate(plan.layers)
            if isinstance(layer, Recurrent)
        }
        self._paged: dict[int, PagedLayer] = {}
        for index in range(len(plan.layers)):
            layer = plan.layers[plan.owner(index)]
            if isinstance(layer, Paged):
                pool = plan.windows.index(layer.window)
                self._paged[index] = PagedLayer(self.pools[pool], pool, plan.owner(index))
        sections = (s for pool in self.pools for s in pool.layout.sections.values())
        self.coded = any(each.section.codec.format in CODED for each in sections)
        """Whether keys or values are stored in a quantised format."""
        self._saved: dict[int, torch.Tensor] = {}
        tables = [pool.tables for pool in self.pools]
        self.block_tables = BlockTables(tables, plan.windows, limits, device)

    # -- what a model sees --------------------------------------------------------------------

    def paged(self, layer: int) -> PagedLayer:
        return self._paged[layer]

    def recurrent(self, layer: int) -> Mapping[str, torch.Tensor]:
        return self._recurrent[layer]

    def recurrent_tensors(self) -> Iterable[torch.Tensor]:
        """Those of all recurrent layers: [slots and checkpoints + 1, ...] each."""
        for tensors in self._recurrent.values():
            yield from tensors.values()

    @property
    def saved_blocks(self) -> int:
        """Evicted blocks that the host holds."""
        return len(self._saved)

    # -- changes ------------------------------------------------------------------------------

    def apply(self, operations: Iterable[StateOperation]) -> None:
        """Execute a plan's operations in order."""
        for operation in operations:
            self._apply(operation)

    def forget(self) -> None:
        """Forget all tables and kept bytes: operations failed, and those of whom they were have
        ended. The books forget with it (:meth:`KVCacheManager.forget_operations`)."""
        for pool in self.pools:
            for table in pool.tables:
                table.clear()
        self._saved.clear()
        self.block_tables.invalidate()

    def commit_tree(self, source: torch.Tensor, targets: torch.Tensor) -> None:
        """Move accepted arena rows ``source`` [n] to pool rows ``targets`` [pools, n]."""
        for pool, target in zip(self.pools, targets, strict=True):
            pool.copy_from_arena(source, target)

    def check_integrity(self) -> None:
        """Every table entry is a real block, and no block stands twice in one table."""
        for index, pool in enumerate(self.pools):
            for slot, table in enumerate(pool.tables):
                blocks = list(table.values())
                if len(set(blocks)) != len(blocks) or any(
                    not DUMMY < block < pool.data.shape[0] for block in blocks
                ):
                    raise StateError(f"integrity: table of slot {slot} in pool {index}: {table}")

    def _apply(self, operation: StateOperation) -> None:
        match operation:
            case MapChunk(pool, slot, chunk, block):
                self.pools[pool].tables[slot][chunk] = block
                self.block_tables.touch(pool, slot)
            case UnmapChunk(pool, slot, chunk):
                del self.pools[pool].tables[slot][chunk]
                self.block_tables.touch(pool, slot)
            case ClearSlot(slot):
                for index, each in enumerate(self.pools):
                    each.tables[slot] = {}
                    self.block_tables.touch(index, slot)
                for tensor in self.recurrent_tensors():
                    tensor[slot].zero_()
            case CopyBlock(pool, source, target):
                self.pools[pool].data[target] = self.pools[pool].data[source]
            case CopyRecurrent(source, target):
                for tensor in self.recurrent_tensors():
                    tensor[target] = tensor[source]
            case SaveBlock(pool, block, identity):
                self._saved[identity] = self.pools[pool].data[block].to("cpu", copy=True)
            case LoadBlock(pool, identity, block):
                self.pools[pool].data[block] = self._saved[identity].to(self.device)
            case DropSaved(identity):
                del self._saved[identity]
