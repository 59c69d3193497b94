"""Checks of state: forks, checkpoints, reused slots, eviction and windows."""

from __future__ import annotations

import pytest
import torch

from kinfolk.errors import StateError
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.testing.kit import ROOM, Kit, assert_same
from kinfolk.testing.marks import needs
from kinfolk.types import CHUNK_POSITIONS


class StateChecks:
    """State is managed by the state plan; a family with a wrong plan fails here."""

    @needs("tiny")
    def test_forks_go_two_ways(self, kinfolk_kit: Kit) -> None:
        """Two sequences that share a beginning continue differently, each with correct logits."""
        start, ours, theirs = kinfolk_kit.tokens[:77], *continuations(kinfolk_kit)
        drive = kinfolk_kit.driver()
        lease = drive.open()
        drive.feed({lease: start})
        fork = drive.kv_cache.tables.fork(lease, ROOM)
        logits = drive.feed({lease: ours, fork: theirs}, rows=7)
        for holder, rest in ((lease, ours), (fork, theirs)):
            assert_same(logits[holder], kinfolk_kit.linear([*start, *rest])[77:])

    @needs("tiny")
    @pytest.mark.parametrize("length", [CHUNK_POSITIONS, 77])
    def test_checkpoints_bring_back_a_sequence(self, kinfolk_kit: Kit, length: int) -> None:
        """A sequence started from a checkpoint has the logits of the original sequence there."""
        start, rest = kinfolk_kit.tokens[:length], kinfolk_kit.tokens[length:]
        drive = kinfolk_kit.driver()
        lease = drive.open()
        drive.feed({lease: start})
        checkpoint = drive.kv_cache.checkpoints.take(lease, length)
        drive.feed({lease: kinfolk_kit.random_tokens(80, seed=9)}, rows=30)
        drive.kv_cache.tables.release(lease)
        restored = drive.kv_cache.open(ROOM, checkpoint)
        logits = drive.feed({restored: rest}, rows=40)[restored]
        assert_same(logits, kinfolk_kit.linear(kinfolk_kit.tokens)[length:])

    @needs("tiny")
    def test_checkpoints_inside_a_slice_hold_that_row(self, kinfolk_kit: Kit) -> None:
        """A checkpoint inside a slice holds the state after its row."""
        tokens = kinfolk_kit.tokens
        drive = kinfolk_kit.driver()
        lease = drive.open()
        drive.kv_cache.tables.extend(lease, 120)
        checkpoint = drive.kv_cache.checkpoints.take(lease, 77)
        stores = ((77, checkpoint.slot),)
        drive.step([Item(lease, "", ItemKind.PREFILL, tuple(tokens[:120]), 0, stores=stores)])
        drive.kv_cache.tables.release(lease)
        restored = drive.kv_cache.open(ROOM, checkpoint)
        logits = drive.feed({restored: tokens[77:]}, rows=64)[restored]
        assert_same(logits, kinfolk_kit.linear(tokens)[77:])

    @needs("tiny")
    def test_reused_slots_remember_nothing(self, kinfolk_kit: Kit) -> None:
        """A sequence in a used slot and used blocks starts from an empty state."""
        drive = kinfolk_kit.driver(kinfolk_kit.load(slots=1))
        lease = drive.open()
        drive.feed({lease: kinfolk_kit.random_tokens(ROOM // 2, seed=3)})
        drive.kv_cache.tables.release(lease)
        again = drive.open()
        assert again.slot == lease.slot
        logits = drive.feed({again: kinfolk_kit.tokens})[again]
        assert_same(logits, kinfolk_kit.linear(kinfolk_kit.tokens))

    @needs("tiny", "eviction")
    def test_evicted_chunks_are_unread_and_come_back(self, kinfolk_kit: Kit) -> None:
        """An evicted chunk is not read, whatever its block holds; a recalled chunk is unchanged."""
        tokens = kinfolk_kit.tokens
        drive = kinfolk_kit.driver()
        lease = drive.open(paged=True)
        drive.feed({lease: tokens[:130]})
        known = drive.kept(lease)
        pool = kinfolk_kit.plan.windows.index(None)
        drive.kv_cache.tables.evict(lease, 0, pool=pool)
        drive.apply()
        drive.poison(lease)
        drive.kv_cache.tables.recall(lease, 0, pool=pool)
        drive.apply()
        assert all(torch.equal(a, b) for a, b in zip(drive.kept(lease), known, strict=True))
        drive.kv_cache.tables.evict(lease, 0, pool=pool)
        drive.apply()
        drive.poison(lease)
        fork = drive.open()
        drive.feed({fork: tokens[:70]})
        logits = drive.feed({lease: tokens[130:135]})[lease]
        assert torch.isfinite(logits).all(), "an evicted chunk was read"
        drive.kv_cache.tables.recall(lease, 0, pool=pool)
        logits = drive.feed({fork: tokens[70:]})[fork]
        assert_same(logits, kinfolk_kit.linear(tokens)[70:])

    @needs("tiny", "windows")
    def test_chunks_leave_behind_a_window(self, kinfolk_kit: Kit) -> None:
        """Chunks that the window has passed free their blocks and are not read again."""
        tokens = [*kinfolk_kit.tokens, *kinfolk_kit.random_tokens(2 * CHUNK_POSITIONS, seed=5)]
        drive = kinfolk_kit.driver()
        lease = drive.open()
        drive.feed({lease: tokens[:-10]}, rows=50)
        drive.apply()
        length = len(tokens) - 10
        for pool, window in enumerate(kinfolk_kit.plan.windows):
            held = {chunk for chunk, _ in drive.kv_cache.tables.table(lease, pool)}
            first = 0 if window is None else max(0, length - window + 1) // CHUNK_POSITIONS
            assert held == set(range(first, -(-length // CHUNK_POSITIONS)))
        drive.poison(lease)
        logits = drive.feed({lease: tokens[-10:]}, rows=3)[lease]
        assert_same(logits, kinfolk_kit.linear(tokens)[-10:])

    @needs("tiny")
    def test_released_sequences_are_gone(self, kinfolk_kit: Kit) -> None:
        """A lease of a freed slot is refused."""
        drive = kinfolk_kit.driver()
        lease = drive.open()
        drive.feed({lease: kinfolk_kit.tokens[:10]})
        drive.kv_cache.tables.release(lease)
        with pytest.raises(StateError):
            drive.feed({lease: kinfolk_kit.tokens[10:12]})


def continuations(kit: Kit) -> tuple[list[int], list[int]]:
    """Two continuations, which cross the end of a chunk."""
    return kit.random_tokens(60, seed=7), kit.random_tokens(60, seed=8)
