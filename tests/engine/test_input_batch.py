"""A plan's integers as tensors: rows, tables, sampled sequences."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.engine import input_buffers
from kinfolk.engine.commit_batch import commit_batch, commit_tree_rows
from kinfolk.engine.input_batch import build_input_batch, fill
from kinfolk.engine.input_buffers import BucketShape, InputBuffers
from kinfolk.errors import StateError
from kinfolk.plans import Codec, Paged, Section, StateLimits, StatePlan
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.state import State
from kinfolk.state.tables import NO_CHANGES, Changes
from kinfolk.state.transfer import Transfer
from kinfolk_kernels.place_drafts.op import (
    DraftedRows,
    PlaceDraftsArguments,
    StoredDrafts,
    place_drafts,
)
from kinfolk_kernels.row_layout import KNOWN_DRAFT, LaunchTraits

KV = (Section("k", 2, 4, Codec("f32")),)
PLAN = StatePlan((Paged(KV), Paged(KV, window=70)))
TREE = (-1, 0, 0, 2, 1)
ROWS = ("tokens", "positions", "sequence_of_row", "parent_row", "limit", "ancestors", "arena_row")
SEQUENCES = ("arena_start", "slot_of_sequence", "context_len")


class ToyCache:
    """Sequences with room, and a state whose tables are up to date."""

    def __init__(self):
        limits = StateLimits(slots=4, checkpoints=0, blocks=(20, 20), context=300, step_rows=100)
        self.kv_cache = KVCacheManager(PLAN.windows, limits, recurrent=False)
        self.state = State(PLAN, limits, torch.device("cpu"))

    def item(self, kind, tokens, start, **fields):
        lease = self.kv_cache.open(250)
        for stop in range(1, start + 1):
            self.kv_cache.tables.extend(lease, stop)
            self.kv_cache.tables.advance(lease, stop)
        self.kv_cache.tables.extend(lease, start + len(tokens))
        self.state.apply(self.kv_cache.take_operations())
        return Item(lease, f"r{lease.slot}", kind, tokens, start, **fields)


@pytest.fixture
def toy():
    return ToyCache()


def test_rows_of_every_kind(toy):
    items = [
        toy.item(ItemKind.PREFILL, (1, 2, 3), 0, sample=False),
        toy.item(ItemKind.DECODE, (4,), 64),
        toy.item(ItemKind.VERIFY, (5, 6), 63),
        toy.item(ItemKind.VERIFY, (7, 8, 9, 10, 11), 130, parents=TREE),
    ]
    batch = build_input_batch(items, toy.state).batch
    assert batch.tokens.tolist() == list(range(1, 12))
    assert batch.positions.tolist() == [0, 1, 2, 64, 63, 64, 130, 131, 131, 132, 132]
    assert batch.sequence_of_row.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 3]
    assert batch.parent_row.tolist() == [-1, 0, 1, -1, -1, 4, -1, 6, 6, 8, 7]
    assert batch.limit.tolist() == [0, 1, 2, 64, 63, 64] + [129] * 5
    assert batch.ancestors.tolist() == [0] * 6 + [0b1, 0b11, 0b101, 0b1101, 0b10011]
    assert batch.arena_row.tolist() == [-1] * 6 + [0, 1, 2, 3, 4]
    assert batch.arena_start.tolist() == [-1, -1, -1, 0]
    assert batch.slot_of_sequence.tolist() == [item.lease.slot for item in items]
    assert batch.context_len.tolist() == [0, 64, 63, 130]
    slots = batch.slot_of_sequence.tolist()
    assert batch.layout.spans.tolist() == [
        [0, 3, slots[0], 0],
        [3, 1, slots[1], 0],
        [4, 2, slots[2], KNOWN_DRAFT],
        [6, 5, slots[3], KNOWN_DRAFT],
    ]
    assert batch.logit_rows.tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    assert [segment.drafted for segment in batch.layout.segments] == [False, False, True, True]


def stored_drafts(items, slots):
    """What the slots of drafted items would have stored if drafts were made on the device."""
    stored = StoredDrafts(
        torch.zeros(slots, dtype=torch.int64),
        torch.full((slots, 12), 99),
        torch.full((slots, 12), -2),
        torch.zeros(slots, dtype=torch.int64),
    )
    for item in items:
        if item.kind is ItemKind.VERIFY:
            slot, drafts = item.lease.slot, len(item.tokens) - 1
            parents = item.parents or range(-1, drafts)
            stored.pending[slot], stored.counts[slot] = item.tokens[0], drafts
            stored.tokens[slot, :drafts] = torch.tensor(item.tokens[1:])
            stored.parents[slot, :drafts] = torch.tensor(parents[1:])
    return stored


def test_drafts_placed_on_the_device_are_the_rows_that_the_host_fills(toy):
    items = [
        toy.item(ItemKind.PREFILL, (1, 2, 3), 0, sample=False),
        toy.item(ItemKind.VERIFY, (7, 8, 9, 10, 11), 130, parents=TREE),
        toy.item(ItemKind.VERIFY, (5, 6, 7), 63),
        toy.item(ItemKind.VERIFY, (3, 4, 5), 0, parents=(-1, 0, 0)),
    ]
    batch = build_input_batch(items, toy.state).batch
    tables = (*(getattr(batch, name) for name in DraftedRows.__slots__[:-1]), batch.layout.path)
    rows = DraftedRows(*(table.clone() for table in tables))
    for name in DraftedRows.__slots__:
        getattr(rows, name)[3:] = 77
    place_drafts(
        PlaceDraftsArguments(50, toy.state.device),
        stored_drafts(items, 5),
        batch.layout.spans.clamp_max(torch.tensor([99, 99, 99, 1])),
        batch.context_len,
        batch.arena_start,
        rows,
    )
    for name, table in zip(DraftedRows.__slots__, tables, strict=True):
        assert torch.equal(getattr(rows, name), table), name


def test_logits_of_all_rows_on_request(toy):
    items = [toy.item(ItemKind.PREFILL, (1, 2, 3), 0), toy.item(ItemKind.DECODE, (4,), 5)]
    assert build_input_batch(items, toy.state).batch.logit_rows.tolist() == [2, 3]
    batch = build_input_batch(items, toy.state, all_logits=True).batch
    assert batch.logit_rows.tolist() == [0, 1, 2, 3]


def test_rows_are_written_to_their_chunk_and_tree_rows_to_the_dummy_block(toy):
    chain = toy.item(ItemKind.VERIFY, (5, 6, 7), 63)
    tree = toy.item(ItemKind.VERIFY, (7, 8, 9, 10, 11), 130, parents=TREE)
    batch = build_input_batch([chain, tree], toy.state).batch
    for index, pool in enumerate(toy.state.pools):
        table = pool.tables[chain.lease.slot]
        rows = batch.write_row[index].tolist()
        assert rows[:3] == [table[0] * 64 + 63, table[1] * 64, table[1] * 64 + 1]
        assert all(row < 64 for row in rows[3:])
        assert len(set(rows)) == len(rows)


def test_tables_list_what_is_resident_in_logical_order(toy):
    short = toy.item(ItemKind.DECODE, (1,), 3)
    long = toy.item(ItemKind.DECODE, (1,), 200)
    batch = build_input_batch([short, long], toy.state).batch
    full, windowed = batch.tables
    assert full.lengths == (1, 4)
    assert full.chunks.tolist() == [[0, 0, 0, 0], [0, 1, 2, 3]]
    assert windowed.lengths == (1, 2), "the window has passed the first chunks"
    assert windowed.chunks[1].tolist() == [2, 3, 0, 0], "widths are multiples of four"
    for pool, table in zip(toy.state.pools, batch.tables, strict=True):
        assert table.length.tolist() == list(table.lengths)
        entries = slice(table.lengths[1])
        chunks, blocks = table.chunks[1, entries].tolist(), table.blocks[1, entries].tolist()
        found = dict(zip(chunks, blocks, strict=True))
        assert found == pool.tables[long.lease.slot]


def test_stores_name_the_row_after_which_to_store(toy):
    items = [
        toy.item(ItemKind.DECODE, (9,), 5),
        toy.item(ItemKind.PREFILL, (1, 2, 3, 4), 0, stores=((1, 8), (4, 7))),
    ]
    batch = build_input_batch(items, toy.state).batch
    assert batch.store_rows.tolist() == [1, 4]
    assert batch.store_slots.tolist() == [8, 7]


def test_a_position_without_a_block_is_an_error(toy):
    item = toy.item(ItemKind.DECODE, (9,), 5)
    beyond = Item(item.lease, "a", ItemKind.PREFILL, (1,), 64)
    with pytest.raises(StateError, match=r"position 64 .* has no block"):
        build_input_batch([beyond], toy.state)


def test_64_rows_of_a_tree_fill_every_bit(toy):
    item = toy.item(ItemKind.VERIFY, tuple(range(64)), 10, parents=tuple(range(-1, 63)))
    batch = build_input_batch([item], toy.state).batch
    assert batch.ancestors[-1].item() == -1
    assert batch.ancestors[-2].item() == 2**63 - 1


def test_a_bucket_of_single_rows_holds_what_the_step_of_its_own_size_holds(toy):
    items = [
        toy.item(ItemKind.DECODE, (token,), start, budget=token)
        for token, start in ((4, 64), (5, 3), (6, 130))
    ]
    exact = build_input_batch(items, toy.state)
    shape = BucketShape(rows=4, sequences=4, sampled=4, logits=4, short=4)
    buffers = InputBuffers(toy.state, shape, single_rows=True, stages=2)
    for _ in range(2):
        buffers.turn()
        fill(buffers, items)
        buffers.upload()
    traits = LaunchTraits.of(buffers.segments, trees=False)
    batch, sampled = buffers.batch(traits, full_width=False), buffers.sampled(traits)
    assert batch.layout.segments == exact.batch.layout.segments
    for name in ("write_row", *ROWS, *SEQUENCES):
        bucket, own = getattr(batch, name), getattr(exact.batch, name)
        assert bucket[..., :3].tolist() == own.tolist(), name
    for name in ("logit", "row", "count", "drafted", "slot", "budget"):
        assert getattr(sampled, name)[:3].tolist() == getattr(exact.sampled, name).tolist(), name
    for table, own in zip(batch.tables, exact.batch.tables, strict=True):
        assert table.lengths == own.lengths
        assert table.length[:3].tolist() == own.length.tolist()
        assert table.blocks[:3].tolist() == own.blocks.tolist()
    assert batch.layout.spans.tolist() == [*exact.batch.layout.spans.tolist(), [0, 0, 0, 0]]
    assert batch.write_row[:, 3].tolist() == [3, 3], "padding is written to the dummy block"


# -- sampled sequences -----------------------------------------------------------------------------


def test_every_sampled_sequence_is_listed_with_its_rows_with_logits(toy):
    items = [
        toy.item(ItemKind.PREFILL, (1, 2), 0, sample=False),
        toy.item(ItemKind.PREFILL, (3, 4), 0),
        toy.item(ItemKind.DECODE, (5,), 3, budget=9),
        toy.item(ItemKind.VERIFY, (6, 7, 8), 63, budget=4),
    ]
    sampled = build_input_batch(items, toy.state).sampled
    assert sampled.logit.tolist() == [0, 1, 2]
    assert sampled.row.tolist() == [3, 4, 5]
    assert sampled.count.tolist() == [1, 1, 3]
    assert sampled.drafted.tolist() == [0, 0, 1]
    assert sampled.slot.tolist() == [item.lease.slot for item in items[1:]]
    assert sampled.budget.tolist() == [1, 9, 4]
    assert sampled.width == 3


class Staged:
    """Arrays of the host in stages, as on a GPU: on the CPU there is one."""

    def __init__(self, fields, device, stages):
        self._transfers = [Transfer(fields, device) for _ in range(stages)]
        self.stages, self.device = stages, self._transfers[0].device

    host = property(lambda self: self._transfers[0].host)
    bytes = property(lambda self: self._transfers[0].bytes)

    def turn(self):
        self._transfers.append(self._transfers.pop(0))


def random_items(rng, items, single_rows):
    """Items of the same sequences as ``items``: of one row, drafts, trees, slices that store."""
    found = []
    for item in rng.sample(items, rng.choice((1, 1, 2, 3))):
        kind = ItemKind.DECODE if single_rows else rng.choice((*ItemKind, ItemKind.VERIFY))
        tokens = (1,) if kind is ItemKind.DECODE else tuple(range(rng.choice((1, 4, 5))))
        item = replace(item, kind=kind, tokens=tokens, start=130 + rng.randrange(60))
        found.append(changed_layout(rng, item))
    return found


def changed_layout(rng, item):
    """An item with as many rows as ``item`` and, if there is another, another layout."""
    if item.kind is ItemKind.PREFILL:
        stores = rng.choice(((), ((1, 4),), ((1, 5),)))
        return replace(item, stores=stores, sample=rng.random() < 0.5)
    if item.kind is not ItemKind.VERIFY:
        return item
    proposed = rng.randrange(item.rows)
    tokens = tuple(range(item.rows - proposed))
    if proposed:
        return replace(
            item, tokens=tokens, parents=None, proposed=proposed, tree=rng.random() < 0.3
        )
    parents = TREE if item.rows == len(TREE) and rng.random() < 0.5 else None
    return replace(item, tokens=tokens, parents=parents, proposed=0)


@pytest.mark.parametrize("single_rows", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_what_was_there_before_a_step_leaves_nothing(toy, monkeypatch, stages, single_rows):
    """Steps of the same layout and of others, one after the other, in the same arrays: each is the
    same as in arrays of its own."""
    monkeypatch.setattr(input_buffers, "Transfer", Staged)
    opened = [toy.item(ItemKind.DECODE, (0,) * 99, 130) for _ in range(3)]
    shape = BucketShape(24, 4, 4, 24, stores=3, slices=3, short=4, short_rows=24, changes=6)
    if single_rows:
        shape = BucketShape(4, 4, 4, 4, short=4, short_rows=4, changes=6)

    def make(stages):
        return InputBuffers(toy.state, shape, single_rows=single_rows, stages=stages)

    rng, kept, reused = random.Random(stages), make(stages), 0
    items = random_items(rng, opened, single_rows)
    for _ in range(300):
        what = rng.choice(("other items", "other layouts", "same layout", "same layout"))
        if what == "other items":
            items = random_items(rng, opened, single_rows)
        elif what == "other layouts":
            items = [changed_layout(rng, item) for item in items]
        else:
            items = [
                replace(i, start=130 + rng.randrange(60), budget=rng.randrange(9)) for i in items
            ]
        count = rng.choice((0, 0, 1, 3, 6))
        numbers = np.array(rng.choices(range(9), k=count), np.int64)
        changes = Changes(numbers, numbers.astype(np.int32)) if count else NO_CHANGES
        kept.turn()
        before = kept.layout
        alone = make(1)
        for buffers in (kept, alone):
            fill(buffers, items)
            buffers.put_changes(changes)
        reused += kept.layout == before is not None
        for name, array in alone.host.items():
            assert np.array_equal(kept.host[name], array), name
        assert (kept.segments, kept.lengths) == (alone.segments, alone.lengths)
    assert reused > 50


def test_kept_rows_become_rows_of_the_step_and_certain_ones_keep_nothing(toy):
    items = [
        toy.item(ItemKind.DECODE, (1,), 3),
        toy.item(ItemKind.VERIFY, (5, 6, 7), 63),
        toy.item(ItemKind.VERIFY, (7, 8, 9, 10, 11), 130, parents=TREE),
    ]
    sampled = build_input_batch(items, toy.state).sampled
    path = torch.tensor([[0, -1, -1, -1, -1], [0, 1, -1, -1, -1], [0, 2, 3, -1, -1]])
    kept = commit_batch(sampled, path, torch.tensor([1, 2, 3]))
    assert kept.path.tolist() == [[-1] * 5, [1, 2, -1, -1, -1], [4, 6, 7, -1, -1]]
    assert kept.n_keep.tolist() == [0, 2, 3]
    assert kept.slot.tolist() == [item.lease.slot for item in items]


def test_accepted_tree_rows_are_moved_and_nothing_else(toy):
    items = [
        toy.item(ItemKind.VERIFY, (5, 6, 7), 63),
        toy.item(ItemKind.VERIFY, (7, 8, 9, 10, 11), 126, parents=TREE),
    ]
    state = toy.state
    generator = torch.Generator().manual_seed(0)
    for pool in state.pools:
        for data in (pool.data, pool.arena):
            data.copy_(torch.randint(0, 256, data.shape, generator=generator, dtype=torch.uint8))
    before = [pool.data.clone() for pool in state.pools]
    inputs = build_input_batch(items, state)
    path = torch.tensor([[0, 1, -1, -1, -1], [0, 2, 3, -1, -1]])
    kept = commit_batch(inputs.sampled, path, torch.tensor([2, 3]))
    commit_tree_rows(state, inputs.batch, inputs.sampled, kept)
    for layer, (pool, old) in enumerate(zip(state.pools, before, strict=True)):
        (section,) = pool.layout.sections.values()
        now, was = pool.view(pool.data, section), pool.view(old, section)
        arena = state.paged(layer).arena("k")
        table = pool.tables[items[1].lease.slot]
        moved = [(126, 0), (127, 2), (128, 3)]
        expected = was.clone().view(torch.int32)
        for position, row in moved:
            place = table[position // 64], slice(None), position % 64
            expected[place] = arena[0, :, row].view(torch.int32)
        assert torch.equal(now.view(torch.int32)[1:], expected[1:])


def test_trees_that_do_not_fit_the_arena_are_refused():
    toy = ToyCache()
    rows = toy.state.limits.tree_rows + 1
    tree = toy.item(ItemKind.VERIFY, (5,) * rows, 0, parents=(-1, *(0,) * (rows - 1)))
    with pytest.raises(StateError, match=f"{rows} rows, the arena holds {rows - 1}"):
        build_input_batch([tree], toy.state)
