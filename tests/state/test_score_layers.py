"""Which layers score chunks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kinfolk.errors import SettingsError
from kinfolk.plans import Codec, Paged, Recurrent, RecurrentTensor, Section, Shared, StatePlan
from kinfolk.state.score_layers import digest_chunk_bytes, scored_layers

RECURRENT = Recurrent((RecurrentTensor("s", (4, 4)),))


def attention(heads=4, dim=256, window=None, format="bf16"):
    sections = (Section(name, heads, dim, Codec(format)) for name in "kv")
    return Paged(tuple(sections), window)


def hybrid(layers, format="bf16"):
    """Every fourth layer attends."""
    attending = [attention(format=format)]
    return StatePlan(tuple((([RECURRENT] * 3) + attending) * (layers // 4)))


def test_a_quarter_of_the_pool_has_room_for_the_layers_that_are_chosen():
    """64 layers, 16 with attention: 1 GiB of 16K positions for 256K, 66 MiB a layer."""
    plan = hybrid(64)
    assert digest_chunk_bytes(plan.paged(3).section("k")) == 64 * 264
    assert scored_layers(plan, 256, 4096, None) == (11, 35, 55)
    assert scored_layers(plan, 256, 2048, None) == (7, 15, 23, 35, 43, 51, 59)
    assert scored_layers(hybrid(64, "q8_0"), 256, 4096, None) == (19, 51)
    assert len(scored_layers(plan, 256, 256, None)) == 16


def test_there_is_at_least_one_layer_whatever_the_room():
    assert scored_layers(hybrid(64), 1, 100_000, None) == (35,)


@pytest.mark.parametrize("count", range(1, 17))
def test_layers_are_as_many_as_asked_for_and_evenly_spread(count):
    layers = scored_layers(hybrid(64), 256, 4096, count)
    assert len(set(layers)) == count
    distances = {b - a for a, b in pairwise(layers)}
    assert all(distance % 4 == 0 for distance in distances)
    assert max(distances, default=0) - min(distances, default=0) <= 4


def test_windows_shared_states_and_rarer_shapes_are_not_chosen():
    plan = StatePlan(
        (
            attention(window=512),
            attention(8, 128),
            attention(),
            Shared(2),
            attention(),
            attention(window=512),
        )
    )
    assert scored_layers(plan, 10**6, 1, None) == (2, 4)


def test_more_layers_than_there_are_and_no_layers_are_errors():
    with pytest.raises(SettingsError, match="17 layers cannot score chunks: 1 to 16 can"):
        scored_layers(hybrid(64), 256, 4096, 17)
    with pytest.raises(SettingsError, match="0 layers cannot score chunks"):
        scored_layers(hybrid(64), 256, 4096, 0)
    with pytest.raises(SettingsError, match="no layer attends to all positions"):
        scored_layers(StatePlan((RECURRENT, attention(window=64))), 256, 4096, None)
