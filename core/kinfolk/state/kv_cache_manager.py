"""The state of all sequences as integers: block pools, tables and checkpoints of one model.

A chunk is 64 logical positions of a sequence, a block its place in a pool. Every change becomes a
:mod:`kinfolk.state.operations` value, which ``State.apply`` carries out on the tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kinfolk.plans import PoolRule, StateLimits
from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Checkpoint, SlotLease
from kinfolk.state.host_rows import HostRows
from kinfolk.state.integrity import check_digests, check_host, check_pool, require
from kinfolk.state.operations import StateOperation
from kinfolk.state.sequence_tables import SequenceTables
from kinfolk.types import DUMMY


class KVCacheManager:
    """``tables`` of sequences and ``checkpoints`` over the same pools.

    Not thread-safe: the engine's thread owns it. ``rules`` say which chunks may be evicted; without
    them every full chunk may be. ``host`` says how much may leave the device; without it there is
    no limit.
    """

    def __init__(
        self,
        windows: tuple[int | None, ...],
        limits: StateLimits,
        *,
        recurrent: bool,
        rules: tuple[PoolRule, ...] = (),
        host: HostRows | None = None,
    ) -> None:
        self.limits = limits
        self.recurrent = recurrent
        self.tables = SequenceTables(windows, limits, recurrent=recurrent, rules=rules, host=host)
        self.host = self.tables.host
        self.checkpoints = CheckpointStore(self.tables)
        self.pools = self.tables.pools

    def needed(
        self,
        positions: int,
        start: Checkpoint | None = None,
        length: int | None = None,
        *,
        resident: int | None = None,
        alone: bool = False,
    ) -> tuple[int, ...]:
        """Blocks of each pool that a sequence of ``positions`` positions would take; ``alone``:
        when all checkpoints but ``start`` have gone."""
        return self.tables.needed(positions, self._shared(start, length, alone=alone), resident)

    def can_open(
        self,
        positions: int,
        start: Checkpoint | None = None,
        length: int | None = None,
        *,
        resident: int | None = None,
    ) -> bool:
        """Whether a slot, all blocks and all rows of host memory for such a sequence are
        available."""
        saved = self._saved(start, length)
        return self.tables.can_open(positions, self._shared(start, length), resident, saved)

    def fits_host(
        self,
        positions: int,
        start: Checkpoint | None = None,
        length: int | None = None,
        *,
        resident: int | None = None,
    ) -> bool:
        """Whether all rows of host memory for such a sequence are available."""
        return self.tables.fits_host(positions, resident, self._saved(start, length))

    def open(
        self,
        positions: int,
        start: Checkpoint | None = None,
        length: int | None = None,
        slot: int | None = None,
        *,
        resident: int | None = None,
        away: Collection[int] = (),
    ) -> SlotLease:
        """Lease a slot with room for ``positions`` positions, empty or restored from ``start``, or
        from the first ``length`` positions of it; ``slot`` is the one to lease, ``None`` = any.
        With ``resident`` the sequence is paged, and starts without the chunks that are ``away``.

        Raises :class:`PoolExhausted` when ``can_open`` is false.
        """
        if start is None:
            return self.tables.open(positions, slot=slot, resident=resident)
        return self.checkpoints.restore(
            start, positions, length, slot, resident=resident, away=away
        )

    def forget_scores(self) -> None:
        """Compressed keys and queries are lost. No sequence may have a slot."""
        if self.tables.digests is not None:
            self.tables.digests.forget()
        for checkpoint in self.checkpoints.live:
            self.checkpoints.forget_queries(checkpoint)

    def take_operations(self) -> tuple[StateOperation, ...]:
        """Changes of the tensors that must happen before the next step, in order."""
        return self.tables.operations.take()

    def arrived(self, identities: Iterable[int]) -> None:
        """Bytes that were saved are in host memory (:attr:`StepResult.arrived`)."""
        self.tables.operations.arrived(identities)

    def forget_operations(self) -> None:
        """After a fault, or where the state is freed, nothing that was decided is carried out, and
        all was released: what was saved, or is to be dropped, is nobody's. Raises
        :class:`StateError` if something is held."""
        require(not self.tables.sequences, "no sequence outlives a fault")
        require(not self.checkpoints.live, "no checkpoint outlives a fault")
        require(not self.checkpoints.pins, "nobody reads or writes host memory after a fault")
        require(self.host.used == 0, "nothing in host memory outlives a fault")
        require(self.host.promised == 0, "no promise of host memory outlives a fault")
        self.tables.operations.forget()

    def check_integrity(self) -> None:
        """Recount everything; raises :class:`StateError` at the first disagreement."""
        sequences, checkpoints = self.tables.sequences, self.checkpoints
        for pool in self.pools:
            check_pool(pool, sequences.values(), checkpoints.live, checkpoints.pins)
            require(
                self.tables.available(pool.index) >= 0, f"promises of pool {pool.index} are covered"
            )
        if self.tables.digests is not None:
            check_digests(self.tables.digests, sequences.values())
            held = [each.queries for each in checkpoints.live if each.queries]
            places = list(range(self.limits.slots + 1, self.limits.query_slots))
            require(sorted([*held, *self.tables.query_places]) == places, "places for queries")
        slots = sorted([*sequences, *self.tables.free])
        require(slots == list(range(1, self.limits.slots + 1)), "slots")
        if self.recurrent:
            taken = [each.slot for each in checkpoints.live if each.slot != DUMMY]
            places = sorted([*taken, *checkpoints.free])
            behind = range(self.limits.slots + 1, self.limits.recurrent_slots)
            require(places == list(behind), "checkpoint slots")
            require(len(checkpoints.free) >= self.limits.spare_slots, "spare slots are free")
        check_host(self.host, self.pools, sequences.values(), checkpoints.live, checkpoints.pins)

    def _shared(self, start: Checkpoint | None, length: int | None, *, alone: bool = False) -> int:
        return 0 if start is None else self.checkpoints.shared(start, length, alone=alone)

    def _saved(self, start: Checkpoint | None, length: int | None) -> int:
        return 0 if start is None else self.checkpoints.saved(start, length)
