"""Checkpoints on behalf of requests: inside a slice, and at the end of a generation."""

from __future__ import annotations

from kinfolk.sched.request import Sequence
from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Checkpoint, SlotLease
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import PrefixCache


class Checkpoints:
    """Takes checkpoints and hands them to the prefix cache once their state is real.

    A checkpoint inside a slice is taken before the step and stays pending until the step has
    succeeded. A new checkpoint may push out old ones, if that makes room for it.
    """

    def __init__(self, store: CheckpointStore, prefixes: PrefixCache) -> None:
        self._store = store
        self._prefixes = prefixes
        self._pending: dict[SlotLease, list[tuple[HashedTokens, Checkpoint]]] = {}

    def take(self, seq: Sequence, lease: SlotLease, stop: int) -> tuple[tuple[int, int], ...]:
        """Checkpoints wanted in the slice ``computed..stop``: (tokens after which, slot)."""
        stores = []
        for position in sorted(set(seq.request.checkpoints)):
            if not seq.computed < position <= stop:
                continue
            checkpoint = self._make(lease, position, seq.prompt)
            if checkpoint is not None:
                self._pending.setdefault(lease, []).append((seq.prompt, checkpoint))
                if self._store.recurrent:
                    stores.append((position - seq.computed, checkpoint.slot))
        return tuple(stores)

    def settle(self, lease: SlotLease, *, stored: bool) -> None:
        """The step of a pending checkpoint is over: keep it, or forget it if the step failed.

        A request cancelled meanwhile does not matter: its slice was computed all the same.
        """
        for tokens, checkpoint in self._pending.pop(lease, ()):
            if stored:
                self._prefixes.insert(tokens, checkpoint)
            else:
                self._store.drop(checkpoint)

    def awaits(self, lease: SlotLease) -> bool:
        """Whether anything of a lease is pending."""
        return bool(self._pending) and lease in self._pending

    def keep_end(self, seq: Sequence, lease: SlotLease, *, pending: bool = False) -> None:
        """Keep the state after ``known[:computed]``, if there is room; ``pending``: once the step
        that computes it has succeeded."""
        tokens = seq.prompt.followed_by(seq.known[len(seq.prompt) : seq.computed])
        checkpoint = self._make(lease, seq.computed, tokens)
        if checkpoint is None:
            return
        if pending:
            self._pending.setdefault(lease, []).append((tokens, checkpoint))
        else:
            self._prefixes.insert(tokens, checkpoint)

    def keeps(self, seq: Sequence) -> bool:
        """Whether there is a checkpoint after ``known[:computed]``."""
        tokens = seq.prompt.followed_by(seq.known[len(seq.prompt) : seq.computed])
        return self._prefixes.holds(tokens, seq.computed)

    def forget_all(self) -> None:
        """After a fault of unknown reach no stored state is trusted."""
        for lease in list(self._pending):
            self.settle(lease, stored=False)
        self._prefixes.clear()

    def _make(self, lease: SlotLease, position: int, tokens: HashedTokens) -> Checkpoint | None:
        if self._prefixes.holds(tokens, position):
            return None
        if not self._prefixes.make_room(lease, position):
            return None
        return self._store.take(lease, position)
