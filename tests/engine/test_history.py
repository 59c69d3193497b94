"""Positions of sampled rows, and the tokens that a request counts."""

from __future__ import annotations

import pytest

from kinfolk.engine.history import History, sampled_positions
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Request, Sampling
from kinfolk.state.chunks import SlotLease

LEASE = SlotLease(1, 1)
PROMPT = (5, 6, 6)


def item(kind, tokens, parents=None):
    return Item(LEASE, "a", kind, tokens, 10, parents=parents)


@pytest.mark.parametrize("kind", [ItemKind.PREFILL, ItemKind.DECODE])
def test_only_the_last_row_of_a_certain_item_is_sampled(kind):
    assert sampled_positions(item(kind, (1, 2, 3))) == [13]


def test_every_row_of_a_chain_is_sampled_at_its_own_position():
    assert sampled_positions(item(ItemKind.VERIFY, (7, 8, 8, 9))) == [11, 12, 13, 14]


def test_siblings_of_a_tree_choose_a_token_for_the_same_position():
    tree = item(ItemKind.VERIFY, (7, 8, 9, 8, 7), parents=(-1, 0, 0, 2, 1))
    assert sampled_positions(tree) == [11, 12, 12, 13, 13]


def test_a_drafted_item_of_one_row_equals_a_plain_step():
    plain, drafted = (item(kind, (3,)) for kind in (ItemKind.DECODE, ItemKind.VERIFY))
    assert sampled_positions(drafted) == sampled_positions(plain)


def test_emitted_tokens_count_and_those_of_the_prompt_are_a_set():
    made = History(Request("a", PROMPT, 9, Sampling(temperature=1, presence_penalty=1)))
    made.extend([7, 7])
    made.extend([2])
    assert made.prompt == {5, 6}
    assert made.output == {7: 2, 2: 1}


def test_without_penalties_nothing_is_counted():
    made = History(Request("a", PROMPT, 9, Sampling(temperature=1, logit_bias=((3, 1.0),))))
    made.extend([7, 7])
    assert not made.output
    assert not made.prompt
