"""Checkpoints on behalf of requests: inside a slice, and at the end of a generation."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.errors import RequestError
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.paging import Paging
from kinfolk.sched.request import Request, Sequence
from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Checkpoint, SlotLease
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import PrefixCache
from kinfolk.state.stored_prefix import PrefixKind
from kinfolk.types import CHUNK_POSITIONS


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint whose state a step is to store."""

    sequence: Sequence
    tokens: HashedTokens
    checkpoint: Checkpoint
    kind: PrefixKind


class Checkpoints:
    """Takes checkpoints and hands them to the prefix cache once their state is real.

    A checkpoint inside a slice is taken before the step and stays pending until the step has
    succeeded. A new checkpoint may push out old ones, if that makes room for it.
    """

    def __init__(
        self,
        store: CheckpointStore,
        prefixes: PrefixCache,
        limits: SchedulerLimits,
        paging: Paging,
    ) -> None:
        self._paging = paging
        self._store = store
        self._prefixes = prefixes
        self._limits = limits
        self._pending: dict[SlotLease, list[PendingCheckpoint]] = {}

    def take(
        self, seq: Sequence, lease: SlotLease, stop: int, *, for_choices: bool = False
    ) -> tuple[tuple[int, int], ...]:
        """Checkpoints wanted in the slice ``computed..stop``: (tokens after which, slot).
        ``for_choices``: other requests will start from this prompt."""
        stores = []
        wanted = self._positions(seq.request, seq.computed, stop, for_choices=for_choices)
        for position, kind in sorted(wanted.items()):
            tokens = self._tokens(seq, lease, position)
            checkpoint = self._make(seq, lease, position, tokens, kind)
            if checkpoint is None:
                continue
            self._pending.setdefault(lease, []).append(
                PendingCheckpoint(seq, tokens, checkpoint, kind)
            )
            if self._store.recurrent:
                stores.append((position - seq.computed, checkpoint.slot))
        return tuple(stores)

    def settle(self, lease: SlotLease, *, stored: bool) -> None:
        """The step of a pending checkpoint is over: keep it, or forget it if the step failed.

        A request cancelled meanwhile does not matter: its slice was computed all the same.
        """
        for each in self._pending.pop(lease, ()):
            if stored:
                self._store.stored(each.checkpoint)
                self._insert(each)
            else:
                self._store.drop(each.checkpoint)

    def awaits(self, lease: SlotLease) -> bool:
        """Whether anything of a lease is pending."""
        return bool(self._pending) and lease in self._pending

    def keep(self, seq: Sequence, lease: SlotLease, length: int | None = None) -> bool:
        """Keep the state after ``known[:length]``, ``None`` = where the sequence is; false if there
        is no room. Raises :class:`RequestError` if there is no such state any more, or not yet."""
        length = seq.computed if length is None else length
        if not 0 < length <= seq.computed:
            raise RequestError(
                f"position {length} is not in 1..{seq.computed}, where the request is"
            )
        if not (length == seq.computed or self._keeps(seq, lease, length)):
            self._check_passed(length, seq.computed)
        self._keep(seq, lease, length)
        return self._keeps(seq, lease, length)

    def keep_end(self, seq: Sequence, lease: SlotLease, *, pending: bool = False) -> None:
        """Keep the state after ``known[:computed]``, if there is room; ``pending``: once the step
        that computes it has succeeded."""
        self._keep(seq, lease, seq.computed, pending=pending)

    def _keep(self, seq: Sequence, lease: SlotLease, length: int, *, pending: bool = False) -> None:
        tokens = self._tokens(seq, lease, length)
        checkpoint = self._make(seq, lease, length, tokens, PrefixKind.END)
        if checkpoint is None:
            return
        made = PendingCheckpoint(seq, tokens, checkpoint, PrefixKind.END)
        if pending:
            self._pending.setdefault(lease, []).append(made)
        else:
            self._insert(made)

    def _keeps(self, seq: Sequence, lease: SlotLease, length: int) -> bool:
        return self._prefixes.holds(self._tokens(seq, lease, length), length)

    def _check_passed(self, length: int, computed: int) -> None:
        """Raise :class:`RequestError` if a sequence has lost state at a position that it has
        passed: recurrent state and windows move on, keys and values of full chunks stay."""
        moves = ["recurrent state"] if self._store.recurrent else []
        windows = sorted({pool.window for pool in self._store.pools if pool.window is not None})
        moves += [f"attention to the last {window} positions" for window in windows]
        if moves:
            raise RequestError(
                f"no state can be kept at position {length}: {' and '.join(moves)} moved on to "
                f"position {computed}, where the request is"
            )
        if length % CHUNK_POSITIONS:
            raise RequestError(
                f"no state can be kept at position {length}: write a multiple of {CHUNK_POSITIONS} "
                f"or {computed}, where the request is"
            )

    def forget_all(self) -> None:
        """After a fault of unknown reach no stored state is trusted."""
        for lease in list(self._pending):
            self.settle(lease, stored=False)
        self._prefixes.clear()

    def _tokens(self, seq: Sequence, lease: SlotLease, position: int) -> HashedTokens:
        """The tokens before a position, as the prefix cache is to know them."""
        prompt = seq.prompt
        if not self._store.is_exact(lease, position):
            if seq.salted is None:
                seq.salted = self._paging.salt(seq.prompt)
            prompt = seq.salted
        if position <= len(prompt):
            return prompt
        return prompt.followed_by(seq.known[len(prompt) : position])

    def _positions(
        self, request: Request, start: int, stop: int, *, for_choices: bool
    ) -> dict[int, PrefixKind]:
        """Positions in ``start + 1..stop``. None of the grid is within a slice of a fork: little
        would be computed between the two."""
        wanted = {}
        if for_choices:
            wanted[len(request.prompt) - 1] = PrefixKind.CHOICES
        every, slice_rows = self._limits.checkpoint_every, self._limits.slice
        if every and request.keep:
            for position in range((start // every + 1) * every, stop + 1, every):
                if all(abs(position - fork) >= slice_rows for fork in request.checkpoints):
                    wanted[position] = PrefixKind.GRID
        wanted |= dict.fromkeys(request.checkpoints, PrefixKind.COMMON)
        if request.checkpoints:
            wanted[max(request.checkpoints)] = PrefixKind.FORK
        return {place: kind for place, kind in wanted.items() if start < place <= stop}

    def _make(
        self,
        seq: Sequence,
        lease: SlotLease,
        position: int,
        tokens: HashedTokens,
        kind: PrefixKind,
    ) -> Checkpoint | None:
        if self._prefixes.rename(tokens, position, kind):
            return None
        keep = self._prefixes.needed_by(kind, seq.start, tokens, position)
        if not self._prefixes.make_room(lease, position, keep):
            return None
        return self._store.take(lease, position)

    def _insert(self, made: PendingCheckpoint) -> None:
        residency = made.sequence.residency
        self._prefixes.insert(
            made.tokens,
            made.checkpoint,
            made.kind,
            forks=made.sequence.request.checkpoints,
            start=made.sequence.start,
            residency=None if residency is None else residency.kept(),
        )
