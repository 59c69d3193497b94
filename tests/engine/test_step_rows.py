"""How many rows a slice and a step may have."""

from __future__ import annotations

import pytest

from kinfolk.engine.sizing import GIB
from kinfolk.engine.step_rows import longest_mixed_slice, longest_slice, longest_step
from kinfolk.plans import WeightPlan, WeightSpec

DENSE = WeightPlan((WeightSpec("up", (8, 4)),))
MIXTURE = WeightPlan((WeightSpec("gate", (8, 4)), WeightSpec("up", (2, 8, 4), "experts")))


@pytest.mark.parametrize(
    ("device", "weights", "gib", "rows"),
    [
        ("cpu", DENSE, 64, 512),
        ("cpu", MIXTURE, 64, 512),
        ("cuda", DENSE, 24, 2048),
        ("cuda", MIXTURE, 24, 2048),
        ("cuda", DENSE, 32, 3072),
        ("cuda", MIXTURE, 32, 4096),
    ],
)
def test_a_slice_is_long_where_a_large_device_and_experts_make_it_pay(device, weights, gib, rows):
    assert longest_slice(device, weights, gib * GIB) == rows


@pytest.mark.parametrize(
    ("slice_rows", "rows"), [(512, 1024), (2048, 4096), (3072, 4096), (4096, 6144)]
)
def test_a_step_has_room_beside_its_slice(slice_rows, rows):
    assert longest_step(None, slice_rows) == rows


def test_a_step_has_the_rows_that_were_asked_for():
    assert longest_step(600, 512) == 600


@pytest.mark.parametrize(("asked", "rows"), [(None, 192), (64, 64), (4096, 4096), (0, None)])
def test_slices_are_shorter_while_others_decode_unless_none_are_asked_for(asked, rows):
    assert longest_mixed_slice(asked, longest_slice("cuda", DENSE, 64 * GIB)) == rows


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("weights", [DENSE, MIXTURE])
@pytest.mark.parametrize("gib", [24, 64])
def test_short_slices_end_where_chunks_of_the_delta_rule_do(device, weights, gib):
    rows = longest_slice(device, weights, gib * GIB)
    short = longest_mixed_slice(None, rows)
    assert short < rows
    assert short % 64 == 0
