"""The tensors that sequences keep. ``State.apply`` is the only thing that changes their layout.

Pools are bytes [blocks + 1, block bytes], block 0 for padding rows; recurrent tensors are
[recurrent slots, ...], slot 0 for padding rows. Trees write to an arena with the same
sections, from which accepted rows are copied as raw bytes. Rows that left the device are in host
memory, and are copied on a stream of their own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Protocol, cast

import torch

from kinfolk.errors import StateError
from kinfolk.plans import Paged, Recurrent, StateLimits, StatePlan
from kinfolk.state.copies import Copies, Copy, DeviceStreams, Location, streams_for
from kinfolk.state.host import HostMemory, copy_bytes
from kinfolk.state.host_rows import HostLayout
from kinfolk.state.layout import CODED, PoolLayout, SectionLayout, pool_layouts, slot_bytes
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyQueries,
    CopyRecurrent,
    DigestChunk,
    DiskOperation,
    DropSaved,
    FetchSaved,
    LoadBlock,
    LoadRecurrent,
    MapChunk,
    SaveBlock,
    SaveRecurrent,
    SpillSaved,
    StateOperation,
    StoreRecurrent,
    UnmapChunk,
)
from kinfolk.state.tables import BlockTables
from kinfolk.torch_dtypes import TORCH_DTYPES
from kinfolk.types import CHUNK_POSITIONS, DUMMY
from kinfolk_kernels.codecs import Coded, Stored

log = logging.getLogger(__name__)


class Pool:
    """Blocks of one pool, the arena of drafted trees, and every slot's table."""

    def __init__(self, layout: PoolLayout, blocks: int, limits: StateLimits, device: torch.device):
        self.layout = layout
        self._sizes = blocks + 1, -(-limits.tree_rows // CHUNK_POSITIONS)
        self._device = device
        self.tables: list[dict[int, int]] = [{} for _ in range(limits.slots + 1)]
        self.allocate()

    def allocate(self) -> None:
        """Allocate blocks and arena."""
        # Memory that was never written is read and masked: it must be finite.
        self.data, self.arena = (
            torch.zeros(rows, self.layout.block_bytes, dtype=torch.uint8, device=self._device)
            for rows in self._sizes
        )

    def free(self) -> None:
        """Free blocks and arena."""
        self.data = self.arena = self.data.new_empty(0)

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


class ChunkScorer(Protocol):
    """Compressed keys of chunks, and the last queries of each slot, on the device of a state."""

    def queries_of(self, layer: int) -> torch.Tensor: ...

    def copy_queries(self, source: int, target: int) -> None: ...

    def compress(self, state: State, chunks: Sequence[DigestChunk]) -> None:
        """Compress the keys of chunks, on the main stream."""
        ...

    def allocate(self) -> None: ...

    def free(self) -> None: ...


class State:
    """All sequences of one model on one device. ``streams``: those of the device, or others."""

    def __init__(
        self,
        plan: StatePlan,
        limits: StateLimits,
        device: torch.device,
        streams: DeviceStreams | None = None,
    ) -> None:
        self.plan = plan
        self.limits = limits
        self.device = device
        self.pools = tuple(
            Pool(layout, blocks, limits, device)
            for layout, blocks in zip(pool_layouts(plan), limits.blocks, strict=True)
        )
        sections = (s for pool in self.pools for s in pool.layout.sections.values())
        self.coded = any(each.section.codec.format in CODED for each in sections)
        """Whether keys or values are stored in a quantised format."""
        self.copies = Copies(streams or streams_for(device))
        self._recurrent: dict[int, dict[str, torch.Tensor]] = {}
        self._recurrent_of: dict[int, list[list[torch.Tensor]]] = {}
        self._recurrent_bytes_of: dict[int, list[torch.Tensor]] = {}
        self._paged: dict[int, PagedLayer] = {}
        self._allocate_layers()
        self.host = HostMemory(HostLayout.of(plan), limits.host_bytes, device)
        # Saves that may be under way, by identity.
        self._arriving: deque[tuple[int, Copy]] = deque()
        self.to_disk: Callable[[DiskOperation], object] | None = None
        """Hears of what is written to the disk and read from it, if there is one."""
        self.scorer: ChunkScorer | None = None
        """Has the compressed keys of chunks, if these are scored by the core."""
        self.real_rows: torch.Tensor | None = None
        """int32 [1], where a step writes how many of its rows are no padding, if the model's
        experts read it."""
        tables = [pool.tables for pool in self.pools]
        self.block_tables = BlockTables(tables, plan.windows, limits, device)

    def free(self) -> None:
        """Free the tensors on the device. No sequence and no checkpoint may be there; what is in
        host memory stays."""
        self.copies.drain()
        for pool in self.pools:
            pool.free()
            for table in pool.tables:  # those of sequences that have ended
                table.clear()
        self._recurrent, self._paged = {}, {}
        self._recurrent_of, self._recurrent_bytes_of = {}, {}
        if self.scorer is not None:
            self.scorer.free()
        self.block_tables.invalidate()

    def allocate(self) -> None:
        """Allocate what :meth:`free` freed; it is zero."""
        for pool in self.pools:
            pool.allocate()
        if self.scorer is not None:
            self.scorer.allocate()
        self._allocate_layers()

    def _allocate_layers(self) -> None:
        plan, device = self.plan, self.device
        rows = self.limits.recurrent_slots
        self._recurrent = {
            index: {
                tensor.name: torch.zeros(
                    rows, *tensor.shape, dtype=TORCH_DTYPES[tensor.dtype], device=device
                )
                for tensor in layer.tensors
            }
            for index, layer in enumerate(plan.layers)
            if isinstance(layer, Recurrent)
        }
        for index in range(len(plan.layers)):
            layer = plan.layers[plan.owner(index)]
            if isinstance(layer, Paged):
                pool = plan.windows.index(layer.window)
                self._paged[index] = PagedLayer(self.pools[pool], pool, plan.owner(index))
        for tensor in (*(pool.data for pool in self.pools), *self.recurrent_tensors()):
            self.copies.streams.copies_use(tensor)

    # -- what a model sees --------------------------------------------------------------------

    def paged(self, layer: int) -> PagedLayer:
        return self._paged[layer]

    def recurrent(self, layer: int) -> Mapping[str, torch.Tensor]:
        return self._recurrent[layer]

    def queries(self, layer: int) -> torch.Tensor:
        return self._require_scorer().queries_of(layer)

    def recurrent_tensors(self) -> Iterable[torch.Tensor]:
        """Those of all recurrent layers: [recurrent slots, ...] each."""
        for tensors in self._recurrent.values():
            yield from tensors.values()

    @property
    def saved_rows(self) -> int:
        """Blocks and recurrent states that the host holds."""
        return len(self.host)

    # -- changes ------------------------------------------------------------------------------

    def apply(self, operations: Iterable[StateOperation], *, step_follows: bool = False) -> None:
        """Execute a plan's operations in order. The host waits for no copy. If a step follows, its
        launch is not kept waiting for that of saves: :meth:`launch_saves` is called behind it."""
        self.copies.begin()
        digests: list[DigestChunk] = []
        for kind, run in groupby(operations, type):
            if kind is DigestChunk:
                digests += cast("Iterable[DigestChunk]", run)
                continue
            if digests and kind in (CopyBlock, LoadBlock):
                self._compress(digests)  # before another chunk is in the block
                digests = []
            if kind is LoadBlock:
                self._load_blocks(cast("Iterable[LoadBlock]", run))
                continue
            for operation in run:
                self._apply(operation)
        if digests:
            self._compress(digests)
        self.copies.end()
        if not step_follows:
            self.launch_saves()

    def launch_saves(self) -> None:
        """Launch the saves of the operations up to now."""
        self.copies.launch_saves()

    def take_arrived(self) -> tuple[int, ...]:
        """Identities whose bytes have come to host memory since the last call."""
        arrived = []
        while self._arriving and self.copies.is_done(self._arriving[0][1]):
            arrived.append(self._arriving.popleft()[0])
        return tuple(arrived)

    def forget(self) -> None:
        """Forget all tables and kept bytes: operations failed, and those of whom they were have
        ended. The books forget with it (:meth:`KVCacheManager.forget_operations`)."""
        try:
            self.copies.drain()
        except RuntimeError as error:
            # A device that is lost copies nothing more.
            log.warning("copies of state did not end: %s", error)
        self._arriving.clear()
        self.host.clear()
        for pool in self.pools:
            for table in pool.tables:
                table.clear()
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
                self.copies.step_uses(_block(pool, block))
            case UnmapChunk(pool, slot, chunk):
                del self.pools[pool].tables[slot][chunk]
                self.block_tables.touch(pool, slot)
            case ClearSlot(slot):
                self._clear(slot)
            case CopyBlock(pool, source, target):
                data, places = self.pools[pool].data, (_block(pool, source), _block(pool, target))
                self.copies.change(
                    lambda: data[target].copy_(data[source]), reads=places[:1], writes=places[1:]
                )
            case CopyRecurrent(source, target):
                self._copy_recurrent(source, target)
            case CopyQueries(source, target):
                scorer = self._require_scorer()
                self.copies.change(lambda: scorer.copy_queries(source, target))
            case StoreRecurrent(slot):
                self.copies.step_uses(_slot(slot))
            case SaveBlock(pool, block, identity):
                self._save(_block(pool, block), identity, [self.pools[pool].data[block]])
            case SaveRecurrent(slot, identity):
                self._save(_slot(slot), identity, self._recurrent_bytes(slot))
            case LoadRecurrent(identity, slot):
                self._load_recurrent(identity, slot)
            case DropSaved(identity):
                self.host.drop(identity)
            case SpillSaved() | FetchSaved():
                self._to_disk(operation)

    def _compress(self, digests: Sequence[DigestChunk]) -> None:
        scorer = self._require_scorer()
        last = list({each.place: each for each in digests}.values())
        pool = self.plan.windows.index(None)
        reads = {block for each in last for block in (each.block, each.first)}
        self.copies.change(
            lambda: scorer.compress(self, last), reads=[_block(pool, block) for block in reads]
        )

    def _require_scorer(self) -> ChunkScorer:
        if self.scorer is None:
            raise StateError("there are no compressed keys and no queries of this state")
        return self.scorer

    def _clear(self, slot: int) -> None:
        for index, each in enumerate(self.pools):
            each.tables[slot] = {}
            self.block_tables.touch(index, slot)

        def clear() -> None:
            for rows in self._recurrent_rows(slot):
                torch._foreach_zero_(rows)

        self.copies.change(clear, writes=(_slot(slot),))

    def _copy_recurrent(self, source: int, target: int) -> None:
        def copy() -> None:
            rows = self._recurrent_rows(target), self._recurrent_rows(source)
            for targets, sources in zip(*rows, strict=True):
                torch._foreach_copy_(targets, sources)

        self.copies.change(copy, reads=(_slot(source),), writes=(_slot(target),))

    def _save(self, place: Location, identity: int, row: Sequence[torch.Tensor]) -> None:
        nbytes = _total(row)
        self.host.add(identity, nbytes)
        kept = self.host.parts(identity)
        copy = self.copies.save(place, lambda: copy_bytes(row, kept), nbytes)
        self._arriving.append((identity, copy))

    def _load_blocks(self, run: Iterable[LoadBlock]) -> None:
        """Load blocks one after the other, as one copy."""
        blocks = [(each, self.host.parts(each.identity)) for each in run]

        def load() -> None:
            # The device copies the first block while the host launches the copy of the next.
            for each, kept in blocks:
                copy_bytes(kept, [self.pools[each.pool].data[each.block]])

        places = [_block(each.pool, each.block) for each, _ in blocks]
        nbytes = sum(self.pools[each.pool].layout.block_bytes for each, _ in blocks)
        self.copies.load(places, load, nbytes)

    def _load_recurrent(self, identity: int, slot: int) -> None:
        kept, row = self.host.parts(identity), self._recurrent_bytes(slot)
        self.copies.load([_slot(slot)], lambda: copy_bytes(kept, row), _total(row))
        self.copies.step_uses(_slot(slot))

    def _to_disk(self, operation: DiskOperation) -> None:
        if self.to_disk is None:
            raise StateError("there is no disk for the bytes of a plan")
        if isinstance(operation, FetchSaved):
            for pool, _, identity in operation.blocks:
                self.host.add(identity, self.pools[pool].layout.block_bytes)
            if operation.recurrent:
                self.host.add(operation.recurrent, slot_bytes(self.plan))
        self.to_disk(operation)

    def _recurrent_rows(self, slot: int) -> list[list[torch.Tensor]]:
        """The recurrent state of a slot, in lists of one type each: those that a single launch
        changes. A model has a hundred of them, so they are made once for each slot."""
        if slot not in self._recurrent_of:
            by_type: dict[torch.dtype, list[torch.Tensor]] = {}
            for tensor in self.recurrent_tensors():
                by_type.setdefault(tensor.dtype, []).append(tensor[slot])
            self._recurrent_of[slot] = list(by_type.values())
        return self._recurrent_of[slot]

    def _recurrent_bytes(self, slot: int) -> list[torch.Tensor]:
        """The recurrent state of a slot, uint8 [n] for each tensor; made once for each slot."""
        if slot not in self._recurrent_bytes_of:
            self._recurrent_bytes_of[slot] = [
                tensor[slot].reshape(-1).view(torch.uint8) for tensor in self.recurrent_tensors()
            ]
        return self._recurrent_bytes_of[slot]


def _total(row: Sequence[torch.Tensor]) -> int:
    """Bytes of parts of uint8."""
    return sum(part.numel() for part in row)


def _block(pool: int, block: int) -> Location:
    return "block", pool, block


def _slot(slot: int) -> Location:
    return "slot", 0, slot
