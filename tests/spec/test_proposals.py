"""Proposals by slot: rows that the device fills are those that the host would have laid out."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest
import torch

from kinfolk.engine.input_batch import build_input_batch
from kinfolk.plans import Codec, Paged, Section, StateLimits, StatePlan
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.spec.proposals import ProposalStore
from kinfolk.spec.verify import NO_ROW
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.state import State
from kinfolk_kernels.place_drafts.op import PLACE_DRAFTS, PlaceDraftsArguments

VOCABULARY = 100
PLACE = partial(PLACE_DRAFTS.reference, PlaceDraftsArguments(VOCABULARY, torch.device("cpu")))
PARENTS = [0, 0, 1, 3, 3, 2, 5]
TOKENS = [11, 12, 13, 14, 15, 16, 17]
PLAN = StatePlan((Paged((Section("k", 1, 4, Codec("f32")),)),))


@pytest.fixture
def opened():
    """A state, and leases of three sequences of other lengths."""
    limits = StateLimits(4, 0, (40,), 512, 64, tree_rows=128)
    kv_cache = KVCacheManager(PLAN.windows, limits, recurrent=False)
    state = State(PLAN, limits, torch.device("cpu"))
    leases = [kv_cache.open(400) for _ in range(3)]
    for lease in leases:
        kv_cache.tables.extend(lease, 300)
    state.apply(kv_cache.take_operations())
    return state, leases


@pytest.fixture
def store(opened):
    """Slot of the first lease: a chain; of the second: a tree; of the third: a smaller tree."""
    state, leases = opened
    store = ProposalStore(5, len(TOKENS), PLACE, state.device)
    slots = torch.tensor([lease.slot for lease in leases])
    chain = list(range(len(TOKENS)))
    few = [*PARENTS[:4], *[NO_ROW] * 3]
    tokens = torch.tensor([TOKENS, [t + 20 for t in TOKENS], [t + 40 for t in TOKENS]])
    trees = (tokens, torch.tensor([chain, PARENTS, few]), torch.tensor([7, 7, 4]))
    store.put(slots, trees)
    store.note(slots, torch.tensor([5, 5, 5]), slots)
    return store


def equal(one, other):
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), field.name
    assert torch.equal(one.layout.path, other.layout.path)
    # Only who laid the rows out differs.
    found, expected = one.layout.spans, other.layout.spans
    assert torch.equal(found[:, :3], expected[:, :3])
    assert torch.equal(found[:, 3] > 0, expected[:, 3] > 0)


@pytest.mark.parametrize("width", [1, 3, 7])
def test_a_placed_chain_is_that_of_the_host(opened, store, width):
    state, (first, second, _) = opened
    around = Item(second, "b", ItemKind.PREFILL, (1, 2, 3), 60)
    known = Item(first, "a", ItemKind.VERIFY, (5, *TOKENS[:width]), 70)
    unknown = Item(first, "a", ItemKind.VERIFY, (5,), 70, proposed=width)
    expected = build_input_batch([around, known], state).batch
    found = build_input_batch([around, unknown], state).batch
    assert not torch.equal(found.tokens, expected.tokens)
    store.place(found)
    equal(found, expected)


@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_a_placed_tree_is_that_of_the_host(opened, store, width):
    state, (first, second, third) = opened
    decoding = Item(first, "a", ItemKind.DECODE, (4,), 9)

    def trees(lease, start, add, rows):
        tokens = tuple(token + add for token in TOKENS[:rows])
        parents = (-1, *PARENTS[:rows])
        known = Item(lease, "b", ItemKind.VERIFY, (5, *tokens), start, budget=9, parents=parents)
        unknown = Item(lease, "b", ItemKind.VERIFY, (5,), start, budget=9, proposed=rows, tree=True)
        return known, unknown

    one, two = trees(second, 126, 20, width), trees(third, 63, 40, min(4, width))
    expected = build_input_batch([decoding, one[0], two[0]], state)
    found = build_input_batch([decoding, one[1], two[1]], state)
    store.place(found.batch)
    equal(found.batch, expected.batch)
    # Places of kept rows: as many as the deepest path has at least.
    targets, others = found.sampled.targets, expected.sampled.targets
    assert torch.equal(torch.where(others > 64, targets, 0), torch.where(others > 64, others, 0))
    store.place(found.batch)
    equal(found.batch, expected.batch)


def test_rows_without_a_proposal_have_no_parent(opened, store):
    state, (_, _, third) = opened
    item = Item(third, "c", ItemKind.VERIFY, (5,), 63, budget=9, proposed=7, tree=True)
    batch = build_input_batch([item], state).batch
    store.place(batch)
    assert batch.parent_row.tolist() == [-1, 0, 0, 1, 3, -1, -1, -1]
    assert batch.tokens.tolist()[:5] == [5, 51, 52, 53, 54]
    assert batch.positions.tolist() == [63, 64, 64, 65, 66, 63, 63, 63]
    # A row sees itself at least: attention over nothing is no number.
    assert [bits & 1 << row for row, bits in enumerate(batch.ancestors.tolist())] == [
        1 << row for row in range(8)
    ]


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**40])
def test_a_token_that_does_not_exist_ends_its_path(opened, store, token):
    state, (first, _, _) = opened
    tokens = torch.tensor([[11, token, 13, 14, 15, 16, 17]])
    store.put(torch.tensor([first.slot]), (tokens, torch.arange(7)[None], torch.tensor([7])))
    item = Item(first, "a", ItemKind.VERIFY, (5,), 70, proposed=7)
    batch = build_input_batch([item], state).batch
    store.place(batch)
    assert batch.tokens.tolist() == [5, 11, 0, 13, 14, 15, 16, 17]
    assert batch.parent_row.tolist() == [-1, 0, -1, 2, 3, 4, 5, 6]


def test_63_nodes_fill_all_bits_of_a_path(opened):
    state, (first, _, _) = opened
    store = ProposalStore(5, 63, PLACE, state.device)
    tokens = torch.full((1, 63), 7)
    store.put(torch.tensor([first.slot]), (tokens, torch.arange(63)[None], torch.tensor([63])))
    item = Item(first, "a", ItemKind.VERIFY, (5,), 70, budget=99, proposed=63, tree=True)
    batch = build_input_batch([item], state).batch
    store.place(batch)
    assert batch.positions.tolist() == list(range(70, 134))
    assert batch.ancestors.tolist()[62:] == [2**63 - 1, -1]
    assert torch.equal(batch.layout.path, batch.ancestors)
