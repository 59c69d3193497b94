"""The block against plain torch, over steps with a growing context."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mtp_bench import BLOCK, VOCABULARY, relative

BOUND = 1e-5
STEPS = (1, 6, 5, 1, 60, 20)
"""Rows that each step adds: chunks are crossed."""
TOLD_APART = 100
"""A mistake changes the rows before the head by at least so many times the bound."""
NEXTN = f"blk.{BLOCK}.nextn"


def worst(pair, **options):
    """The largest difference of the rows before the head, over steps of one sequence."""
    lease, found = pair.bench.open(), 0.0
    for step, rows in enumerate(STEPS):
        pair.feed(lease, rows, seed=step)
        token = 11 + step
        pair.bench.draft({lease: token}, **options)
        found = max(found, relative(pair.bench.rows(), pair.expected(token)))
    return found


def test_every_pass_computes_what_plain_torch_does(case, make):
    assert worst(make(case)) <= BOUND


@pytest.mark.parametrize("passes", [1, 2, 9])
def test_a_draft_has_as_many_passes_as_asked_for(passes, make):
    pair = make(draft_tokens=passes)
    assert worst(pair) <= BOUND
    assert pair.bench.rows().shape[0] == passes


def test_three_tokens_are_drafted_unless_asked_for(make):
    pair = make(draft_tokens=None)
    assert (pair.bench.plan.depth, pair.bench.loaded.drafter.chain) == (3, 3)


def test_proposals_are_the_best_logits_of_every_pass(case, make):
    pair = make(case)
    lease = pair.bench.open()
    pair.feed(lease, 23)
    proposals = pair.bench.draft({lease: 5})
    _, logits = pair.reference.draft(5, 4)
    scores, tokens = logits.log_softmax(-1).topk(8, -1)
    assert torch.equal(proposals.tokens[0], tokens)
    torch.testing.assert_close(proposals.scores[0], scores, rtol=BOUND, atol=BOUND)
    assert proposals.parents is None


def test_a_block_without_context_pairs_its_token_with_zeros(make):
    pair = make()
    lease = pair.bench.open()
    pair.bench.draft({lease: 3})
    assert relative(pair.bench.rows(), pair.expected(3)) <= BOUND


def test_hidden_states_before_the_last_norm_are_a_setting(make):
    pair = make(draft_option={"hidden": "pre"})
    assert (pair.bench.plan.features, pair.bench.plan.final) == ((BLOCK - 1,), False)
    assert worst(pair) <= BOUND


def test_the_block_may_have_an_embedding_and_a_head_of_its_own_and_no_norm(make):
    def change(arrays):
        generator = np.random.default_rng(8)
        for name in ("embed_tokens", "shared_head_head"):
            arrays[f"{NEXTN}.{name}.weight"] = generator.standard_normal((VOCABULARY, 64)) / 8
        del arrays[f"{NEXTN}.shared_head_norm.weight"]

    assert worst(make(change=change)) <= BOUND


def test_projections_of_the_block_may_be_one_tensor(make):
    def fuse(arrays):
        parts = [arrays.pop(f"blk.{BLOCK}.attn_{part}.weight") for part in "qkv"]
        arrays[f"blk.{BLOCK}.attn_qkv.weight"] = np.concatenate(parts)

    assert worst(make(change=fuse, right=lambda arrays: None)) <= BOUND


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_may_have_the_first_tokens_only(tied, make):
    def change(arrays):
        if tied:
            arrays["output.weight"] = arrays["token_embd.weight"]

    def tie(arrays):
        if tied:
            del arrays["output.weight"]

    pair = make(change=tie, right=change, draft_option={"head": "100"})
    pair.reference.tensors["output.weight"] = pair.reference.tensors["output.weight"][:100]
    assert worst(pair) <= BOUND
    lease = pair.bench.open()
    tokens = pair.bench.draft({lease: 600}).tokens
    assert int(tokens.max()) < 100


def test_a_file_may_list_the_tokens_of_its_head(make):
    listed = np.random.default_rng(4).permutation(VOCABULARY)[:90]

    def change(arrays):
        arrays[f"{NEXTN}.shared_head_head.weight"] = arrays["output.weight"][listed] * 2
        arrays[f"{NEXTN}.d2t"] = listed

    pair = make(change=change)
    assert worst(pair) <= BOUND
    lease = pair.bench.open()
    tokens = pair.bench.draft({lease: 5}).tokens
    assert set(tokens.flatten().tolist()) <= set(listed.tolist())
    assert int(tokens.max()) >= 90


def test_the_last_draft_of_the_context_reads_no_rotation_beyond_it(make):
    pair = make(context=128)
    lease = pair.bench.open(128)
    pair.feed(lease, 126)
    assert bool(pair.bench.draft({lease: 5}).scores.isfinite().all())


def test_lanes_do_not_depend_on_one_another_nor_on_padding(case, make):
    pair = make(case)
    first, second = pair.bench.open(), pair.bench.open()
    pair.feed(first, 40)
    pair.bench.extend({second: ([9, 8, 7], torch.ones(3, 64))})
    pair.bench.draft({second: 4, first: 6}, lanes=4)
    assert relative(pair.bench.rows(1), pair.expected(6)) <= BOUND


# -- mistakes are seen ----------------------------------------------------------------------------


def exchanged(first, second):
    def change(arrays):
        arrays[first], arrays[second] = arrays[second], arrays[first]

    return change


def exchange_halves(arrays):
    name = f"{NEXTN}.eh_proj.weight"
    arrays[name] = np.concatenate(np.split(arrays[name], 2, 1)[::-1], 1)


def without_head_norm(arrays):
    del arrays[f"{NEXTN}.shared_head_norm.weight"]


MISTAKES = {
    "norms exchanged": exchanged(f"{NEXTN}.enorm.weight", f"{NEXTN}.hnorm.weight"),
    "halves of the projection exchanged": exchange_halves,
    "norms of the layer exchanged": exchanged(
        f"blk.{BLOCK}.attn_norm.weight", f"blk.{BLOCK}.post_attention_norm.weight"
    ),
    "the model's last norm": without_head_norm,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_weights_is_seen(name, make):
    pair = make(change=MISTAKES[name], right=lambda arrays: None)
    assert worst(pair) >= TOLD_APART * BOUND


@pytest.mark.parametrize("late", [-1, 1])
def test_a_draft_at_another_position_is_seen(late, make):
    pair = make()
    lease = pair.bench.open()
    pair.feed(lease, 20)
    pair.bench.draft({lease: 3}, late=late)
    assert relative(pair.bench.rows(), pair.expected(3)) >= TOLD_APART * BOUND


@pytest.mark.parametrize("shift", [-1, 1])
def test_hidden_states_of_other_positions_are_seen(shift, make, monkeypatch):
    pair = make()
    plain = pair.bench.drafter.extend
    monkeypatch.setattr(
        pair.bench.drafter, "extend", lambda rows, *rest: plain(rows.roll(shift, 0), *rest)
    )
    lease = pair.bench.open()
    pair.feed(lease, 20)
    pair.bench.draft({lease: 3})
    assert relative(pair.bench.rows(), pair.expected(3)) >= TOLD_APART * BOUND


def test_the_other_kind_of_hidden_state_is_seen_from_the_second_pass_on(make):
    pair = make()
    pair.bench.drafter.post_norm = False
    lease = pair.bench.open()
    pair.feed(lease, 20)
    pair.bench.draft({lease: 3})
    found, expected = pair.bench.rows(), pair.expected(3)
    assert relative(found[:1], expected[:1]) <= BOUND
    assert relative(found[1:2], expected[1:2]) >= TOLD_APART * BOUND


def test_a_pass_that_does_not_see_the_one_before_is_seen(make, monkeypatch):
    pair = make()
    run = pair.bench.drafter.run

    def alone(inputs, step):
        own = torch.ones_like(step.batch.ancestors)
        place = torch.arange(len(own)) % inputs.shape[1]
        step.batch.ancestors.copy_(own << place)
        return run(inputs, step)

    monkeypatch.setattr(pair.bench.drafter, "run", alone)
    lease = pair.bench.open()
    pair.feed(lease, 20)
    pair.bench.draft({lease: 3})
    assert relative(pair.bench.rows(), pair.expected(3)) >= TOLD_APART * BOUND
