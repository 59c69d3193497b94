"""The state of a sequence: sizes of released models, sliding windows, layers that share state."""

from __future__ import annotations

import pytest
import torch

from kinfolk.gguf.metadata import Metadata
from kinfolk.plans import Codec, ExpertStats, Paged, PoolRule, Shared, StateLimits
from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk_gemma4.config import read_config
from kinfolk_gemma4.family import Gemma4
from kinfolk_gemma4.hooks import Gemma4Hooks

LIMITS = StateLimits(1, 0, (), 4096, 512, codec=Codec("f16"))
WINDOW = 24
BOUND = 2e-4


def bytes_of(layers):
    """Bytes of one position in float16."""
    return sum(2 * section.heads * section.dim for layer in layers for section in layer.sections)


@pytest.mark.parametrize(
    ("name", "full", "per_token", "windowed", "per_row"),
    [
        ("gemma-4-26b-a4b", 5, 20480, 25, 8192),
        ("gemma-4-31b", 10, 81920, 50, 16384),
        ("gemma-4-e2b", 3, 6144, 12, 1024),
        ("gemma-4-e4b", 4, 16384, 20, 2048),
        ("gemma-4-12b", 8, 16384, 40, 8192),
    ],
)
def test_released_sizes_keep_what_is_published(name, full, per_token, windowed, per_row):
    config = read_config(Metadata.from_dict(plan_synthetic(find_shape(name, [Gemma4()])).metadata))
    plan = Gemma4Hooks().allocate_cache(config, LIMITS)
    paged = [layer for layer in plan.layers if isinstance(layer, Paged)]
    everything = [layer for layer in paged if layer.window is None]
    local = [layer for layer in paged if layer.window is not None]
    assert (len(everything), bytes_of(everything)) == (full, per_token)
    assert (len(local), bytes_of(local)) == (windowed, windowed * per_row)
    assert {layer.window for layer in local} == {config.window}
    assert len(paged) + sum(isinstance(layer, Shared) for layer in plan.layers) == config.layers


def test_the_hooks_state_a_rule_for_each_pool(load, cases):
    loaded = load(cases / "gemma4.gguf")
    assert loaded.plan.windows == (None, WINDOW)
    assert loaded.mapping.rules == (PoolRule(None), PoolRule(WINDOW))


def test_the_usual_placement_leaves_experts_in_their_order():
    stats = ExpertStats((4, 4))
    placed = Gemma4Hooks().place_experts(stats, 8)
    assert placed.bays == ((0, 1, 2, 3), (0, 1, 2, 3))


@pytest.mark.parametrize("case", ["gemma4", "gemma4moe"])
def test_chunks_leave_when_the_window_has_passed_them(driver, reference, case):
    tokens, _ = reference(case)
    drive = driver(case)
    lease = drive.open()
    for length in range(1, 161):
        drive.feed({lease: tokens[length - 1 : length]})
        last = (length - 1) // 64
        assert [chunk for chunk, _ in drive.kv_cache.tables.table(lease, 0)] == list(
            range(last + 1)
        )
        first = max(0, length - WINDOW + 1) // 64
        kept = [chunk for chunk, _ in drive.kv_cache.tables.table(lease, 1)]
        assert kept == list(range(first, last + 1))


@pytest.mark.parametrize("case", ["gemma4", "gemma4moe"])
@pytest.mark.parametrize("rows", [3, 8, 23, 24, 25, 65])
def test_windows_are_crossed_at_any_step_size(driver, reference, row_error, case, rows):
    """The first row of a step still sees the position a window behind it; the last row does not."""
    tokens, expected = reference(case)
    drive = driver(case)
    lease = drive.open()
    assert row_error(drive.feed({lease: tokens}, rows=rows)[lease], expected) <= BOUND


@pytest.mark.parametrize("case", ["gemma4", "gemma4moe"])
@pytest.mark.parametrize("kept", [1, 2, 5])
def test_rejected_drafts_across_a_window_leave_no_trace(driver, reference, row_error, case, kept):
    tokens, expected = reference(case)
    drive = driver(case)
    lease = drive.open()
    drive.feed({lease: tokens[:60]})
    length = 60
    while length + 8 <= 140:
        wrong = [(token + 1) % 768 for token in tokens[length + kept : length + 8]]
        found = drive.draft({lease: ([*tokens[length : length + kept], *wrong], None)})[lease]
        assert row_error(found[:kept], expected[length : length + kept]) <= BOUND
        drive.keep({lease: range(kept)})
        length += kept
    found = drive.feed({lease: tokens[length:]})[lease]
    assert row_error(found, expected[length:]) <= BOUND


def test_layers_that_share_write_nothing(driver, reference):
    drive = driver("gemma4")
    sections = [set(pool.layout.sections) for pool in drive.state.pools]
    assert {layer for pool in sections for layer, _ in pool} == {0, 1, 2, 3}
    assert drive.state.paged(4).pool("k") is not drive.state.paged(3).pool("k")
    assert torch.equal(drive.state.paged(5).pool("k"), drive.state.paged(3).pool("k"))
    assert drive.state.paged(5).pool("k").data_ptr() == drive.state.paged(3).pool("k").data_ptr()
    assert drive.state.paged(4).pool("v").data_ptr() == drive.state.paged(2).pool("v").data_ptr()
