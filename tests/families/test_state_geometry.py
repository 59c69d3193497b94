"""One sequence's life, step after step: the logits must stay those of linear decoding.

A chain with rejections, a tree, a fork at a length that is no multiple of 64, a shared chunk
evicted for one of the two and recalled, and a restore from a checkpoint.
"""

from __future__ import annotations

import pytest
import torch

from kinfolk.errors import StateError
from kinfolk.sched.plan import Item, ItemKind

BOUND = 2e-4
TREE = [-1, 0, 1, 0, 3, 4, 3, 1]


@pytest.fixture
def tokens(case, reference):
    return reference(case)[0]


@pytest.fixture
def linear(case, driver, reference):
    """Logits of tokens fed one by one, without drafts or sharing; those of transformers as far as
    the tokens are those of the reference case."""
    known, expected = reference(case)

    def decode(tokens):
        same = 0
        while same < len(tokens) and tokens[same] == known[same]:
            same += 1
        if same == len(tokens):
            return expected[:same]
        drive = driver(case)
        lease = drive.open()
        drive.feed({lease: tokens[:same]})
        tail = drive.feed({lease: tokens[same:]}, rows=1)[lease]
        return torch.cat([expected[:same], tail])

    return decode


def test_the_whole_life_of_a_sequence(case, driver, tokens, linear, row_error):
    drive = driver(case)
    lease = drive.open(paged=True)
    known = tokens[:70]
    assert row_error(drive.feed({lease: known}, rows=64)[lease], linear(known)) <= BOUND

    # A chain of drafts of which the first two are right.
    chain = [*tokens[70:73], 5, 6, 7]
    found = drive.draft({lease: (chain, None)})[lease]
    assert row_error(found, linear(known + chain)[70:]) <= BOUND
    drive.keep({lease: [0, 1, 2]})
    known = tokens[:73]

    # A tree; the path 0, 3, 4, 5 is kept.
    tree = [tokens[73], 11, 12, tokens[74], tokens[75], tokens[76], 13, 14]
    found = drive.draft({lease: (tree, TREE)})[lease]
    assert row_error(found[[0, 3, 4, 5]], linear(tokens[:77])[73:]) <= BOUND
    assert row_error(found[[0, 1, 2]], linear([*tokens[:74], 11, 12])[73:]) <= BOUND
    drive.keep({lease: [0, 3, 4, 5]})
    known = tokens[:77]

    # A fork at 77 = 64 + 13: both go on, differently.
    fork = drive.kv_cache.tables.fork(lease, 512)
    ours, theirs = tokens[77:140], tokens[20:80]
    found = drive.feed({lease: ours, fork: theirs}, rows=7)
    assert row_error(found[lease], linear(known + ours)[77:]) <= BOUND
    assert row_error(found[fork], linear(known + theirs)[77:]) <= BOUND

    # The shared chunk leaves the table of a paged fork only, and comes back.
    tables = drive.kv_cache.tables
    tables.evict(fork, 0)
    assert len(tables.table(fork, 0)) == len(tables.table(lease, 0)) - 1
    drive.feed({lease: tokens[140:144]}, rows=1)
    tables.recall(fork, 0)
    after = drive.feed({fork: tokens[:5]}, rows=5)[fork]
    assert row_error(after, linear(known + theirs + tokens[:5])[-5:]) <= BOUND

    # Back to a checkpoint of the first sequence, after it has moved on.
    checkpoint = drive.kv_cache.checkpoints.take(lease, drive.kv_cache.tables.length(lease))
    drive.feed({lease: [9] * 70}, rows=64)
    restored = drive.kv_cache.open(512, checkpoint)
    found = drive.feed({restored: tokens[144:160]}, rows=16)[restored]
    assert row_error(found, linear(tokens[:160])[144:]) <= BOUND


def test_a_chunk_seen_by_nobody_is_kept_aside_and_recalled(case, driver, tokens, linear, row_error):
    drive = driver(case)
    lease = drive.open(paged=True)
    drive.feed({lease: tokens[:130]}, rows=64)
    drive.kv_cache.tables.evict(lease, 0)
    other = drive.open()
    drive.feed({other: tokens[::-1]}, rows=64)
    drive.kv_cache.tables.recall(lease, 0)
    found = drive.feed({lease: tokens[130:150]}, rows=20)[lease]
    assert row_error(found, linear(tokens[:150])[130:]) <= BOUND


def test_an_evicted_chunk_is_not_seen(case, driver, tokens, linear, row_error):
    drive = driver(case)
    lease = drive.open(paged=True)
    drive.feed({lease: tokens[:130]}, rows=64)
    drive.kv_cache.tables.evict(lease, 0)
    found = drive.feed({lease: tokens[130:140]}, rows=10)[lease]
    assert row_error(found, linear(tokens[:140])[130:]) > 10 * BOUND


def test_rows_computed_without_a_chunk_are_not_exact(case, driver, tokens):
    drive = driver(case)
    lease = drive.open(paged=True)
    drive.feed({lease: tokens[:130]}, rows=64)
    assert drive.kv_cache.checkpoints.is_exact(lease, 130)
    drive.kv_cache.tables.evict(lease, 0)
    drive.feed({lease: tokens[130:131]})
    drive.kv_cache.tables.recall(lease, 0)
    assert not drive.kv_cache.checkpoints.is_exact(lease, 131)


def test_a_checkpoint_inside_a_slice_restores_that_row(case, driver, tokens, linear, row_error):
    drive = driver(case)
    lease = drive.open()
    drive.kv_cache.tables.extend(lease, 120)
    checkpoint = drive.kv_cache.checkpoints.take(lease, 77)
    drive.step(
        [Item(lease, "", ItemKind.PREFILL, tuple(tokens[:120]), 0, stores=((77, checkpoint.slot),))]
    )
    drive.kv_cache.tables.release(lease)
    restored = drive.kv_cache.open(512, checkpoint)
    found = drive.feed({restored: tokens[77:140]}, rows=64)[restored]
    assert row_error(found, linear(tokens[:140])[77:]) <= BOUND


def test_a_reused_slot_remembers_nothing(case, driver, tokens, linear, row_error):
    drive = driver(case, slots=1)
    lease = drive.open()
    drive.feed({lease: tokens[::-1]})
    drive.kv_cache.tables.release(lease)
    again = drive.open()
    assert row_error(drive.feed({again: tokens[:80]})[again], linear(tokens[:80])) <= BOUND


def test_a_released_lease_is_void(case, driver, tokens):
    drive = driver(case)
    lease = drive.open()
    drive.kv_cache.tables.release(lease)
    with pytest.raises(StateError, match="is over"):
        drive.kv_cache.tables.extend(lease, 1)
