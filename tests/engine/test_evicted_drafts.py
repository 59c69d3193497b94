"""Chains and trees on a sequence whose chunks leave the device and come back."""

from __future__ import annotations

import drafter_scenes as scenes
import pytest

from kinfolk.types import CHUNK_POSITIONS

RESIDENT = 10
LENGTH = 430
"""Of the prompt: the answer begins another chunk."""

TOKENS = 11
"""Between moves of chunks: a draft that reached beyond would see other chunks than single rows."""

MOVES = [((1, 2), ()), ((), (2,)), ((2,), (1,))]
"""Chunks that leave, and chunks that come back."""

NEAR = 1e-4
"""Of stored numbers: steps of other sizes sum in another order."""


@pytest.fixture(scope="module")
def models(cases, registry, tmp_path_factory):
    return scenes.Models("cpu", cases, tmp_path_factory.mktemp("drafters"), registry)


def answered(loaded, prompt, width, moves=MOVES):
    """The tokens of an answer of which each step drafts up to ``width`` rows, the state behind it,
    and the number of steps."""
    lanes = scenes.Lanes(loaded)
    lease = lanes.open(prompt, positions=500, resident=RESIDENT)
    tables, tokens = lanes.side.kv_cache.tables, [lanes.pending[lease]]
    for leaving, coming in moves:
        tables.evict(lease, *leaving)
        tables.recall(lease, *coming)
        left = TOKENS
        while left:
            found = lanes.verify({lease: min(width, left - 1)})[lease]
            left -= len(found)
            tokens += found
    return tokens, lanes.side.kept(lease), lanes.steps - 1


@pytest.fixture(scope="module")
def opened(models):
    """``opened(mode, graphs)``: the model with a drafter, and room for few chunks of a sequence."""

    def load(mode, graphs):
        paged = {"context": 1024, "kvflash": RESIDENT * CHUNK_POSITIONS, "kvflash_burst": 2}
        return models.drafted("mtp qwen35", mode, graphs=graphs, **paged)

    return load


@pytest.fixture(scope="module")
def prompt(text):
    return (text * 3)[:LENGTH]


@pytest.fixture(scope="module")
def undrafted(opened, prompt):
    """The answer of single rows."""
    return answered(opened("chain", "off"), prompt, 0)


def test_what_is_away_is_missed(opened, prompt, undrafted):
    tokens, _, steps = undrafted
    assert steps == len(tokens) - 1 == TOKENS * len(MOVES)
    everything, _, _ = answered(opened("chain", "off"), prompt, 0, [((), ())] * len(MOVES))
    assert tokens != everything


@pytest.mark.parametrize(("mode", "graphs"), [("chain", "on"), ("tree", "off")])
def test_drafts_beside_chunks_that_are_away_leave_what_single_rows_do(
    opened, prompt, undrafted, mode, graphs
):
    expected, state, steps = undrafted
    loaded = scenes.guided(opened(mode, graphs), [[*prompt, *expected]])
    tokens, kept, fewer = answered(loaded, prompt, loaded.drafter.rows)
    assert tokens == expected
    assert fewer < steps / 2
    for one, other in zip(kept, state, strict=True):
        assert float((one - other).float().norm()) <= NEAR * float(other.float().norm())
