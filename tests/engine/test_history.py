"""The history that each sampled row gets: emitted tokens and drafts before it."""

from __future__ import annotations

import pytest

from kinfolk.engine.history import History
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Request, Sampling
from kinfolk.state.chunks import SlotLease

LEASE = SlotLease(1, 1)
PENALTY = Sampling(temperature=1, presence_penalty=1)
PROMPT = (5, 6, 6)


def history(sampling=PENALTY, output=()):
    made = History(Request("a", PROMPT, 9, sampling))
    made.extend(output)
    return made


def verify(tokens, parents=None, start=10):
    return Item(LEASE, "a", ItemKind.VERIFY, tokens, start, parents=parents)


def seen(rows):
    """(position, tokens emitted or drafted before it) of each row."""
    return [(row.position, {t: n for t, n in (row.output or {}).items() if n}) for row in rows]


@pytest.mark.parametrize("kind", [ItemKind.PREFILL, ItemKind.DECODE])
def test_only_the_last_row_of_a_certain_item_is_sampled(kind):
    (row,) = history(output=[7, 7]).rows(Item(LEASE, "a", kind, (1, 2, 3), 10))
    assert row.position == 13
    assert row.prompt == {5, 6}
    assert row.output == {7: 2}


def test_rows_of_a_chain_have_seen_the_drafts_before_them():
    rows = history(output=[7]).rows(verify((7, 8, 8, 9)))
    assert seen(rows) == [
        (11, {7: 1}),
        (12, {7: 1, 8: 1}),
        (13, {7: 1, 8: 2}),
        (14, {7: 1, 8: 2, 9: 1}),
    ]


def test_rows_of_a_tree_have_seen_their_own_branch():
    rows = history(output=[7]).rows(verify((7, 8, 9, 8, 7), parents=(-1, 0, 0, 2, 1)))
    assert seen(rows) == [
        (11, {7: 1}),
        (12, {7: 1, 8: 1}),
        (12, {7: 1, 9: 1}),
        (13, {7: 1, 9: 1, 8: 1}),
        (13, {7: 2, 8: 1}),
    ]


def test_a_drafted_item_of_one_row_equals_a_plain_step():
    made = history(output=[7, 3])
    plain = made.rows(Item(LEASE, "a", ItemKind.DECODE, (3,), 10))
    assert made.rows(verify((3,))) == plain


def test_drafts_are_forgotten_and_emitted_tokens_are_not():
    made = history(output=[7])
    made.rows(verify((7, 8, 9)))
    made.extend([8, 2])
    assert seen(made.rows(verify((2,), start=12))) == [(13, {7: 1, 8: 1, 2: 1})]


def test_without_penalties_nothing_is_counted():
    made = history(Sampling(temperature=1, logit_bias=((3, 1.0),)), output=[7, 7])
    for row in made.rows(verify((7, 8))):
        assert not row.output
        assert not row.prompt
