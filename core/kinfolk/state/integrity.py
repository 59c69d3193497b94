"""Recounts a pool from the chunks that sequences and checkpoints hold. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from kinfolk.errors import StateError
from kinfolk.state.block_pool import BlockPool
from kinfolk.state.chunks import NO_DIGEST, Checkpoint, Chunk, Pin, SequenceState
from kinfolk.state.digest_places import DigestPlaces
from kinfolk.state.host_rows import HostRows
from kinfolk.types import CHUNK_POSITIONS, DUMMY


def require(holds: bool, what: str) -> None:
    if not holds:
        raise StateError(f"integrity: {what}")


def check_pool(
    pool: BlockPool,
    sequences: Iterable[SequenceState],
    checkpoints: Iterable[Checkpoint],
    pins: Iterable[Pin] = (),
) -> None:
    """Raise :class:`StateError` unless counts and blocks of a pool agree with its holders.

    Every block is free or has one chunk; every chunk has as many references and owners as it is
    counted for, and its bytes are somewhere. The host has no old bytes of a chunk that is being
    written.
    """
    index = pool.index
    refs: Counter[int] = Counter()
    owners: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    movable: Counter[int] = Counter()
    pagers: Counter[int] = Counter()
    chunks: dict[int, Chunk] = {}
    for seq in sequences:
        table = seq.tables[index]
        require(list(table) == sorted(table), f"table of slot {seq.lease.slot} is in order")
        absent = [entry for entry in table.values() if not entry.resident]
        # Only a pool of full attention evicts, and there is at most one.
        paged = pool.window is None and seq.paged
        if pool.window is None:
            require(seq.evicted == len(absent), "evicted chunks")
            require(seq.fetched == sum(each.fetched for each in absent), "fetched chunks")
            full = seq.length // CHUNK_POSITIONS
            require(not paged or all(table[n].chunk.saved for n in range(full)), "saved chunks")
        else:
            require(not absent, "a window evicts nothing")
        held = len(table) - sum(not each.fetched for each in absent)
        require(held <= seq.promised[index], f"promise to slot {seq.lease.slot} of pool {index}")
        for number, entry in table.items():
            written = (number + 1) * CHUNK_POSITIONS > seq.length
            require(not (written and entry.chunk.saved), f"chunk {number} was saved too early")
            chunks[entry.chunk.identity] = entry.chunk
            owners[entry.chunk.identity] += 1
            seen = entry.resident or entry.fetched
            refs[entry.chunk.identity] += seen
            movable[entry.chunk.identity] += seen and (paged or pool.window is not None)
            pagers[entry.chunk.identity] += paged
    for checkpoint in checkpoints:
        for chunk in checkpoint.chunks[index].values():
            chunks[chunk.identity] = chunk
            owners[chunk.identity] += 1
            refs[chunk.identity] += checkpoint.resident
            kept[chunk.identity] += checkpoint.resident
    for place, chunk in (item for pin in pins for item in pin.chunks.items()):
        if place[0] == index:
            require(chunk.saved, f"pinned chunk {chunk.identity} is in host memory")
            chunks[chunk.identity] = chunk
            owners[chunk.identity] += 1
    for identity, chunk in chunks.items():
        require(chunk.refs == refs[identity], f"refs of chunk {identity}")
        require(chunk.owners == owners[identity], f"owners of chunk {identity}")
        require(chunk.kept == kept[identity], f"checkpoints of chunk {identity}")
        require(chunk.movable == movable[identity], f"movable references of chunk {identity}")
        require(chunk.pagers == pagers[identity], f"paged owners of chunk {identity}")
        require((chunk.block != DUMMY) == (chunk.refs > 0), f"block of chunk {identity}")
        require(chunk.refs > 0 or chunk.saved, f"chunk {identity} is nowhere")
    blocks = sum(count > 0 for count in kept.values())
    require(pool.kept == blocks, f"blocks of checkpoints in pool {index}")
    counted = movable.total() + sum(refs[each] > movable[each] for each in refs)
    require(pool.references == counted, f"references of pool {index}")
    used = [chunk.block for chunk in chunks.values() if chunk.refs]
    require(
        sorted([*used, *pool.free]) == list(range(1, pool.size + 1)),
        f"blocks of pool {index}: every block is free or has one chunk",
    )


def check_digests(digests: DigestPlaces, sequences: Iterable[SequenceState]) -> None:
    """Raise :class:`StateError` unless every place is free or held by one chunk with an owner, and
    paged sequences know no other places."""
    places = sorted([*digests.free, *digests.holders])
    require(places == list(range(digests.size)), "places for compressed keys")
    for place, chunk in digests.holders.items():
        require(chunk.digest == place, f"compressed keys of chunk {chunk.identity}")
        require(chunk.owners > 0, f"compressed keys of chunk {chunk.identity}, which nobody owns")
    for seq in sequences:
        for number in np.flatnonzero(seq.digests != NO_DIGEST).tolist():
            place = int(seq.digests[number])
            known = seq.paged and digests.holders.get(place) is seq.tables[0][number].chunk
            require(known, f"compressed keys of chunk {number} of slot {seq.lease.slot}")


def check_host(
    host: HostRows,
    pools: Iterable[BlockPool],
    sequences: Iterable[SequenceState],
    checkpoints: Iterable[Checkpoint],
    pins: Iterable[Pin] = (),
) -> None:
    """Raise :class:`StateError` unless host memory is charged for the chunks that are saved, or
    have an owner without a reference, and for the recurrent state of checkpoints that are demoted
    or pinned."""
    pages = rows = 0
    pools, pins, sequences = list(pools), list(pins), list(sequences)
    checkpoints = list(dict.fromkeys([*checkpoints, *(pin.checkpoint for pin in pins)]))
    for pool in pools:
        tables = [seq.tables[pool.index].values() for seq in sequences]
        chunks = {entry.chunk.identity: entry.chunk for table in tables for entry in table}
        for checkpoint in checkpoints:
            held = list(checkpoint.chunks[pool.index].values())
            chunks |= {chunk.identity: chunk for chunk in held}
        for pin in pins:
            held = [chunk for place, chunk in pin.chunks.items() if place[0] == pool.index]
            chunks |= {chunk.identity: chunk for chunk in held}
        for identity, chunk in chunks.items():
            wanted = chunk.saved or chunk.owners > chunk.refs
            require(chunk.charged == wanted, f"host memory of chunk {identity}")
            rows += wanted
            pages += wanted * pool.row_pages
    for checkpoint in checkpoints:
        held_by = sum(pin.checkpoint is checkpoint for pin in pins)
        require(checkpoint.pins == held_by, "pins of a checkpoint")
        both = checkpoint.live and checkpoint.resident and checkpoint.saved
        require(held_by > 0 or not both, "a checkpoint in two places")
        rows += checkpoint.saved
        pages += checkpoint.saved * host.layout.recurrent_pages
    promised = sum(
        seq.unsaved * pool.row_pages for seq in sequences for pool in pools if pool.window is None
    )
    require(host.promised == promised, "promised pages of host memory")
    require((pages, rows) == (host.used, host.rows), "pages and rows of host memory")
    room = host.pages is None or host.used + promised <= host.pages
    require(room, "host memory has room for its rows")
