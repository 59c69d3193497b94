"""Checks of what a drafter keeps of a sequence: that of the committed tokens, whatever was run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from kinfolk.sched.plan import Item, ItemKind
from kinfolk.testing.drafter_kit import (
    ROWS_PATHS,
    ROWS_TREE,
    DrafterKit,
    assert_same_proposals,
    assert_same_state,
)
from kinfolk.testing.kit import ROOM
from kinfolk.testing.marks import needs
from kinfolk.types import CHUNK_POSITIONS

START = CHUNK_POSITIONS - 3
"""Committed tokens before drafts, which then cross the end of a chunk."""

ANCHOR = 7
"""The last chosen token from which most checks draft."""

ways = pytest.mark.parametrize("replays", [False, True], ids=["eager", "replays"])


class DrafterStateChecks:
    """``extend`` and ``commit`` keep what a sequence's tokens say, and nothing else."""

    @needs("tiny drafter")
    @ways
    def test_any_slices_keep_the_same_state(
        self, kinfolk_drafter: DrafterKit, replays: bool
    ) -> None:
        """A text keeps the same state, and is drafted for alike, in any slices."""
        tokens = kinfolk_drafter.tokens(105)
        drive = kinfolk_drafter.driver(replays=replays)
        neighbour, whole, sliced = (drive.open() for _ in range(3))
        drive.feed({whole: tokens})
        for size in (5, CHUNK_POSITIONS, 33, 1, 1, 1):
            start, here = (drive.kv_cache.tables.length(each) for each in (sliced, neighbour))
            kind = ItemKind.PREFILL if size > 1 else ItemKind.DECODE
            mine = Item(sliced, "", kind, tuple(tokens[start : start + size]), start)
            drive.step([Item(neighbour, "", ItemKind.DECODE, (1,), here), mine])
        assert_same_state(drive.drafters_state(sliced), drive.drafters_state(whole))
        assert_same_proposals(drive.propose({sliced: ANCHOR}), drive.propose({whole: ANCHOR}))

    @needs("tiny drafter")
    def test_drafted_rows_change_nothing_until_kept(self, kinfolk_drafter: DrafterKit) -> None:
        """The state of a sequence stays as it is while rows are drafted for it."""
        drive = kinfolk_drafter.driver()
        lease = drive.open()
        drive.feed({lease: kinfolk_drafter.tokens(START)})
        before = drive.drafters_state(lease)
        for parents in (None, ROWS_TREE):
            drive.draft({lease: (kinfolk_drafter.tokens(len(ROWS_TREE), seed=1), parents)})
            after = drive.drafters_state(lease)
            changed = [name for name in before if not torch.equal(after[name], before[name])]
            assert not changed, f"drafted rows changed {', '.join(changed)}"

    @needs("tiny drafter")
    @ways
    def test_kept_rows_of_a_chain_are_state(
        self, kinfolk_drafter: DrafterKit, replays: bool
    ) -> None:
        """After a commit of any number of rows the state is that of a sequence fed with them,
        though everything else is NaN."""
        chain = kinfolk_drafter.tokens(6, seed=1)
        for kept in range(len(chain) + 1):
            self._compare(kinfolk_drafter, replays, chain, None, range(kept))

    @needs("tiny drafter")
    @ways
    def test_kept_paths_of_a_tree_are_state(
        self, kinfolk_drafter: DrafterKit, replays: bool
    ) -> None:
        """After a commit of a path of a tree the state is that of a sequence fed with its tokens,
        though everything else is NaN."""
        tree = kinfolk_drafter.tokens(len(ROWS_TREE), seed=2)
        for path in ROWS_PATHS:
            self._compare(kinfolk_drafter, replays, tree, ROWS_TREE, path)

    @needs("recurrent")
    def test_checkpoints_inside_a_slice_hold_that_row(self, kinfolk_drafter: DrafterKit) -> None:
        """A checkpoint inside a slice holds the recurrent state after its row."""
        tokens = kinfolk_drafter.tokens(120)
        drive = kinfolk_drafter.driver()
        lease = drive.open()
        drive.kv_cache.tables.extend(lease, len(tokens))
        checkpoint = drive.kv_cache.checkpoints.take(lease, 77)
        stores = ((77, checkpoint.slot),)
        drive.step([Item(lease, "", ItemKind.PREFILL, tuple(tokens), 0, stores=stores)])
        drive.kv_cache.tables.release(lease)
        restored, fresh = drive.kv_cache.open(ROOM, checkpoint), drive.open()
        drive.texts[restored] = tokens[:77]
        drive.feed({fresh: tokens[:77]})
        assert_same_state(drive.drafters_state(restored), drive.drafters_state(fresh))

    @needs("tiny drafter")
    def test_forks_go_two_ways(self, kinfolk_drafter: DrafterKit) -> None:
        """Two sequences that share a beginning are drafted for as if they had been read alone."""
        start = kinfolk_drafter.tokens(77)
        ours, theirs = (kinfolk_drafter.tokens(20, seed) for seed in (3, 4))
        drive = kinfolk_drafter.driver()
        lease = drive.open()
        drive.feed({lease: start})
        fork = drive.fork(lease, ROOM)
        drive.feed({lease: ours, fork: theirs}, rows=7)
        found = [drive.propose({each: ANCHOR}) for each in (lease, fork)]
        for proposals, rest in zip(found, (ours, theirs), strict=True):
            alone = kinfolk_drafter.driver()
            fresh = alone.open()
            alone.feed({fresh: [*start, *rest]})
            assert_same_proposals(proposals, alone.propose({fresh: ANCHOR}))

    def _compare(
        self,
        kit: DrafterKit,
        replays: bool,
        drafted: list[int],
        parents: tuple[int, ...] | None,
        path: Sequence[int],
    ) -> None:
        """Draft, keep ``path`` while a neighbour keeps another one, and go on."""
        text, ahead = kit.tokens(START), kit.tokens(3, seed=5)
        drive = kit.driver(replays=replays)
        neighbour, lease = drive.open(), drive.open()
        drive.feed({neighbour: kit.tokens(20, seed=6), lease: text})
        other = kit.tokens(4, seed=7)
        drive.draft({neighbour: (other, None), lease: (drafted, parents)})
        drive.keep({neighbour: [0, 1], lease: path})
        drive.poison_all_but(lease)
        fresh = drive.open()
        drive.feed({fresh: [*text, *(drafted[row] for row in path)]})
        try:
            assert_same_state(drive.drafters_state(lease), drive.drafters_state(fresh))
            drive.feed({lease: ahead, fresh: ahead})
            assert_same_proposals(drive.propose({lease: ANCHOR}), drive.propose({fresh: ANCHOR}))
        except AssertionError as error:
            raise AssertionError(f"{error} (kept rows: {list(path)})") from error
