"""Rows of drafted sequences, filled from what slots have stored, against a plain loop."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from kinfolk_kernels.accept_drafts.op import AcceptDraftsArguments, accept_drafts
from kinfolk_kernels.place_drafts.op import (
    DraftedRows,
    PlaceDraftsArguments,
    StoredDrafts,
    place_drafts,
)
from kinfolk_kernels.row_layout import KNOWN_DRAFT

VOCABULARY = 50
CPU = PlaceDraftsArguments(VOCABULARY, torch.device("cpu"))


def signed(bits):
    """The int64 that has these 64 bits."""
    return bits - (1 << 64) if bits >> 63 else bits


def expected_rows(stored, spans, context, arena_start, rows):
    """The tables row by row."""
    found = {field.name: getattr(rows, field.name).tolist() for field in fields(rows)}
    for sequence, (first, count, slot, drafted) in enumerate(spans.tolist()):
        start, length = int(arena_start[sequence]), int(context[sequence])
        depth, path = [], []
        for place in range(count if drafted == 1 else 0):
            token, above = int(stored.pending[slot]), -1
            if place:
                there = place <= min(int(stored.counts[slot]), stored.tokens.shape[1])
                token = int(stored.tokens[slot, place - 1]) if there else 0
                above = int(stored.parents[slot, place - 1]) if there else -1
                fits = 0 <= above < place if start >= 0 else above == place - 1
                if not fits or not 0 <= token < VOCABULARY:
                    token, above = 0, -1
            depth.append(depth[above] + 1 if above >= 0 else 0)
            path.append((path[above] if above >= 0 else 0) | 1 << place)
            position = length + (depth[place] if start >= 0 else place)
            row = {
                "tokens": token,
                "positions": position,
                "parent_row": first + above if above >= 0 else -1,
                "limit": length - 1 if start >= 0 else position,
                "ancestors": signed(path[place]) if start >= 0 else 0,
                "arena_row": start + place if start >= 0 else -1,
                "path": signed(path[place]),
            }
            for name, value in row.items():
                found[name][first + place] = value
    return found


def assert_are(rows, expected):
    for field in fields(rows):
        assert getattr(rows, field.name).tolist() == expected[field.name], field.name


@pytest.mark.parametrize("most", [1, 2, 5, 16, 22, 31, 63])
@pytest.mark.parametrize("seed", range(6))
def test_is_the_loop(placements, seed, most):
    given = placements(seed, most)
    expected = expected_rows(*given)
    place_drafts(CPU, *given)
    assert_are(given[-1], expected)


def empty_rows(count):
    return DraftedRows(*(torch.full((count,), -77) for _ in range(7)))


def one_slot(tokens, parents, pending=9):
    return StoredDrafts(
        torch.tensor([pending]),
        torch.tensor([tokens]),
        torch.tensor([parents]),
        torch.tensor([len(tokens)]),
    )


TREE = one_slot([10, 11, 20, 30, 21, 20, 30], [0, 0, 1, 3, 1, 2, 5])
VISIBLE = [0b1, 0b11, 0b101, 0b1011, 0b11011, 0b100011, 0b1000101, 0b10100011]
"""Of a published example: which rows each row sees."""


def placed(stored, count, *, context=100, start=64, drafted=1, rows=None):
    rows = empty_rows(count + 2) if rows is None else rows
    spans = torch.tensor([[1, count, 0, drafted]], dtype=torch.int32)
    place_drafts(CPU, stored, spans, torch.tensor([context]), torch.tensor([start]), rows)
    return rows


@pytest.mark.parametrize("count", range(9))
def test_a_tree_of_any_width(count):
    rows = placed(TREE, count)
    rest = slice(1, 1 + count)
    seen = VISIBLE[:count]
    assert rows.tokens.tolist() == [-77, *[9, 10, 11, 20, 30, 21, 20, 30][:count], -77]
    assert rows.positions[rest].tolist() == [100, 101, 101, 102, 103, 102, 102, 103][:count]
    assert rows.parent_row[rest].tolist() == [-1, 1, 1, 2, 4, 2, 3, 6][:count]
    assert rows.limit[rest].tolist() == [99] * count
    assert rows.ancestors[rest].tolist() == seen
    assert rows.path[rest].tolist() == seen
    assert rows.arena_row[rest].tolist() == list(range(64, 64 + count))


def test_rows_beyond_a_tree_are_spare():
    rows = placed(one_slot([5, 6], [0, 0]), 5)
    assert rows.tokens[1:6].tolist() == [9, 5, 6, 0, 0]
    assert rows.positions[1:6].tolist() == [100, 101, 101, 100, 100]
    assert rows.parent_row[1:6].tolist() == [-1, 1, 1, -1, -1]
    assert rows.ancestors[1:6].tolist() == [0b1, 0b11, 0b101, 0b1000, 0b10000]


def test_a_chain_goes_to_the_pools():
    rows = placed(one_slot([5, 6, 7], [0, 1, 2]), 4, start=-1)
    assert rows.tokens[1:5].tolist() == [9, 5, 6, 7]
    assert rows.positions[1:5].tolist() == rows.limit[1:5].tolist() == [100, 101, 102, 103]
    assert rows.parent_row[1:5].tolist() == [-1, 1, 2, 3]
    assert rows.arena_row[1:5].tolist() == [-1] * 4
    assert rows.ancestors[1:5].tolist() == [0] * 4
    assert rows.path[1:5].tolist() == [0b1, 0b11, 0b111, 0b1111]


def test_a_tree_that_is_placed_as_a_chain_ends_where_it_branches():
    """A row of a chain sees all before it, so siblings cannot be rows of one."""
    rows = placed(TREE, 8, start=-1)
    assert rows.parent_row[1:9].tolist() == [-1, 1, -1, -1, 4, -1, -1, -1]
    assert rows.positions[1:9].tolist() == list(range(100, 108))


def test_sixty_four_rows_fill_the_path():
    rows = placed(one_slot(list(range(49)) + [0] * 14, list(range(63))), 64)
    assert rows.path[64] == rows.ancestors[64] == -1
    assert rows.positions[64] == 163


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**40])
def test_tokens_that_do_not_exist_are_not_placed(token):
    rows = placed(one_slot([3, token, 5], [0, 1, 2]), 4)
    assert rows.tokens[1:5].tolist() == [9, 3, 0, 5]
    assert rows.parent_row[1:5].tolist() == [-1, 1, -1, 3]


@pytest.mark.parametrize(("start", "kept"), [(64, [0, 1, 5]), (-1, [0, 1])])
def test_neither_spare_rows_nor_their_children_are_accepted(start, kept):
    """Every row chooses token 0, which spare rows have."""
    stored = one_slot([0, 60, 0, 0, 0], [0, 1, 2, 9, 1], pending=0)
    rows = placed(stored, 8, start=start)
    parents = torch.where(rows.parent_row < 0, -1, rows.parent_row - 1)[None, 1:9]
    zeros = torch.zeros(1, 8, dtype=torch.int64)
    path, n_keep, _ = accept_drafts(
        AcceptDraftsArguments(CPU.device), zeros, rows.tokens[None, 1:9], parents, torch.tensor([8])
    )
    assert path[0, : int(n_keep)].tolist() == kept


@pytest.mark.parametrize("drafted", [0, KNOWN_DRAFT])
def test_rows_that_the_host_has_laid_out_stay(drafted):
    rows = placed(TREE, 8, drafted=drafted)
    assert all((getattr(rows, field.name) == -77).all() for field in fields(rows))


def test_shuffled_sequences_get_the_same_rows(placements):
    stored, spans, context, start, rows = placements(3, 16)
    order = torch.randperm(len(spans), generator=torch.Generator().manual_seed(1))
    other = replace(rows, **{f.name: getattr(rows, f.name).clone() for f in fields(rows)})
    place_drafts(CPU, stored, spans, context, start, rows)
    place_drafts(CPU, stored, spans[order], context[order], start[order], other)
    assert_are(other, {field.name: getattr(rows, field.name).tolist() for field in fields(rows)})


def test_more_drafts_than_a_path_has_bits_are_refused():
    with pytest.raises(ValueError, match="64 drafts of a slot: at most 63"):
        one_slot([1] * 64, [0] * 64)
